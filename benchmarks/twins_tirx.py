"""`python -m benchmarks.twins_tirx`: the Blackwell rungs in TIRx beside their twins in CuTe DSL, as a table.

Lines are those of code, as in `benchmarks.twins`, of the rung's own file. Registers, shared memory and instructions are
those of the compiled kernel at the rung's default shape: PTX as the front end hands it to the virtual GPU, SASS as
nvdisasm shows the cubin for sm_100a, NOPs aside. Cycles are those of the virtual GPU's clock under its `timed` policy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchmarks.twins import lines
from tensorladder.core import cubin
from tensorladder.measure.run import VirtualTarget, build, plan
from tensorladder.rungs.rung import RungInfo, catalog, find
from tensorladder.silicon.disassemble import sass
from tensorladder.vgpu.ptx.nodes import Instr
from tensorladder.vgpu.ptx.parser import parse

ARCH, DTYPE = "sm_100a", "fp16"
COLUMNS = ("rung", "lines", "registers", "SMEM KB", "PTX instructions", "SASS instructions", "cycles")
_SASS = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/(?!\s+NOP\b)", re.M)


@dataclass(frozen=True)
class Figures:
    """What is known of a compiled rung."""

    lines: int
    registers: int
    smem: int
    ptx: int
    sass: int
    cycles: int


def twins() -> list[tuple[RungInfo, RungInfo]]:
    """Each rung in CuTe DSL with its twin in TIRx, by name."""
    return [(find(info.name.removeprefix("tirx-")), info) for info in catalog() if info.series == "tirx"]


def figures(info: RungInfo) -> Figures:
    """Compile a rung, and run it on the virtual GPU."""
    asked = plan(info, arch=ARCH, dtype=DTYPE, policy="timed")
    program, target = build(asked), VirtualTarget(asked)
    case = info.problem.make(asked.shape, asked.dtype, 0, target.allocate)
    (launch,) = program.launches(*case.arrays.values())
    target.run(program, case)
    code = launch.module.cubin or b""
    body = parse(launch.module.ptx).kernels[launch.kernel].body
    return Figures(
        lines(info),
        cubin.registers(code, launch.kernel),
        launch.smem + cubin.static_shared_bytes(code, launch.kernel),
        sum(isinstance(one, Instr) for one in body),
        len(_SASS.findall(sass(code))),
        target.device.cycles,
    )


def row(info: RungInfo) -> str:
    """A rung's line of the table."""
    made = figures(info)
    cells = (made.lines, made.registers, f"{made.smem / 1024:.1f}", made.ptx, made.sass, made.cycles)
    return f"| {info.name} | {' | '.join(map(str, cells))} |"


def table() -> str:
    """All pairs, as Markdown."""
    head = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    return "\n".join([*head, *(row(info) for pair in twins() for info in pair)])


if __name__ == "__main__":
    print(table())
