"""The checker on rungs: right ones give no error, and a rung without one of its waits or fences is flagged by kind."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

from tensorladder.core.findings import Verdict
from tensorladder.measure.hazards import check_rung
from tensorladder.measure.run import plan
from tensorladder.rungs.rung import find, load

GONE = "pass\n"
# (rung, line, what stands there instead, shape, knobs, a kind that has to be found)
BROKEN = [
    ("c2-warp-specialized", 'cute.arch.fence_proxy("async.shared", space="cta")\n', GONE, (256, 256, 64), {},
     "missing-proxy-fence"),
    ("c2-warp-specialized", "warpgroup.wait_group(1)\n", GONE, (256, 256, 512), {}, "slot-reuse"),
    ("c1-wgmma", "warpgroup.fence()\n", GONE, (128, 128, 64), {}, "missing-wait"),
    ("c1-wgmma", "warpgroup.wait_group(0)\n", GONE, (128, 128, 64), {}, "missing-wait"),
    # a ring that two consumers take in turn: with one mbarrier a stage each sees every other phase
    ("fused-dsa-wgmma", "math.lcm(config.stages, CONSUMERS)", "config.stages", (1, 420, 7), {"sm_count": 1},
     "barrier-phase"),
    ("z2-tmem-lifecycle", "cute.arch.fence_view_async_tmem_store()\n", GONE, None, {}, "missing-wait"),
    ("d1-tcgen05", "cute.arch.mbarrier_wait(empty + write, write_phase)\n", GONE, (128, 128, 1024), {"stages": 2},
     "slot-reuse"),
    ("d1-tcgen05", "cute.arch.mbarrier_wait(done, 0)\n", GONE, (128, 128, 128), {}, "tmem"),
    ("d3-two-cta", "stage_bytes = PAIR * sum", "stage_bytes = sum", (256, 256, 256), {"cluster": (2, 1)},
     "barrier-count"),
    ("v9-two-consumers", "mbarrier_init(empty + stage, CONSUMERS)", "mbarrier_init(empty + stage, 1)", (512, 256, 512),
     {}, "deadlock"),
]  # fmt: skip


@pytest.mark.parametrize("name", ["a2-smem-pipeline", "b7-warp-specialized", "c4-multicast", "d4-persistent", "v8"])
def test_right_rungs_have_no_error(name):
    report = check_rung(plan(find(name)))
    assert report.verdict < Verdict.INCOMPLETE, "\n".join(map(str, report.findings))


@pytest.mark.parametrize(
    ("name", "text", "instead", "shape", "knobs", "kind"),
    [pytest.param(*c, id=f"{c[0]}: {c[1].strip()}") for c in BROKEN],
)
def test_a_rung_without_it_is_flagged(name, text, instead, shape, knobs, kind, tmp_path, monkeypatch):
    """Under the eager policy, where most of these give right results."""
    info = find(name)
    source = info.path.read_text()
    assert source.count(text) == 1
    path = tmp_path / f"{info.path.stem}_without_{len(source.partition(text)[0])}.py"
    path.write_text(source.replace(text, instead))
    monkeypatch.syspath_prepend(str(tmp_path))
    broken = dataclasses.replace(info, module=path.stem, path=path)
    config = dataclasses.replace(load(broken).RUNG.config(), **knobs)
    report = check_rung(plan(broken, shape=shape, config=config, timeout=60))
    assert kind in {f.kind for f in report.findings if f.severity is Verdict.ERROR}
    lines = [f.where.line for f in report.findings if f.where.file == str(path)]
    assert lines or kind == "deadlock"
