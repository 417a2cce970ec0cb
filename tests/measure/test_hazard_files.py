"""Findings for CI: a baseline survives edits and accepts nothing new; JUnit and SARIF have what readers need."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from tensorladder.core.errors import UsageError
from tensorladder.core.findings import KINDS, Finding, Report, Verdict, Where
from tensorladder.measure import accepted
from tensorladder.measure.hazard_files import HazardFiles

SOURCE = """import cutlass

def kernel(a):
    stage = a[0]
    store(stage, 1)
    barrier()
    load(stage)

def other(a):
    store(stage, 1)
"""


def line_of(path, text, nth=0):
    return [n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line][nth]


def race(path, nth=0, **more):
    store, load = line_of(path, "store(stage", nth), line_of(path, "load(stage)")
    where = Where("st.shared.u32", str(path), store, 7, "kernel", (0, 0, 0), 1)
    return Finding("race", "two accesses", where, Where("ld.shared.u32", str(path), load, 9), "a barrier", **more)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "k.py"
    path.write_text(SOURCE)
    return path


def known_of(*reports):
    """What a reader of the written file gets."""
    return accepted.of_reports(reports)


def test_a_baseline_survives_edits_elsewhere_and_no_edit_of_the_line(source):
    known = known_of(Report("k1", (race(source),)))
    source.write_text("# a line more\n\n" + SOURCE.replace("    barrier()\n", "    barrier()\n    # words\n"))
    judged = accepted.accept(Report("k1", (race(source),)), known, "b.json")
    assert judged.report.findings == () and len(judged.accepted) == 1 and not judged.stale
    assert judged.report.verdict.exit_code == 0
    source.write_text(SOURCE.replace("store(stage, 1)", "store(stage, 2)"))
    judged = accepted.accept(Report("k1", (race(source),)), known, "b.json")
    assert len(judged.report.findings) == 1 and not judged.accepted
    assert [print_.kind for print_, _ in judged.stale] == ["race"]
    assert "no longer found" in judged.text()[0] and "store(stage, 1)" in judged.text()[0]


CPP = """#include "zoo.cuh"  // {
__device__ inline void fill(float* x) { x[0] = 1; /* } */ }
template <int N> __global__ void __launch_bounds__(128) kernel(const float* (&x)[2], float* out) {
    if (threadIdx.x == 0) { out[N] = '{'; }
    auto add = [&](int i) { return "}" + i; };
    for (int i = 0; i < 4; ++i)
        out[i] = 2;
}
int other = 3;
KERNEL(send) {
    out[0] = 4;
}
"""


def test_an_entry_of_cuda_cpp_names_the_function_around_its_line(tmp_path):
    path = tmp_path / "k.cu"
    path.write_text(CPP)
    texts = {"x[0] = 1": "fill", "out[N]": "kernel", "out[i]": "kernel", "int other": "", "out[0]": "KERNEL(send)"}
    for text, name in texts.items():
        where = Where("st.global", str(path), line_of(path, text), 7, "kernel", (0, 0, 0), 1)
        (place,) = accepted.fingerprint("k.cu", Finding("race", "x", where)).places
        assert place.split(": ")[1] == name, place


def test_accepted_findings_that_say_the_same_are_one_line(source):
    where = [Where("ld.shared", str(source), line, 7, "kernel", (0, 0, 0), 1) for line in range(4, 9)]
    alike = Finding("tcgen05-order", "no fence", fix="a fence", verdict=Verdict.REVIEW)
    report = Report("k1", tuple(replace(alike, where=one) for one in where))
    judged = accepted.accept(report, known_of(report), "b.json")
    (line,) = judged.text()
    assert len(judged.accepted) == len(judged.to_json()["accepted"]) == 5
    assert line.startswith("  accepted: tcgen05-order: no fence (ld.shared, at ")
    assert f"; and at 4 more places: {source}:5, " in line


def test_only_the_same_is_accepted(source):
    known = known_of(Report("k1", (race(source),)))
    again, elsewhere = race(source), race(source, nth=1)
    for target, findings in {
        "another target": [Report("k2", (again,))],
        "another function": [Report("k1", (elsewhere,))],
        "another kind": [Report("k1", (Finding("slot-reuse", "x", again.where, again.other),))],
        "one place only": [Report("k1", (Finding("race", "x", again.where),))],
    }.items():
        judged = [accepted.accept(report, known, "b.json") for report in findings]
        assert all(one.report.findings and not one.accepted for one in judged), target
    twice = accepted.accept(Report("k1", (again, again)), known, "b.json")
    assert len(twice.accepted) == len(twice.report.findings) == 1


def test_a_graver_verdict_is_new_and_what_is_not_modelled_is_never_accepted(source):
    where = race(source).where
    review, error = (Finding("uninitialised", "x", where, verdict=v) for v in (None, KINDS["race"][0]))
    assert accepted.accept(Report("k", (error,)), known_of(Report("k", (review,))), "b").report.findings == (error,)
    incomplete = Report("k", (Finding("unsupported", "x", where),))
    assert known_of(incomplete) == {}
    assert accepted.accept(incomplete, known_of(incomplete), "b").report.verdict.exit_code == 3


def test_ptx_is_known_by_kernel_and_instruction_and_words_by_words(tmp_path):
    path = tmp_path / "k.ptx"
    path.write_text("\nst.shared.u32  [%r3], %r17;\n")

    def finding(line):
        return Finding("race", "x", Where("st.shared.u32", ptx_line=line, kernel="k"))

    first = accepted.fingerprint(str(path), finding(2))
    path.write_text("// more\n\n\nst.shared.u32 [%r4], %r9;\n")
    assert accepted.fingerprint(str(path), finding(4)) == first
    path.write_text("\nst.shared.u32 [%r4+4], %r9;\n")
    assert accepted.fingerprint(str(path), finding(2)) != first
    wrong = [accepted.fingerprint("a1", Finding("wrong-result", f"off by {n}")) for n in ("0.25", "1e-3")]
    assert wrong[0] == wrong[1] != accepted.fingerprint("a1", Finding("wrong-result", "NaN at 3"))


def test_the_file_says_the_same_when_read(source, tmp_path):
    path = tmp_path / "b.json"
    report = Report("k", (race(source), race(source, nth=1), Finding("wrong-result", "off by 3")))
    writing = HazardFiles(None, str(path), None, None)
    assert writing.take(report).report.verdict.exit_code == 0
    writing.write()
    assert accepted.read(str(path)) == known_of(report)
    reading = HazardFiles(str(path), None, None, None).take(report)
    assert len(reading.accepted) == 3 and reading.to_json()["verdict"] == "clean" and reading.to_json()["stale"] == []
    assert sorted(os.listdir(tmp_path)) == ["b.json", "k.py"]


GOOD = {"target": "k", "kind": "race", "verdict": "error", "places": ["a"], "count": 1}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "\udcff", "[" * 100000, '{"version": 2, "findings": []}', '{"version": 1}',
     *(json.dumps({"version": 1, "findings": [entry]}) for entry in (
         1, {}, {**GOOD, "kind": "no-such"}, {**GOOD, "kind": []}, {**GOOD, "count": 0}, {**GOOD, "count": True},
         {**GOOD, "places": "a"}, {**GOOD, "places": [1]}, {**GOOD, "verdict": "incomplete"}, {**GOOD, "target": 3}))],
)  # fmt: skip
def test_a_damaged_baseline_is_refused_in_a_line(tmp_path, text):
    path = tmp_path / "b.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError) as raised:
        accepted.read(str(path))
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_places_are_looked_at_first(tmp_path):
    for asked in (
        [str(tmp_path / "none.json"), None, None, None],
        [None, str(tmp_path), None, None],
        [None, None, str(tmp_path / "no" / "f.xml"), None],
        [None, None, str(tmp_path / "f"), str(tmp_path / "f")],
    ):
        with pytest.raises(UsageError):
            HazardFiles(*asked)


def reports(source):
    hostile = Finding("out-of-bounds", "<b>&\x00\ufffe ]]>", Where("ld", str(source), 4))
    return [
        Report("good"),
        Report("bad", (race(source), hostile, Finding("lint", "untidy"))),
        Report("odd", (Finding("unsupported", "call malloc"),)),
        Report("so-so", (Finding("uninitialised", "read", Where("ld", str(source), 5)),)),
    ]


def test_junit(source, tmp_path):
    path = tmp_path / "f.xml"
    files = HazardFiles(None, None, str(path), None)
    for report in reports(source):
        files.take(report, 0.25)
    files.write()
    root = ET.parse(path).getroot()
    assert root.tag == "testsuites" and root.get("time") == "1.000"
    (suite,) = root
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["4", "1", "1", "0"]
    cases = {case.get("name"): case for case in suite}
    assert all(case.tag == "testcase" and case.get("classname") and case.get("time") for case in cases.values())
    assert [[child.tag for child in case] for case in cases.values()] == [[], ["failure"], ["error"], ["system-out"]]
    failure = cases["bad"].find("failure")
    assert failure.get("type") == "race, out-of-bounds" and "k.py:5" in failure.text and "]]>" in failure.text
    assert "call malloc" in cases["odd"].find("error").text and "uninitialised" in cases["so-so"][0].text


def test_sarif_has_the_required_fields(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept, path = tmp_path / "b.json", tmp_path / "f.sarif"
    kept.write_bytes(accepted.to_bytes(known_of(Report("bad", (race(source),)))))
    files = HazardFiles(str(kept), None, None, str(path))
    for report in [*reports(source), Report("x.ptx", (Finding("trap", "t", Where("trap", ptx_line=3)),) * 2)]:
        files.take(report)
    files.write()
    log = json.loads(path.read_text())
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] and [rule["id"] for rule in driver["rules"]] == list(KINDS)
    assert all(rule["shortDescription"]["text"] for rule in driver["rules"])
    results = run["results"]
    assert len(results) == 7
    for result in results:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error") and result["message"]["text"]
        for location in [*result["locations"], *result.get("relatedLocations", [])]:
            place = location["physicalLocation"]
            assert place["artifactLocation"]["uri"]
            assert "region" not in place or place["region"]["startLine"] >= 1
    (hidden,) = [one for one in results if "suppressions" in one]
    assert hidden["ruleId"] == "race" and hidden["suppressions"][0]["kind"] == "external"
    assert hidden["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "k.py", "uriBaseId": "%SRCROOT%"}, "region": {"startLine": 5}}  # fmt: skip
    assert hidden["relatedLocations"][0]["physicalLocation"]["region"] == {"startLine": 7}
    prints = [one["partialFingerprints"]["findingHash/v1"] for one in results]
    assert len(set(prints)) == len(prints)


def test_a_full_disk_leaves_what_was_there(source, tmp_path, monkeypatch):
    path = tmp_path / "f.xml"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    files = HazardFiles(None, None, str(path), None)
    files.take(Report("good"))
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match="No space left"):
        files.write()
    assert path.read_text() == "old" and sorted(os.listdir(tmp_path)) == ["f.xml", "k.py"]
