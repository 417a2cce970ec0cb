// Arrivals or bytes that never come, or come twice.
#include "zoo.cuh"

KERNEL(count_too_few_expected) {
    __shared__ u32 buffer[64];
    __shared__ u64 full;
    const u32 t = threadIdx.x;
    if (t == 0) BARRIER_INIT(&full, broken ? 1 : 2);
    __syncthreads();
    buffer[t] = x[t];  // hazard: count-too-few-expected
    __syncwarp();
    if (t % 32 == 0) ARRIVE(&full);
    WAIT(&full, 0);
    out[t] = buffer[63 - t];
}

KERNEL(count_no_expect_tx) {
    __shared__ alignas(128) u32 slot[64];
    __shared__ u64 full;
    const u32 t = threadIdx.x;
    if (t == 0) {
        BARRIER_INIT(&full, 1);
        BARRIER_INIT_FENCE();
    }
    __syncthreads();
    if (t == 0) {
        if (broken) ARRIVE(&full);
        if (!broken) EXPECT(&full, 256);
        BULK_LOAD(slot, x, 256, &full);
    }
    WAIT(&full, 0);
    out[t] = slot[t];  // hazard: count-no-expect-tx
}

KERNEL(count_two_wait_on_each_other) {
    __shared__ u32 slot;
    __shared__ u64 full, empty;
    const u32 t = threadIdx.x;
    if (t == 0) {
        BARRIER_INIT(&full, 1);
        BARRIER_INIT(&empty, 1);
    }
    __syncthreads();
    if (t == 0) {
        WAIT(&empty, broken ? 0 : 1);  // hazard: count-two-wait-on-each-other
        slot = x[0];
        ARRIVE(&full);
    }
    if (t == 32) {
        WAIT(&full, 0);
        out[0] = slot;
        ARRIVE(&empty);
    }
}

KERNEL(count_a_warp_too_few) {
    __shared__ u64 full, empty;
    const u32 t = threadIdx.x;
    if (t == 0) {
        BARRIER_INIT(&full, 1);
        BARRIER_INIT(&empty, broken ? 3 : 4);
    }
    __syncthreads();
    for (u32 round = 0; round < 2; ++round) {
        if (t < 32) {
            WAIT(&empty, (round & 1) ^ 1);
            if (t == 0) ARRIVE(&full);
        } else {
            WAIT(&full, round & 1);
            if (t % 32 == 0) ARRIVE(&empty);  // hazard: count-a-warp-too-few
        }
    }
    out[t] = x[t];
}

KERNEL(count_one_for_a_warp) {
    __shared__ u64 full;
    const u32 t = threadIdx.x;
    if (t == 0) BARRIER_INIT(&full, 1);
    __syncthreads();
    if (t < (broken ? 32 : 1)) ARRIVE(&full);  // hazard: count-one-for-a-warp
    WAIT(&full, 0);
    out[t] = x[t];
}
