// Lanes of one warp: they need not run in lockstep, and only bar.warp.sync orders what they do in memory.
#include "zoo.cuh"

KERNEL(lanes_no_warp_sync) {
    __shared__ u32 buffer[32];
    const u32 t = threadIdx.x;
    buffer[t] = x[t];
    if (!broken) __syncwarp();
    out[t] = buffer[31 - t];  // hazard: lanes-no-warp-sync
}

KERNEL(lanes_shuffle_for_sync) {
    __shared__ u32 buffer[32];
    const u32 t = threadIdx.x;
    buffer[t] = x[t];
    const u32 other = __shfl_xor_sync(~0u, t, 1);
    if (!broken) __syncwarp();
    out[t] = buffer[other];  // hazard: lanes-shuffle-for-sync
}

KERNEL(lanes_sync_of_one_side) {
    __shared__ u32 buffer[32];
    const u32 t = threadIdx.x;
    if (t < 16) {
        buffer[t] = x[t];
        __syncwarp(broken ? 0xffffu : ~0u);
    } else {
        if (!broken) __syncwarp();
        out[t] = buffer[t - 16];  // hazard: lanes-sync-of-one-side
    }
}

KERNEL(lanes_one_word) {
    __shared__ u32 word;
    const u32 t = threadIdx.x;
    if (broken || t == 31) word = x[t];  // hazard: lanes-one-word
    __syncwarp();
    out[t] = word;
}

KERNEL(lanes_one_arrives) {
    __shared__ u32 buffer[32];
    __shared__ u64 full;
    const u32 t = threadIdx.x;
    if (t == 0) BARRIER_INIT(&full, 1);
    __syncthreads();
    if (t < 32) {
        buffer[t] = x[t];
        if (!broken) __syncwarp();
        if (t == 0) ARRIVE(&full);
    } else {
        WAIT(&full, 0);
        out[t] = buffer[t - 32];  // hazard: lanes-one-arrives
    }
}
