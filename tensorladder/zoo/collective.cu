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

KERNEL(collective_shuffle_absent_lanes) {
    u32 value = x[threadIdx.x];
    const u32 mask = broken ? 0xffffffff : 0xffff;
    if (threadIdx.x % 32 < 16) value += __shfl_xor_sync(mask, value, 1);  // hazard: collective-shuffle-absent-lanes
    out[threadIdx.x] = value;
}

KERNEL(collective_masks_differ) {
    const u32 lower = broken ? 0xffffffff : 0xffff;
    const u32 mask = threadIdx.x % 32 < 16 ? lower : 0xffff0000;
    out[threadIdx.x] = __reduce_add_sync(mask, x[threadIdx.x]);  // hazard: collective-masks-differ
}

extern "C" __global__ void __launch_bounds__(128, 1) collective_setmaxnreg_two_warps(const u32* x, u32* out) {
    if (!broken || threadIdx.x < 64) SETMAXNREG(dec, 40);  // hazard: collective-setmaxnreg-two-warps
    out[threadIdx.x] = x[threadIdx.x];
}
