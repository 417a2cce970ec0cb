"""Make packs (`silicon.pack`): compile rungs with no GPU, ask their host code what it would launch, write that down.

A rung whose extents are symbols to its compiler is packed once more with its host code, for extents that nobody named.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import importlib.metadata
import math
import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tensorladder.core import arch as archs
from tensorladder.core import probes
from tensorladder.core.errors import TensorladderError, UsageError
from tensorladder.frontends import ptxparams
from tensorladder.frontends.cutedsl import host_part
from tensorladder.frontends.cutedsl_inner import ABSENT, Compiled
from tensorladder.measure.dynamic import arguments, templates
from tensorladder.measure.suites import Suite, dtype_for, rungs_of, takes
from tensorladder.problems import DTYPES
from tensorladder.rungs import rung as rungs
from tensorladder.rungs import sources
from tensorladder.rungs.rung import RungInfo
from tensorladder.silicon import pack
from tensorladder.silicon.pack import Array, Dynamic, Entry, Pack

MADE_WITH = ("nvidia-cutlass-dsl", "apache-tvm", "llvmlite")


@dataclass(frozen=True)
class Wanted:
    """One entry to be made: a rung, its knobs, a shape and an element type."""

    info: RungInfo
    config: Any
    shape: tuple[int, ...]
    dtype: str

    @property
    def label(self) -> str:
        """How to call it in a message."""
        return f"{self.info.name} {'x'.join(map(str, self.shape))} {self.dtype}"


# ------------------------------------------------------------------------------------------------- what is asked for


def parse_spec(text: str) -> tuple[RungInfo, Any]:
    """ "c5" or "c5:tile=128x192x64,stages=5": the rung and its knobs. UsageError for a knob or value it has not."""
    name, _, settings = text.partition(":")
    info = rungs.find(name)
    config = rungs.load(info).RUNG.config()
    known = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    changed = {}
    for setting in filter(None, settings.split(",")):
        knob, _, value = setting.partition("=")
        if knob not in known:
            raise UsageError(f"{text!r}: {info.name} has no knob {knob!r}: use {', '.join(known)}")
        changed[knob] = _value(text, knob, value, known[knob])
    return info, dataclasses.replace(config, **changed)


def _value(text: str, knob: str, value: str, like: Any) -> Any:
    words = {"true": True, "false": False}
    if isinstance(like, bool) and value in words:
        return words[value]
    if isinstance(like, int) and not isinstance(like, bool) and re.fullmatch(r"-?\d+", value):
        return int(value)
    if isinstance(like, tuple) and re.fullmatch(r"\d+(x\d+)*", value) and value.count("x") == len(like) - 1:
        return tuple(int(part) for part in value.split("x"))
    if isinstance(like, str):
        return value
    form = "x".join(map(str, like)) if isinstance(like, tuple) else str(like).lower()
    raise UsageError(f"{text!r}: {knob}={value!r} is not such a value as {knob}={form}")


def knobs(config: Any) -> dict[str, Any]:
    """A rung's knobs as JSON has them (tuples are lists)."""
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in dataclasses.asdict(config).items()
    }


def wanted(
    specs: Sequence[str],
    arch: str,
    suite: Suite,
    shapes: Sequence[tuple[int, ...]] = (),
    dtypes: Sequence[str] = (),
) -> list[Wanted]:
    """What to compile: the rungs of `specs` for these shapes and element types; for none, the suite's.

    A rung that is no product of (M, N, K) is compiled for its default shape where no shapes are given. UsageError for
    a rung that does not compile for `arch`, or does not take a shape or type that was asked for.
    """
    arch = archs.find(arch).name
    chosen = [(*parse_spec(spec), ":" in spec) for spec in specs] or [
        (*parse_spec(info.name), False) for info in rungs_of(suite, rungs.catalog(), arch)
    ]
    if not chosen:
        raise UsageError(f"--arch {arch}: no rung of suite {suite.name} compiles for it: name one")
    made = []
    for info, config, given in chosen:
        own = list(suite.shapes) if takes(info) else [info.default_shape]
        for shape in [tuple(shape) for shape in shapes] or own:
            for dtype in dtypes or (dtype_for(suite, info),):
                extents, name = info.rung.check(arch, shape, dtype)
                suited = config if given else rungs.default_config(info, extents)
                made.append(Wanted(info, suited, extents, name))
    return made


# ----------------------------------------------------------------------------------------------------------- making


@functools.cache
def source_digest(info: RungInfo) -> str:
    """Of a rung's file (of its folder, where its kernel is in a .cu) and the device code that rungs share: what an
    entry was compiled from."""
    return sources.digest((info.path,) if len(info.files) == 1 else sorted(info.path.parent.glob("*.*")))


class Made(NamedTuple):
    """What compiling one entry gave: it, its machine code by digest, and where its extents were symbols, its host part
    for others, with the objects by digest."""

    entry: Entry
    code: dict[str, bytes]
    dynamic: Dynamic | None
    host: dict[str, bytes]


def make(one: Wanted, arch: str) -> Made:
    """Compile an entry. UsageError where the rung does not take what is wanted."""
    program = rungs.load(one.info).compile(arch, one.shape, one.dtype, one.config)
    arrays = tuple(_array(operand) for operand in one.info.problem.operands(one.shape, one.dtype))
    if (buffer := probe_buffer(one.info, one.shape, one.dtype, one.config)) is not None:
        arrays += (Array(probes.NAME, buffer, tuple(contiguous(buffer)), "int64", True),)
    code: dict[str, bytes] = {}
    for module in program.modules:
        if not module.cubin:
            raise UsageError(f"{one.label}: its front end makes no machine code, which a pack consists of")
        code[pack.digest(module.cubin)] = module.cubin

    launches = templates(program, arrays)
    facts = (one.dtype, knobs(one.config), source_digest(one.info))
    entry = Entry(one.info.name, arch, one.shape, *facts, arrays, launches)
    part = host_part(program)
    if part is None:
        return Made(entry, code, None, {})
    object_file = compact(part.image, program.modules[0].cubin or b"")
    image = pack.digest(object_file)
    names, outputs = (a.name for a in arrays), (a.name for a in arrays if a.output)
    module = program.modules[0]
    dynamic = Dynamic(
        one.info.name, arch, *facts, tuple(names), tuple(outputs), part.name, platform.machine(),
        pack.digest(module.cubin), image, ptxparams.heads(module.ptx), unread(module.ptx),
        tuple(arguments(demands(part))),
    )  # fmt: skip
    return Made(entry, code, dynamic, {image: object_file})


def compact(image: bytes, cubin: bytes) -> bytes:
    """A host object as packs keep it: compressed, without the copy of the machine code that compilers put in."""
    return gzip.compress(image.replace(cubin, bytes(len(cubin))), mtime=0)


def demands(part: Compiled) -> list[Any]:
    """What a host part demands of each argument, None for an absent one."""
    return [None if part.specs[name] == ABSENT else part.specs[name] for name in part.names]


def unread(ptx: str) -> dict[str, list[list[int]]]:
    """For each kernel, the parts of its parameters that it does not read."""
    return {kernel: [list(part) for part in ptxparams.unread(ptx, kernel)] for kernel in ptxparams.entries(ptx)}


def make_all(asked: Iterable[Wanted], arch: str, refused: list[str] | None = None) -> Iterator[Made]:
    """`make` for each. refused: where refusals of single ones go as one line each, instead of ending everything."""
    for one in asked:
        try:
            yield make(one, arch)
        except TensorladderError as error:
            if refused is None:
                raise
            refused.append(f"{one.label}: {error}")


def write(folder: str | Path, arch: str, made: Sequence[Made]) -> tuple[int, int, int]:
    """Write a pack of these: how many entries, how many dynamic ones, bytes."""
    code: dict[str, bytes] = {}
    host: dict[str, bytes] = {}
    dynamic: dict[Any, Dynamic] = {}
    for one in made:
        code |= one.code
        host |= one.host
        if one.dynamic is not None:  # the same one for every shape that it was made for
            dynamic[one.dynamic.code] = one.dynamic
    size = pack.write(folder, arch, [one.entry for one in made], code, made_with(), list(dynamic.values()), host)
    return len(made), len(dynamic), size


def made_with() -> dict[str, Any]:
    """Facts about how a pack was made: versions by package, the Python, the machine."""
    found: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    for name in MADE_WITH:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def open_current(folder: str | Path) -> Pack:
    """Open a pack and check that its entries were compiled from the rungs as they are here (UsageError)."""
    opened = Pack.open(folder)
    compiled = {(one.rung, one.source) for one in opened.entries} | {(one.rung, one.source) for one in opened.dynamic}
    for rung, source in sorted(compiled):
        if source != source_digest(rungs.find(rung)):
            raise UsageError(f"pack {folder} is stale: {rung} has changed since it was packed: pack it again")
    return opened


def probe_buffer(info: RungInfo, shape: tuple[int, ...], dtype: str, config: Any) -> tuple[int, int, int] | None:
    """The shape of the buffer that a rung's probe variant takes as its last argument; None for a kernel without."""
    if not getattr(config, "probes", False):
        return None
    module = rungs.load(info)
    return probes.Plan.of(module.RUNG.probes).shape(*module.marked(shape, dtype, config))


def contiguous(shape: Sequence[int]) -> list[int]:
    """Row-major strides in elements."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _array(operand: Any) -> Array:
    shape = operand.shape
    steps = [1] * len(shape)
    order = range(len(shape) - 1, 0, -1) if operand.order != "F" else range(len(shape) - 1)
    for axis in order:
        following = axis - 1 if operand.order != "F" else axis + 1
        steps[following] = steps[axis] * shape[axis]
    return Array(operand.name, shape, tuple(steps), DTYPES[operand.dtype].numpy.name, operand.output)
