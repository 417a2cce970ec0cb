"""The rungs in TIRx: right results, the machine code that they claim, refusals, and no wait that is not needed."""

from __future__ import annotations

import dataclasses
import re

import pytest

pytest.importorskip("tvm")
pytest.importorskip("llvmlite")
pytest.importorskip("ml_dtypes")

from tensorladder.core.errors import UsageError
from tensorladder.core.findings import Verdict
from tensorladder.measure.hazards import check_rung
from tensorladder.measure.run import plan, run_rung
from tensorladder.rungs.rung import catalog, find, load
from tensorladder.silicon.disassemble import find_nvdisasm, sass
from tests.rungs.removed import must_show

TIRX = [info for info in catalog() if info.series == "tirx"]
POLICIES = ("eager", "lazy", "timed", "random:1", "random:2")


def configured(info, knobs):
    return dataclasses.replace(load(info).RUNG.config(), **knobs)


# (rung, element type, shape, knobs); default shapes are the policy matrix's
CASES = [
    ("tirx-v1-one-tile", "bf16", (128, 64, 128), {"tile": (128, 64, 128)}),
    ("tirx-v2-k-loop", "fp16", (128, 32, 320), {"tile": (128, 32, 64)}),
    ("tirx-v3-grid", "bf16", (384, 128, 192), {"tile": (128, 64, 64)}),
    ("tirx-v4-tma", "fp16", (200, 264, 136), {"tile": (128, 64, 64)}),
    ("tirx-v4-tma", "bf16", (2, 8, 8), {}),
    ("tirx-v5-pipeline", "fp16", (130, 136, 520), {"stages": 3}),
    ("tirx-v6-persistent", "bf16", (130, 264, 72), {"sm_count": 1, "ctas_per_sm": 2}),
    ("tirx-v7-warp-specialized", "fp16", (300, 264, 328), {"sm_count": 2, "raster": 1, "stages": 3}),
    ("tirx-v8-two-cta", "bf16", (300, 264, 328), {"sm_count": 2, "stages": 3, "tile": (256, 128, 64)}),
    ("tirx-v9-two-consumers", "fp16", (600, 264, 328), {"sm_count": 2, "raster": 1, "stages": 3}),
]


def seldom(rest: bool) -> tuple:
    """What takes long to compile and has been shown by a few cases: the rest is `make matrix`'s."""
    return (pytest.mark.matrix,) if rest else ()


@pytest.mark.parametrize(
    ("number", "name", "dtype", "shape", "knobs"),
    [pytest.param(i, *case, id=f"{case[0]}-{case[2]}") for i, case in enumerate(CASES)],
)
def test_right_result(number, name, dtype, shape, knobs):
    info, policy = find(name), POLICIES[number % len(POLICIES)]
    result = run_rung(info, shape=shape, dtype=dtype, policy=policy, seed=number, config=configured(info, knobs))
    assert result.ok, (policy, result.message)


# A few CTAs and a short ring: every CTA does many tiles, and the ring's phases come round in the middle of them.
WALKS = [
    ("tirx-v6-persistent", {"sm_count": 2, "stages": 3, "raster": 2}),
    ("tirx-v7-warp-specialized", {"sm_count": 2, "stages": 3}),
    ("tirx-v8-two-cta", {"sm_count": 2, "stages": 3}),
    ("tirx-v9-two-consumers", {"sm_count": 2, "stages": 3}),
]


@pytest.mark.parametrize(
    ("name", "knobs"), [pytest.param(*one, marks=seldom(at > 0), id=one[0]) for at, one in enumerate(WALKS)]
)
def test_the_order_of_effects_changes_nothing_where_a_cta_does_many_tiles(name, knobs):
    info = find(name)
    found = set()
    for policy in (*POLICIES, "random:3"):
        result = run_rung(info, shape=(300, 264, 200), policy=policy, config=configured(info, knobs))
        assert result.ok, (policy, result.message)
        found.add(result.digest)
    assert len(found) == 1


# As in test_sass.py, for the twins in CuTe DSL.
ALLOC = [r"UTCATOMSWS\S*FIND_AND_SET", r"UTCATOMSWS\.AND"]
MMA = [*ALLOC, r"UTCHMMA ", r"UTCBAR "]
ONE = [*MMA, r"UTMALDG\.2D ", r"LDTM\.x128", r"UTMASTG\.2D", r"STS\.128"]
PAIR = [*ALLOC, r"UTCHMMA\.2CTA", r"UTCBAR\.2CTA\.MULTICAST", r"UTMALDG\.2D\.2CTA", r"UCGABAR_ARV", r"UCGABAR_WAIT"]
COPIED = [*MMA, r"LDTM\.x128", r"LDG\.E\.128", r"STS\.128", r"\bSTG\.E\.128"]
CLAIMS = {
    "tirx-v1-one-tile": COPIED,
    "tirx-v2-k-loop": COPIED,
    "tirx-v3-grid": COPIED,
    "tirx-v4-tma": ONE,
    "tirx-v5-pipeline": ONE,
    "tirx-v6-persistent": ONE,
    "tirx-v7-warp-specialized": [*ONE, r"BAR\.SYNC\S* 0x1"],
    "tirx-v8-two-cta": [*PAIR, r"LDTM\.x128", r"UTMASTG\.2D"],
    "tirx-v9-two-consumers": [*PAIR, r"LDTM\.x64", r"UTMASTG\.2D"],
}


@pytest.mark.skipif(find_nvdisasm() is None, reason="no nvdisasm here")
@pytest.mark.parametrize("info", TIRX, ids=lambda info: info.name)
def test_machine_code_holds_what_the_rung_claims(info):
    (module,) = load(info).compile("sm_100a", info.default_shape, info.dtypes[0]).modules
    text = sass(module.cubin)
    assert not [claim for claim in CLAIMS[info.name] if not re.search(claim, text)]
    # A warp MMA or a spill to local memory would be another kernel than the docstring's.
    assert not re.search(r"\b(HMMA|LDL|STL)\b", text)


@pytest.mark.parametrize("name", ["tirx-v3-grid", "tirx-v6-persistent", "tirx-v9-two-consumers"])
def test_the_checker_finds_nothing(name):
    report = check_rung(plan(find(name)))
    assert report.verdict is Verdict.CLEAN, "\n".join(map(str, report.findings))


def test_launches():
    info = find("tirx-v8-two-cta")
    arrays = info.problem.make((512, 512, 64), "fp16").arrays.values()
    (launch,) = (
        load(info).compile("sm_100a", (512, 512, 64), "fp16", configured(info, {"sm_count": 5})).launches(*arrays)
    )
    assert (launch.grid, launch.block, launch.cluster) == ((4, 1, 1), (192, 1, 1), (2, 1, 1))
    assert 192 * 1024 < launch.smem < 193 * 1024 and len(launch.params) == 3 * 128


REFUSALS = [
    ("tirx-v1-one-tile", {"shape": (128, 128, 128)}, "K=128"),
    ("tirx-v1-one-tile", {"shape": (256, 128, 64)}, "M=256"),
    ("tirx-v1-one-tile", {"arch": "sm_90a"}, "sm_90a"),
    ("tirx-v1-one-tile", {"tile": (64, 128, 64)}, "tile"),
    ("tirx-v2-k-loop", {"shape": (128, 128, 96)}, "K=96"),
    ("tirx-v3-grid", {"shape": (200, 128, 64)}, "M=200"),
    ("tirx-v3-grid", {"shape": (256, 192, 64)}, "N=192"),
    ("tirx-v4-tma", {"shape": (1, 64, 64)}, "M=1"),
    ("tirx-v4-tma", {"shape": (64, 60, 64)}, "N=60"),
    ("tirx-v4-tma", {"tile": (128, 128, 128)}, "tile"),
    ("tirx-v5-pipeline", {"shape": (64, 64, 60)}, "K=60"),
    ("tirx-v5-pipeline", {"stages": 1}, "stages"),
    ("tirx-v5-pipeline", {"stages": 7}, "stages"),
    ("tirx-v6-persistent", {"sm_count": 0}, "sm_count"),
    ("tirx-v6-persistent", {"raster": 0}, "raster"),
    ("tirx-v7-warp-specialized", {"ctas_per_sm": 0}, "ctas_per_sm"),
    ("tirx-v7-warp-specialized", {"dtype": "fp32"}, "fp32"),
    ("tirx-v8-two-cta", {"sm_count": 1}, "sm_count"),
    ("tirx-v8-two-cta", {"tile": (128, 256, 64)}, "tile"),
    ("tirx-v9-two-consumers", {"tile": (512, 32, 64)}, "tile"),
    ("tirx-v9-two-consumers", {"stages": 5}, "stages"),
]


@pytest.mark.parametrize(("name", "asked", "words"), REFUSALS)
def test_refusals_name_what_is_wrong(name, asked, words):
    info = find(name)
    how = {"arch": "sm_100a", "shape": info.default_shape, "dtype": "fp16", **asked}
    arguments = [how.pop(key) for key in ("arch", "shape", "dtype")]
    with pytest.raises(UsageError, match=re.escape(words)) as refusal:
        load(info).compile(*arguments, configured(info, how))
    assert "\n" not in str(refusal.value)


GONE = "pass\n"
V1_DONE = "T.cuda.mbarrier_wait(mma_done.ptr_to([0]), 0)\n"
FULL = "T.cuda.mbarrier_wait(full.ptr_to([stage]), k_tile // stages % 2)\n"
DONE = "T.cuda.mbarrier_wait(mma_done.ptr_to([0]), k_tile % 2)\n"
EMPTY = "ring.empty.wait(load.stage, load.phase)\n                        if rank"
ACC_EMPTY = "T.cuda.mbarrier_wait_acquire_cluster(acc_empty.ptr_to([0]), acc.phase)\n"
FENCED = 'T.ptx["fence.proxy.async.shared::cta"]()\n        T.cuda.cta_sync()\n'
LAST_STORE = 'T.ptx["cp.async.bulk.wait_group.read"](0)\n'
# (what is missing, rung, text, what stands there instead, shape, knobs, policy)
WITHOUT = [
    ("MMAs not yet done", "tirx-v1-one-tile", V1_DONE, GONE, None, {}, "eager"),
    ("tile not yet written", "tirx-v1-one-tile", FENCED, GONE, None, {}, "eager"),
    ("the phase", "tirx-v2-k-loop", "mma_done.ptr_to([0]), k_tile % 2", "mma_done.ptr_to([0]), 0", None, {}, "lazy"),
    ("C read by TMA before the exit", "tirx-v4-tma", LAST_STORE, GONE, None, {}, "lazy"),
    ("stage not yet filled", "tirx-v5-pipeline", FULL, GONE, (128, 128, 256), {}, "timed"),
    ("stage not yet read", "tirx-v5-pipeline", DONE, GONE, (128, 128, 512), {}, "lazy"),
    ("stage not yet read", "tirx-v8-two-cta", EMPTY, "if rank", (256, 256, 640), {"stages": 2}, "lazy"),
    ("accumulator not yet read", "tirx-v8-two-cta", ACC_EMPTY, GONE, (256, 1280, 64), {"sm_count": 2}, "lazy"),
    ("a commit to the other CTA", "tirx-v8-two-cta", "acc_full.arrive(0, cta_group=2, cta_mask=BOTH)",
     "acc_full.arrive(0, cta_group=2, cta_mask=1)", (256, 256, 64), {}, "eager"),
    ("the other CTA's bytes", "tirx-v8-two-cta", "stage_bytes = CTAS * 2", "stage_bytes = 2", (256, 256, 256), {},
     "timed"),
    ("a commit of the other consumer", "tirx-v9-two-consumers", "init_empty=CONSUMERS", "init_empty=1",
     (512, 256, 512), {}, "eager"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "instead", "shape", "knobs", "policy"),
    [pytest.param(*c[1:], id=f"{c[1]}: {c[0]}", marks=seldom(at > 3)) for at, c in enumerate(WITHOUT)],
)
def test_a_rung_without_it_is_found_out(name, text, instead, shape, knobs, policy, tmp_path, monkeypatch):
    must_show(name, text, instead, shape, knobs, policy, tmp_path, monkeypatch)
