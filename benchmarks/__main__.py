"""`python -m benchmarks [NAME ...] [--json] [--quick] [--tinygrad FILE]`: measure, print, exit 1 if a claim fails."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence

from benchmarks import vgpu
from benchmarks.timing import Options, cores
from tensorladder.core.errors import TensorladderError
from tensorladder.core.pipes import piped


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
        "cores": cores(),
        "python": platform.python_version(),
        "load": round(load, 2),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks that `arguments` (default: the command line's) name, or all; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(vgpu.BENCHMARKS)}")
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--quick", action="store_true", help="a quarter of the size a side: a smoke test, no claims")
    parser.add_argument("--tinygrad", metavar="FILE", help="tinygrad's test/mockgpu/nv/emu.py, to compare with")
    args = parser.parse_args(arguments)
    unknown = [n for n in args.names if n not in vgpu.BENCHMARKS]
    if unknown:
        print(f"benchmarks: no benchmark {unknown[0]!r}: choose from {', '.join(vgpu.BENCHMARKS)}", file=sys.stderr)
        return 2
    host = machine()
    print(json.dumps({"machine": host}) if args.json else f"{host['cpu']}, {host['cores']} cores, load {host['load']}")
    failed = 0
    for name in args.names or vgpu.BENCHMARKS:
        try:
            for row in vgpu.BENCHMARKS[name](Options(args.quick, args.tinygrad)):
                failed += row["ok"] is False
                print(json.dumps(row) if args.json else _line(row), flush=True)
        except TensorladderError as e:
            print(f"benchmarks: {name}: {e}", file=sys.stderr)
            return e.exit_code
    return 1 if failed else 0


def _line(row: dict) -> str:
    verdict = {True: "ok", False: "FAILS", None: ""}[row["ok"]]
    value = "-" if row["value"] is None else f"{row['value']:.4g}"
    cpu = f"cpu {row['cpu']:.4g}" if "cpu" in row else ""
    line = f"{row['what']:<60} {value:>10} {row['unit']:<4} {row['claim']:<10} {verdict:<6} {cpu}"
    return line.rstrip()


if __name__ == "__main__":
    sys.exit(piped(main))
