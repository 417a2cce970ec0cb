"""Verdicts are ordered, findings survive JSON, reports keep one finding a place."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorladder.core.findings import KINDS, Finding, Report, Verdict, Where, summarise, verdict_of

optional_int = st.none() | st.integers(1, 9999)
wheres = st.builds(
    Where, what=st.sampled_from(["", "st.shared", "TMA load"]), file=st.none() | st.just("k.py"), line=optional_int,
    ptx_line=optional_int, kernel=st.none() | st.just("k"), cta=st.none() | st.tuples(*[st.integers(0, 99)] * 3),
    warp=st.none() | st.integers(0, 31), lanes=st.none() | st.integers(0, 2**32 - 1),
    space=st.none() | st.just("shared"), bytes=st.none() | st.tuples(st.integers(0, 9), st.integers(10, 99)),
)  # fmt: skip
findings = st.builds(
    Finding, kind=st.sampled_from(list(KINDS)), message=st.text("abc ", max_size=9), where=wheres,
    other=st.none() | wheres.filter(lambda w: w != Where()), fix=st.sampled_from(["", "wait"]),
    verdict=st.none() | st.sampled_from(list(Verdict)),
)  # fmt: skip


def test_order_and_exit_codes():
    assert Verdict.CLEAN < Verdict.REVIEW < Verdict.INCOMPLETE < Verdict.ERROR
    assert [str(v) for v in sorted(Verdict)] == ["clean", "review", "incomplete", "error"]
    assert [v.exit_code for v in sorted(Verdict)] == [0, 0, 3, 1]


@given(findings)
def test_json_round_trip(f):
    data = json.loads(json.dumps(f.to_json()))
    assert {"kind", "message", "where", "other", "fix"} <= data.keys()
    assert Finding.from_json(data) == f
    assert f.kind in str(f)


@given(st.lists(findings, max_size=6))
def test_reports(found):
    report = summarise("c2", found)
    assert report.verdict == verdict_of(found)
    assert {f.key() for f in report.findings} == {f.key() for f in found}
    ranks = [f.severity.rank for f in report.findings]
    assert ranks == sorted(ranks, reverse=True)
    assert json.loads(json.dumps(report.to_json()))["target"] == "c2"


def test_one_finding_a_place():
    def race(cta, verdict=None):
        return Finding("race", f"in CTA {cta}", Where("st.shared", "k.py", 3, cta=(cta, 0, 0)), verdict=verdict)

    report = summarise("k", [race(0, Verdict.REVIEW), race(1), race(2)])
    assert [f.message for f in report.findings] == ["in CTA 1"]
    assert Report("empty").verdict == Verdict.CLEAN


def test_words():
    where = Where("st.shared.v4", "k.py", 12, 340, cta=(1, 0, 0), warp=3, lanes=0x0010FFFF, space="shared",
                  bytes=(0, 128))  # fmt: skip
    other = Where("TMA load", ptx_line=200, lanes=1)
    text = str(Finding("slot-reuse", "stage 0 is overwritten", where, other, "wait for the empty barrier"))
    assert text.splitlines() == [
        "error: slot-reuse: stage 0 is overwritten",
        "  st.shared.v4, at k.py:12, PTX line 340, CTA 1,0,0, warp 3, lanes 0-15,20, shared bytes 0..127",
        "  TMA load, PTX line 200, lane 0",
        "  fix: wait for the empty barrier",
    ]
    assert str(Where()) == "somewhere"


@pytest.mark.parametrize("arguments", [("rase", "x"), ("race", "two\nlines")])
def test_malformed_findings_are_refused(arguments):
    with pytest.raises(ValueError, match="finding"):
        Finding(*arguments)


def test_findings_for_review_that_say_the_same_are_shown_as_one():
    def at(line: int, kernel: str = "k", verdict: Verdict = Verdict.REVIEW) -> Finding:
        where = Where("ld", "k.py", line, kernel=kernel, cta=(0, 0, 0))
        return Finding("tcgen05-order", f"line {line}", where, Where("st"), "a fence", verdict)

    many = summarise(
        "t", [at(n) for n in range(1, 6)] + [at(9, "other"), *(at(n, "k", Verdict.ERROR) for n in range(10, 15))]
    )
    assert len(many.findings) == 11
    shown = many.grouped()
    assert [f.where.line for f in shown] == [10, 11, 12, 13, 14, 1, 9]
    assert [where.line for where, _ in shown[5].more] == [2, 3, 4, 5]
    assert "and at 4 more places: k.py:2, k.py:3, k.py:4, k.py:5" in str(shown[5])
    (record,) = (r for r in many.to_json()["findings"] if "more" in r)
    assert Finding.from_json(record) == shown[5]
    assert summarise("t", [at(1), at(2), at(3)]).grouped() == [at(1), at(2), at(3)]
