// A CTA exits while a peer has still to access its shared memory.
#include "zoo.cuh"

KERNEL(exit_before_peer_arrives) {
    __shared__ u64 read;
    const u32 t = threadIdx.x;
    if (t == 0) {
        BARRIER_INIT(&read, 1);
        BARRIER_INIT_FENCE();
    }
    CLUSTER_SYNC();
    out[64 * blockIdx.x + t] = x[t];
    if (t == 0) ARRIVE_PEER(&read, blockIdx.x ^ 1);  // hazard: exit-before-peer-arrives
    if (!broken) WAIT_CLUSTER(&read, 0);
}

KERNEL(exit_before_peer_reads) {
    __shared__ u32 buffer[64];
    const u32 t = threadIdx.x;
    buffer[t] = x[64 * blockIdx.x + t];
    CLUSTER_SYNC();
    u32 value;
    LOAD_PEER(value, buffer + t, blockIdx.x ^ 1);  // hazard: exit-before-peer-reads
    out[64 * blockIdx.x + t] = value;
    if (!broken) CLUSTER_SYNC();
}
