// mbarriers and TMA, as inline PTX. Addresses are those of shared memory, 32 bits. See the PTX ISA, "mbarrier" and
// "cp.async.bulk.tensor".
#pragma once
#include "element.cuh"

// What cuTensorMapEncodeTiled makes: which matrix, and how its tiles lie in shared memory. A kernel's parameter.
struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

__device__ inline void barrier_init(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}

// After barrier_init: TMA and tensor cores see the initialised barriers.
__device__ inline void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// One arrival, and so many bytes still to come in this phase.
__device__ inline void barrier_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

// Until the phase of this parity (0, 1, 0, ...) is complete.
__device__ inline void barrier_wait(unsigned barrier, unsigned parity) {
    unsigned done;
    do {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (!done);
}

// A box at (row, column) of a matrix to shared memory; its bytes are counted by the barrier. Outside is zero.
__device__ inline void tma_load(unsigned to, const TensorMap& map, int row, int column, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        :: "r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier) : "memory");
}
