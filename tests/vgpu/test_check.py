"""The hazard checker on small kernels: each broken one is flagged with its kind, each repaired twin is clean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from tensorladder import vgpu
from tensorladder.core.errors import KernelError
from tensorladder.core.findings import Report, Verdict

HEAD = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 out)
{
.reg .b32 %r<32>; .reg .b64 %rd<16>; .reg .pred %p<8>;
.shared .align 128 .b8 buf[4096];
.shared .align 8 .b8 bar[64];
mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; mov.u32 %r2, buf; add.u32 %r3, %r2, %r1; mov.u32 %r10, bar;
setp.eq.u32 %p0, %r0, 0; ld.param.u64 %rd0, [out]; cvt.u64.u32 %rd1, %r1; add.u64 %rd1, %rd1, %rd0;
"""


def check(body: str, block: int = 64, grid: int = 1, policy: str = "eager", cluster: int = 1) -> Report:
    """%r3: the thread's word in buf; %r2: buf; %r10: bar; %rd0: out; %rd1: the thread's word there; %p0: thread 0."""
    out = np.zeros(4096, np.uint32)
    text = HEAD + body + "\nret;\n}\n"
    return vgpu.check(text, "kernel", grid, block, [out], policy=policy, cluster=cluster, timeout=60)


def kinds(report: Report) -> set[str]:
    return {f.kind for f in report.findings}


def errors(report: Report) -> set[str]:
    return {f.kind for f in report.findings if f.severity is Verdict.ERROR}


MINE = "st.shared.u32 [%r3], %r0;"
OTHERS = "xor.b32 %r4, %r1, 128; add.u32 %r4, %r4, %r2; ld.shared.u32 %r5, [%r4];"  # of the other warp
OUT = "st.global.u32 [%rd1], %r5;"
SYNC = "bar.sync 0;"
INIT = "@%p0 mbarrier.init.shared.b64 [%r10], {count};"
ARRIVE = "mbarrier.arrive.shared.b64 _, [%r10];"
WAIT = "W{n}: mbarrier.try_wait.parity.shared.b64 %p1, [%r10], {parity}; @!%p1 bra W{n};"
FILL = """@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 256;
    @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd0], 256, [%r10];"""
FENCE = "fence.proxy.async.shared::cta;"
STORE = """@%p0 add.u64 %rd2, %rd0, 1024;
    @%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r2], 256; @%p0 cp.async.bulk.commit_group;"""
READ = "@%p0 cp.async.bulk.wait_group.read 0;"
COPY = "cp.async.ca.shared.global [%r3], [%rd1], 4; cp.async.commit_group;"
COPIED = "cp.async.wait_group 0;"


def init(count: int) -> str:
    return INIT.format(count=count) + SYNC


def wait(parity: int, n: int = 0) -> str:
    return WAIT.format(parity=parity, n=n)


#: the second warp completes three phases, the first one waits for two of them, or all
ALTERNATE = (
    init(32) + "setp.gt.u32 %p2, %r0, 31; @%p2 bra FILL;" + wait(0) + "bar.sync 1, 64; {seen} {sync}" + wait(0, 2)
    + OTHERS + OUT + "bra END; FILL:" + ARRIVE + "bar.sync 1, 64;" + ARRIVE + "{sync}" + MINE + ARRIVE + "END:"
)  # fmt: skip

# (what is wrong, broken body, kind, repaired body)
KERNELS = [
    ("no barrier", MINE + OTHERS + OUT, "race", MINE + SYNC + OTHERS + OUT),
    ("no barrier before the next write", MINE + SYNC + OTHERS + MINE + OUT, "race",
     MINE + SYNC + OTHERS + SYNC + MINE + OUT),
    ("an arrival that nobody waits for", init(64) + MINE + ARRIVE + OTHERS + OUT, "race",
     init(64) + MINE + ARRIVE + wait(0) + OTHERS + OUT),
    ("the wrong parity", init(64) + MINE + ARRIVE + wait(1) + OTHERS + OUT, "race",
     init(64) + MINE + ARRIVE + wait(0) + OTHERS + OUT),
    ("no barrier after the initialisation", INIT.format(count=64) + ARRIVE + wait(0), "barrier-init",
     init(64) + ARRIVE + wait(0)),
    ("initialised twice", init(64) + INIT.format(count=64) + SYNC + ARRIVE + wait(0), "barrier-init",
     init(64) + ARRIVE + wait(0)),
    ("a copy not waited for", init(1) + FILL + OTHERS + OUT, "missing-wait", init(1) + FILL + wait(0) + OTHERS + OUT),
    # seen as the one or the other, by which of the two comes first
    ("a slot filled while it is read", init(1) + MINE + SYNC + OTHERS + FILL + wait(0) + OUT, "slot-reuse missing-wait",
     init(1) + MINE + SYNC + OTHERS + FENCE + SYNC + FILL + wait(0) + OUT),
    ("no proxy fence", MINE + SYNC + STORE + READ, "missing-proxy-fence", MINE + FENCE + SYNC + STORE + READ),
    ("the fence of one thread alone", MINE + "@%p0 " + FENCE + SYNC + STORE + READ, "missing-proxy-fence",
     MINE + FENCE + SYNC + STORE + READ),
    ("a buffer that a store reads", MINE + FENCE + SYNC + STORE + SYNC + MINE + READ, "slot-reuse",
     MINE + FENCE + SYNC + STORE + READ + SYNC + MINE),
    ("cp.async with no wait", COPY + SYNC + OTHERS + OUT + COPIED, "missing-wait", COPY + COPIED + SYNC + OTHERS + OUT),
    ("cp.async with no barrier", COPY + COPIED + OTHERS + OUT, "missing-wait", COPY + COPIED + SYNC + OTHERS + OUT),
    ("every other phase seen", ALTERNATE.format(seen="", sync=""), "barrier-phase race",
     ALTERNATE.format(seen=wait(1, 1), sync="bar.sync 2, 64;")),
    ("one arrival too few", init(65) + ARRIVE + wait(0), "deadlock", init(64) + ARRIVE + wait(0)),
]  # fmt: skip


@pytest.mark.parametrize(("broken", "kind", "repaired"), [pytest.param(*c[1:], id=c[0]) for c in KERNELS])
def test_broken_kernels_are_flagged_and_their_twins_are_clean(broken, kind, repaired) -> None:
    """Whatever schedule is run: what is found does not hang on it."""
    for policy in ("eager", "lazy", "random:5"):
        assert errors(check(broken, policy=policy)).intersection(kind.split()), policy
        report = check(repaired, policy=policy)
        assert not errors(report), "\n".join(map(str, report.findings))


@pytest.mark.parametrize("who", ["", "@%p0 "], ids=["by all", "by the reader"])
def test_a_proxy_fence_behind_the_barrier_is_for_review(who) -> None:
    """The ISA's memory model has room for it, and an H200 shows the writes; the writers' own is the rule."""
    for policy in ("eager", "lazy", "random:5"):
        report = check(MINE + SYNC + who + FENCE + STORE + READ, policy=policy)
        assert [f.kind for f in report.findings] == ["missing-proxy-fence"] and not errors(report), policy
    elsewhere = check(MINE + SYNC + "setp.gt.u32 %p2, %r0, 31; @%p2 " + FENCE + STORE + READ)  # by the other warp
    assert errors(elsewhere) == {"missing-proxy-fence"}


def test_both_accesses_are_named_with_their_bytes_and_a_fix() -> None:
    (first, *_) = [f for f in check(MINE + "bar.sync 0;" + OTHERS + MINE).findings if f.kind == "race"]
    assert first.other is not None and first.fix
    assert {first.where.warp, first.other.warp} == {0, 1}
    assert first.where.space == "shared" and first.where.bytes in ((1024, 1152), (1152, 1280))
    assert first.where.ptx_line and first.where.kernel == "kernel" and first.where.cta == (0, 0, 0)


def test_a_hang_names_who_waits_and_who_arrived_last() -> None:
    (found,) = check(init(65) + ARRIVE + wait(0)).findings
    assert found.kind == "deadlock" and found.where.what.startswith("mbarrier.try_wait") and found.where.warp == 0
    assert found.other is not None and found.other.what.startswith("mbarrier.arrive") and found.other.lanes == 1 << 31
    assert "still owed: 1 arrivals" in found.message


def test_a_hang_names_none_that_another_worker_left_in_its_midst() -> None:
    """CTA 1 waits for good at two barriers; CTA 0 goes round one with another worker, which is stopped then."""
    body = """mov.u32 %r4, %ctaid.x; setp.eq.u32 %p1, %r4, 1; @%p1 bra APART; mov.u32 %r4, 0;
    ROUND: bar.sync 0; add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 20000000; @%p1 bra ROUND; ret;
    APART: setp.lt.u32 %p1, %r0, 32; @%p1 bra OTHER; bar.sync 1, 64; ret;
    OTHER: bar.sync 2, 64;"""
    checker = vgpu.Checker()
    device = vgpu.Device("sm_90a", checker=checker, workers=2, timeout=60)
    with pytest.raises(KernelError) as error:
        vgpu.launch(HEAD + body + "\nret;\n}\n", "kernel", 2, 64, [np.zeros(1, np.uint32)], device=device)
    checker.stopped(error.value, "kernel")
    (found,) = checker.findings
    assert found.kind == "deadlock" and found.where.cta == (1, 0, 0) and "(0, 0, 0)" not in found.message


def test_bytes_are_told_apart() -> None:
    """Threads of two warps write neighbouring bytes of the same words."""
    body = """cvt.u16.u32 %rs, %r0; and.b32 %r4, %r0, 31; shl.b32 %r4, %r4, 1; {}
        add.u32 %r4, %r4, %r2; st.shared.u8 [%r4], %rs;"""
    apart = "shr.u32 %r6, %r0, 5; add.u32 %r4, %r4, %r6;"
    declared = ".reg .b16 %rs; "
    assert check(declared + body.format(apart)).verdict is Verdict.CLEAN
    assert errors(check(declared + body.format(""))) == {"race"}


def test_ctas_may_not_write_the_same_global_bytes() -> None:
    same = "mov.u32 %r6, %ctaid.x; @%p0 st.global.u32 [%rd0], %r6;"
    own = "mov.u32 %r6, %ctaid.x; mul.wide.u32 %rd3, %r6, 4; add.u64 %rd3, %rd3, %rd0; @%p0 st.global.u32 [%rd3], %r0;"
    for grid in (2, 5):  # also where each worker has one CTA alone
        report = check(same, grid=grid)
        assert errors(report) == {"race"} and "orders the two CTAs" in report.findings[0].message
    assert check(own, grid=2).verdict is Verdict.CLEAN
    assert check("@%p0 red.global.add.u32 [%rd0], 1;", grid=2).verdict is Verdict.CLEAN


def test_order_through_a_flag_in_global_memory_counts_only_with_its_fences() -> None:
    first = """mov.u32 %r6, %ctaid.x; setp.eq.u32 %p2, %r6, 0; add.u64 %rd3, %rd0, 512; @!%p2 bra SECOND;
        @%p0 st.global.u32 [%rd0], 7; {fence} @%p0 st.relaxed.gpu.global.u32 [%rd3], 1; bra OUT;
        SECOND: @!%p0 bra OUT;
        SPIN: ld.acquire.gpu.global.u32 %r7, [%rd3]; setp.eq.u32 %p3, %r7, 0; @%p3 bra SPIN;
        ld.global.u32 %r5, [%rd0]; OUT:"""
    assert check(first.format(fence="fence.acq_rel.gpu;"), grid=2, policy="random:1").verdict is Verdict.CLEAN
    assert errors(check(first.format(fence=""), grid=2)) == {"race"}


def test_what_is_left_of_a_phase_is_for_review() -> None:
    report = check(init(64) + ARRIVE + wait(0) + "@%p0 " + ARRIVE)
    assert report.verdict is Verdict.REVIEW and kinds(report) == {"barrier-count"}
    assert "1 of 64 arrivals" in report.findings[0].message


def test_the_reader_may_fence_what_copies_wrote_that_report_to_an_mbarrier() -> None:
    body = init(64) + "cp.async.ca.shared.global [%r3], [%rd1], 4; cp.async.mbarrier.arrive.noinc.shared.b64 [%r10];"
    assert check(body + wait(0) + FENCE + STORE + READ).verdict is Verdict.CLEAN
    report = check(body + wait(0) + STORE + READ)
    assert kinds(report) == {"missing-proxy-fence"} and not errors(report)
    assert errors(check(body + FENCE + STORE + READ)) == {"missing-wait"}


def test_lines_of_inline_assembly_are_those_of_its_start() -> None:
    """CuTe DSL's compiler counts the lines of inline assembly on from the source line."""
    from tensorladder.vgpu.ptx import parse

    body = """.loc 1 58 4
    // begin inline asm
    {
    .loc 1 61 4
    mov.u32 %r5, 1;
    }
    // end inline asm
    .loc 1 59 4
    mov.u32 %r6, 1;"""
    found = [i.loc[1] for i in parse(HEAD + body + "\nret;\n}\n").kernels["kernel"].body if i.op == "mov"][-2:]
    assert found == [58, 59]


def test_advice_counts_bank_conflicts_and_sectors() -> None:
    """Lanes 128 bytes apart share one bank: 32 wavefronts; loads 64 bytes apart touch a sector each."""
    body = """shl.b32 %r6, %r0, 7; add.u32 %r6, %r6, %r2; st.shared.u32 [%r6], %r0;
        mul.wide.u32 %rd3, %r0, 64; add.u64 %rd3, %rd3, %rd0; ld.global.u32 %r5, [%rd3]; st.shared.u32 [%r3], %r5;"""
    checker = vgpu.Checker(advice=True)
    device = vgpu.Device("sm_90a", checker=checker)
    vgpu.launch(HEAD + body + "\nret;\n}\n", "kernel", 1, 32, [np.zeros(4096, np.uint32)], device=device)
    said = {f.kind: f.message for f in checker.report("x").findings}
    assert set(said) == {"bank-conflict", "lint"}
    assert "takes 32 in place of 1 " in said["bank-conflict"] and "takes 32 in place of 4 " in said["lint"]


def test_registers_that_roles_ask_for_have_to_fit() -> None:
    ask = "setmaxnreg.inc.sync.aligned.u32 {};"
    assert check(ask.format(232), block=288).findings[0].kind == "launch"
    assert not errors(check(ask.format(168), block=256))


@pytest.mark.parametrize(("value", "verdict"), [("%r4", Verdict.REVIEW), ("%r0", Verdict.ERROR)])
@pytest.mark.parametrize("place", ["st.shared.u32 [%r5], {};", "st.global.u32 [%rd3], {};"])
def test_two_warps_that_store_the_same_value_are_for_review(value, verdict, place) -> None:
    """Compilers of tiles let every warp that holds a value store it."""
    body = "and.b32 %r4, %r0, 31; shl.b32 %r5, %r4, 2; add.u32 %r5, %r2, %r5;"
    body += "mul.wide.u32 %rd3, %r4, 4; add.u64 %rd3, %rd0, %rd3;" + place.format(value)
    (found,) = check(body).findings
    assert (found.kind, found.severity) == ("race", verdict)
    assert found.message.endswith("both write the same value") is (verdict is Verdict.REVIEW)


def edited(name: str, edit, **how) -> Report:
    """What is found in a rung whose PTX `edit` changes; how: as for plan."""
    pytest.importorskip("cutlass")
    from tensorladder.measure.hazards import new_checker
    from tensorladder.measure.run import VirtualTarget, build, plan
    from tensorladder.rungs.rung import find

    asked = plan(find(name), timeout=60.0, **how)
    program = build(asked)
    text = edit(program.modules[0].ptx)
    assert text != program.modules[0].ptx
    checker = new_checker()
    target = VirtualTarget(asked, checker)
    case = asked.info.problem.make(asked.shape, asked.dtype, asked.seed, target.allocate)
    stream = _Replaced(target.device.stream(), text)
    program(stream, *case.arrays.values())
    stream.synchronize()
    return checker.report(name)


def test_a_relaxed_wait_and_a_tcgen05_fence_order_tcgen05_operations() -> None:
    """As CUTLASS's cute.experimental compiles a wait for a commit."""

    def relaxed(ptx: str) -> str:
        return ptx.replace("try_wait.parity.shared.b64", "try_wait.parity.relaxed.cta.shared::cta.b64")

    def unfenced(ptx: str) -> str:
        return relaxed(ptx).replace("tcgen05.fence::after_thread_sync", "bar.warp.sync -1")

    assert not errors(edited("v1-one-tile", relaxed))
    assert errors(edited("v1-one-tile", unfenced)) == {"missing-wait"}


class _Replaced:
    """A stream whose launches run another PTX text."""

    def __init__(self, stream, text: str):
        self.stream, self.text = stream, text

    def enqueue(self, launch) -> None:
        self.stream.enqueue(replace(launch, module=replace(launch.module, ptx=self.text, cubin=None)))

    def synchronize(self) -> None:
        self.stream.synchronize()
