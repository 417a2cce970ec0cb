"""Lanes, warps and arrivals that do not come as they should, under the hazard checker."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from tensorladder import vgpu
from tensorladder.core.findings import Verdict
from tests.vgpu.test_check import HEAD, OUT, check, errors, init, wait

HALF = "and.b32 %r20, %r0, 16; setp.eq.u32 %p2, %r20, 0; mov.u32 %r5, %r0;"  # %p2: lanes 0 to 15 of each warp


def in_half(text: str) -> str:
    """Only lanes 0 to 15 come by."""
    return HALF + f"@!%p2 bra AFTER; {text} AFTER: st.global.u32 [%rd1], %r5;"


def shuffle(mask: str) -> str:
    return f"shfl.sync.bfly.b32 %r5, %r5, 1, 31, {mask};"


# (what is wrong, broken body, repaired body)
LANES = [
    ("a shuffle", in_half(shuffle("0xffffffff")), in_half(shuffle("0xffff"))),
    ("a vote", in_half("vote.sync.ballot.b32 %r5, 1, 0xffffffff;"), in_half("vote.sync.ballot.b32 %r5, 1, 0xffff;")),
    ("a match", in_half("match.any.sync.b32 %r5, %r5, -1;"), in_half("match.any.sync.b32 %r5, %r5, 0xffff;")),
    ("a reduction", in_half("redux.sync.add.s32 %r5, %r5, -1;"), in_half("redux.sync.add.s32 %r5, %r5, 0xffff;")),
    ("bar.warp.sync", in_half("bar.warp.sync -1;"), in_half("bar.warp.sync 0xffff;")),
    ("an .aligned barrier", in_half("bar.sync 1, 64;"), in_half("") + "bar.sync 1, 64;"),
    ("ldmatrix", in_half("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r2];"), in_half("")),
    ("a barrier instead", HALF + f"@!%p2 bra AFTER; {shuffle('-1')} AFTER: bar.sync 0;" + OUT,
     HALF + shuffle("-1") + "bar.sync 0;" + OUT),
    ("one barrier by two instructions", HALF + "@%p2 bra OTHER; bar.sync 0; bra DONE; OTHER: bar.sync 0; DONE:" + OUT,
     HALF + "bar.sync 0;" + OUT),
    ("masks that differ", HALF + "selp.b32 %r21, 0xffffffff, 0xffff0001, %p2;" + shuffle("%r21") + OUT,
     HALF + "selp.b32 %r21, 0xffff, 0xffff0000, %p2;" + shuffle("%r21") + OUT),
]  # fmt: skip


@pytest.mark.parametrize(("broken", "repaired"), [pytest.param(*c[1:], id=c[0]) for c in LANES])
def test_lanes_that_a_collective_names_and_that_do_not_come(broken, repaired) -> None:
    report = check(broken)
    assert "collective" in errors(report), report.findings
    report = check(repaired)
    assert not errors(report), "\n".join(map(str, report.findings))


def test_absent_lanes_are_named_with_both_lines() -> None:
    (found,) = (f for f in check(in_half(shuffle("-1"))).findings if f.kind == "collective")
    assert found.where.what.startswith("shfl") and found.where.lanes == 0xFFFF
    assert found.other is not None and found.other.what.startswith("st.global") and "lanes 0xffff0000" in found.message


@pytest.mark.parametrize("body", [
    HALF + "@!%p2 bra AFTER;" + shuffle("-1") + OUT + "AFTER:",
    HALF + "@!%p2 exit;" + shuffle("-1") + OUT,
    HALF + "mov.u32 %r21, 0; ROUND: @!%p2 bra ON; add.u32 %r5, %r5, 1; ON:" + shuffle("-1")
    + "add.u32 %r21, %r21, 1; setp.lt.u32 %p3, %r21, 3; @%p3 bra ROUND;" + OUT,
], ids=["left early", "exited", "diverged in a loop"])  # fmt: skip
def test_lanes_that_leave_or_come_later_are_no_finding(body) -> None:
    """A lane that has exited takes part in nothing (PTX ISA, shfl.sync); one that comes later is waited for."""
    report = check(body)
    assert not errors(report), "\n".join(map(str, report.findings))


# ---------------------------------------------------------------- arrivals in the wrong round
ROUNDS = "mbarrier.arrive.shared.b64 _, [%r10];" + wait(0) + "mbarrier.arrive.shared.b64 _, [%r10];" + wait(1, 1)
ELECTED = "and.b32 %r20, %r0, 31; setp.eq.u32 %p4, %r20, 0; @%p4 mbarrier.arrive.shared.b64 _, [%r10];"
COPIED = "cp.async.ca.shared.global [%r3], [%rd1], 4; cp.async.mbarrier.arrive.noinc.shared.b64 [%r10];" + wait(0)


@pytest.mark.parametrize(("broken", "repaired"), [
    (init(127) + ROUNDS, init(128) + ROUNDS),
    (init(1) + ROUNDS, init(128) + ROUNDS),
    (init(3) + ELECTED + wait(0), init(4) + ELECTED + wait(0)),
    (init(4) + ELECTED + ELECTED + wait(0) + wait(1, 1), init(4) + ELECTED + wait(0) + ELECTED + wait(1, 1)),
    (init(127) + COPIED, init(128) + COPIED),
], ids=["one lane too few", "one instead of all", "one warp too few", "twice before the wait", "copies"])  # fmt: skip
def test_more_arrivals_than_an_mbarrier_counts(broken, repaired) -> None:
    for policy in ("eager", "random:3"):
        assert "barrier-count" in errors(check(broken, block=128, policy=policy)), policy
        report = check(repaired, block=128, policy=policy)
        assert not errors(report), "\n".join(map(str, report.findings))


def test_ctas_one_after_the_other_have_rounds_of_their_own() -> None:
    one = "setp.eq.u32 %p4, %r0, 0; @%p4 mbarrier.arrive.shared.b64 _, [%r10];"
    report = check(init(1) + one + wait(0), block=128, grid=64)
    assert not errors(report), "\n".join(map(str, report.findings))


# ---------------------------------------------------------------- setmaxnreg
def moved(body: str, limit: str = ".maxntid 256 .minnctapersm 1", block: int = 256):
    text = HEAD.replace("(.param .u64 out)", f"(.param .u64 out) {limit}") + body + "\nret;\n}\n"
    return vgpu.check(text, "kernel", 1, block, [np.zeros(64, np.uint32)], timeout=60)


def roles(first: str, second: str) -> str:
    return f"setp.lt.u32 %p2, %r0, 128; @%p2 bra FIRST; {second} bra DONE; FIRST: {first} DONE: bar.sync 0;"


DEC, INC = "setmaxnreg.dec.sync.aligned.u32 {};", "setmaxnreg.inc.sync.aligned.u32 {};"


def test_registers_that_the_pool_never_has_are_a_deadlock_with_its_cause() -> None:
    limit = ".maxntid 256 .maxnreg 128"
    (found,) = moved(roles(DEC.format(40), INC.format(224)), limit).findings
    assert found.kind == "deadlock" and found.where.what.startswith("setmaxnreg.inc")
    assert re.search(r"wait for 224 registers a thread: the CTA's pool is 32768 \(128 a thread", found.message)
    assert not moved(roles(DEC.format(40), INC.format(216)), limit).findings


@pytest.mark.parametrize(("limit", "count"), [(".maxntid 256 .maxnreg 256", 256), (".maxntid 256 .maxnreg 90", 96)])
def test_registers_are_allocated_in_steps_of_eight(limit, count) -> None:
    """Triton's kernels of 256 threads ask for 256 each, all that an SM has."""
    assert not moved(INC.format(count), limit).findings


def test_setmaxnreg_the_wrong_way_or_by_some_warps() -> None:
    wrong = moved(roles(DEC.format(200), ""), ".maxntid 256 .maxnreg 128").findings
    assert [f.kind for f in wrong] == ["launch"] and "200 registers a thread where it has 128" in wrong[0].message
    some = "setp.lt.u32 %p2, %r0, 64; @!%p2 bra DONE;" + DEC.format(40) + "DONE: bar.sync 0;"
    assert errors(moved(some)) == {"collective"}


def test_setmaxnreg_without_a_register_limit_is_for_review() -> None:
    (found,) = moved(DEC.format(40), "").findings
    assert (found.kind, found.severity) == ("launch", Verdict.REVIEW)
