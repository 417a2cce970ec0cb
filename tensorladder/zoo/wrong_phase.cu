// Wrong phase: the parity that a wait asks for.
#include "zoo.cuh"

KERNEL(phase_starts_at_one) {
    __shared__ u32 buffer[64];
    __shared__ u64 full;
    const u32 t = threadIdx.x;
    if (t == 0) BARRIER_INIT(&full, 64);
    __syncthreads();
    buffer[t] = x[t];
    ARRIVE(&full);
    WAIT(&full, broken ? 1 : 0);
    out[t] = buffer[63 - t];  // hazard: phase-starts-at-one
}

KERNEL(phase_flipped_twice) {
    __shared__ u32 buffer[2][64];
    __shared__ u64 full;
    const u32 t = threadIdx.x;
    if (t == 0) BARRIER_INIT(&full, 64);
    __syncthreads();
    u32 parity = 0;
    for (int step = 0; step < 2; ++step) {
        buffer[step][t] = x[t];
        ARRIVE(&full);
        WAIT(&full, parity);
        parity ^= 1;
        if (broken) parity ^= 1;
        out[64 * step + t] = buffer[step][63 - t];  // hazard: phase-flipped-twice
    }
}
