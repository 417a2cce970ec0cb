"""Cluster reduction: a row summed by several CTAs that read and write each other's shared memory.

Adds:
    Three levels of cooperation, each as wide as its hardware: a warp (shuffles between registers), a CTA (shared memory
    and a barrier), and, new with Hopper, a cluster of CTAs on neighbouring SMs that can address each other's shared
    memory (distributed shared memory). A row too long for one CTA is spread over a cluster; its CTAs' partial sums meet
    in the first one's shared memory, not in global memory: no second kernel, no counters, no round trip through L2.
    - mapa turns a shared-memory address into that of the same variable in another CTA of the cluster.
    - Integers are added there by remote atomics: any order gives the same sum, and a cluster barrier (arrive has
      release, wait has acquire semantics) says that all have been.
    - Floating-point sums depend on the order, so each CTA stores its part in a place of its own and one warp adds them:
      the same bits every time. The stores are asynchronous (st.async) and counted in bytes by an mbarrier of the first
      CTA, on which that one warp waits; the other CTAs are done.
    - Before the first remote access comes a cluster barrier: the CTA written to must be running, and its sum and
      mbarrier initialised. It is arrived at early and waited for late, under the loads of the row.

Warp roles:
    | warps | role                                                                                  |
    |-------|---------------------------------------------------------------------------------------|
    | all 8 | sum a slice of the row, vector by vector, then over lanes by shuffles                  |
    | 0     | besides: sums the warps' parts; its lane 0 sends the CTA's to the first CTA            |
    | 0     | of the first CTA: sums the CTAs' parts, stores the row's                               |

Budget:
    SMEM: 8 warps x 4 B, 4 CTAs x 4 B, an mbarrier. Registers: 16 bytes of row and a sum, about 32 a thread. Traffic: X
    once, 4 B of distributed shared memory a CTA.

Run:
    tensorladder run a0-cluster-reduce --shape 8,16384
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.memory import SmemAllocator

from tensorladder.core import arch as archs
from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.rungs.parts.tensors import row_major
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class ClusterReduceConfig:
    """threads: a CTA. vector_bytes: a thread's access at most. cluster: CTAs that share a row."""

    threads: int = 256
    vector_bytes: int = 16
    cluster: int = 4


RUNG = Rung(
    name="a0-cluster-reduce",
    parent="a0-vector-add",
    adds="sums over lanes, warps and the CTAs of a cluster: shuffles, shared memory, remote atomics and stores",
    aside="for sums along rows, few of them and long",
    archs=("sm_90a", "sm_100a", "sm_120a"),
    problem="row_sum",
    dtypes=("fp32", "int32", "fp16", "bf16"),
    config=ClusterReduceConfig,
)

LANES = 32


class ClusterReduce:
    def __init__(self, config: ClusterReduceConfig):
        self.threads = config.threads
        self.warps = config.threads // LANES
        self.vector_bytes = config.vector_bytes
        self.cluster = config.cluster

    @cute.jit
    def __call__(self, mX: cute.Tensor, mY: cute.Tensor):
        # Rows are aligned to a vector only if it divides them.
        rows, cols = mX.shape
        vector = math.gcd(self.vector_bytes * 8 // mX.element_type.width, cols)
        self.kernel(mX, mY, vector).launch(
            grid=(self.cluster, rows, 1), block=(self.threads, 1, 1), cluster=(self.cluster, 1, 1)
        )

    @cute.kernel
    def kernel(self, mX: cute.Tensor, mY: cute.Tensor, vector: cutlass.Constexpr):
        tidx, _, _ = cute.arch.thread_idx()
        _, row, _ = cute.arch.block_idx()
        rank = cute.arch.block_idx_in_cluster()
        lane, warp = tidx % LANES, tidx // LANES
        integer = cutlass.const_expr(mX.element_type.is_integer)
        sum_type = cutlass.Int32 if integer else cutlass.Float32

        smem = SmemAllocator()
        of_warps = smem.allocate_tensor(sum_type, cute.make_layout(self.warps), 16)
        of_ctas = smem.allocate_tensor(sum_type, cute.make_layout(self.cluster), 16)
        all_stored = smem.allocate_array(cutlass.Int64)

        # Each CTA is running, and the first one's variables initialised, once all have passed the wait below.
        if rank == 0 and tidx == 0:
            of_ctas[0] = sum_type(0)
            cute.arch.mbarrier_init(all_stored, 1)
            cute.arch.mbarrier_init_fence()
            cute.arch.mbarrier_arrive_and_expect_tx(all_stored, self.cluster * 4)
        cute.arch.cluster_arrive()

        # A thread: every (cluster x threads)-th vector of the row.
        gX = mX[row, None]
        total = sum_type(0)
        for index in range(rank * self.threads + tidx, cute.size(gX) // vector, self.cluster * self.threads):
            rX = cute.local_tile(gX, (vector,), (index,)).load().to(sum_type)
            total += rX.reduce(cute.ReductionOp.ADD, sum_type(0), 0)

        # A warp, then the CTA: the warps' parts go through shared memory to the first warp.
        total = self.over_lanes(total)
        if lane == 0:
            of_warps[warp] = total
        cute.arch.sync_threads()
        if warp == 0:
            total = sum_type(0)
            if lane < self.warps:
                total = of_warps[lane]
            total = self.over_lanes(total)

        # The cluster: into the first CTA's shared memory.
        cute.arch.cluster_wait()
        if cutlass.const_expr(integer):
            if tidx == 0:
                first = cute.arch.map_dsmem_ptr(of_ctas.iterator, 0)
                cute.arch.atomic_add(first, total, sem="relaxed", scope="cluster")
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
            if rank == 0 and tidx == 0:
                mY[row] = of_ctas[0]
        else:
            if tidx == 0:
                bits = total.bitcast(cutlass.Int32)
                cute.arch.store_async_dsmem(of_ctas.iterator + rank, bits, all_stored, 0)
            if rank == 0 and warp == 0:
                # The fence widens what the wait acquires to the cluster.
                cute.arch.mbarrier_wait(all_stored, 0)
                cute.arch.fence_acq_rel_cluster()
                total = sum_type(0)
                if lane < self.cluster:
                    total = of_ctas[lane]
                total = self.over_lanes(total)
                if lane == 0:
                    mY[row] = total.to(mY.element_type)

    @cute.jit
    def over_lanes(self, value: cutlass.Numeric):
        """The sum of a value over the lanes of a warp, in all of them: a butterfly of five shuffles."""
        for step in cutlass.range_constexpr(5):
            value += cute.arch.shuffle_sync_bfly(value, offset=1 << step)
        return value


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: ClusterReduceConfig | None = None) -> Program:
    """The rung for one architecture, shape (M, N) and element type. Any N; M up to 65535; arrays 16-byte aligned."""
    (m, n), dtype = RUNG.check(arch, shape, dtype)
    config = config or ClusterReduceConfig()
    RUNG.require(m < 65536, f"M={m}: rows are the grid's y, at most 65535")
    warps = config.threads % LANES == 0 and 0 < config.threads <= 1024
    RUNG.require(warps, f"threads={config.threads}: whole warps of 32, at most 1024 threads")
    RUNG.require(config.vector_bytes in (4, 8, 16), f"vector_bytes={config.vector_bytes}: use 4, 8 or 16")
    limit = archs.PORTABLE_CLUSTER
    RUNG.require(1 <= config.cluster <= limit, f"cluster={config.cluster}: 1 to {limit} CTAs everywhere")
    arrays = [row_major(dtype, extents) for extents in ((m, n), (m,))]
    return compile_program(ClusterReduce(config), *arrays, arch=arch, name=RUNG.name)
