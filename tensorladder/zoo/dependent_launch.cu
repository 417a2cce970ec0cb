// Dependent launch: the kernel is launched twice, the second launch may start before the first one is over.
#include "zoo.cuh"

KERNEL(dependent_no_wait) {
    const u32 t = threadIdx.x;
    LAUNCH_DEPENDENTS();
    if (!broken) GRID_WAIT();
    out[t] = 2 * out[t] + x[t];  // hazard: dependent-no-wait
}

KERNEL(dependent_wait_of_one_warp) {
    const u32 t = threadIdx.x;
    LAUNCH_DEPENDENTS();
    if (t < 32) GRID_WAIT();
    if (!broken) __syncthreads();
    out[t] = 2 * out[t] + x[t];  // hazard: dependent-wait-of-one-warp
}

KERNEL(dependent_trigger_taken_for_wait) {
    const u32 t = threadIdx.x;
    if (!broken) GRID_WAIT();
    out[t] = 2 * out[t] + x[t];  // hazard: dependent-trigger-taken-for-wait
    __threadfence();
    LAUNCH_DEPENDENTS();
}
