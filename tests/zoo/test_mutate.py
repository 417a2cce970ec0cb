"""Mutants of a right kernel: what they change, and that the checker sees the harmful ones."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from benchmarks.mutation import writer
from tensorladder import vgpu
from tensorladder.core.findings import Report, Verdict
from tensorladder.core.program import Launch, Module
from tensorladder.zoo.mutate import schema

KERNEL = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 out)
{
.reg .b32 %r<32>; .reg .b64 %rd<16>; .reg .pred %p<8>;
.shared .align 128 .b8 buf[4096];
.shared .align 8 .b8 bar[64];
mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; mov.u32 %r2, buf; add.u32 %r3, %r2, %r1; mov.u32 %r10, bar;
setp.eq.u32 %p0, %r0, 0; ld.param.u64 %rd0, [out]; add.u64 %rd2, %rd0, 1024;
@%p0 mbarrier.init.shared.b64 [%r10], 64;
bar.sync 0;
st.shared.u32 [%r3], %r0;
fence.proxy.async.shared::cta;
mbarrier.arrive.shared.b64 _, [%r10];
W: mbarrier.try_wait.parity.shared.b64 %p1, [%r10], 0;
@!%p1 bra W;
@%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r2], 256;
@%p0 cp.async.bulk.commit_group;
@%p0 cp.async.bulk.wait_group.read 0;
ret;
}
"""
#: of each mutant what is found, one of these kinds, or "" where it is as right as before
FATES = {
    "mbarrier.init.shared.b64 removed": "barrier-init",
    "mbarrier.init.shared.b64 doubled": "barrier-init",
    "mbarrier.init.shared.b64 count + 1": "deadlock",
    "mbarrier.init.shared.b64 count - 1": "barrier-count",
    "bar.sync removed": "barrier-init",
    "bar.sync doubled": "",
    "fence.proxy.async.shared::cta removed": "missing-proxy-fence",
    "fence.proxy.async.shared::cta doubled": "",
    "mbarrier.arrive.shared.b64 removed": "deadlock",
    "mbarrier.arrive.shared.b64 doubled": "deadlock",
    "mbarrier.try_wait.parity.shared.b64 removed": "race missing-proxy-fence slot-reuse",
    "mbarrier.try_wait.parity.shared.b64 parity flipped": "deadlock missing-proxy-fence",
    "cp.async.bulk.commit_group removed": "missing-wait",
    "cp.async.bulk.commit_group doubled": "",
    "cp.async.bulk.wait_group.read removed": "missing-wait",
    "cp.async.bulk.wait_group.read doubled": "",
}


MADE = schema(KERNEL)


def check(number: int) -> Report:
    arguments = [np.zeros(4096, np.uint32), np.uint32(number)]
    return vgpu.check(MADE.text, "kernel", 1, 64, arguments, timeout=60)


def test_the_kernel_itself_is_clean() -> None:
    assert check(0).verdict is Verdict.CLEAN


def test_every_mutant_is_made_once() -> None:
    assert [m.what for m in MADE.mutants] == list(FATES)
    assert len({m.number for m in MADE.mutants} | {m.probe for m in MADE.mutants}) == len(FATES) + 7
    assert MADE.text.count("\n") == KERNEL.count("\n")
    assert MADE.text.count("mbarrier.arrive") == KERNEL.count("mbarrier.arrive") + 2  # doubled


def test_the_parameter_stands_behind_the_kernels_own() -> None:
    assert MADE.params("kernel", b"\1" * 8, 7) == b"\1" * 8 + b"\7\0\0\0"


@pytest.mark.parametrize("mutant", MADE.mutants, ids=lambda m: m.what)
def test_harmful_mutants_are_flagged_and_harmless_ones_are_not(mutant) -> None:
    report = check(mutant.number)
    expected = set(FATES[mutant.what].split())
    if expected:
        assert expected.intersection(f.kind for f in report.findings)
    else:
        assert report.verdict is Verdict.CLEAN, report.findings


def test_a_probe_traps_where_the_instruction_stands() -> None:
    assert {f.kind for f in check(MADE.mutants[-1].probe).findings} == {"trap"}


def test_a_mutant_of_the_schema_is_the_kernel_without_the_instruction() -> None:
    fence = "fence.proxy.async.shared::cta"
    (mutant,) = (m for m in MADE.mutants if m.what == f"{fence} removed")
    direct = vgpu.check(KERNEL.replace(f"{fence};", ""), "kernel", 1, 64, [np.zeros(4096, np.uint32)], timeout=60)
    assert [f.key() for f in check(mutant.number).findings] == [f.key() for f in direct.findings] != []


READER = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry reader(.param .u64 a)
{
.reg .b32 %r<4>; .reg .b64 %rd<4>;
ld.param.u64 %rd0, [a]; griddepcontrol.wait; ld.global.u32 %r0, [%rd0+1020]; st.global.u32 [%rd0], %r0; ret;
}
"""


@pytest.mark.parametrize(
    ("wait", "kinds"), [("griddepcontrol.wait;", set()), ("", {"race"})], ids=["waits", "does not"]
)
def test_the_launch_before_a_rung_shows_that_it_does_not_wait(wait, kinds) -> None:
    checker = vgpu.Checker()
    device = vgpu.Device(arch="sm_90a", checker=checker, timeout=60)
    a = device.memory.empty("a", (256,), np.uint32)
    a[...] = before = np.arange(256)
    stream = device.stream()
    stream.enqueue(writer("sm_90a", [a]))
    module = Module(READER.replace("griddepcontrol.wait;", wait), "sm_90a")
    params = int(a.ctypes.data).to_bytes(8, "little")
    follows = {"programmatic_stream_serialization": True}
    stream.enqueue(Launch(module, "reader", (1, 1, 1), (1, 1, 1), params, attributes=follows))
    stream.synchronize()
    assert {f.kind for f in checker.report("reader").findings} == kinds
    assert a[0] == 255 and (a[1:] == before[1:]).all()
