// Tensor memory's life.
#include "zoo.cuh"

KERNEL(tmem_leak) {
    __shared__ u32 slot;
    if (threadIdx.x < 32) {
        TMEM_ALLOC(&slot, 32);  // hazard: tmem-leak
        TMEM_RELINQUISH();
    }
    __syncthreads();
    if (threadIdx.x < 32 && !broken) TMEM_FREE(slot, 32);
}

KERNEL(tmem_freed_while_read) {
    __shared__ u32 slot;
    const u32 t = threadIdx.x, lanes = t / 32 * 32 << 16;
    if (t < 32) {
        TMEM_ALLOC(&slot, 32);
        TMEM_RELINQUISH();
    }
    FENCE_BEFORE();
    __syncthreads();
    FENCE_AFTER();
    const u32 tmem = slot;
    u32 value;
    TMEM_STORE(tmem + lanes, x[t]);
    TMEM_WAIT_ST();
    TMEM_LOAD(value, tmem + lanes);
    TMEM_WAIT_LD();
    out[t] = value;
    FENCE_BEFORE();
    if (!broken) __syncthreads();
    FENCE_AFTER();
    if (t < 32) TMEM_FREE(tmem, 32);  // hazard: tmem-freed-while-read
}

KERNEL(tmem_alloc_without_permit) {
    __shared__ u32 slots[2];
    if (threadIdx.x < 32) {
        TMEM_ALLOC(&slots[0], 32);
        if (broken) TMEM_RELINQUISH();
        TMEM_ALLOC(&slots[1], 32);  // hazard: tmem-alloc-without-permit
        TMEM_FREE(slots[0], 32);
        TMEM_FREE(slots[1], 32);
    }
}

KERNEL(tmem_store_not_waited) {
    __shared__ u32 slot;
    const u32 t = threadIdx.x, lanes = t / 32 % 4 * 32 << 16;
    if (t < 32) {
        TMEM_ALLOC(&slot, 32);
        TMEM_RELINQUISH();
    }
    FENCE_BEFORE();
    __syncthreads();
    FENCE_AFTER();
    const u32 tmem = slot;
    if (t < 128) {
        TMEM_STORE(tmem + lanes, x[t]);
        if (!broken) TMEM_WAIT_ST();
    }
    FENCE_BEFORE();
    __syncthreads();
    FENCE_AFTER();
    if (t >= 128) {
        u32 value;
        TMEM_LOAD(value, tmem + lanes);  // hazard: tmem-store-not-waited
        TMEM_WAIT_LD();
        out[t] = value;
    }
    FENCE_BEFORE();
    __syncthreads();
    FENCE_AFTER();
    if (t < 32) TMEM_FREE(tmem, 32);
}
