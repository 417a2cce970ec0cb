"""Third-party kernels under the checker, as they are kept: no error that nobody has explained."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import peers_checked
from benchmarks.mutation_table import judged_by
from tests.peers.checked import record

ERROR = {"verdict": "error", "kind": "race", "message": "nothing orders the two", "where": None, "other": None}
RECORD = {"files": ["o/p/f.py"], "arch": ["sm_90a"], "verdict": "error", "errors": {"race": 1}, "reviews": {}}


def test_what_is_kept_is_explained(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["peers_checked"])
    assert peers_checked.main() == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["summary"]
    assert found["unexplained"] == 0
    assert found["errors"] == found["at fault"]["tests"] > 0


@pytest.mark.parametrize(
    ("test", "code"), [("test_x.py::test_y[z.py-sm_90a-]", 1), ("[elementwise_apply.py-sm_80-]", 0)]
)
def test_an_error_is_a_failure_unless_its_kernel_is_at_fault(monkeypatch, capsys, test, code):
    records = {test: {**RECORD, "test": test, "faults": [ERROR]}}
    monkeypatch.setattr(peers_checked, "kept", lambda: records)
    monkeypatch.setattr(sys, "argv", ["peers_checked"])
    assert peers_checked.main() == code
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["summary"]
    assert found["not explained"] == [test] * code
    assert found["at fault"]["by kind"] == ({} if code else {"race": 1})


def test_the_table_of_faults_says_where(monkeypatch):
    where = {"file": "elementwise_apply.py", "line": 150}
    found = {**RECORD, "test": "[elementwise_apply.py-sm_80-]", "faults": [ERROR | {"where": where}]}
    rows = {kernel: place for _, kernel, _, place, _ in peers_checked.faults([found])}
    assert rows["elementwise_apply"] == "elementwise_apply.py:150"
    assert rows["fmha_bwd"] == "not in what is kept"


def test_a_test_that_failed_is_not_clean():
    failed = record("t.py::test_t", [], [{"verdict": "clean", "arch": "sm_90a"}], failed=True)
    assert failed["verdict"] == "failed"
    assert peers_checked.summary([failed])["not explained"] == ["t.py::test_t"]
    assert record("t.py::test_t", [], [ERROR | {"arch": "sm_90a"}], failed=True)["verdict"] == "error"


def test_the_summary_counts_rows_of_another_checker():
    row = {**RECORD, "test": "[elementwise_apply.py-sm_80-]", "faults": [ERROR]}
    rows = [row, row | {"checker": judged_by()}, row | {"checker": "0" * 12}]
    assert peers_checked.summary(rows)["stale"] == 2
