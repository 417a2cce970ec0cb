// mbarriers and bulk copies, as inline PTX; addresses are those of shared memory. Macros, so that an instruction is on
// the kernel's own line.
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
#define WAIT(b, parity) for (u32 waited = 0; !waited;) TRY_WAIT(waited, b, parity)
#define BULK_LOAD(to, from, bytes, b) \
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" \
                 ::"r"(SHARED(to)), "l"(from), "r"(bytes), "r"(SHARED(b)) : "memory")
#define BULK_STORE(to, from, bytes) \
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" \
                 ::"l"(to), "r"(SHARED(from)), "r"(bytes) : "memory")
#define BULK_COMMIT() asm volatile("cp.async.bulk.commit_group;" ::: "memory")
#define BULK_WAIT_READ(n) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(n) : "memory")
#define BAR_SYNC(b, n) asm volatile("bar.sync %0, %1;" ::"n"(b), "n"(n) : "memory")
#define SETMAXNREG(way, n) asm volatile("setmaxnreg." #way ".sync.aligned.u32 %0;" ::"n"(n))
#define PROXY_FENCE() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")

#define ALL_PROXY_FENCE() asm volatile("fence.proxy.async;" ::: "memory")
#define GLOBAL_PROXY_FENCE() asm volatile("fence.proxy.async.global;" ::: "memory")
#define BULK_ADD(to, from, bytes) \
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], %2;" \
                 ::"l"(to), "r"(SHARED(from)), "r"(bytes) : "memory")
#define BULK_WAIT(n) asm volatile("cp.async.bulk.wait_group %0;" ::"n"(n) : "memory")

// Order through global memory, and between launches. The scope is part of the instruction's name: "acquire.gpu".
#define FENCE(scope) asm volatile("fence.acq_rel." scope ";" ::: "memory")
#define STORE(order, p, value) asm volatile("st." order ".global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory")
#define AWAIT(order, p) \
    for (u32 seen = 0; !seen;) asm volatile("ld." order ".global.u32 %0, [%1];" : "=r"(seen) : "l"(p) : "memory")
#define ADD(scope, p, value) \
    asm volatile("red.relaxed." scope ".global.add.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory")
#define LAUNCH_DEPENDENTS() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define GRID_WAIT() asm volatile("griddepcontrol.wait;" ::: "memory")

// Tensor maps: fields of a map in shared memory, a copy of it that is released, an acquire before its use.
#define MAP_SET(field, map, value) \
    asm volatile("tensormap.replace.tile." field ".shared::cta.b1024.b32 [%0], %1;" \
                 ::"r"(SHARED(map)), "n"(value) : "memory")
#define MAP_SET_ADDRESS(map, address) \
    asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" \
                 ::"r"(SHARED(map)), "l"(address) : "memory")
#define MAP_SET_FIRST(field, map, value) \
    asm volatile("tensormap.replace.tile." field ".shared::cta.b1024.b32 [%0], 0, %1;" \
                 ::"r"(SHARED(map)), "r"(value) : "memory")
#define MAP_PUBLISH(to, map) \
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned " \
                 "[%0], [%1], 128;" ::"l"(to), "r"(SHARED(map)) : "memory")
#define MAP_RELEASE() asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory")
#define MAP_ACQUIRE(map) asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory")
#define TENSOR_LOAD(to, map, first, b) \
    asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2}], [%3];" \
                 ::"r"(SHARED(to)), "l"(map), "r"(first), "r"(SHARED(b)) : "memory")

// Tensor memory: 32 columns are allocated by a warp; a warp reaches the 32 lanes of its number within a warpgroup.
#define TMEM_ALLOC(slot, columns) \
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" \
                 ::"r"(SHARED(slot)), "n"(columns) : "memory")
#define TMEM_RELINQUISH() asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory")
#define TMEM_FREE(tmem, columns) \
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(tmem), "n"(columns) : "memory")
#define TMEM_STORE(tmem, value) \
    asm volatile("tcgen05.st.sync.aligned.32x32b.x1.b32 [%0], {%1};" ::"r"(tmem), "r"(value) : "memory")
#define TMEM_LOAD(value, tmem) \
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=r"(value) : "r"(tmem) : "memory")
#define TMEM_WAIT_ST() asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory")
#define TMEM_WAIT_LD() asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory")
#define FENCE_BEFORE() asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory")
#define FENCE_AFTER() asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory")
#define MMA_COMMIT(b) \
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" \
                 ::"r"(SHARED(b)) : "memory")
// D = A B^T, 128 x 16 x 16 in f16 with f32 sums, operands without swizzle: 8 rows of 16 bytes are contiguous.
#define MMA(tmem, a, b, instruction) \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 0, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }" \
                 ::"r"(tmem), "l"(OPERAND(a)), "l"(OPERAND(b)), "r"(instruction) : "memory")
#define OPERAND(p) ((u64)(SHARED(p) / 16) | 8ull << 16 | 16ull << 32 | 1ull << 46)
#define INSTRUCTION(m, n) (1u << 4 | (n) / 8u << 17 | (m) / 16u << 24)

// Clusters.
#define CLUSTER_SYNC() \
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory")
#define ARRIVE_PEER(b, rank) \
    asm volatile("{ .reg .b32 r; mapa.shared::cluster.u32 r, %0, %1; " \
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r]; }" \
                 ::"r"(SHARED(b)), "r"(rank) : "memory")
#define ARRIVE_PEER_IN_CTA(b, rank) \
    asm volatile("{ .reg .b32 r; mapa.shared::cluster.u32 r, %0, %1; " \
                 "mbarrier.arrive.release.cta.shared::cluster.b64 _, [r]; }" \
                 ::"r"(SHARED(b)), "r"(rank) : "memory")
#define LOAD_PEER(value, p, rank) \
    asm volatile("{ .reg .b32 r; mapa.shared::cluster.u32 r, %1, %2; ld.shared::cluster.u32 %0, [r]; }" \
                 : "=r"(value) : "r"(SHARED(p)), "r"(rank) : "memory")
#define TRY_WAIT_CLUSTER(done, b, parity) \
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; " \
                 "selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(SHARED(b)), "r"(parity) : "memory")
#define WAIT_CLUSTER(b, parity) for (u32 waited = 0; !waited;) TRY_WAIT_CLUSTER(waited, b, parity)
#define MULTICAST(to, from, bytes, b, mask) \
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster " \
                 "[%0], [%1], %2, [%3], %4;" \
                 ::"r"(SHARED(to)), "l"(from), "r"(bytes), "r"(SHARED(b)), "h"(mask) : "memory")
