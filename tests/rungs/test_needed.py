"""Every wait and barrier of a rung is needed: without it some legal schedule goes wrong, or hangs.

Each case cuts one kind of instruction out of a rung's PTX and runs what is left under several policies, until one shows
the harm: a wrong result, or a KernelError (a deadlock, a barrier used before it is initialised).
"""

from __future__ import annotations

import dataclasses
import re

import pytest

from tensorladder.core.errors import KernelError
from tensorladder.measure.run import TARGETS, judge, plan
from tensorladder.rungs.rung import find, load

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

POLICIES = ("lazy", *(f"random:{seed}" for seed in range(1, 8)), "timed", "eager")

ONE_SM = {"sm_count": 1}

# (rung, what it is, pattern, what replaces it, shape, knobs)
CASES = [
    ("c1-wgmma", "the barrier before a stage is loaded anew", r"(wait_group\.sync\.aligned\s+1;.*?)bar\.sync\s+0;",
     r"\1", (256, 128, 512), {}),
    ("c1-wgmma", "the wait for the K tile before", r"wgmma\.wait_group\.sync\.aligned\s+1;", "", (256, 128, 512), {}),
    ("c1-wgmma", "the wait for the accumulator", r"wgmma\.wait_group\.sync\.aligned\s+0;", "", (256, 128, 128), {}),
    ("c1-wgmma", "the barrier before C is stored", r"(stmatrix.*)bar\.sync\s+0;", r"\1", (256, 128, 128), {}),
    ("c2-warp-specialized", "the wait before a release", r"wgmma\.wait_group\.sync\.aligned\s+1;", "", (256, 256, 640),
     {"stages": 2}),
    ("c3-persistent", "the wait for a buffer of C", r"cp\.async\.bulk\.wait_group\.read\s+1;", "", (256, 256, 128), {}),
    ("c3-persistent", "the wait for the last of C before the end", r"cp\.async\.bulk\.wait_group\.read\s+0;", "",
     (256, 256, 128), {}),
    ("c6-epilogue", "the wait for a buffer of C", r"cp\.async\.bulk\.wait_group\.read\s+1;", "", (256, 256, 128), {}),
    ("c9-grouped", "the wait for a buffer of C", r"cp\.async\.bulk\.wait_group\.read\s+1;", "", (2, 512, 256, 128), {}),
    ("c4-multicast", "the cluster barrier after the barriers' initialisation", r"barrier\.cluster\.wait;", "",
     (512, 256, 128), {}),
    ("c5-ping-pong", "the other warpgroup's turn", r"bar\.arrive\s+[^;]*;", "", (512, 512, 640), {"sm_count": 2}),
    ("c7-fused-ping-pong", "the wait for the buffers of the tile before", r"cp\.async\.bulk\.wait_group\.read\s+0;", "",
     (512, 512, 64), {"sm_count": 2}),
    ("c8-split-k", "the wait for the other parts' sums",
     r"(try_wait\.parity\.acquire\.cluster[^;]*;[^;]*\s)@%p\d+ bra", r"\1bra", (64, 64, 512), {"tile": (64, 64, 64)}),
    ("c8-split-k", "the barrier before sums are sent", r"bar\.sync\s+1, 128;", "", (64, 64, 512),
     {"tile": (64, 64, 64)}),
    ("cuda-c1-wgmma", "the barrier before a stage is loaded anew",
     r"(wait_group\.sync\.aligned\s+1;.*?)bar\.sync\s+0;", r"\1", (256, 128, 512), {}),
    ("cuda-c1-wgmma", "the wait for the K tile before", r"wgmma\.wait_group\.sync\.aligned\s+1;", "",
     (256, 128, 512), {}),
    ("cuda-c1-wgmma", "the wait for the accumulator", r"wgmma\.wait_group\.sync\.aligned\s+0;", "",
     (256, 128, 128), {}),
    ("b10-implicit-gemm", "the wait for a stage", r"cp\.async\.wait_group\s+2;", "",
     (1, 12, 12, 64, 64, 3, 3, 1, 1, 1), {}),
    ("b10-implicit-gemm", "the barrier before a stage is read", r"(cp\.async\.wait_group\s+2;.*?)bar\.sync\s+0;", r"\1",
     (1, 12, 12, 64, 64, 3, 3, 1, 1, 1), {}),
    ("cuda-b2-vectorized-2d", "the barrier before a stage is read",
     r"(cp\.async\.wait_group 2;.*?)bar\.sync\s+0;", r"\1", (256, 128, 512), {}),
    ("cuda-b2-vectorized-2d", "the wait for a stage", r"cp\.async\.wait_group 2;", "", (256, 128, 512), {}),
    ("a0-cluster-reduce", "the wait for the CTAs' parts", r"mbarrier\.try_wait[^;]*;\s*@P1 bra", "bra", (2, 4096), {}),
    ("a1-cluster-launch-control", "the wait for the answer", r"mbarrier\.try_wait[^;]*;\s*@P1 bra", "bra",
     (100, 130, 8), {}),
    ("a1-cluster-launch-control", "the barrier before the next answer", r"(query_cancel.*)bar\.sync\s+0;", r"\1",
     (200, 260, 64), {}),
    ("a1-dependent-launch", "the wait for the product", r"griddepcontrol\.wait;", "", (128, 64, 64), {}),
    ("fused-dsa-split", "the wait for the parts", r"griddepcontrol\.wait;", "", (2, 64, 2), {}),
    ("fused-dsa-tcgen05", "wait::st of a rescaled O", r"tcgen05\.wait::st\.sync\.aligned;", "", (1, 300, 6), ONE_SM),
    ("fused-dsa-tcgen05", "the barrier before maxima are read", r"bar\.sync\s+1, 128;", "", (1, 300, 6), ONE_SM),
    ("fused-dsa-pipelined", "the wait for the parts", r"griddepcontrol\.wait;", "", (2, 600, 12), {}),
    ("fused-dsa-split", "the barrier before a tile is gathered anew", r"(shfl\.sync\.idx.*?)bar\.sync\s+0;", r"\1",
     (1, 320, 5), {"sm_count": 1, "ctas_per_sm": 1}),
    ("fused-dsa-wgmma", "the wait for V's product before its stage is free",
     r"(stmatrix.*?)wgmma\.wait_group\.sync\.aligned\s+0;", r"\1", (2, 580, 10), {"sm_count": 2, "stages": 2}),
    ("fused-dsa-wgmma", "the barrier before outputs are exchanged", r"(bar\.sync\s+3, 256;.*?)bar\.sync\s+3, 256;",
     r"\1", (2, 580, 10), {"sm_count": 2, "stages": 2}),
]  # fmt: skip


def without(program, pattern, replacement):
    """The program with the pattern replaced in its PTX; it must be there."""
    modules = {module: re.sub(pattern, replacement, module.ptx, flags=re.S) for module in program.modules}
    assert any(text != module.ptx for module, text in modules.items()), pattern
    cut = {module.cubin: dataclasses.replace(module, ptx=text) for module, text in modules.items()}

    class Stream:
        def __init__(self, inner):
            self.inner = inner

        def enqueue(self, launch):
            self.inner.enqueue(dataclasses.replace(launch, module=cut[launch.module.cubin]))

        def synchronize(self):
            self.inner.synchronize()

    return dataclasses.replace(program, host=lambda stream, *arrays: program.host(Stream(stream), *arrays))


def goes_wrong(info, program, policy, shape):
    # one SM where CTAs are to be cancelled: few are resident
    sm_count = 1 if "launch-control" in info.name else None
    asked = plan(info, shape=shape, policy=policy, timeout=60, sm_count=sm_count)
    target = TARGETS["vgpu"](asked)
    case = info.problem.make(asked.shape, asked.dtype, asked.seed, target.allocate)
    try:
        target.run(program, case)
    except KernelError:
        return True
    return not judge(asked, case, 0, 0).ok


@pytest.mark.parametrize(
    ("name", "pattern", "replacement", "shape", "knobs"),
    [pytest.param(name, *rest, id=f"{name}: {what}") for name, what, *rest in CASES],
)
def test_without_it_some_schedule_goes_wrong(name, pattern, replacement, shape, knobs):
    info = find(name)
    module = load(info)
    config = dataclasses.replace(module.RUNG.config(), **knobs)
    program = module.compile(info.archs[0], shape, info.dtypes[0], config)
    assert not goes_wrong(info, program, "lazy", shape)
    cut = without(program, pattern, replacement)
    assert any(goes_wrong(info, cut, policy, shape) for policy in POLICIES)
