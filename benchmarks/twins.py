"""`python -m benchmarks.twins [FILE.jsonl ...]`: rungs in CUDA C++ beside their twins in CuTe DSL, as a table.

Lines are those of code: no blank ones, no comments, no docstrings; of a rung in CUDA C++ its .py, its .cu and the
headers that this includes. Registers and shared memory are those of the compiled kernel's launch at 2048 cubed, for the
twins' first common architecture from sm_90a up. FILE: results that `tensorladder bench --suite twins` kept, for the
times.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tensorladder.core import cubin
from tensorladder.measure import bench
from tensorladder.measure.suites import TWINS
from tensorladder.rungs.rung import RungInfo, find, load

SHAPE = (2048, 2048, 2048)
COLUMNS = ("rung", "lines", "arch", "registers", "SMEM KB", "us", "TFLOPS", "over cuBLAS")
TIMES = 3  # columns of them

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines(info: RungInfo) -> int:
    """Lines of code of a rung."""
    return sum(_python(path) if path.suffix == ".py" else _cuda(path) for path in _files(info.files))


def _files(paths: Iterable[Path]) -> dict[Path, None]:
    """The files and what they include, each once."""
    found: dict[Path, None] = {}
    for path in paths:
        found[path] = None
        if path.suffix != ".py":
            found.update(_files(path.parent / name for name in _INCLUDE.findall(path.read_text(encoding="utf-8"))))
    return found


def _python(path: Path) -> int:
    """Lines with a token that is neither a comment nor a string that stands alone."""
    seen: set[int] = set()
    fresh = True  # nothing but a docstring has begun the statement
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type in _NO_CODE:
            fresh = fresh or token.type == tokenize.NEWLINE
        elif not (fresh and token.type == tokenize.STRING):
            seen.update(range(token.start[0], token.end[0] + 1))
            fresh = False
    return len(seen)


def _cuda(path: Path) -> int:
    return sum(bool(line.strip()) for line in _COMMENT.sub("", path.read_text(encoding="utf-8")).splitlines())


def row(info: RungInfo, arch: str, times: Mapping[str, bench.Record]) -> tuple[str, ...]:
    """A rung's cells, in the order of COLUMNS."""
    dtype = "fp16"
    program = load(info).compile(arch, SHAPE, dtype)
    (launch,) = program.launches(*info.problem.make(SHAPE, dtype).arrays.values())
    code = launch.module.cubin or b""
    smem = launch.smem + cubin.static_shared_bytes(code, launch.kernel)
    registers = cubin.registers(code, launch.kernel)
    return info.name, str(lines(info)), arch, str(registers), f"{smem / 1024:.1f}", *cells(times.get(info.name))


def cells(record: bench.Record | None) -> tuple[str, ...]:
    """The last columns: a rung's times."""
    if record is None:
        return ("",) * TIMES
    return f"{record['median_us']:.5g}", f"{record['tflops']:.3g}", f"{record['ratio']:.2g}"


def table(times: Mapping[str, bench.Record]) -> str:
    """All pairs, as Markdown."""
    columns = COLUMNS if times else COLUMNS[:-TIMES]
    rows = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for pair in TWINS:
        infos = [find(name) for name in pair if name]
        arch = next(a for a in ("sm_90a", "sm_100a") if all(a in info.archs for info in infos))
        rows += [f"| {' | '.join(row(info, arch, times)[: len(columns)])} |" for info in infos]
    return "\n".join(rows)


def measured(paths: Sequence[str | Path]) -> dict[str, bench.Record]:
    """Records at 2048 cubed in fp16, by rung, of kept results."""
    found = {}
    for path in paths:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record.get("shape") == list(SHAPE) and record.get("dtype") == "fp16" and record["ok"]:
                found[record["rung"]] = record
    return found


if __name__ == "__main__":
    print(table(measured(sys.argv[1:])))
