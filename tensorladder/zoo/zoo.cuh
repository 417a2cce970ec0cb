// mbarriers and bulk copies, as inline PTX; addresses are those of shared memory. Macros, so that an instruction's line is
// the kernel's own.
#pragma once

constexpr bool broken = BROKEN;

using u32 = unsigned;
using u64 = unsigned long long;

#define KERNEL(name) extern "C" __global__ void name(const u32* x, u32* out)
#define SHARED(p) static_cast<u32>(__cvta_generic_to_shared(p))
#define BARRIER_INIT(b, n) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SHARED(b)), "r"(n) : "memory")
#define BARRIER_INIT_FENCE() asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory")
#define ARRIVE(b) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SHARED(b)) : "memory")
#define EXPECT(b, n) \
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SHARED(b)), "r"(n) : "memory")
#define TRY_WAIT(done, b, parity) \
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" \
                 : "=r"(done) : "r"(SHARED(b)), "r"(parity) : "memory")
#define WAIT(b, parity) for (u32 done = 0; !done;) TRY_WAIT(done, b, parity)
#define BULK_LOAD(to, from, bytes, b) \
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" \
                 ::"r"(SHARED(to)), "l"(from), "r"(bytes), "r"(SHARED(b)) : "memory")
#define BULK_STORE(to, from, bytes) \
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" \
                 ::"l"(to), "r"(SHARED(from)), "r"(bytes) : "memory")
#define BULK_COMMIT() asm volatile("cp.async.bulk.commit_group;" ::: "memory")
#define BULK_WAIT_READ(n) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(n) : "memory")
#define PROXY_FENCE() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
