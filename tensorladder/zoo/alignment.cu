// Alignment and descriptors.
#include "zoo.cuh"

KERNEL(alignment_bulk_copy) {
    __shared__ alignas(128) u32 slot[72];
    __shared__ u64 full;
    const u32 t = threadIdx.x;
    u32* to = slot + (broken ? 1 : 4);
    if (t == 0) {
        BARRIER_INIT(&full, 1);
        BARRIER_INIT_FENCE();
    }
    __syncthreads();
    if (t == 0) {
        EXPECT(&full, 256);
        BULK_LOAD(to, x, 256, &full);  // hazard: alignment-bulk-copy
    }
    WAIT(&full, 0);
    out[t] = to[t];
}

KERNEL(alignment_vector_load) {
    const uint4* from = reinterpret_cast<const uint4*>(x + (broken ? 1 : 4));
    const uint4 v = from[threadIdx.x];  // hazard: alignment-vector-load
    out[threadIdx.x] = v.x + v.y + v.z + v.w;
}

#if __CUDA_ARCH__ >= 1000
KERNEL(descriptor_instruction) {
    __shared__ alignas(1024) u32 a[1024];
    __shared__ alignas(1024) u32 b[128];
    __shared__ u64 done;
    __shared__ u32 slot;
    const u32 t = threadIdx.x;
    for (u32 i = t; i < 1024; i += 64) a[i] = b[i % 128] = 0x3c003c00;
    if (t == 0) BARRIER_INIT(&done, 1);
    if (t == 0) BARRIER_INIT_FENCE();
    if (t < 32) {
        TMEM_ALLOC(&slot, 32);
        TMEM_RELINQUISH();
    }
    PROXY_FENCE();
    FENCE_BEFORE();
    __syncthreads();
    FENCE_AFTER();
    if (t == 0) {
        MMA(slot, a, b, INSTRUCTION(broken ? 48 : 128, 16));  // hazard: descriptor-instruction
        MMA_COMMIT(&done);
    }
    WAIT(&done, 0);
    FENCE_BEFORE();
    __syncthreads();
    FENCE_AFTER();
    if (t < 32) TMEM_FREE(slot, 32);
}
#endif
