"""`python -m benchmarks [NAME ...] [--json] [--quick] [--tinygrad FILE]`: measure, print a table, exit 1 if a claim fails."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys

from benchmarks import vgpu


def machine() -> dict:
    """What the figures were measured on."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as f:
            model = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), model)
    except OSError:
        pass
    load = os.getloadavg()[0]
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "load": round(load, 2),
    }


def main() -> int:
    """Run the benchmarks that were named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(vgpu.BENCHMARKS)}")
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--quick", action="store_true", help="a quarter of the size a side: a smoke test, no claims")
    parser.add_argument("--tinygrad", metavar="FILE", help="tinygrad's test/mockgpu/nv/emu.py, to compare with")
    args = parser.parse_args()
    unknown = [n for n in args.names if n not in vgpu.BENCHMARKS]
    if unknown:
        print(f"benchmarks: no benchmark {unknown[0]!r}: choose from {', '.join(vgpu.BENCHMARKS)}", file=sys.stderr)
        return 2
    host = machine()
    print(json.dumps({"machine": host}) if args.json else f"{host['cpu']}, {host['cores']} cores, load {host['load']}")
    failed = 0
    for name in args.names or vgpu.BENCHMARKS:
        for row in vgpu.BENCHMARKS[name](vgpu.Options(args.quick, args.tinygrad)):
            failed += row["ok"] is False
            print(json.dumps(row) if args.json else _line(row), flush=True)
    return 1 if failed else 0


def _line(row: dict) -> str:
    verdict = {True: "ok", False: "FAILS", None: ""}[row["ok"]]
    return f"{row['what']:<58} {row['value']:>12.4g} {row['unit']:<24} {row['claim']:<16} {verdict}"


if __name__ == "__main__":
    sys.exit(main())
