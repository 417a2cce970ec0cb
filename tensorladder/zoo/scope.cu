// Scope and mask.
#include "zoo.cuh"

KERNEL(scope_multicast_outside) {
    __shared__ alignas(128) u32 slot[64];
    __shared__ u64 full;
    const u32 t = threadIdx.x;
    if (t == 0) {
        BARRIER_INIT(&full, 1);
        BARRIER_INIT_FENCE();
        EXPECT(&full, 256);
    }
    CLUSTER_SYNC();
    if (t == 0 && blockIdx.x == 0) {
        const unsigned short mask = broken ? 7 : 3;
        MULTICAST(slot, x, 256, &full, mask);  // hazard: scope-multicast-outside
    }
    WAIT(&full, 0);
    out[64 * blockIdx.x + t] = slot[t];
    CLUSTER_SYNC();
}

KERNEL(scope_cta_barrier_before_peer_reads) {
    __shared__ u32 buffer[64];
    const u32 t = threadIdx.x;
    buffer[t] = x[64 * blockIdx.x + t];
    if (broken) __syncthreads();
    if (!broken) CLUSTER_SYNC();
    u32 value;
    LOAD_PEER(value, buffer + t, blockIdx.x ^ 1);  // hazard: scope-cta-barrier-before-peer-reads
    out[64 * blockIdx.x + t] = value;
    CLUSTER_SYNC();
}
