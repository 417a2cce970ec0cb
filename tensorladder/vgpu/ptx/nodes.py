"""The parts of a PTX module after reading: operands, instructions, kernels, variables.

Names follow the PTX ISA (sections "State Spaces, Types, and Variables" and "Instruction Operands").
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

TYPE_BITS = {
    "pred": 1, "b1": 1,
    "b8": 8, "u8": 8, "s8": 8, "e4m3": 8, "e5m2": 8,
    "b16": 16, "u16": 16, "s16": 16, "f16": 16, "bf16": 16,
    "b32": 32, "u32": 32, "s32": 32, "f32": 32, "f16x2": 32, "bf16x2": 32, "u16x2": 32, "s16x2": 32, "tf32": 32,
    "b64": 64, "u64": 64, "s64": 64, "f64": 64, "f32x2": 64,
    "b128": 128,
    "texref": 64, "samplerref": 64, "surfref": 64,
}  # fmt: skip


class Reg:
    """A virtual register. `index` numbers the registers of one kernel (of shadows, which code generation adds, it is
    negative); `bits` is 1 for predicates."""

    __slots__ = ("bits", "index", "name", "type")

    def __init__(self, name: str, type: str, index: int):
        self.name, self.type, self.index, self.bits = name, type, index, TYPE_BITS[type]

    @property
    def shadow(self) -> bool:
        """Whether it says which bits of another one are undefined (codegen.undefined)."""
        return self.index < 0

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Imm:
    """An immediate. `value` is an int, or the bits of a float with `float_bits` 32 or 64."""

    value: int
    float_bits: int = 0


def as_float(imm: Imm) -> float:
    """An immediate's value."""
    if imm.float_bits == 32:
        return struct.unpack("<f", imm.value.to_bytes(4, "little"))[0]
    if imm.float_bits == 64:
        return struct.unpack("<d", imm.value.to_bytes(8, "little"))[0]
    return float(imm.value)


@dataclass(frozen=True)
class Sym:
    """A variable's name, with a byte offset: its address."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Special:
    """A special register such as `%tid.x` or `WARP_SZ`."""

    name: str


@dataclass(frozen=True)
class Mem:
    """`[base+offset]`; base is a Reg, Sym or Imm. TMA's `[map, {c0, c1}]` keeps its coordinates in `extra`."""

    base: Reg | Sym | Imm | Special
    offset: int = 0
    extra: tuple = ()


@dataclass(frozen=True)
class Vec:
    """`{a, b, ...}`."""

    items: tuple


def declared(name: str, ty: str, width: int, index: int) -> tuple[list[Reg], dict[str, Reg | Vec]]:
    """The registers, from number `index` on, of a declaration of `width` elements, and what its names mean.

    A vector's name is all of its registers; they also are `.x .y .z .w` and `.r .g .b .a` of it (PTX ISA, "Vectors").
    """
    if width == 1:
        return [reg := Reg(name, ty, index)], {name: reg}
    registers = [Reg(f"{name}.{'xyzw'[k]}", ty, index + k) for k in range(width)]
    parts = {f"{name}.{part}": reg for k, reg in enumerate(registers) for part in ("xyzw"[k], "rgba"[k])}
    return registers, {name: Vec(tuple(registers)), **parts}


@dataclass(frozen=True)
class Pair:
    """`d|p`: a result with its predicate."""

    first: object
    second: object


@dataclass(frozen=True)
class Neg:
    """`!p` or `-x` on a register operand."""

    operand: object


@dataclass(frozen=True)
class Part:
    """`%r1.b0`, `%r1.h10`, `%r1.b7654`: selected bytes or halves of a register, for the video instructions."""

    reg: Reg
    name: str


@dataclass(frozen=True)
class Sink:
    """`_`: the result is dropped."""


@dataclass(frozen=True)
class Group:
    """`(a, b)`: the parameter lists of a call."""

    items: tuple


@dataclass(frozen=True)
class Label:
    """A branch target, unique within the kernel."""

    name: str


@dataclass
class Instr:
    """One instruction. `mods` are the modifiers after the mnemonic; `pred` guards it (negated if `pred_neg`)."""

    op: str
    mods: tuple[str, ...]
    operands: list
    line: int
    loc: tuple[int, int, int] = (0, 0, 0)
    pred: Reg | None = None
    pred_neg: bool = False
    index: int = -1

    @property
    def text(self) -> str:
        """The whole opcode, as written."""
        return ".".join((self.op, *self.mods))


@dataclass(frozen=True)
class Param:
    """A kernel or function parameter: `offset` is its place in the parameter block, bytes."""

    name: str
    type: str
    size: int
    align: int
    offset: int


@dataclass
class Variable:
    """A variable of a state space: `space` is global, const, shared, local or param; sizes in bytes."""

    name: str
    space: str
    size: int
    align: int
    init: bytes | None = None
    relocs: list[tuple[int, str, int]] = field(default_factory=list)  # (byte offset, symbol, addend)
    extern: bool = False


@dataclass
class Function:
    """An `.entry` or `.func`. `body` holds Instr and Label in order."""

    name: str
    is_entry: bool
    params: list[Param]
    returns: list[Param]
    line: int
    body: list = field(default_factory=list)
    regs: dict[str, Reg] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    branch_targets: dict[str, list[str]] = field(default_factory=dict)
    prototypes: dict[str, tuple] = field(default_factory=dict)
    declared_only: bool = False

    @property
    def param_bytes(self) -> int:
        """Size of the parameter block."""
        return max((p.offset + p.size for p in self.params), default=0)


@dataclass
class PtxModule:
    """A parsed module. `files` maps `.file` numbers to paths."""

    version: str
    target: str
    address_size: int
    functions: dict[str, Function]
    variables: dict[str, Variable]
    files: dict[int, str]
    lines: list[str]

    @property
    def kernels(self) -> dict[str, Function]:
        """The entries, by name."""
        return {n: f for n, f in self.functions.items() if f.is_entry}
