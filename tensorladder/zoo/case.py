"""The zoo's cases: listed from the files, compiled broken or repaired."""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tensorladder.core.errors import MissingExtra, UsageError
from tensorladder.core.program import Dim3, Launch, Program, Stream

WORDS = 4096
"""32-bit words of each of a case's two arrays: its input (small numbers) and its output."""

_ROOT = Path(__file__).parent
_DEPENDENT = {"programmatic_stream_serialization": True}


@dataclass(frozen=True)
class Case:
    """A broken kernel and its repaired twin. All fields are literals, so that they can be listed without an import.

    name: the kernel's, with dashes. wrong: what is wrong, one line. kind: what the checker has to find in the broken
    one (`core.findings.KINDS`), several with blanks between where the kind depends on which access comes first.
    verdict: the broken one's, "error" or "review". language: "cutedsl" or "cuda". grid, block, cluster: of the launch;
    smem: dynamic shared memory in bytes. policy: under which its asynchronous effects happen. launches: how often the
    kernel is launched in a row, each but the first as a dependent of the one before (programmatic dependent launch).
    streams: the host's part is the function of the kernel's name in the class's file, called with the launch, two
    streams and whether it is the broken twin. repaired: what of the launch is another for the repaired twin, by field.
    """

    name: str
    wrong: str
    kind: str
    language: str = "cutedsl"
    arch: str = "sm_90a"
    grid: Dim3 = (1, 1, 1)
    block: Dim3 = (64, 1, 1)
    cluster: Dim3 = (1, 1, 1)
    smem: int = 0
    verdict: str = "error"
    policy: str = "eager"
    launches: int = 1
    streams: bool = False
    repaired: Any = field(default=None, hash=False)

    def launched(self, broken: bool) -> Case:
        """With the launch of one twin."""
        return self if broken or self.repaired is None else replace(self, **self.repaired)


@dataclass(frozen=True)
class CaseInfo:
    """A case as listed: its metadata, the class of hazard (the file's name) and the files it is written in."""

    case: Case
    path: Path

    @property
    def name(self) -> str:
        return self.case.name

    @property
    def hazard(self) -> str:
        return self.path.stem.replace("_", "-")

    @property
    def source(self) -> Path:
        """The file with its kernel."""
        return self.path.with_suffix(".cu") if self.case.language == "cuda" else self.path

    @property
    def kernel(self) -> str:
        return self.name.replace("-", "_")

    def marked(self) -> frozenset[int]:
        """Lines, from 1 on, with the comment `hazard: NAME`."""
        lines = self.source.read_text(encoding="utf-8").splitlines()
        return frozenset(n for n, line in enumerate(lines, 1) if line.rstrip().endswith(f"hazard: {self.name}"))


@functools.cache
def catalog() -> tuple[CaseInfo, ...]:
    """Every case there is, by class. Imports none of them."""
    return tuple(info for path in sorted(_ROOT.glob("*.py")) for info in _read(path))


def find(name: str) -> CaseInfo:
    """The case of that name; UsageError where there is none."""
    for info in catalog():
        if info.name == name:
            return info
    raise UsageError(f"no case of the zoo is called {name!r}: `tensorladder check --zoo` names them all")


def _read(path: Path) -> Iterator[CaseInfo]:
    text = path.read_text(encoding="utf-8")
    if "\nCASES = [" not in text:
        return
    for node in ast.parse(text, str(path)).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "CASES":
            assert isinstance(node.value, ast.List)
            for call in node.value.elts:
                assert isinstance(call, ast.Call)
                yield CaseInfo(Case(**{str(k.arg): ast.literal_eval(k.value) for k in call.keywords}), path)


def enqueue(info: CaseInfo, broken: bool, launches: Sequence[Launch], streams: Sequence[Stream]) -> None:
    """What the host does with one twin's launches, on two streams."""
    if info.case.streams:
        module = importlib.import_module(f"tensorladder.zoo.{info.path.stem}")
        getattr(module, info.kernel)(*launches, *streams, broken)
        return
    for number in range(info.case.launches):
        for launch in launches:
            attributes = {**launch.attributes, **_DEPENDENT} if number else launch.attributes
            streams[0].enqueue(replace(launch, attributes=attributes))


def build(info: CaseInfo, broken: bool) -> Program:
    """Compile one twin; MissingExtra without the case's language."""
    case = info.case.launched(broken)
    if case.language == "cuda":
        from tensorladder.frontends.cudacpp import Call, compile_file

        def call(x: Any, out: Any) -> Call:
            return Call(case.grid, case.block, (x.data, out.data), case.smem, case.cluster)

        macros = {"BROKEN": int(broken)}
        return compile_file(info.source, call, arch=case.arch, name=info.name, defines=macros, kernel=info.kernel)
    try:
        from tensorladder.zoo.host import compile_case
    except ModuleNotFoundError as error:
        raise MissingExtra("nvidia-cutlass-dsl", "climb") from error
    return compile_case(info, broken)
