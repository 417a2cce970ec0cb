"""Make packs (`silicon.pack`): compile rungs with no GPU, ask their host code what it would launch, write that down.

Host code is asked twice, with the arrays at different addresses: what differs between the two parameter blocks is
where addresses stand. A difference that is no array's address plus a constant is refused; so nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import platform
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorladder.core import arch as archs
from tensorladder.core import tensormap
from tensorladder.core.dlpack import View
from tensorladder.core.errors import TensorladderError, Unsupported, UsageError
from tensorladder.core.program import Launch, Program
from tensorladder.measure.suites import Suite, dtype_for, rungs_of, takes
from tensorladder.problems import DTYPES
from tensorladder.rungs import rung as rungs
from tensorladder.rungs.rung import RungInfo
from tensorladder.silicon import pack
from tensorladder.silicon.pack import Array, Entry, Pack, Template

MADE_WITH = ("nvidia-cutlass-dsl", "apache-tvm", "llvmlite")
# Two places for arrays, 64 GiB apart so that no offset leads from one to another, below 2^47 as real addresses are.
_PLACES = (0x1000_0000_0000, 0x2A55_0000_0000)
_APART = 1 << 36


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
    chosen = [parse_spec(spec) for spec in specs] or [
        parse_spec(info.name) for info in rungs_of(suite, rungs.catalog(), arch)
    ]
    if not chosen:
        raise UsageError(f"--arch {arch}: no rung of suite {suite.name} compiles for it: name one")
    made = []
    for info, config in chosen:
        own = list(suite.shapes) if takes(info) else [info.default_shape]
        for shape in [tuple(shape) for shape in shapes] or own:
            for dtype in dtypes or (dtype_for(suite, info),):
                extents, name = info.rung.check(arch, shape, dtype)
                made.append(Wanted(info, config, extents, name))
    return made


# ----------------------------------------------------------------------------------------------------------- making


@functools.cache
def source_digest(info: RungInfo) -> str:
    """Of a rung's file and the device code that rungs share: what an entry was compiled from."""
    seen = hashlib.sha256()
    for path in (info.path, *sorted((Path(rungs.__file__).parent / "parts").glob("*.py"))):
        seen.update(path.read_bytes())
    return seen.hexdigest()[:16]


def make(one: Wanted, arch: str) -> tuple[Entry, dict[str, bytes]]:
    """Compile an entry and its machine code by digest. UsageError where the rung does not take what is wanted."""
    program = rungs.load(one.info).compile(arch, one.shape, one.dtype, one.config)
    arrays = tuple(_array(operand) for operand in one.info.problem.operands(one.shape, one.dtype))
    first, second = (program.launches(*_placed(arrays, base)) for base in _PLACES)
    if len(first) != len(second):
        raise Unsupported(f"{one.label}: its host code launches depend on the arrays' addresses: it cannot be packed")
    code: dict[str, bytes] = {}
    launches = tuple(_template(one.label, program, a, b, len(arrays), code) for a, b in zip(first, second))
    entry = Entry(
        one.info.name, arch, one.shape, one.dtype, knobs(one.config), source_digest(one.info), arrays, launches
    )
    return entry, code


def make_all(
    asked: Iterable[Wanted], arch: str, refused: list[str] | None = None
) -> Iterator[tuple[Entry, dict[str, bytes]]]:
    """`make` for each. refused: where refusals of single ones go as one line each, instead of ending everything."""
    for one in asked:
        try:
            yield make(one, arch)
        except TensorladderError as error:
            if refused is None:
                raise
            refused.append(f"{one.label}: {error}")


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
    for entry in opened.entries:
        if entry.source != source_digest(rungs.find(entry.rung)):
            raise UsageError(f"pack {folder} is stale: {entry.rung} has changed since it was packed: pack it again")
    return opened


def _array(operand: Any) -> Array:
    shape = operand.shape
    steps = [1] * len(shape)
    order = range(len(shape) - 1, 0, -1) if operand.order != "F" else range(len(shape) - 1)
    for axis in order:
        following = axis - 1 if operand.order != "F" else axis + 1
        steps[following] = steps[axis] * shape[axis]
    return Array(operand.name, shape, tuple(steps), DTYPES[operand.dtype].numpy.name, operand.output)


def _placed(arrays: Sequence[Array], base: int) -> list[View]:
    """Stand-ins at made-up addresses: host code computes with addresses and never follows them."""
    return [View(base + i * _APART, a.shape, a.strides, a.dtype) for i, a in enumerate(arrays)]


def _template(
    label: str, program: Program, first: Launch, second: Launch, arrays: int, code: dict[str, bytes]
) -> Template:
    from tensorladder.frontends.ptxparams import entry

    fixed = ("kernel", "grid", "block", "smem", "cluster", "attributes")
    if any(getattr(first, name) != getattr(second, name) for name in fixed):
        raise Unsupported(f"{label}: how {first.kernel} is launched depends on the arrays' addresses")
    image = first.module.cubin
    if not image:
        raise UsageError(f"{label}: its front end makes no machine code, which a pack consists of")
    name = pack.digest(image)
    code[name] = image
    head = entry(first.module.ptx, first.kernel)
    params, other = bytearray(first.params), bytearray(second.params)
    for param in head.params:
        _finish_map(params, param)
        _finish_map(other, param)
    addresses = []
    # Addresses are 8-byte numbers at their natural alignment, in tensor maps too.
    for at in range(0, len(params) - 7, 8):
        here, there = (struct.unpack_from("<Q", block, at)[0] for block in (params, other))
        if here == there:
            continue
        number, offset = divmod(here - _PLACES[0], _APART)
        if not 0 <= number < arrays or there - _PLACES[1] != here - _PLACES[0]:
            raise Unsupported(f"{label}: byte {at} of {first.kernel}'s parameters depends on an address in another way")
        addresses.append((at, number, offset))
        struct.pack_into("<Q", params, at, 0)
        struct.pack_into("<Q", other, at, 0)
    if params != other:
        raise Unsupported(f"{label}: the last bytes of {first.kernel}'s parameters depend on an address")
    offsets = tuple(param.offset for param in head.params)
    return Template(
        first.kernel, name, first.grid, first.block, bytes(params), offsets, tuple(addresses),
        first.smem, first.cluster, dict(first.attributes),
    )  # fmt: skip


def _finish_map(params: bytearray, param: Any) -> None:
    """Words 8 and up of a tensor map as the driver writes them: compilers leave there what lay on their stack."""
    if param.size != tensormap.BYTES or param.align < 64:
        return
    block = bytes(params[param.offset : param.offset + param.size])
    try:
        tail = tensormap.encode(tensormap.decode(block))[64:]
    except Unsupported:
        tail = bytes(64)  # packed types: the machine reads words 0 to 7 alone
    except UsageError:
        return  # another parameter of that size
    params[param.offset + 64 : param.offset + param.size] = tail
