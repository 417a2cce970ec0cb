"""A Blackwell rung without one of its waits, barriers or arrivals is found out: it is wrong, or stops with an error.

Each case takes one line out of a rung (or changes it) and runs what is left under a policy that shows the difference.
So the waits are there for a reason, and the virtual GPU's schedules would not let a rung without them pass.
"""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

from tests.rungs.removed import must_show

GONE = "pass\n"
WAIT_STORE = "cute.arch.fence_view_async_tmem_store()\n"
WAIT_EMPTY = "cute.arch.mbarrier_wait(empty + write, write_phase)\n"
WAIT_FULL = "cute.arch.mbarrier_wait(full + read, phase)\n"
WAIT_DONE = "cute.arch.mbarrier_wait(done, 0)\n"
RELEASE = "ring.consumer_release(read)\n"
ACQUIRE = "accumulator.producer_acquire(write)\n"
READ_BY_TMA = "cute.arch.cp_async_bulk_wait_group(self.buffers - 1, read=True)\n"
ARRIVALS = "CooperativeGroup(Agent.Thread, pairs_m + pairs_n - 1)"
STORED = """\
cute.arch.fence_proxy("async.shared", space="cta")
                    epilogue.arrive_and_wait()
"""
ONE_PAIR = {"cluster": (2, 1)}
V_DONE = "cute.arch.mbarrier_wait(mma_done, k_tile % 2)\n"
V_FULL = "cute.arch.mbarrier_wait(full, phase)\n"
V_EMPTY = "cute.arch.mbarrier_wait(empty + stage, load.phase)\n"
V_ACC_EMPTY = "cute.arch.mbarrier_wait(acc_empty, acc.phase)\n"
V_READ_BY_TMA = """\
cute.arch.cp_async_bulk_wait_group(0, read=True)
                writeback"""
V_MASK = "commit(acc_full, BOTH"
V_COUNT = "mbarrier_init(empty + stage, CONSUMERS)"
V_LAST_STORE = "cute.arch.cp_async_bulk_wait_group(0, read=True)\n"
PARTS = {"sm_count": 3, "pages_per_cta": 4}
ONE_SM, TWO_SMS = {"sm_count": 1}, {"sm_count": 2}

DSA, DSA_SHAPE = "fused-dsa-tcgen05", (1, 300, 6)
PIPE, PIPE_SHAPE = "fused-dsa-pipelined", (1, 700, 12)  # 11 tiles: the ring comes round four times
DSA_TILE_READ = "cute.arch.mbarrier_wait(storage.done.ptr, (tile + 1) % 2)\n"
PIPE_DONE = "cute.arch.mbarrier_wait(done + (tile - 1) % BUFFERS, (tile - 1) // BUFFERS % 2)\n"
PIPE_LAST = "(tiles - 1) % BUFFERS, (tiles - 1) // BUFFERS % 2"
ROTARY_READ = "cute.arch.mbarrier_wait(rotary_empty + buffer, (tile // BUFFERS + 1) % 2)\n"
LATER, AT_ONCE = "cp_async_mbarrier_arrive_noinc", "mbarrier_arrive"

# (what is missing, rung, text, what stands there instead, shape, knobs, policy)
CASES = [
    ("wait::st", "z2-tmem-lifecycle", WAIT_STORE, GONE, None, {}, "lazy"),
    ("stage not yet read", "d1-tcgen05", WAIT_EMPTY, GONE, (128, 128, 1024), {"stages": 2}, "random:1"),
    ("stage not yet filled", "d1-tcgen05", WAIT_FULL, GONE, (128, 128, 256), {}, "timed"),
    ("C not yet complete", "d1-tcgen05", WAIT_DONE, GONE, (128, 128, 128), {}, "lazy"),
    ("a commit", "d2-warp-specialized", RELEASE, GONE, (128, 128, 512), {"stages": 2}, "eager"),
    ("bytes of the partner", "d3-two-cta", "stage_bytes = PAIR * sum", "stage_bytes = sum", (256, 256, 256), ONE_PAIR,
     "timed"),
    ("commits of the other pairs", "d3-two-cta", ARRIVALS, "one", (256, 512, 512), {"stages": 2}, "eager"),
    ("accumulator not yet read", "d4-persistent", ACQUIRE, GONE, (512, 512, 64),
     {"sm_count": 2, "tile": (256, 128, 64), **ONE_PAIR}, "lazy"),
    ("buffer not yet read by TMA", "d4-persistent", READ_BY_TMA, GONE, (256, 256, 64), ONE_PAIR, "lazy"),
    ("buffer not yet written", "d4-persistent", STORED, GONE, (256, 256, 64), ONE_PAIR, "eager"),
    ("MMAs not yet done", "v1-one-tile", "cute.arch.mbarrier_wait(mma_done, 0)\n", GONE, None, {}, "eager"),
    ("the phase flipped", "v2-k-loop", "phase ^= 1\n", GONE, None, {}, "eager"),
    ("tile not yet there", "v4-tma", V_FULL, GONE, None, {}, "timed"),
    ("C read by TMA before the exit", "v4-tma", V_LAST_STORE, GONE, None, {}, "lazy"),
    ("stage not yet read", "v5-pipeline", V_DONE, GONE, (128, 128, 512), {}, "lazy"),
    ("accumulator not yet read", "v7-warp-specialized", V_ACC_EMPTY, GONE, (256, 256, 256), ONE_SM, "random:3"),
    ("stage not yet read", "v7-warp-specialized", V_EMPTY, GONE, (128, 128, 512), {}, "eager"),
    ("C not yet read by TMA", "v7-warp-specialized", V_READ_BY_TMA, "pass\n                writeback", (256, 256, 64),
     ONE_SM, "lazy"),
    ("a commit to the other CTA", "v8-two-cta", V_MASK, "commit(acc_full, 1", (256, 256, 64), {}, "eager"),
    ("the other CTA's bytes", "v8-two-cta", "stage_bytes *= CTAS\n", GONE, (256, 256, 256), {}, "timed"),
    ("arrivals of the other CTA", "v8-two-cta", "CTAS * WRITEBACK_WARPS", "WRITEBACK_WARPS", (256, 1280, 64), TWO_SMS,
     "lazy"),
    ("a commit of the other consumer", "v9-two-consumers", V_COUNT, "mbarrier_init(empty + stage, 1)", (512, 256, 512),
     {}, "eager"),
    ("tile not yet read", DSA, DSA_TILE_READ, GONE, DSA_SHAPE, ONE_SM, "timed"),
    ("copies not yet there", DSA, "cute.arch.cp_async_wait_group(0)\n", GONE, DSA_SHAPE, ONE_SM, "timed"),
    ("O not yet complete", DSA, "done, (tiles - 1) % 2, tO", "done, tiles % 2, tO", DSA_SHAPE, ONE_SM, "timed"),
    ("rotary elements not yet read", PIPE, ROTARY_READ, GONE, PIPE_SHAPE, ONE_SM, "lazy"),
    ("stage not yet read", PIPE, "cute.arch.mbarrier_wait(empty + fill.index, fill.phase)\n", GONE, PIPE_SHAPE, ONE_SM,
     "lazy"),
    ("rotary elements not yet there", PIPE, "cute.arch.mbarrier_wait(rotary_full + buffer, phase)\n", GONE, PIPE_SHAPE,
     ONE_SM, "lazy"),
    ("stage not yet there", PIPE, "cute.arch.mbarrier_wait(full + read.index, read.phase)\n", GONE, PIPE_SHAPE, ONE_SM,
     "lazy"),
    ("S not yet complete", PIPE, "cute.arch.mbarrier_wait(scores + buffer, phase)\n", GONE, PIPE_SHAPE, ONE_SM, "lazy"),
    ("P not yet written", PIPE, "cute.arch.mbarrier_wait(weights + buffer, phase)\n", GONE, PIPE_SHAPE, ONE_SM,
     "eager"),
    ("O not yet complete before it is rescaled", PIPE, PIPE_DONE, GONE, PIPE_SHAPE, {**ONE_SM, "rise": 0.0}, "lazy"),
    ("O not yet complete", PIPE, PIPE_LAST, "tiles % BUFFERS, tiles // BUFFERS % 2 ^ 1", PIPE_SHAPE, ONE_SM, "timed"),
    ("an arrival when the copies are there", PIPE, f"{LATER}(full + fill.index)", f"{AT_ONCE}(full + fill.index)",
     PIPE_SHAPE, ONE_SM, "random:1"),
    ("the same of rotary elements", PIPE, f"{LATER}(rotary_full + buffer)", f"{AT_ONCE}(rotary_full + buffer)",
     PIPE_SHAPE, ONE_SM, "random:1"),
    ("a second tile's stages", PIPE, "two = 2 * BLOCKS", "two = BLOCKS", PIPE_SHAPE, {**ONE_SM, "stages": 7},
     "eager"),
    ("factors of the stage", "d4-block-scaled", "read.index, columns_B", "0, columns_B", (256, 128, 512), {}, "eager"),
    ("sums not yet there", "fused-topk-indexer-wgmma", "warpgroup.wait_group(0)\n", GONE, (1, 4, 64), {}, "lazy"),
    ("stages of its own", "fused-topk-indexer-wgmma", "config.stages % GROUPS == 0", "True", (5, 9, 64),
     {"stages": 3, **PARTS}, "random:1"),
    ("scales not yet read", "fused-topk-indexer-tcgen05", "1 + EPILOGUE_WARPS", "1", (1, 40, 64),
     {"stages": 2, "sm_count": 1, "pages_per_cta": 40, "ctas_per_sm": 1}, "random:2"),
    ("sums not yet read", "fused-topk-indexer-tcgen05", "sums.producer_acquire(write)\n", GONE, (5, 9, 64),
     {"accumulators": 1, **PARTS}, "eager"),
]  # fmt: skip


#: of the largest kernel, which takes longest to compile: what every run of the tests has, the rest is `make matrix`'s
ALWAYS = {"stage not yet read", "stage not yet there", "P not yet written"}
#: the same line is gone in test_hazards.py, where every run of the tests has the checker say what is missing
TWICE = {
    ("z2-tmem-lifecycle", "wait::st"),
    ("d1-tcgen05", "stage not yet read"),
    ("d1-tcgen05", "C not yet complete"),
    ("d3-two-cta", "bytes of the partner"),
    ("v4-tma", "C read by TMA before the exit"),
    ("v9-two-consumers", "a commit of the other consumer"),
}


def marks(case: tuple) -> tuple:
    what, rung = case[:2]
    left = (rung, what) in TWICE or (rung == PIPE and what not in ALWAYS)
    return (pytest.mark.matrix,) if left else ()


@pytest.mark.parametrize(
    ("name", "text", "instead", "shape", "knobs", "policy"),
    [pytest.param(*c[1:], id=f"{c[1]}: {c[0]}", marks=marks(c)) for c in CASES],
)
def test_a_rung_without_it_is_found_out(name, text, instead, shape, knobs, policy, tmp_path, monkeypatch):
    must_show(name, text, instead, shape, knobs, policy, tmp_path, monkeypatch)
