"""The hazard checker on one lane that hands on for its warp, and on cp.async by lane."""

from __future__ import annotations

import pytest

pytest.importorskip("llvmlite")

from tensorladder.core.findings import Verdict
from tests.vgpu.test_check import FENCE, INIT, MINE, OUT, STORE, SYNC, check, errors, kinds
from tests.vgpu.test_check import READ as BULK_READ

MEET = "bar.warp.sync -1;"
ELECT = "elect.sync %r20|%p5, -1;"
#: warp 0 writes, one of its lanes arrives, warp 1 waits and reads
PASS = (
    INIT.format(count="{count}") + SYNC + "setp.gt.u32 %p2, %r0, 31; @%p2 bra WAIT; {write}"
    + " {arrive} bra END; WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [%r10], 0; @!%p1 bra WAIT;"
    + "{read} END:"
)  # fmt: skip
READ = "ld.shared.u32 %r5, [%r3+-128];" + OUT
ARRIVE = "@%p0 mbarrier.arrive.shared.b64 _, [%r10];"
ALL = "mbarrier.arrive.shared.b64 _, [%r10];"
HALVES = "setp.lt.u32 %p4, %r0, 16; @%p4 bra LOW; " + ALL + "bra MET; LOW: " + ALL + "MET:"
TWICE = ARRIVE + MEET + ARRIVE
FIRST = "ld.shared.u32 %r5, [%r2];" + OUT  # of lane 0 alone
HARMFUL = [
    (1, MINE, ARRIVE, READ),
    (1, MINE + ELECT, ARRIVE.replace("%p0", "%p5"), READ),
    (1, MINE + "shfl.sync.idx.b32 %r6, %r0, 0, 31, -1;", ARRIVE, READ),
    (1, MINE + "setp.lt.u32 %p4, %r0, 2; @%p4 bar.warp.sync 3;", ARRIVE, READ),
    (16, MINE, "setp.lt.u32 %p4, %r0, 16; @%p4 " + ALL, READ),
]
HARMLESS = [
    (1, MINE + MEET, ARRIVE, READ),
    (1, MINE + MEET + ELECT, ARRIVE.replace("%p0", "%p5"), READ),
    (1, MINE + "wgmma.fence.sync.aligned;", ARRIVE, READ),  # the whole warp is there
    (32, MINE, ALL, READ),
    (32, MINE, HALVES, READ),
    (1, MINE, ARRIVE, FIRST),
    (2, MINE, TWICE, READ),
    (1, "@%p0 " + MINE, ARRIVE, FIRST),
]


@pytest.mark.parametrize(("count", "write", "arrive", "read"), HARMFUL)
def test_an_arrival_of_one_lane_leaves_out_the_others(count, write, arrive, read) -> None:
    for policy in ("eager", "random:3"):
        report = check(PASS.format(count=count, write=write, arrive=arrive, read=read), policy=policy)
        assert errors(report) == {"race"} == kinds(report), "\n".join(map(str, report.findings))
    (found,) = report.findings
    assert "mbarrier.arrive" in found.message and found.where.warp == 1 and found.other.warp == 0


@pytest.mark.parametrize(("count", "write", "arrive", "read"), HARMLESS)
def test_lanes_that_met_or_arrived_themselves(count, write, arrive, read) -> None:
    report = check(PASS.format(count=count, write=write, arrive=arrive, read=read))
    assert not report.findings, "\n".join(map(str, report.findings))


def test_a_slot_that_one_lane_gives_back_is_for_review() -> None:
    """The other lanes of warp 0 may yet read it."""
    read = "ld.shared.u32 %r5, [%r3];" + OUT
    for meet, verdict in (("", Verdict.REVIEW), (MEET, Verdict.CLEAN)):
        body = MINE + PASS.format(count=1, write=read + meet, arrive=ARRIVE, read="st.shared.u32 [%r3+-128], 1;")
        assert check(body).verdict is verdict


def test_a_flag_that_one_lane_sets() -> None:
    body = """mov.u32 %r6, %ctaid.x; setp.eq.u32 %p2, %r6, 0; add.u64 %rd3, %rd0, 512; @!%p2 bra SECOND;
        st.global.u32 [%rd1], %r0; {meet} @%p0 fence.acq_rel.gpu; @%p0 st.relaxed.gpu.global.u32 [%rd3], 1; bra OUT;
        SECOND: @!%p0 bra SEEN; SPIN: ld.acquire.gpu.global.u32 %r7, [%rd3]; setp.eq.u32 %p3, %r7, 0; @%p3 bra SPIN;
        SEEN: bar.warp.sync -1; ld.global.u32 %r5, [%rd1]; OUT:"""
    assert errors(check(body.replace("{meet}", ""), block=32, grid=2)) == {"race"}
    assert check(body.replace("{meet}", MEET), block=32, grid=2).verdict is Verdict.CLEAN


def test_a_copy_that_one_lane_issues_of_what_the_others_wrote() -> None:
    for meet, verdict in (("", Verdict.REVIEW), (MEET, Verdict.CLEAN), ("wgmma.fence.sync.aligned;", Verdict.CLEAN)):
        report = check(MINE + FENCE + meet + STORE.replace("256", "128") + BULK_READ, block=32)
        assert report.verdict is verdict and kinds(report) == ({"race"} if verdict is Verdict.REVIEW else set())


# ---------------------------------------------------------------- cp.async
COPY = "cp.async.ca.shared.global [%r3], [%rd1], 4; cp.async.commit_group;"
COPIED = "cp.async.wait_group 0;"
KEEP = "st.global.u32 [%rd1+1024], %r5;"
NEXT = "xor.b32 %r4, %r1, 4; add.u32 %r4, %r4, %r2; ld.shared.u32 %r5, [%r4];" + KEEP  # what the next lane copied
OWN = "ld.shared.u32 %r5, [%r3];" + KEEP


@pytest.mark.parametrize(("body", "kind"), [
    (COPY + COPIED + OWN, ""),
    (COPY + COPIED + MEET + NEXT, ""),
    (COPY + COPIED + NEXT, "race"),
    (COPY + MEET + COPIED + NEXT, "race"),  # the lanes met before they waited
    (COPY + "@%p0 " + COPIED + MEET + NEXT + COPIED, "missing-wait"),
    (COPY + COPIED + MEET + NEXT + COPY + COPIED, "race"),  # written again while another lane reads
    (COPY + COPIED + MEET + NEXT + MEET + COPY + COPIED, ""),
])  # fmt: skip
def test_a_lane_waits_for_its_own_copies(body, kind) -> None:
    for policy in ("eager", "lazy"):
        report = check(body, block=32, policy=policy)
        assert kinds(report) == set(kind.split()), "\n".join(map(str, report.findings))


def test_an_arrival_of_one_lane_after_the_copies_of_all() -> None:
    for meet, found in (("", {"race"}), (MEET, set())):
        write = COPY + COPIED + meet
        assert kinds(check(PASS.format(count=1, write=write, arrive=ARRIVE, read=READ))) == found
