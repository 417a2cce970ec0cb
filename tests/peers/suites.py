"""Test suites of other projects, the files as they are in a checkout, by `pytest --vgpu`.

Where the test of this folder is checked, so are they, and one that fails for its hazards alone is judged by
`tests.peers.checked`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.peers import checked

SUMMARY = re.compile(r"^(\d+) tests: (.*); (\d+) launched kernels$", re.M)


def _pytest(folder: Path, path: Sequence[str | Path], *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest in `folder`, with `path` to import from. QuACK's cache of compiled kernels is off: code from there would
    go past the hooks."""
    # no __pycache__, no .pytest_cache: a checkout stays as it is
    command = [sys.executable, "-B", "-m", "pytest", "-p", "tensorladder.pytest_plugin", "-p", "no:cacheprovider"]
    search = os.pathsep.join(filter(None, [str(checked.HOME), *map(str, path), os.environ.get("PYTHONPATH", "")]))
    environment = os.environ | {"QUACK_CACHE_ENABLED": "0", "PYTHONPATH": search}
    return subprocess.run(
        [*command, "-W", "ignore", "-q", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=1200, env=environment,
    )  # fmt: skip


def spread(folder: Path, file: str, arch: str, count: int, path: Sequence[str | Path]) -> list[str]:
    """So many of a file's tests, spread evenly."""
    listed = _pytest(folder, path, "--vgpu", arch, "--collect-only", file).stdout.splitlines()
    names = [line for line in listed if line.startswith(f"{file}::")]
    assert names, "\n".join(listed[-15:])
    step = max(len(names) // count, 1)
    return names[step // 2 :: step][:count]


def run_suite(
    folder: Path, tests: Sequence[str], arch: str, tmp_path: Path, *options: str, path: Sequence[str | Path] = ()
) -> None:
    """Run tests of a suite, by their ids.

    Raises AssertionError where one fails that has no error among its hazards, or where none passes.
    """
    chosen = tmp_path / "chosen.txt"
    chosen.write_text("\n".join(tests))
    findings, found = os.environ.get(checked.FINDINGS), []
    sarif = tmp_path / "hazards.sarif"
    hazards = ["--vgpu-check", "--vgpu-sarif", str(sarif)] if findings else []
    done = _pytest(folder, path, "--vgpu", arch, "--vgpu-timeout", "300", *options, *hazards, f"@{chosen}")
    summary = SUMMARY.search(done.stdout)
    assert summary, done.stdout[-2000:] + done.stderr[-2000:]
    if findings:
        found = list(_findings(sarif))
        checked.write(findings, found, arch)
    print(done.stdout[summary.start() :])  # with the reasons of what is incomplete (pytest -s)
    failed = re.search(r"(\d+) failed", summary[2])
    # a test that fails for its hazards alone: tests.peers.checked says whose fault it is
    at_fault = {fault["test"] for fault in found if fault["verdict"] == "error"}
    assert (int(failed[1]) if failed else 0) <= len(at_fault), done.stdout[-3000:]
    assert "passed" in summary[2] or at_fault, done.stdout[-3000:]


def _findings(sarif: Path) -> Iterator[dict[str, Any]]:
    """What the plugin has written, in the words of Finding.to_json; `test`: the suite's own test."""
    for result in json.loads(sarif.read_text())["runs"][0]["results"]:
        test = result["properties"]["target"]
        other = result.get("relatedLocations", [None])[0]
        yield {
            "verdict": result["properties"]["verdict"], "kind": result["ruleId"], "test": test,
            "message": result["message"]["text"].removeprefix(f"{test}: "),
            "where": _place(result["locations"][0]), "other": _place(other) if other else None,
        }  # fmt: skip


def _place(location: dict[str, Any]) -> dict[str, Any]:
    physical = location["physicalLocation"]
    kernels = location.get("logicalLocations", [{}])
    return {
        "file": physical["artifactLocation"]["uri"], "line": physical.get("region", {}).get("startLine"),
        "kernel": kernels[0].get("fullyQualifiedName"),
    }  # fmt: skip
