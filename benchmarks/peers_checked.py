"""Third-party kernels under the hazard checker: the table of what was found, and whose fault it is.

    TENSORLADDER_PEERS_CHECKED=F.jsonl make peers PEERS=folder      # runs them: a line a test in F.jsonl
    python -m benchmarks.peers_checked --keep F.jsonl               # into benchmarks/results/peers-checked.jsonl
    python -m benchmarks.peers_checked                              # the table; 1 where an error is not explained
    python -m benchmarks.peers_checked --reviews                    # what is for review: findings and tests by message

A finding of rank error is the kernel's fault where `tests.peers.checked.KNOWN` says why, and else the checker's.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tensorladder.core.pipes import piped
from tensorladder.measure import bench
from tests.peers.checked import unexplained, why

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
        said(record["errors"]), said(record["reviews"]), why(record["test"]) if record["errors"] else "",
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", metavar="F.jsonl", type=Path, help="add the lines of a run to the results")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--reviews", action="store_true", help="what is for review, by message")
    asked = parser.parse_args()
    if asked.keep:
        keep(asked.keep)
    records = list(kept().values())
    strange = [r for r in records if unexplained(r["test"], r["faults"])]
    if asked.reviews:
        for line in reviews(records):
            print(" | ".join(map(str, line)))
        return 0
    for record in records:
        print(json.dumps(record) if asked.json else " | ".join(row(record)))
    verdicts = collections.Counter(record["verdict"] for record in records)
    print(json.dumps({"summary": dict(verdicts), "not explained": [record["test"] for record in strange]}))
    return 1 if strange else 0


if __name__ == "__main__":
    sys.exit(piped(main))
