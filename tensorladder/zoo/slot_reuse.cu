// Slot reused too early: what a bulk store still reads is overwritten.
#include "zoo.cuh"

KERNEL(slot_reuse_store_in_flight) {
    __shared__ alignas(128) u32 buffer[64];
    for (int chunk = 0; chunk < 2; ++chunk) {
        buffer[threadIdx.x] = x[64 * chunk + threadIdx.x];  // hazard: slot-reuse-store-in-flight
        PROXY_FENCE();
        __syncthreads();
        if (threadIdx.x == 0) {
            BULK_STORE(out + 64 * chunk, buffer, 256);
            BULK_COMMIT();
            if (!broken) BULK_WAIT_READ(0);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) BULK_WAIT_READ(0);
}

KERNEL(slot_reuse_commit_but_no_wait) {
    __shared__ alignas(128) u32 buffers[2][64];
    for (int chunk = 0; chunk < 3; ++chunk) {
        u32* buffer = buffers[chunk % 2];
        buffer[threadIdx.x] = x[64 * chunk + threadIdx.x];  // hazard: slot-reuse-commit-but-no-wait
        PROXY_FENCE();
        __syncthreads();
        if (threadIdx.x == 0) {
            BULK_STORE(out + 64 * chunk, buffer, 256);
            BULK_COMMIT();
            BULK_WAIT_READ(broken ? 2 : 1);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) BULK_WAIT_READ(0);
}
