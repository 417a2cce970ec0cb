"""Third-party kernels under the hazard checker: the table of what was found, and whose fault it is.

    TENSORLADDER_PEERS_CHECKED=F.jsonl make peers PEERS=folder      # runs them: a line a test in F.jsonl
    python -m benchmarks.peers_checked --keep F.jsonl               # into benchmarks/results/peers-checked.jsonl
    python -m benchmarks.peers_checked                              # a line a test, and what they come to
    python -m benchmarks.peers_checked --faults                     # kernels at fault: where, what, by which rule
    python -m benchmarks.peers_checked --without                    # kernels with no finding of rank error
    python -m benchmarks.peers_checked --reviews                    # what is for review: findings and tests by message

A finding of rank error is the kernel's fault where `tests.peers.checked.FAULTS` says why, and else the checker's. The
exit code is 1 where one is not explained, and where a test failed for another reason.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.mutation_table import judged_by
from tensorladder.core.pipes import piped
from tensorladder.measure import bench
from tests.peers.checked import FAULTS, faults_of, unexplained

RESULTS = Path(__file__).parent / "results" / "peers-checked.jsonl"


def kept() -> dict[str, dict[str, Any]]:
    """Records of the results by test."""
    return {record["test"]: record for record in bench.read(RESULTS)[1]} if RESULTS.exists() else {}


def keep(path: Path) -> None:
    """Add a run's lines to the results. Places in files that only this machine has are left out."""
    made = kept()
    for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        made[record["test"]] = {**record, "faults": [_kept(fault) for fault in record["faults"]]}
    bench.keep(RESULTS, bench.emulator("peers-checked"), (made[test] for test in sorted(made)))


def _kept(fault: dict[str, Any]) -> dict[str, Any]:
    message = re.sub(r"(?<=\()/\S*/(?=[^/\s]+:\d+\))", "", fault["message"] or "")
    return fault | {"message": message, "where": _place(fault["where"]), "other": _place(fault["other"])}


def _place(where: dict[str, Any] | None) -> dict[str, Any] | None:
    if not where:
        return None
    known = {key: where[key] for key in ("what", "line", "kernel") if key in where}
    return known | ({"file": Path(where["file"]).name} if where.get("file") else {})


def row(record: dict[str, Any]) -> tuple[str, ...]:
    def said(kinds: dict[str, int]) -> str:
        return ", ".join(f"{kind} {count}" if count > 1 else kind for kind, count in kinds.items())

    owners = sorted({"/".join(file.split("/")[:2]) for file in record["files"]})
    return (
        " ".join(owners), record["test"].partition("::")[2], " ".join(record["arch"]), record["verdict"],
        said(record["errors"]), said(record["reviews"]),
        "; ".join(why for fault in faults_of(record["test"]) for why in fault.reasons.values())
        if record["errors"] else "",
    )  # fmt: skip


def reviews(records: Iterable[dict[str, Any]]) -> Iterator[tuple[int, int, str, str]]:
    """Findings for review, most frequent first: how many, in how many tests, kind, message without its operands."""
    tests: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for record in records:
        for fault in record["faults"]:
            if fault["verdict"] == "review":
                words = re.sub(r"[\w:]+(\.[\w:]+)+|\bbar\b|\bbarrier\b(?= hands)", "OP", fault["message"])
                tests[fault["kind"], re.sub(r"\b(0x)?[\da-f]*\d[\da-f]*\b", "N", words)].append(record["test"])
    for (kind, words), where in sorted(tests.items(), key=lambda item: -len(item[1])):
        yield len(where), len(set(where)), kind, words


def faults(records: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, str, str, str]]:
    """Kernels at fault: project, kernel, kind, the lines where it was found, and the rule that it breaks."""
    for fault in FAULTS:
        found = [
            finding for record in records if fault in faults_of(record["test"]) for finding in record["faults"]
            if finding["verdict"] == "error"
        ]  # fmt: skip
        for kind, why in fault.reasons.items():
            where = {
                f"{place['file']}:{place['line']}" if place.get("file") else "PTX, with no source line"
                for finding in found if finding["kind"] == kind and (place := finding["where"])
            }  # fmt: skip
            yield fault.project, fault.kernel, kind, ", ".join(sorted(where)) or "not in what is kept", why


def without_error(records: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, str, str]]:
    """By project and file of tests: of how many kernels nothing is kept with an error, how many are clean, and which.

    A kernel of whose tests some have an error says how many have none.
    """
    verdicts: dict[tuple[str, str], dict[str, list[str]]] = {}
    owners: dict[str, str] = {}  # a test whose module has read its checkout before names no file
    for record in sorted(records, key=lambda record: not record["files"]):
        module = record["test"].partition(".py::")[0]
        owner = "/".join(record["files"][0].split("/")[:2]) if record["files"] else owners.get(module, "?")
        owners.setdefault(module, owner)
        verdicts.setdefault((owner, module), {}).setdefault(_subject(record), []).append(record["verdict"])
    for (owner, module), of in sorted(verdicts.items()):
        right = {name: [one for one in found if one != "error"] for name, found in of.items()}
        names = [
            name + (f" ({len(found)} of {len(of[name])} tests)" if len(found) < len(of[name]) else "")
            for name, found in sorted(right.items()) if found
        ]  # fmt: skip
        clean = sum(bool(found) and set(found) == {"clean"} for found in right.values())
        if names:
            yield owner, module, f"{len(names)}, {clean} clean", ", ".join(names)


def _subject(record: dict[str, Any]) -> str:
    """A kernel or script by its name: a test's first parameter that is no policy; with the test's own, if a number."""
    function, _, inside = record["test"].partition("::test_")[2].rstrip("]").partition("[")
    words = [word for word in inside.split("-") if word not in ("eager", "lazy", "random:1")]
    name = words[0].rpartition("/")[2].removesuffix(".py") if words else ""
    name = words[0] if name.isdigit() else name  # a number says too little without its folder
    own = len(name) < 8 or name.startswith("sm_")  # an architecture, a type or a number says too little
    return f"{function} {name}".strip() if own else name


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Tests by verdict; tests with an error that is the kernel's fault, by kind of it; and what nobody has explained.

    checkers: tests by the digest of the checker that ran them (benchmarks.mutation_table.judged_by). stale: how many
    are of another checker's source than what is here.
    """
    strange = [
        record["test"] for record in records
        if record["verdict"] == "failed" or unexplained(record["test"], record["faults"])
    ]  # fmt: skip
    at_fault = [record for record in records if record["errors"] and record["test"] not in strange]
    kinds = collections.Counter(kind for record in at_fault for kind in record["errors"])
    kernels = {fault.kernel for record in at_fault for fault in faults_of(record["test"])}
    return {
        "tests": len(records),
        "verdicts": dict(collections.Counter(record["verdict"] for record in records)),
        "errors": sum(bool(record["errors"]) for record in records),
        "at fault": {"tests": len(at_fault), "kernels": len(kernels), "by kind": dict(sorted(kinds.items()))},
        "unexplained": len(strange), "not explained": strange,
        "checkers": dict(collections.Counter(record.get("checker", "before") for record in records)),
        "stale": sum(record.get("checker") != judged_by() for record in records),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", metavar="F.jsonl", type=Path, help="add the lines of a run to the results")
    parser.add_argument("--json", action="store_true")
    for table in TABLES:
        parser.add_argument(f"--{table}", action="store_true", help=(TABLES[table].__doc__ or "").partition(":")[0])
    asked = parser.parse_args()
    if asked.keep:
        keep(asked.keep)
    records = list(kept().values())
    for table, rows in TABLES.items():
        if getattr(asked, table):
            for line in rows(records):
                print(" | ".join(map(str, line)))
            return 0
    for record in records:
        print(json.dumps(record) if asked.json else " | ".join(row(record)))
    found = summary(records)
    print(json.dumps({"summary": found}))
    return 1 if found["unexplained"] else 0


TABLES = {"faults": faults, "without": without_error, "reviews": reviews}


if __name__ == "__main__":
    sys.exit(piped(main))
