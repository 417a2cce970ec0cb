"""What the checker's generated code writes stays inside its buffers, also where a kernel goes past its own."""

from __future__ import annotations

import pytest

pytest.importorskip("llvmlite")

from tests.vgpu.canaries import canaries
from tests.vgpu.test_check import check, kinds

#: undefined words in buf, so that copies carry them; %r4 is past the window, %rd2 the last KB of out
SETUP = """st.shared.u32 [%r3], %r9; @%p0 mbarrier.init.shared.b64 [%r10], 1; bar.sync 0;
    @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 4096; add.u32 %r4, %r2, 4224; add.u64 %rd2, %rd0, 15360;"""
LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
PAST = {
    "a bulk load, of the window": f"@%p0 {LOAD} [%r4], [%rd0], 4096, [%r10];",
    "a bulk load, of the allocation": f"@%p0 {LOAD} [%r2], [%rd2], 4096, [%r10];",
    "a bulk store, of the window": "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r4], 4096;",
    "a bulk store, of the allocation": "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r2], 4096;",
    "a copy within the cluster": "@%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                                 "[%r4], [%r2], 4096, [%r10];",
    "cp.async": "add.u32 %r4, %r2, 4352; cp.async.cg.shared.global [%r4], [%rd0], 16; cp.async.wait_all;",
}  # fmt: skip


@pytest.mark.parametrize("body", PAST.values(), ids=PAST)
def test_an_access_past_the_end_is_found_and_writes_nowhere_else(body: str) -> None:
    with canaries() as kept:
        report = check(SETUP + body)
    assert "out-of-bounds" in kinds(report)
    assert kept.count > 20
    assert kept.changed() == []
