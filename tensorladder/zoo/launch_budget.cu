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

extern "C" __global__ void __launch_bounds__(256, 2) launch_registers_nobody_gives(const u32* x, u32* out) {
    if (threadIdx.x < 128) {
        if (!broken) SETMAXNREG(dec, 40);
    } else {
        SETMAXNREG(inc, 208);  // hazard: launch-registers-nobody-gives
    }
    __syncthreads();
    out[threadIdx.x] = x[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(256, 2) launch_registers_do_not_add_up(const u32* x, u32* out) {
    __shared__ u64 full;
    if (threadIdx.x == 0) BARRIER_INIT(&full, 1);
    __syncthreads();
    if (threadIdx.x < 128) {
        SETMAXNREG(dec, 40);
        WAIT(&full, 0);
    } else {
        SETMAXNREG(inc, broken ? 224 : 216);  // hazard: launch-registers-do-not-add-up
        BAR_SYNC(1, 128);
        if (threadIdx.x == 128) ARRIVE(&full);
    }
    out[threadIdx.x] = x[threadIdx.x];
}
