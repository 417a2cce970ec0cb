"""The zoo: each broken kernel is flagged with its kind and its line, each repaired twin is clean."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tensorladder.core.findings import KINDS
from tensorladder.zoo import case

CASES = case.catalog()


def test_cases_list_without_any_dsl() -> None:
    code = "import sys; from tensorladder.zoo import case; case.catalog(); assert 'cutlass' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len({info.name for info in CASES}) == len(CASES)


@pytest.mark.parametrize("hazard", sorted({info.hazard for info in CASES}))
def test_each_class_has_two_cases_with_kinds_and_marks(hazard) -> None:
    cases = [info for info in CASES if info.hazard == hazard]
    assert len(cases) >= 2
    for info in cases:
        assert set(info.case.kind.split()) <= set(KINDS)
        assert info.source.exists() and info.kernel in info.source.read_text()
        assert info.case.kind == "launch" or info.marked(), info.name


@pytest.mark.parametrize("info", CASES, ids=lambda info: info.name)
def test_the_broken_twin_is_flagged_and_the_repaired_one_is_clean(info) -> None:
    pytest.importorskip("llvmlite")
    if info.case.language == "cutedsl":
        pytest.importorskip("cutlass")
    from tensorladder.measure import zoo

    for broken in (True, False):
        outcome = zoo.check(info, broken)
        assert outcome.ok, "\n".join([outcome.why, *map(str, outcome.report.findings)])


def test_check_zoo_prints_a_line_a_twin(ask) -> None:
    pytest.importorskip("llvmlite")
    said = ask("check", "--zoo", "race-two-ctas-write", "--json")
    broken, repaired = (json.loads(line) for line in said.out.splitlines())
    assert said.code == 0
    assert {"case", "expected", "verdict", "kind", "ok"} <= set(broken)
    assert (broken["expected"], broken["verdict"], repaired["verdict"]) == ("race", "error", "clean")
    said = ask("check", "--zoo", "race-two-ctas-write")
    assert said.code == 0 and "2 kernels, 2 as expected" in said.out
    assert ask("check", "--zoo", "no-such-case").code == 2
    assert ask("check").code == 2


def test_a_wrong_expectation_shows(ask, monkeypatch) -> None:
    """The zoo's own verdict can fail: a case that expects another kind or line is not as expected."""
    pytest.importorskip("llvmlite")
    from dataclasses import replace

    from tensorladder.measure import zoo

    info = case.find("race-two-ctas-write")
    other_kind = replace(info, case=replace(info.case, kind="tmem"))
    assert zoo.check(other_kind, True).why == "no error of kind tmem"
    monkeypatch.setattr(case.CaseInfo, "marked", lambda self: frozenset([1]))
    assert "line 1 is not named" in zoo.check(info, True).why
    wrong = [zoo.check(other_kind, True)]
    monkeypatch.setattr(zoo, "check_all", lambda cases: iter(wrong))
    assert ask("check", "--zoo", "race-two-ctas-write").code == 1
