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

KERNEL(proxy_global_no_fence) {
    __shared__ alignas(128) u32 buffer[64];
    __shared__ u64 full;
    const u32 t = threadIdx.x;
    if (t == 0) BARRIER_INIT(&full, 1);
    if (t == 0) BARRIER_INIT_FENCE();
    out[t] = x[t];
    if (!broken) GLOBAL_PROXY_FENCE();
    __syncthreads();
    if (t == 0) {
        EXPECT(&full, 256);
        BULK_LOAD(buffer, out, 256, &full);  // hazard: proxy-global-no-fence
    }
    WAIT(&full, 0);
    out[64 + t] = buffer[63 - t];
}

KERNEL(proxy_global_fence_of_shared) {
    __shared__ alignas(128) u32 buffer[64];
    const u32 t = threadIdx.x;
    buffer[t] = out[64 + t] = x[t];
    if (broken) PROXY_FENCE();
    if (!broken) ALL_PROXY_FENCE();
    __syncthreads();
    if (t == 0) {
        BULK_ADD(out + 64, buffer, 256);  // hazard: proxy-global-fence-of-shared
        BULK_COMMIT();
        BULK_WAIT_READ(0);
    }
}

KERNEL(proxy_store_not_complete) {
    __shared__ alignas(128) u32 buffer[64];
    const u32 t = threadIdx.x;
    buffer[t] = x[t];
    PROXY_FENCE();
    __syncthreads();
    if (t == 0) {
        BULK_STORE(out, buffer, 256);
        BULK_COMMIT();
        if (broken) BULK_WAIT_READ(0);
        if (!broken) BULK_WAIT(0);
        out[64] = out[63];  // hazard: proxy-store-not-complete
    }
}
