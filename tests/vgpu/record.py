"""Run the recordable cases of the instruction tests on a real GPU and keep what it gave.

    python -m tests.vgpu.record FOLDER [test_integer test_logic ...]

Writes FOLDER/<module>.npz, for tests/data/silicon. Needs numpy and NVIDIA's driver, no pytest and no DSL. Each module
runs in a process of its own, and goes on in a new one after a case that made the GPU fault. Exit 1 where a case failed
to load or run, or disagrees with its reference.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

from tests.vgpu.ptx_kernels import Fault, Recorder, check

FAULTED = 40  # exit code of a module's process after a fault; the number of the case is the last line it prints


def modules(wanted: list[str]) -> list[str]:
    """Test modules beside this file, or those wanted by name."""
    here = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))
    return [name for name in here if not wanted or name in wanted]


def record(folder: Path, name: str, first: int) -> int:
    """Record a module's cases from number `first` on, in this process; gives its exit code."""
    try:
        cases = getattr(importlib.import_module(f"tests.vgpu.{name}"), "CASES", [])
    except ImportError as error:
        print(f"{name}: left out ({error})")
        return 0
    recorder, done, failed = Recorder(), 0, 0
    for number, case in enumerate(cases):
        if number < first or not case.silicon:
            continue
        try:
            check(case, "gpu", name, recorder)
            done += 1
        except Fault as fault:
            recorder.write(folder)
            print(f"{name}: {fault}\n{number}")
            return FAULTED
        except Exception as error:  # one bad case may not lose the others' results
            failed += 1
            print(f"{name}: {error}")
    recorder.write(folder)
    if done + failed:
        print(f"{name}: {done} cases agree, {failed} do not")
    return 1 if failed else 0


def record_all(folder: Path, wanted: list[str]) -> int:
    """Each module in a process of its own; gives the exit code."""
    bad = 0
    for name in modules(wanted):
        first = 0
        while True:
            command = [sys.executable, "-m", "tests.vgpu.record", str(folder), f"--from={first}", name]
            child = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            lines = child.stdout.splitlines()
            print("\n".join(lines[:-1] if child.returncode == FAULTED else lines), flush=True)
            bad |= child.returncode != 0
            if child.returncode != FAULTED:
                break
            first = int(lines[-1]) + 1
    return int(bad)


def main(arguments: list[str]) -> int:
    """Record; gives the exit code."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    if len(arguments) == 3 and arguments[1].startswith("--from="):
        return record(folder, arguments[2], int(arguments[1].partition("=")[2]))
    return record_all(folder, arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
