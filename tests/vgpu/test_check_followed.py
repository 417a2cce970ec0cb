"""Values that nobody wrote, followed where they are copied, multiplied and carried: an error where they come out."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from tensorladder import vgpu
from tensorladder.core.findings import Report, Verdict
from tests.vgpu import mma_kernels as K
from tests.vgpu.test_check import INIT, OUT, check, errors, kinds
from tests.vgpu.test_tcgen05_mma_pairs import SIZE, Case

SOME = "@%p3 " + OUT  # of the first 32 threads
#: CTA 1, whose first 32 threads have written their words, brings CTA 0 a word a thread, 1 KB further on
CLUSTER = (
    INIT.format(count=1) + """setp.lt.u32 %p3, %r0, 32; @%p3 st.shared.u32 [%r3], %r0; fence.proxy.async.shared::cta;
    mov.u32 %r6, %cluster_ctarank; setp.eq.u32 %p2, %r6, 0; mapa.shared::cluster.u32 %r8, %r10, 0;
    mapa.shared::cluster.u32 %r7, %r3, 0; mapa.shared::cluster.u32 %r9, %r2, 0;
    @%p0 fence.mbarrier_init.release.cluster; barrier.cluster.arrive; barrier.cluster.wait; @%p2 bra FIRST;
    {bring} bra END; FIRST: {wait} ld.shared.u32 %r5, [%r3+1024]; {use}
    END: barrier.cluster.arrive; barrier.cluster.wait;"""
)  # fmt: skip
WAIT = """@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 256;
    W: mbarrier.try_wait.parity.acquire.cluster.shared.b64 %p1, [%r10], 0; @!%p1 bra W;"""
MET = "barrier.cluster.arrive; barrier.cluster.wait;"
GET = "ld.shared.u32 %r5, [%r3];"
BRINGS = {
    "a bulk copy": ("@%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r9+1024], [%r2], "
                    "256, [%r8];", WAIT),
    "st.async": (GET + "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r7+1024], %r5, [%r8];", WAIT),
    "st.shared::cluster": (GET + "st.shared::cluster.u32 [%r7+1024], %r5;" + MET, MET),
}  # fmt: skip


def run(bring: str, wait: str, use: str, policy: str = "eager") -> Report:
    return check(CLUSTER.format(bring=bring, wait=wait, use=use), grid=2, cluster=2, policy=policy)


@pytest.mark.parametrize("how", BRINGS)
def test_what_comes_from_another_cta(how) -> None:
    for policy in ("eager", "lazy"):
        assert errors(run(*BRINGS[how], OUT, policy)) == {"uninitialised"}
        assert not errors(run(*BRINGS[how], SOME, policy))


def test_a_copy_that_is_not_used_is_no_finding() -> None:
    assert not run(*BRINGS["a bulk copy"], SOME).findings


def test_a_reduction_leaves_undefined_what_is_there() -> None:
    """Of CTA 0, whose words from 1 KB on nobody has written, and of a value that is undefined."""
    add = "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r7+{}], {}, [%r8];"
    assert errors(run(add.format(1024, "%r0"), WAIT, SOME)) == {"uninitialised"}
    here = WAIT + "ld.shared.u32 %r4, [%r3]; mov.u32 %r5, %r4; {use} bra END;"
    for value, use in (("%r0", SOME), (GET, OUT)):
        before = value if value == GET else ""
        report = run(before + add.format(0, "%r5" if before else value), here.replace("{use}", use), "")
        assert errors(report) == ({"uninitialised"} if use == OUT else set())


def test_memory_of_a_peer_that_nobody_wrote() -> None:
    peer = "mapa.shared::cluster.u32 %r7, %r3, 1; ld.shared::cluster.u32 %r5, [%r7];"
    for use, found in ((OUT, {"uninitialised"}), (SOME, set())):
        assert errors(run("", peer + use, "")) == found


# ---------------------------------------------------------------- scale factors
def scaled(written: int, drain: str) -> Report:
    """A block-scaled product whose scale factors of A come from shared memory, of which `written` bytes are there."""
    case = Case(3, "e4m3", m=128, n=64, pair=False, kind="mxf8f6f4", vector=1)
    text = K.ptx_of(case.job)
    copy = f"""add.u64 %dc, %wd, {SIZE >> 4 | 8 << 32 | 1 << 46}; add.u32 %tc, %tm, 448;
        tcgen05.cp.cta_group::1.32x128b.warpx4 [%tc], %dc;"""
    text = text.replace("%wd, %da, %db;", "%wd, %da, %db, %dc;").replace(".reg .pred %one", ".reg .pred %few, %one")
    fill = f"setp.lt.u32 %q, %tid, {written // 4}; shl.b32 %t, %tid, 2; add.u32 %t, %t, %win; "
    text = text.replace("ALLOCATED:\n", f"ALLOCATED:\n{fill} @%q st.shared.b32 [%t+{SIZE}], 0x7F7F7F7F;\n", 1)
    at = text.index("and.b32 %t, %t, 0x3FFF; cvt.u64.u32 %wd, %t;")
    end = text.index("\n", at)
    text = text[:end] + copy + text[end:]
    head, _, tail = text.partition("OUT:\n")
    tail = tail.replace("st.global", f"{drain} st.global").replace(
        "setp.lt.u32 %q, %t, 512;", "setp.lt.u32 %q, %t, 96;"
    )
    text = head + "and.b32 %x, %tid, 31; setp.lt.u32 %few, %x, 16;\nOUT:\n" + tail
    words = np.ascontiguousarray(np.stack(case.job.words))
    args = [np.ascontiguousarray(np.stack(case.job.images)), words, np.zeros_like(words), case.job.table]
    return vgpu.check(text, "kernel", 1, 128, args, smem=SIZE + 512)


def test_scale_factors_that_nobody_wrote() -> None:
    """The first half of the bytes are those of rows 0 to 15 of every 32."""
    assert not errors(scaled(512, ""))
    assert not errors(scaled(256, "@%few"))
    assert errors(scaled(256, "")) == {"uninitialised"}


# ---------------------------------------------------------------- wmma
WMMA = """.reg .b32 %a<8>, %b<8>; .reg .f32 %d<8>; shl.b32 %r20, %r0, 4; add.u32 %r20, %r20, %r2;
    setp.lt.u32 %p1, %r0, {threads}; @%p1 st.shared.v4.u32 [%r20], {{0, 0, 0, 0}}; bar.warp.sync -1;
    wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {{{a}}}, [%r2];
    wmma.load.b.sync.aligned.col.m16n16k16.global.f16 {{{b}}}, [%rd0];
    mov.f32 %d0, 0f00000000; mov.f32 %d1, %d0; mov.f32 %d2, %d0; mov.f32 %d3, %d0; mov.f32 %d4, %d0; mov.f32 %d5, %d0;
    mov.f32 %d6, %d0; mov.f32 %d7, %d0;
    wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {{{d}}}, {{{a}}}, {{{b}}}, {{{d}}};"""
FRAGMENTS = {which: ", ".join(f"%{which}{k}" for k in range(8)) for which in "abd"}
TO_GLOBAL = f"wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd0], {{{FRAGMENTS['d']}}};"
TO_SHARED = TO_GLOBAL.replace("global", "shared").replace("%rd0", "%r2+1024") + "bar.warp.sync -1;"


def wmma(threads: int, use: str) -> Report:
    return check(WMMA.format(threads=threads, **FRAGMENTS) + use, block=32)


def test_fragments_of_wmma() -> None:
    """16 threads write rows 0 to 7 of A, which are the first 512 bytes of D."""
    assert not errors(wmma(32, TO_GLOBAL))
    assert errors(wmma(16, TO_GLOBAL)) == {"uninitialised"}
    assert not errors(wmma(16, TO_SHARED + "ld.shared.u32 %r5, [%r3+1024];" + OUT))
    assert errors(wmma(16, TO_SHARED + "ld.shared.u32 %r5, [%r3+1536];" + OUT)) == {"uninitialised"}


# ---------------------------------------------------------------- the carry flag
def test_a_carry_that_depends_on_what_nobody_wrote() -> None:
    add = "{} add.cc.u32 %r6, %r4, 1; addc{}.u32 %r5, %r0, 2; {}" + OUT
    assert errors(check(add.format("ld.shared.u32 %r4, [%r3];", "", ""))) == {"uninitialised"}
    assert not errors(check(add.format("ld.shared.u32 %r4, [%r3]; mov.u32 %r4, 5;", "", "")))
    assert errors(check(add.format("ld.shared.u32 %r4, [%r3];", ".cc", "addc.u32 %r5, 0, 0;"))) == {"uninitialised"}
    again = "add.cc.u32 %r6, %r0, 1; addc.u32 %r5, %r0, 2;"
    report = check(add.format("ld.shared.u32 %r4, [%r3];", "", again))
    assert not errors(report) and report.verdict is Verdict.REVIEW and kinds(report) == {"uninitialised"}


# ---------------------------------------------------------------- atomics
SUM = "red.shared.add.u32 [%r3], 1; ld.shared.u32 %r5, [%r3];" + OUT
OLD = "atom.shared.{}.u32 %r5, [%r3], 1;" + OUT


@pytest.mark.parametrize(("body", "found"), [
    (SUM, {"uninitialised"}),  # a histogram that nobody cleared
    ("st.shared.u32 [%r3], 0;" + SUM, set()),
    (OLD.format("add"), {"uninitialised"}),
    ("st.shared.u32 [%r3], 0;" + OLD.format("add"), set()),
    ("atom.shared.exch.b32 %r6, [%r3], 1; ld.shared.u32 %r5, [%r3];" + OUT, set()),
    ("setp.lt.u32 %p3, %r0, 32; @%p3 st.shared.u32 [%r3], 0; red.shared.add.u32 [%r3], 1; ld.shared.u32 %r5, [%r3];"
     + SOME, set()),
])  # fmt: skip
def test_atomics_on_what_nobody_wrote(body, found) -> None:
    assert errors(check(body)) == found
