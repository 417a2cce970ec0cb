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
    "mbarrier.try_wait.parity.shared.b64 doubled": "",
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


RING = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry ring(.param .u64 out)
{
.reg .b32 %r<32>; .reg .b64 %rd<16>; .reg .pred %p<8>;
.shared .align 128 .b8 buf[256];
.shared .align 8 .b8 bar[8];
mov.u32 %r0, %tid.x; mov.u32 %r2, buf; mov.u32 %r3, bar; ld.param.u64 %rd0, [out]; setp.eq.u32 %p0, %r0, 0;
@%p0 mbarrier.init.shared.b64 [%r3], 1;
bar.sync 0;
mov.b32 %r4, 0; mov.b32 %r5, 0;
AGAIN:
@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 256;
@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd0], 256, [%r3];
W: mbarrier.try_wait.parity.shared.b64 %p1, [%r3], %r4;
@!%p1 bra W;
xor.b32 %r4, %r4, 1;
ld.shared.u32 %r6, [%r2];
bar.sync 1, 64;
add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 3; @%p2 bra AGAIN;
ret;
}
"""
#: of some changes the kinds, one of which is found
RING_FATES = {
    "xor.b32 flip removed": "deadlock",
    "mbarrier.arrive.expect_tx.shared.b64 bytes removed": "missing-wait barrier-count slot-reuse",
    "mbarrier.arrive.expect_tx.shared.b64 arrival removed": "deadlock barrier-count",
    "bar.sync count - 32": "slot-reuse",
}


@pytest.mark.parametrize("what", RING_FATES)
def test_what_a_ring_goes_round_by_is_changed_too(what) -> None:
    made = schema(RING)
    (mutant,) = (m for m in made.mutants if m.what == what)
    kinds = {n: {f.kind for f in _ring(made.text, n).findings} for n in (0, mutant.number, mutant.probe)}
    assert kinds[0] == set() and kinds[mutant.probe] == {"trap"}
    assert kinds[mutant.number].intersection(RING_FATES[what].split()), kinds


def test_a_flip_that_does_not_happen_is_not_reached() -> None:
    never = "setp.ne.u32 %p3, %r5, %r5; selp.b32 %r7, 1, 0, %p3; xor.b32 %r4, %r4, %r7;"
    made = schema(RING.replace("xor.b32 %r4, %r4, 1;", never))
    (flip,) = (m for m in made.mutants if m.change == "flip removed")
    assert "trap" not in {f.kind for f in _ring(made.text, flip.probe).findings}


def _ring(text: str, number: int) -> Report:
    return vgpu.check(text, "ring", 1, 64, [np.zeros(64, np.uint32), np.uint32(number)], timeout=60)


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
