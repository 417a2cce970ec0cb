// Race: two warps, or two CTAs, use the same bytes and nothing orders them.
#include "zoo.cuh"

KERNEL(race_write_before_readers_are_done) {
    __shared__ u32 buffer[64];
    const u32 t = threadIdx.x;
    u32 sum = 0;
    for (int step = 0; step < 2; ++step) {
        buffer[t] = x[64 * step + t];  // hazard: race-write-before-readers-are-done
        __syncthreads();
        sum += buffer[63 - t];
        if (!broken) __syncthreads();
    }
    out[t] = sum;
}

KERNEL(race_two_ctas_write) {
    if (threadIdx.x == 0) out[broken ? 0 : blockIdx.x] = x[blockIdx.x];  // hazard: race-two-ctas-write
}

KERNEL(race_flag_without_fences) {
    u32* flag = out + 32;
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        *out = x[1];
        if (!broken) FENCE("gpu");
        STORE("volatile", flag, 1);
    } else {
        AWAIT("volatile", flag);
        if (!broken) FENCE("gpu");
        out[1] = *out;  // hazard: race-flag-without-fences
    }
}
