// Launch and budget.
#include "zoo.cuh"

KERNEL(launch_shared_memory) {
    extern __shared__ u32 buffer[];
    buffer[threadIdx.x] = x[threadIdx.x];
    out[threadIdx.x] = buffer[threadIdx.x];
}

extern "C" __global__ void __block_size__((64, 1, 1)) launch_block_not_reqntid(const u32* x, u32* out) {
    out[threadIdx.x] = x[threadIdx.x];
}

KERNEL(launch_cluster_too_large) { out[64 * blockIdx.x + threadIdx.x] = x[threadIdx.x]; }
