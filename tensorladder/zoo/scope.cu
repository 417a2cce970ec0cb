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

KERNEL(scope_fence_of_cta_before_flag) {
    u32* flag = out + 32;
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        *out = x[1];
        if (broken) FENCE("cta");
        if (!broken) FENCE("gpu");
        STORE("relaxed.gpu", flag, 1);
    } else {
        AWAIT("acquire.gpu", flag);
        out[1] = *out;  // hazard: scope-fence-of-cta-before-flag
    }
}

KERNEL(scope_fence_of_cta_after_poll) {
    u32* flag = out + 32;
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        *out = x[1];
        STORE("release.gpu", flag, 1);
    } else {
        AWAIT("relaxed.gpu", flag);
        if (broken) FENCE("cta");
        if (!broken) FENCE("gpu");
        out[1] = *out;  // hazard: scope-fence-of-cta-after-poll
    }
}

KERNEL(scope_atomics_of_cta) {
    if (broken) ADD("cta", out, x[threadIdx.x]);  // hazard: scope-atomics-of-cta
    if (!broken) ADD("gpu", out, x[threadIdx.x]);
}

KERNEL(scope_arrival_of_cta_at_peer) {
    __shared__ u32 buffer[64];
    __shared__ u64 empty;
    const u32 t = threadIdx.x;
    buffer[t] = x[t];
    if (t == 0) BARRIER_INIT(&empty, 64);
    if (t == 0) BARRIER_INIT_FENCE();
    CLUSTER_SYNC();
    if (blockIdx.x == 1) {
        u32 value;
        LOAD_PEER(value, buffer + t, 0);
        if (broken) ARRIVE_PEER_IN_CTA(&empty, 0);
        if (!broken) ARRIVE_PEER(&empty, 0);
        out[t] = value;
    } else {
        WAIT_CLUSTER(&empty, 0);
        buffer[t] = 0;  // hazard: scope-arrival-of-cta-at-peer
    }
    CLUSTER_SYNC();
}

KERNEL(scope_wait_of_cta_for_peer_writes) {
    __shared__ u32 buffer[64];
    __shared__ u64 full;
    const u32 t = threadIdx.x;
    if (t == 0) BARRIER_INIT(&full, 64);
    if (t == 0) BARRIER_INIT_FENCE();
    CLUSTER_SYNC();
    if (blockIdx.x == 1) {
        buffer[t] = x[t];
        ARRIVE_PEER(&full, 0);
    } else {
        u32 value;
        if (broken) WAIT(&full, 0);
        if (!broken) WAIT_CLUSTER(&full, 0);
        LOAD_PEER(value, buffer + t, 1);  // hazard: scope-wait-of-cta-for-peer-writes
        out[t] = value;
    }
    CLUSTER_SYNC();
}
