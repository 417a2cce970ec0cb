// Collectives by a part of those who have to take part.
#include "zoo.cuh"

#if __CUDA_ARCH__ >= 1000
KERNEL(collective_aligned_by_one_lane) {
    __shared__ u32 slot;
    if (threadIdx.x < (broken ? 1 : 32)) TMEM_ALLOC(&slot, 32);  // hazard: collective-aligned-by-one-lane
    __syncwarp();
    if (threadIdx.x < 32) TMEM_FREE(slot, 32);
}
#endif

KERNEL(collective_named_barrier_count) {
    constexpr u32 threads = broken ? 96 : 64;
    if (threadIdx.x < 64) asm volatile("bar.sync 1, %0;" ::"n"(threads));  // hazard: collective-named-barrier-count
    __syncthreads();
}
