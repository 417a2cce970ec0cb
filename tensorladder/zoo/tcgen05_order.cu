// Order of tcgen05 operations: 128 threads multiply ones, one of them issues.
#include "zoo.cuh"

// Operands of ones in shared memory, columns in tensor memory, a barrier.
#define SET_UP() \
    __shared__ alignas(1024) u32 a[1024]; \
    __shared__ alignas(1024) u32 b[128]; \
    __shared__ u64 done; \
    __shared__ u32 slot; \
    const u32 t = threadIdx.x, lanes = t / 32 * 32 << 16; \
    for (u32 i = t; i < 1024; i += 128) a[i] = b[i % 128] = 0x3c003c00; \
    if (t == 0) BARRIER_INIT(&done, 1); \
    if (t == 0) BARRIER_INIT_FENCE(); \
    if (t < 32) { \
        TMEM_ALLOC(&slot, 32); \
        TMEM_RELINQUISH(); \
    } \
    PROXY_FENCE(); \
    FENCE_BEFORE(); \
    __syncthreads(); \
    FENCE_AFTER(); \
    const u32 tmem = slot

#define FREE() \
    FENCE_BEFORE(); \
    __syncthreads(); \
    FENCE_AFTER(); \
    if (t < 32) TMEM_FREE(tmem, 32)

KERNEL(tcgen05_no_commit) {
    SET_UP();
    if (t == 0) MMA(tmem, a, b, INSTRUCTION(128, 16));
    if (t == 0 && !broken) MMA_COMMIT(&done);
    __syncthreads();
    if (!broken) WAIT(&done, 0);
    FENCE_AFTER();
    u32 sum;
    TMEM_LOAD(sum, tmem + lanes);  // hazard: tcgen05-no-commit
    TMEM_WAIT_LD();
    out[t] = sum;
    FREE();
}

KERNEL(tcgen05_commit_before_product) {
    SET_UP();
    if (t == 0) {
        if (broken) MMA_COMMIT(&done);
        MMA(tmem, a, b, INSTRUCTION(128, 16));
        if (!broken) MMA_COMMIT(&done);
    }
    __syncwarp();
    WAIT(&done, 0);
    FENCE_AFTER();
    u32 sum;
    TMEM_LOAD(sum, tmem + lanes);  // hazard: tcgen05-commit-before-product
    TMEM_WAIT_LD();
    out[t] = sum;
    FREE();
}

KERNEL(tcgen05_commit_by_other_thread) {
    SET_UP();
    if (t == 1) MMA(tmem, a, b, INSTRUCTION(128, 16));
    __syncwarp();
    if (t == (broken ? 0 : 1)) MMA_COMMIT(&done);  // hazard: tcgen05-commit-by-other-thread
    __syncwarp();
    WAIT(&done, 0);
    FENCE_AFTER();
    u32 sum;
    TMEM_LOAD(sum, tmem + lanes);
    TMEM_WAIT_LD();
    out[t] = sum;
    FREE();
}

KERNEL(tcgen05_no_fence_after_wait) {
    SET_UP();
    if (t == 0) {
        MMA(tmem, a, b, INSTRUCTION(128, 16));
        MMA_COMMIT(&done);
    }
    __syncwarp();
    WAIT(&done, 0);
    if (!broken) FENCE_AFTER();
    u32 sum;
    TMEM_LOAD(sum, tmem + lanes);  // hazard: tcgen05-no-fence-after-wait
    TMEM_WAIT_LD();
    out[t] = sum;
    FREE();
}

// Warps 0 to 3 store to the lanes of tensor memory that warps 4 to 7 load.
#define STORE_AND_LOAD(before, after) \
    __shared__ u32 slot; \
    const u32 t = threadIdx.x, lanes = t % 128 / 32 * 32 << 16; \
    if (t < 32) TMEM_ALLOC(&slot, 32); \
    if (t < 32) TMEM_RELINQUISH(); \
    FENCE_BEFORE(); \
    __syncthreads(); \
    FENCE_AFTER(); \
    const u32 tmem = slot; \
    if (t < 128) TMEM_STORE(tmem + lanes, x[t]); \
    if (t < 128) TMEM_WAIT_ST(); \
    if (before) FENCE_BEFORE(); \
    __syncthreads(); \
    if (after) FENCE_AFTER(); \
    u32 value = 0

KERNEL(tcgen05_no_fence_before_barrier) {
    STORE_AND_LOAD(!broken, true);
    if (t >= 128) TMEM_LOAD(value, tmem + lanes);  // hazard: tcgen05-no-fence-before-barrier
    TMEM_WAIT_LD();
    out[t] = value;
    FREE();
}

KERNEL(tcgen05_no_fence_after_barrier) {
    STORE_AND_LOAD(true, !broken);
    if (t >= 128) TMEM_LOAD(value, tmem + lanes);  // hazard: tcgen05-no-fence-after-barrier
    TMEM_WAIT_LD();
    out[t] = value;
    FREE();
}
