"""Run the recordable cases of the instruction tests on a real GPU and keep what it gave.

    python -m tests.vgpu.record FOLDER [test_integer test_logic ...]

Writes FOLDER/<module>.npz, for tests/data/silicon. Needs numpy and NVIDIA's driver, no pytest and no DSL.
Exit 1 where a case failed to load or run, or disagrees with its reference.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from tests.vgpu.ptx_kernels import Recorder, check


def modules(wanted: list[str]) -> list[str]:
    """Test modules beside this file, or those wanted by name."""
    here = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))
    return [name for name in here if not wanted or name in wanted]


def main(arguments: list[str]) -> int:
    """Record; gives the exit code."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    folder, recorder, failed, done = Path(arguments[0]), Recorder(), 0, 0
    for name in modules(arguments[1:]):
        try:
            cases = getattr(importlib.import_module(f"tests.vgpu.{name}"), "CASES", [])
        except ImportError as error:
            print(f"{name}: left out ({error})")
            continue
        for case in cases:
            if not case.silicon:
                continue
            try:
                check(case, "gpu", name, recorder)
                done += 1
            except Exception as error:  # one bad case may not lose the others' results
                failed += 1
                print(f"{name}: {error}")
        recorder.write(folder, keep=False)  # after each module: a hang costs one, not all
    print(f"{done} cases agree, {failed} do not; written to {folder}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
