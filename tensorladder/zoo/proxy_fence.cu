// Missing proxy fence: a bulk store reads what threads wrote through the generic proxy.
#include "zoo.cuh"

KERNEL(proxy_fence_behind_barrier) {
    __shared__ alignas(128) u32 buffer[64];
    buffer[threadIdx.x] = x[threadIdx.x];
    if (!broken) PROXY_FENCE();
    __syncthreads();
    if (threadIdx.x == 0) {
        if (broken) PROXY_FENCE();
        BULK_STORE(out, buffer, 256);  // hazard: proxy-fence-behind-barrier
        BULK_COMMIT();
        BULK_WAIT_READ(0);
    }
}

KERNEL(proxy_fence_by_one_warp) {
    __shared__ alignas(128) u32 buffer[64];
    buffer[threadIdx.x] = x[threadIdx.x];
    if (!broken || threadIdx.x < 32) PROXY_FENCE();
    __syncthreads();
    if (threadIdx.x == 0) {
        BULK_STORE(out, buffer, 256);  // hazard: proxy-fence-by-one-warp
        BULK_COMMIT();
        BULK_WAIT_READ(0);
    }
}
