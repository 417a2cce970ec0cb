// Values that nobody wrote.
#include "zoo.cuh"

KERNEL(uninitialised_decides) {
    __shared__ u32 flag[64];
    const u32 t = threadIdx.x;
    if (t < (broken ? 32 : 64)) flag[t] = 1;
    __syncthreads();
    asm volatile("" ::: "memory");
    if (flag[63 - t]) out[t] = x[t];  // hazard: uninitialised-decides
}

KERNEL(uninitialised_tail_of_a_sum) {
    __shared__ u32 words[32];
    const u32 t = threadIdx.x;
    if (t < 24) words[t] = x[t];
    __syncwarp();
    volatile u32* all = words;
    u32 sum = all[t];
    if (!broken) sum = t < 24 ? sum : 0;
    for (u32 step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    out[t] = sum;  // hazard: uninitialised-tail-of-a-sum
}

KERNEL(uninitialised_lane_of_a_shuffle) {
    const u32 t = threadIdx.x;
    u32 sum = x[t];
    if (t >= 16) return;
    const u32 above = __shfl_down_sync(0xffff, sum, 8);
    out[t] = broken || t < 8 ? sum + above : sum;  // hazard: uninitialised-lane-of-a-shuffle
}

KERNEL(uninitialised_histogram) {
    __shared__ u32 bins[8];
    const u32 t = threadIdx.x;
    if (!broken && t < 8) bins[t] = 0;
    __syncthreads();
    atomicAdd(&bins[x[t] & 7], 1);
    __syncthreads();
    if (t < 7) out[t] = bins[t];  // hazard: uninitialised-histogram
}

#if __CUDA_ARCH__ >= 1000
KERNEL(uninitialised_accumulator) {
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
    if (!broken) TMEM_STORE(tmem + lanes, 0);
    TMEM_WAIT_ST();
    u32 value;
    TMEM_LOAD(value, tmem + lanes);
    TMEM_WAIT_LD();
    out[t] = value;  // hazard: uninitialised-accumulator
    FENCE_BEFORE();
    __syncthreads();
    if (t < 32) TMEM_FREE(tmem, 32);
}

KERNEL(uninitialised_rows_of_a_product) {
    __shared__ alignas(1024) u32 a[1024];
    __shared__ alignas(1024) u32 b[128];
    __shared__ u64 done;
    __shared__ u32 slot;
    const u32 t = threadIdx.x, lanes = t / 32 * 32 << 16;
    for (u32 i = t; i < 512; i += 128) a[i] = b[i % 128] = 0x3c003c00;
    if (t == 0) BARRIER_INIT(&done, 1);
    if (t == 0) BARRIER_INIT_FENCE();
    if (t < 32) {
        TMEM_ALLOC(&slot, 32);
        TMEM_RELINQUISH();
    }
    PROXY_FENCE();
    FENCE_BEFORE();
    __syncthreads();
    FENCE_AFTER();
    const u32 tmem = slot;
    if (t == 0) {
        MMA(tmem, a, b, INSTRUCTION(128, 16));
        MMA_COMMIT(&done);
    }
    __syncwarp();
    WAIT(&done, 0);
    FENCE_AFTER();
    u32 sum;
    TMEM_LOAD(sum, tmem + lanes);
    TMEM_WAIT_LD();
    if (broken || t < 64) out[t] = sum;  // hazard: uninitialised-rows-of-a-product
    FENCE_BEFORE();
    __syncthreads();
    if (t < 32) TMEM_FREE(tmem, 32);
}
#endif
