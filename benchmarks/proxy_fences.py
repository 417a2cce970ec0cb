"""Where fence.proxy.async has to stand on a real GPU, and whether a CTA may exit before its bulk store has read.

    python -m benchmarks.proxy_fences run [--results FILE]     # builds proxy_fences.cu with nvcc and runs it (sm_90a)
    python -m benchmarks.proxy_fences                          # the table of what is kept

Stale words by who executes the fence: nobody; the writing threads before the barrier; the reader, or all, after it. No
stale word is no proof; many are one.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tensorladder.core.pipes import piped
from tensorladder.measure import bench
from tensorladder.measure.suites import Suite

SOURCE = Path(__file__).with_suffix(".cu")
SUITE = Suite("proxy-fences", "where a proxy fence stands", "fp16", {})
KEPT = Path(__file__).parent / "results" / "proxy-fences-h200.jsonl"


def measured() -> list[dict[str, Any]]:
    """Build the program and run it: a record for each case."""
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "proxy_fences")
        target = "arch=compute_90a,code=sm_90a"
        subprocess.run(["nvcc", "-gencode", target, "-O3", "-o", program, str(SOURCE)], check=True)
        done = subprocess.run([program], check=True, capture_output=True, text=True, timeout=300)
    return [json.loads(line) for line in done.stdout.splitlines()]


def table(records: Iterable[dict[str, Any]]) -> Iterable[str]:
    """A line a case, its variants summed up: stale words by fence."""
    cases: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for record in records:
        assert record["status"] == "no error", record
        cases[", ".join(record["what"].split(", ")[:2])][record["fence"]] += record["stale"]
    for what, stale in cases.items():
        yield f"{what}: " + ", ".join(f"{fence} {count:,}" for fence, count in stale.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", nargs="?", choices=["run"])
    parser.add_argument("--results", metavar="FILE", type=Path, help="keep the records there")
    asked = parser.parse_args()
    records = measured() if asked.verb else bench.read(KEPT)[1]
    if asked.results:
        bench.keep(asked.results, bench.machine(SUITE), records)
    print("\n".join(table(records)))
    return 0


if __name__ == "__main__":
    sys.exit(piped(main))
