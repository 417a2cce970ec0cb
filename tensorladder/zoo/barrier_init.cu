// A barrier that is not initialised, not yet visible, or initialised twice, where it is used.
#include "zoo.cuh"

KERNEL(init_twice) {
    __shared__ u64 full;
    if (threadIdx.x == 0 || (broken && threadIdx.x == 32)) BARRIER_INIT(&full, 64);  // hazard: init-twice
    __syncthreads();
    ARRIVE(&full);
    WAIT(&full, 0);
}

KERNEL(init_peer_not_waited_for) {
    __shared__ u64 full;
    if (threadIdx.x == 0) {
        BARRIER_INIT(&full, 1);
        BARRIER_INIT_FENCE();
    }
    if (broken) __syncthreads();
    if (!broken) CLUSTER_SYNC();
    if (threadIdx.x == 0) ARRIVE_PEER(&full, blockIdx.x ^ 1);  // hazard: init-peer-not-waited-for
    WAIT_CLUSTER(&full, 0);
    CLUSTER_SYNC();
}
