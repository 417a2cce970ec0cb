"""Values that nobody wrote, under the hazard checker: an error where they matter, none where they are thrown away."""

from __future__ import annotations

import pytest

pytest.importorskip("llvmlite")

from tests.vgpu.test_check import FENCE, MINE, OUT, READ, STORE, SYNC, check, errors, init, kinds

GET = "ld.shared.u32 %r5, [%r3];"  # the thread's word of buf, which nobody has written
WROTE = MINE + SYNC
HALF = "st.shared.u16 [%r3], 7;" + SYNC  # the lower half of it
OTHER = "mov.u32 %r6, 5;"
KEEP = "st.shared.u32 [%r3+1024], %r5; bar.sync 0; ld.shared.u32 %r5, [%r3+1024];"

#: what reads it, what makes it matter, how the finding begins
HARMFUL = {
    "stored": (GET + OUT, "st.global.u32 stores to global memory a value"),
    "stored after arithmetic": (GET + "add.u32 %r5, %r5, %r0; mul.lo.u32 %r5, %r5, 3;" + OUT, "st.global.u32 stores"),
    "the undefined half": (HALF + GET + "shr.u32 %r5, %r5, 16;" + OUT, "st.global.u32 stores"),
    "an address": (GET + "and.b32 %r5, %r5, 60; cvt.u64.u32 %rd2, %r5; add.u64 %rd2, %rd2, %rd0;"
                   "ld.global.u32 %r6, [%rd2];", "the address of ld.global.u32"),
    "a branch": (GET + "setp.eq.u32 %p1, %r5, 3; @%p1 bra DONE;" + OTHER + "DONE:", "the predicate of bra"),
    "a guard of a store": (GET + "setp.eq.u32 %p1, %r5, 3; @%p1 st.global.u32 [%rd1], 1;",
                           "the predicate of st.global"),
    "a selection": (GET + "setp.eq.u32 %p1, %r5, 3; selp.u32 %r5, 1, 2, %p1;" + OUT, "st.global.u32 stores"),
    "a barrier's operand": (init(64) + GET + "and.b32 %r5, %r5, 1;"
                            "mbarrier.test_wait.parity.shared.b64 %p1, [%r10], %r5;",
                            "an operand of mbarrier.test_wait"),
    "an atomic": (GET + "red.global.add.u32 [%rd0], %r5;", "red.global.add.u32 stores"),
    "a shuffle": (GET + "shfl.sync.bfly.b32 %r5, %r5, 1, 31, -1;" + OUT, "st.global.u32 stores"),
    "by way of shared memory": (GET + KEEP + OUT, "st.global.u32 stores"),
    "a vote": (GET + "setp.eq.u32 %p1, %r5, 3; vote.sync.ballot.b32 %r5, %p1, -1;" + OUT, "st.global.u32 stores"),
    "a bulk store": (FENCE + SYNC + STORE + READ, "cp.async.bulk.global.shared::cta copies"),
    "a register": ("add.u32 %r5, %r20, 1;" + OUT,
                   "st.global.u32 stores to global memory a value that depends on a register"),
    "ldmatrix": ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r2];" + OUT, "st.global.u32 stores"),
    "local memory": (".local .align 4 .b8 mine[64]; ld.local.u32 %r5, [mine+8];" + OUT, "st.global.u32 stores"),
    "lop3": (GET + "lop3.b32 %r5, %r5, 255, %r0, 0xca;" + OUT, "st.global.u32 stores"),
}  # fmt: skip
HARMLESS = {
    "not used": GET,
    "moved about": GET + "mov.u32 %r6, %r5; add.u32 %r7, %r6, 1;",
    "kept in shared memory": GET + KEEP,
    "written over in shared memory": GET + "st.shared.u32 [%r3+1024], %r5; st.shared.u32 [%r3+1024], 7;"
    "ld.shared.u32 %r5, [%r3+1024];" + OUT,
    "the defined half": HALF + GET + "and.b32 %r5, %r5, 0xffff;" + OUT,
    "the defined half, shifted": HALF + GET + "shl.b32 %r5, %r5, 16;" + OUT,
    "the defined half, by prmt": HALF + GET + "prmt.b32 %r5, %r5, 0, 0x4410;" + OUT,
    "the defined half, by bfe": HALF + GET + "bfe.u32 %r5, %r5, 0, 16;" + OUT,
    "the defined half, unpacked": HALF + GET + ".reg .b16 %h<2>; mov.b32 {%h0, %h1}, %r5; cvt.u32.u16 %r5, %h0;" + OUT,
    "the defined half of a vector sum": HALF + GET + "add.rn.f16x2 %r5, %r5, %r5; and.b32 %r5, %r5, 0xffff;" + OUT,
    "masked by lop3": HALF + GET + "lop3.b32 %r5, %r5, 0xffff, %r0, 0xc0;" + OUT,
    "not selected": GET + OTHER + "setp.ge.u32 %p1, %r0, 0; selp.u32 %r5, %r6, %r5, %p1;" + OUT,
    "stored nowhere": GET + "setp.gt.u32 %p1, %r0, 1000; @%p1 st.global.u32 [%rd1], %r5;",
    "lanes that are thrown away": "st.shared.u32 [%r3], %r0; setp.lt.u32 %p1, %r0, 64; ld.shared.u32 %r5, [%r3];" + OUT,
    "a register under its own guard": "setp.lt.u32 %p1, %r0, 9; @%p1 mov.u32 %r20, 1; @%p1 st.global.u32 [%rd1], %r20;",
    "local memory": ".local .align 4 .b8 mine[64]; st.local.u32 [mine+8], 1; ld.local.u32 %r5, [mine+8];" + OUT,
    "whether a shuffle's lane was in range": "shfl.sync.up.b32 %r5|%p1, %r0, 1, 0, -1; selp.u32 %r5, 1, 0, %p1;" + OUT,
    "a shuffle of what all have": WROTE + GET + "shfl.sync.down.b32 %r5, %r5, 4, 31, -1;" + OUT,
}  # fmt: skip


@pytest.mark.parametrize("name", HARMFUL)
def test_it_is_an_error_where_it_matters(name) -> None:
    body, message = HARMFUL[name]
    report = check(body)
    found = [f for f in report.findings if f.kind == "uninitialised" and str(f.severity) == "error"]
    assert [f for f in found if f.message.startswith(message)], "\\n".join(map(str, report.findings))


@pytest.mark.parametrize("name", HARMLESS)
def test_it_is_none_where_it_is_thrown_away(name) -> None:
    report = check(HARMLESS[name])
    assert not errors(report), "\\n".join(map(str, report.findings))


def test_the_finding_names_what_read_it_and_what_stored_it() -> None:
    (error,) = (f for f in check(GET + OUT).findings if str(f.severity) == "error")
    assert error.where.what.startswith("st.global") and error.where.space == "global"
    assert error.other is not None and error.other.what.startswith("ld.shared")
    assert "uninitialised" in kinds(check(GET)) and check(WROTE + GET + OUT).findings == ()


def test_a_bulk_store_of_what_is_written_is_clean() -> None:
    assert not errors(check(MINE + FENCE + SYNC + STORE + READ))


# ---------------------------------------------------------------- products: rows of A and columns of B
MMA = """.reg .f32 %f<4>; ld.shared.u32 %r11, [%r3]; ld.shared.u32 %r12, [%r3+128]; mov.u32 %r13, 0;
    mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
    mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32
    {%f0, %f1, %f2, %f3}, {%r11, %r12}, {%r13}, {%f0, %f1, %f2, %f3};"""
TURNED = MMA.replace("{%r11, %r12}, {%r13}", "{%r13, %r13}, {%r12}")


@pytest.mark.parametrize(("body", "harmless", "harmful"), [
    # rows 8 to 15 of A
    ("st.shared.u32 [%r3], 0;" + MMA, "st.global.f32 [%rd1], %f1;", "st.global.f32 [%rd1], %f2;"),
    # column 7 of B, which lanes 28 to 31 have: odd columns of lanes 3, 7, .. of D
    ("setp.lt.u32 %p1, %r0, 28; @%p1 st.shared.u32 [%r3+128], 0;" + TURNED,
     "and.b32 %r20, %r0, 3; setp.eq.u32 %p2, %r20, 3; st.global.f32 [%rd1], %f0; @!%p2 st.global.f32 [%rd1], %f1;",
     "and.b32 %r20, %r0, 3; setp.eq.u32 %p2, %r20, 3; @%p2 st.global.f32 [%rd1], %f1;"),
], ids=["rows", "columns"])  # fmt: skip
def test_a_product_is_undefined_by_row_and_column(body, harmless, harmful) -> None:
    assert not errors(check(body + harmless, block=32))
    assert errors(check(body + harmful, block=32)) == {"uninitialised"}


WGMMA = """.reg .f32 %f<4>; .reg .b64 %d<4>; setp.lt.u32 %p1, %r0, {threads};
    shl.b32 %r20, %r0, 3; add.u32 %r20, %r20, %r2;
    @%p1 st.shared.v2.u32 [%r20], {{0, 0}}; setp.lt.u32 %p1, %r0, 32; @%p1 st.shared.v2.u32 [%r20+2048], {{0, 0}};
    fence.proxy.async.shared::cta; bar.sync 0;
    cvt.u64.u32 %d0, %r2; shr.u64 %d0, %d0, 4; or.b64 %d0, %d0, 0x0000001000080000; add.u64 %d1, %d0, 128;
    wgmma.fence.sync.aligned; setp.ne.u32 %p2, 0, 0;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%f0, %f1, %f2, %f3}}, %d0, %d1, %p2, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; setp.lt.u32 %p3, %r0, 64;"""


def test_rows_of_wgmma_that_nobody_wrote_may_be_thrown_away() -> None:
    """Rows 32 to 63 of A, which are warps 2 and 3 of D."""
    half = WGMMA.format(threads=128)
    assert not errors(check(half + "@%p3 st.global.f32 [%rd1], %f3;", block=128))
    assert errors(check(half + "st.global.f32 [%rd1], %f3;", block=128)) == {"uninitialised"}
    assert errors(check(WGMMA.format(threads=1) + "@%p3 st.global.f32 [%rd1], %f0;", block=128)) == {"uninitialised"}


def test_waiting_for_accumulators_that_may_be_in_flight_uses_none() -> None:
    """What is put in before they are written anew (codegen.in_flight), on the first way round too, when nobody has."""
    wait = "wgmma.wait_group.sync.aligned 0;"
    turn = f"@%p4 bra ON; {wait} ON: add.u32 %r21, %r21, 1; setp.lt.u32 %p3, %r21, 2; @%p3 bra AGAIN; {wait}"
    body = WGMMA.format(threads=128).replace(wait, turn)
    start = "mov.u32 %r21, 0; setp.ne.u32 %p4, 0, 0; AGAIN: mov.f32 %f0, 0f00000000; wgmma.fence"
    report = check(body.replace("wgmma.fence", start) + "@%p3 st.global.f32 [%rd1], %f3;", block=128)
    assert not errors(report), "\n".join(map(str, report.findings))


def test_a_lane_that_takes_from_an_absent_one() -> None:
    """The ISA leaves undefined what shfl.sync gives then: an error when it is used, and the shuffle's."""
    part = "and.b32 %r20, %r0, 16; setp.ne.u32 %p2, %r20, 0; @%p2 exit; mov.u32 %r5, %r0;"
    shuffle = "shfl.sync.down.b32 %r5, %r5, {}, 31, 0xffff;"
    report = check(part + shuffle.format(8) + OUT)
    assert errors(report) == {"collective"} and "does not take part" in report.findings[0].message
    kept = "setp.lt.u32 %p3, %r0, 8; @%p3 st.global.u32 [%rd1], %r5;"
    assert not errors(check(part + shuffle.format(8) + kept, block=32))
