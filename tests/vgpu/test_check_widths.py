"""The hazard checker on waits of CTA scope for what another CTA of the cluster wrote."""

from __future__ import annotations

import pytest

pytest.importorskip("llvmlite")

from tensorladder.core.findings import Verdict
from tests.vgpu.test_check import FENCE, INIT, OUT, check, kinds

#: CTA 1 brings CTA 0 a word a thread (64 threads), which CTA 0 reads after a wait
BODY = (
    INIT + """mov.u32 %r6, %cluster_ctarank; setp.eq.u32 %p2, %r6, 0; mapa.shared::cluster.u32 %r7, %r3, 0;
    mapa.shared::cluster.u32 %r8, %r10, 0; st.shared.u32 [%r3], 5; fence.proxy.async.shared::cta;
    @%p0 fence.mbarrier_init.release.cluster; barrier.cluster.arrive; barrier.cluster.wait;
    @%p2 bra FIRST; {bring} bra END;
    FIRST: {first} {wait} ld.shared.u32 %r5, [%r3];""" + OUT + "END: barrier.cluster.arrive; barrier.cluster.wait;"
)  # fmt: skip
ARRIVE = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8];"
#: (count of the mbarrier, what is expected, how the words come)
STORE_ASYNC = (64, "mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 4;",
               "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r7], %r0, [%r8];")  # fmt: skip
REMOTE = (64, "", "st.shared::cluster.u32 [%r7], %r0;" + ARRIVE)
UNSAID = (64, "", "st.shared::cluster.u32 [%r7], %r0;" + ARRIVE.replace(".release.cluster", ""))
GLOBAL = (64, "", "st.global.u32 [%rd1+512], %r0;" + ARRIVE)
COPIED = (
    1,
    "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 256;",
    "st.shared.u32 [%r3], %r0;"
    + FENCE
    + """bar.sync 0; mapa.shared::cluster.u32 %r7, %r2, 0;
          @%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r7], [%r2], 256, [%r8];""",
)
SPIN = "W: mbarrier.try_wait.parity{0}.shared.b64 %p1, [%r10], 0; @!%p1 bra W;"
PLAIN, WIDE, RELAXED = SPIN.format(""), SPIN.format(".acquire.cluster"), SPIN.format(".relaxed.cluster")
HANDED = "setp.lt.u32 %p3, %r0, 32; @!%p3 bra LATE;" + PLAIN + "LATE: bar.sync 0;"
FENCED = "fence.acq_rel.cluster;"

DOUBTFUL = [(how, wait) for how in (STORE_ASYNC, REMOTE, UNSAID) for wait in (PLAIN, PLAIN + "fence.acq_rel.cta;")]
DOUBTFUL += [(REMOTE, HANDED), (STORE_ASYNC, HANDED), (REMOTE, SPIN.format(".acquire.cta"))]
SURE = [(how, wait) for how in (STORE_ASYNC, REMOTE) for wait in (WIDE, PLAIN + FENCED, RELAXED + FENCED)]
SURE += [(REMOTE, HANDED.replace(PLAIN, WIDE)), (COPIED, PLAIN), (REMOTE, HANDED.replace(PLAIN, PLAIN + FENCED))]


def run(how: tuple[int, str, str], wait: str, policy: str = "eager"):
    count, first, bring = how
    return check(BODY.format(count=count, first=first, bring=bring, wait=wait), grid=2, cluster=2, policy=policy)


@pytest.mark.parametrize(("how", "wait"), DOUBTFUL)
def test_what_another_cta_wrote_wants_more_than_a_wait_of_cta_scope(how, wait) -> None:
    report = run(how, wait)
    assert kinds(report) == {"scope"} and report.verdict is Verdict.REVIEW, "\n".join(map(str, report.findings))
    (found,) = report.findings
    assert "mbarrier.try_wait" in found.message and found.where.cta == (0, 0, 0) and found.other.cta == (1, 0, 0)


@pytest.mark.parametrize(("how", "wait"), SURE)
def test_a_wider_wait_a_fence_and_copies_leave_no_doubt(how, wait) -> None:
    for policy in ("eager", "lazy"):
        assert not run(how, wait, policy).findings


def test_global_memory_that_another_cta_wrote() -> None:
    read = "ld.global.u32 %r9, [%rd1+512];"
    assert kinds(run(GLOBAL, "st.shared.u32 [%r3], 1;" + PLAIN + read)) == {"scope"}
    assert not run(GLOBAL, "st.shared.u32 [%r3], 1;" + PLAIN + FENCED + read).findings


def test_a_slot_that_others_have_read_may_be_written_again() -> None:
    """As a producer waits for the consumers of other CTAs: nothing is read that they wrote."""
    how = (64, "", "ld.shared::cluster.u32 %r9, [%r7];" + ARRIVE)
    assert not run(how, PLAIN + "st.shared.u32 [%r3], 6;").findings


def test_doubt_ends_with_a_barrier_of_the_cluster() -> None:
    how = (64, "", REMOTE[2] + "barrier.cluster.arrive; barrier.cluster.wait;")
    assert not run(how, PLAIN + "barrier.cluster.arrive; barrier.cluster.wait;").findings
