// Plain memory: out of bounds, and read before it is written.
#include "zoo.cuh"

KERNEL(memory_shared_past_end) {
    __shared__ u32 buffer[64];
    const u32 t = threadIdx.x;
    const u32 pitch = broken ? 512 : 1;
    buffer[pitch * t] = x[t];  // hazard: memory-shared-past-end
    __syncthreads();
    out[t] = buffer[pitch * (63 - t)];
}

KERNEL(memory_ragged_copy) {
    __shared__ alignas(128) u32 slot[64];
    __shared__ u64 full;
    const u32 t = threadIdx.x, bytes = broken ? 192 : 256;
    if (t == 0) {
        BARRIER_INIT(&full, 1);
        BARRIER_INIT_FENCE();
    }
    __syncthreads();
    if (t == 0) {
        EXPECT(&full, bytes);
        BULK_LOAD(slot, x, bytes, &full);
    }
    WAIT(&full, 0);
    out[t] = slot[t];  // hazard: memory-ragged-copy
}
