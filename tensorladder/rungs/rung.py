"""The protocol of a rung, and the catalogue, which is read from the files without importing any DSL.

A rung is one file below `rungs/`: a docstring (see `SECTIONS`), a frozen dataclass of knobs, a kernel, one
`RUNG = Rung(...)` written with literals, and `compile(arch, shape, dtype, config) -> Program`. To add one, drop the
file in, name a parent, and say with `aside` where it is no step.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import importlib.util
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from tensorladder import problems
from tensorladder.core.errors import EXTRAS, MissingExtra, UsageError
from tensorladder.problems import Problem

SECTIONS = ("Adds", "Warp roles", "Budget", "Run")

_ROOT = Path(__file__).parent
_STEP = re.compile(r"^((?:[a-z]+-)?[a-z]\d+)(?:-|$)|^(fused)-")
#: modules that rungs are written in, by the names of their packages; which extra brings each is in core.errors.EXTRAS
_PACKAGES = {
    "cutlass": "nvidia-cutlass-dsl",
    "ml_dtypes": "ml-dtypes",
    "tvm_ffi": "apache-tvm-ffi",
    "torch": "torch",
    "tvm": "apache-tvm",
}


@dataclass(frozen=True)
class Rung:
    """What a rung says about itself. All but `config` are literals, so that they can be listed without an import.

    parent: the rung below it, or None. archs: architectures it compiles for, the default first. problem: a name in
    `problems`. dtypes: the first is the default. config: the dataclass of its knobs. shape: its default, where the
    problem's does not suit. deterministic: the same bits under every schedule; where False, `tolerance` replaces the
    problem's. probes: what its probe variant marks (the knob `probes`), as `core.probes.Plan.of` takes it.

    aside: "" for a step of a ladder. A step computes what its parent does, is meant to be faster where ladders are
    measured (a product: 4096 and 8192 cubed), and its parent is a step too; or a ladder begins with it, of another
    series or problem than its parent's. All others are asides, which no step goes on from: rungs for other problems
    than the ladder's, rungs that show something else than speed, rungs that gain at other extents alone. For which
    problems an aside pays is said here, in a phrase that begins with "for" or "where".
    """

    name: str
    parent: str | None
    adds: str
    archs: tuple[str, ...]
    problem: str
    dtypes: tuple[str, ...] = ("fp16", "bf16")
    config: Any = None
    shape: tuple[int, ...] | None = None
    deterministic: bool = True
    tolerance: float | None = None
    aside: str = ""
    probes: Any = field(default=None, hash=False, repr=False)

    def check(self, arch: str, shape: tuple[int, ...], dtype: str) -> tuple[tuple[int, ...], str]:
        """The shape and the dtype's canonical name; UsageError where this rung does not take them."""
        shape, dtype = problems.find(self.problem).check(shape, dtype)
        if arch not in self.archs:
            raise UsageError(f"arch {arch!r}: {self.name} compiles for {', '.join(self.archs)}")
        if dtype not in self.dtypes:
            raise UsageError(f"dtype {dtype!r}: {self.name} takes {', '.join(self.dtypes)}")
        return shape, dtype

    def require(self, condition: bool, message: str) -> None:
        """UsageError with `message` (which names the argument and the fix) unless `condition` holds."""
        if not condition:
            raise UsageError(f"{self.name}: {message}")


@dataclass(frozen=True)
class RungInfo:
    """A rung as listed: its metadata, where it lives and its docstring. `config` is the class's name."""

    rung: Rung
    path: Path
    module: str
    doc: str = field(repr=False, default="")

    @property
    def name(self) -> str:
        return self.rung.name

    @property
    def parent(self) -> str | None:
        return self.rung.parent

    @property
    def adds(self) -> str:
        return self.rung.adds

    @property
    def aside(self) -> str:
        return self.rung.aside

    @property
    def remark(self) -> str:
        """What is shown beside what it adds: that it is an aside, and for which problems it pays; "" for a step."""
        return f"aside: pays {self.aside}" if self.aside else ""

    @property
    def archs(self) -> tuple[str, ...]:
        return self.rung.archs

    @property
    def dtypes(self) -> tuple[str, ...]:
        return self.rung.dtypes

    @property
    def problem(self) -> Problem:
        return problems.find(self.rung.problem)

    @property
    def default_shape(self) -> tuple[int, ...]:
        return self.rung.shape or self.problem.default_shape

    @property
    def files(self) -> tuple[Path, ...]:
        """What it is written in: its own file, and the .cu beside it where the kernel is CUDA C++."""
        kernel = self.path.with_suffix(".cu")
        return (self.path, kernel) if kernel.exists() else (self.path,)

    @property
    def step(self) -> str:
        """`b2` of `b2-warp-mma`, `cuda-a1` of `cuda-a1-naive`."""
        match = _STEP.match(self.name)
        return (match.group(1) or match.group(2)) if match else self.name

    @property
    def series(self) -> str:
        """The letter of its step; the language of a rung in another one; `fused`."""
        return self.step.split("-")[0] if "-" in self.step else self.step.rstrip("0123456789")

    def sections(self) -> dict[str, str]:
        """The docstring in parts: "" (what stands before the first heading), then those of `SECTIONS`."""
        parts: dict[str, list[str]] = {"": []}
        current = ""
        for line in self.doc.splitlines():
            heading = line.strip().rstrip(":")
            if heading in SECTIONS and line == line.lstrip() and line.rstrip().endswith(":"):
                current = heading
                parts[current] = []
            else:
                parts[current].append(line)
        return {name: "\n".join(lines).strip("\n") for name, lines in parts.items()}


@functools.cache
def catalog() -> tuple[RungInfo, ...]:
    """Every rung there is, by series and step; within a step, parents before children. Imports none of them."""
    infos = [info for path in sorted(_ROOT.rglob("*.py")) if (info := _read(path)) is not None]
    by_name = {info.name: info for info in infos}

    def place(info: RungInfo) -> tuple[bool, str, int, int, str]:
        # of `cuda-b1` the letter counts before the number
        return len(info.series) > 1, info.step.rstrip("0123456789"), _number(info), _depth(by_name, info), info.name

    return tuple(sorted(infos, key=place))


def find(name: str) -> RungInfo:
    """The rung called `name`, or the first whose name starts with it and a dash (`b2` finds the step's first).

    Raises UsageError with the nearest names where there is none.
    """
    wanted = name.strip().lower().replace("_", "-")
    infos = catalog()
    for info in infos:
        if info.name == wanted:
            return info
    for info in infos:
        if wanted and info.name.startswith(wanted + "-"):
            return info
    rung, colon, _ = wanted.partition(":")
    if colon and any(rung in (info.name, info.step) for info in infos):
        raise UsageError(f"{name!r}: knobs are for pack, bench and trace: leave out all but {rung!r}")
    names = [info.name for info in infos] + [info.step for info in infos]
    near = list(dict.fromkeys(difflib.get_close_matches(wanted, names, n=3, cutoff=0.4)))
    hint = f"did you mean {' or '.join(near)}?" if near else "`tensorladder list` shows them all"
    raise UsageError(f"no rung is called {name!r}: {hint}")


def asides() -> frozenset[str]:
    """The names of all rungs that are no step of a ladder."""
    return frozenset(info.name for info in catalog() if info.aside)


def load(info: RungInfo) -> ModuleType:
    """Import a rung's module (with its `RUNG` and `compile`); MissingExtra where its language is not installed."""
    try:
        return importlib.import_module(info.module)
    except ModuleNotFoundError as error:
        missing = _missing(error.name or "")
        if missing is None:
            raise
        raise missing from error


def default_config(info: RungInfo, shape: tuple[int, ...]) -> Any:
    """The knobs of a rung for a shape where none are given: what its `default_config` says, or the defaults."""
    module = load(info)
    if hasattr(module, "default_config"):
        return module.default_config(shape)
    return None if module.RUNG.config is None else module.RUNG.config()


def lacking(info: RungInfo) -> MissingExtra | None:
    """The error that `load` would raise as a rung's language is not installed, found without importing anything."""
    for node in ast.parse(info.path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            modules = [name.name for name in node.names] if isinstance(node, ast.Import) else []
        for module in modules:
            missing = _missing(module)
            if missing is not None and importlib.util.find_spec(module.partition(".")[0]) is None:
                return missing
    return None


def _missing(module: str) -> MissingExtra | None:
    """What to say where a module that rungs are written in is not there; None for any other."""
    top = module.partition(".")[0]
    return MissingExtra(_PACKAGES[top], EXTRAS[top]) if top in _PACKAGES else None


def _read(path: Path) -> RungInfo | None:
    text = path.read_text(encoding="utf-8")
    if "RUNG = Rung(" not in text or path == Path(__file__):
        return None
    tree = ast.parse(text, str(path))
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _target(node) == "RUNG":
            fields = {word.arg: _literal(word.value) for word in node.value.keywords if word.arg}
            module = ".".join(("tensorladder.rungs", *path.relative_to(_ROOT).with_suffix("").parts))
            return RungInfo(Rung(**fields), path, module, ast.get_docstring(tree) or "")
    return None


def _target(node: ast.Assign) -> str | None:
    target = node.targets[0]
    return target.id if isinstance(target, ast.Name) else None


def _literal(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def _number(info: RungInfo) -> int:
    digits = re.sub(r"\D", "", info.step)
    return int(digits) if digits else 0


def _depth(infos: dict[str, RungInfo], info: RungInfo) -> int:
    """How many ancestors a rung has."""
    depth, seen = 0, {info.name}
    while info.parent in infos and info.parent not in seen:
        info = infos[info.parent]
        seen.add(info.name)
        depth += 1
    return depth
