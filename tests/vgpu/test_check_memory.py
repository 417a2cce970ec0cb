"""What the checker's generated code writes stays inside its buffers, also where a kernel goes past its own."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from tensorladder import vgpu
from tensorladder.vgpu.check.engine import Checker
from tensorladder.vgpu.machine.execution import Run
from tests.vgpu.canaries import canaries
from tests.vgpu.test_broken import STORE
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


FIRST = """
import threading
import numpy as np
from tensorladder import vgpu
from tensorladder.vgpu.check.engine import Checker
from tests.vgpu.test_broken import STORE
def work():
    out, checker = np.zeros(512, np.uint32), Checker()
    vgpu.launch(STORE, "k", 8, 64, [out], device=vgpu.Device("sm_90a", checker=checker))
    done.append(not checker.findings and (out == np.arange(512)).all())
done = []
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert done == [True] * 4, done
"""


def test_a_process_may_launch_first_from_many_threads() -> None:
    """Each would load the libraries, and the code of all but one of these would go."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def test_allocations_may_come_while_a_launch_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another host thread makes them: each worker's shadow has the allocations of the launch."""
    out, checker = np.zeros(512, np.uint32), Checker()
    device = vgpu.Device("sm_90a", checker=checker, workers=2)
    unit = Run.unit

    def later(run: Run, group: object) -> object:
        device.memory.empty("another thread's", 4, np.uint32)
        return unit(run, group)

    monkeypatch.setattr(Run, "unit", later)
    vgpu.launch(STORE, "k", 8, 64, [out], device=device)
    assert not checker.findings
    np.testing.assert_array_equal(out, np.arange(512))
