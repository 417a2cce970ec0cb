"""Emitter: LLVM IR text for one kernel variant, with registers in a frame and a block-local cache of values.

A lane vector is `<32 x iN>`; predicates are `<32 x i1>` (an i32 bit mask in the frame). Within a block, values stay in
SSA form; what other blocks need is stored to the frame at the block's end. Nothing lives across a yield but the
frame, so suspending a warp is storing a program counter.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.ptx.nodes import TYPE_BITS, Imm, Instr, Mem, Neg, Reg, Sink, Special, Sym

if TYPE_CHECKING:
    from tensorladder.vgpu.codegen.undefined import Undefined

FLOAT = {"f16": "half", "f32": "float", "f64": "double"}
SIGNED = {"s8", "s16", "s32", "s64"}


def vec(ty: str) -> str:
    """LLVM lane-vector type of a PTX type (bf16, fp8 and packed types are raw bits)."""
    if ty in FLOAT:
        return f"<32 x {FLOAT[ty]}>"
    return f"<32 x i{TYPE_BITS[ty]}>"


def ivec(bits: int) -> str:
    """Lane vector of integers."""
    return f"<32 x i{bits}>"


class Emitter:
    """State while one function is emitted. Families call its methods; see `value`, `set`, `op`, `call`."""

    def __init__(self, slots: dict[Reg, int], symbols: dict[str, tuple[str, int]], checked: bool):
        self.slots = slots
        self.symbols = symbols  # name -> (space, offset or index)
        self.checked = checked
        self.lines: list[str] = []
        self.count = 0
        self.cache: dict[Reg, str] = {}
        self.dirty: dict[Reg, None] = {}
        self.masked = False
        self.guard: str | None = None
        self.fallible = False
        self.instr: Instr | None = None
        self.cta_group = ""  # of the kernel's tcgen05 instructions
        self.undefined: Undefined | None = None  # shadows of registers, in the checked variant
        self.runs: dict = {}  # loads of the block that are done together (loads.find)
        self.watched: dict[int, tuple[list[Reg], list[Reg]]] = {}  # checked variant: in_flight.watched and .changed
        self.changed: set[int] = set()
        self.framed: set[Reg] = set()  # registers that units read or write in the frame: always stored
        self.declared: dict[str, str] = {}
        self.outlined: set[str] = set()
        self.block_values: dict[str, str] = {}  # of the current block, by what they are (see once)

    # ------------------------------------------------------------ plain IR
    def line(self, text: str) -> None:
        """A line of IR without a result."""
        self.lines.append("  " + text)

    def op(self, text: str) -> str:
        """An instruction with a result; gives its name."""
        self.count += 1
        name = f"%v{self.count}"
        self.lines.append(f"  {name} = {text}")
        return name

    def label(self, name: str) -> None:
        """Start an LLVM block; cached values of the one before are gone."""
        self.lines.append(f"{name}:")

    def declare(self, text: str) -> None:
        """Declare an external function or intrinsic once."""
        self.declared[text] = text

    def outline(self, name: str, result: str, args: list[tuple[str, str]], build) -> str:
        """Call an internal function of the module, built once: long sequences are compiled once and not at every use.

        args: (LLVM type, value). build(emitter, *names) emits its body and gives the result; only the arguments may be
        used in it (no registers, no warp).
        """
        if name not in self.outlined:
            self.outlined.add(name)
            inner = Emitter({}, {}, False)
            inner.declared, inner.outlined = self.declared, self.outlined
            value = build(inner, *(f"%a{k}" for k in range(len(args))))
            formal = ", ".join(f"{t} %a{k}" for k, (t, _) in enumerate(args))
            body = "\n".join(inner.lines)
            self.declare(f"define internal {result} @{name}({formal}) noinline {{\n{body}\n  ret {result} {value}\n}}")
        return self.op(f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in args)})")

    def splat(self, ty: str, value: str | int | float) -> str:
        """Constant vector of LLVM type `ty` (`<32 x ..>`)."""
        return f"splat ({ty[6:-1]} {value})"

    def once(self, key: str, make) -> str:
        """A value computed once a block."""
        if key not in self.block_values:
            self.block_values[key] = make()
        return self.block_values[key]

    # ------------------------------------------------------------ state in memory
    def warp_ptr(self, offset: int) -> str:
        """Pointer to a field of the warp."""
        return self.once(f"wp{offset}", lambda: self.op(f"getelementptr i8, ptr %warp, i64 {offset}"))

    def warp_field(self, offset: int) -> str:
        """An i64 field of the warp, read now."""
        return self.op(f"load i64, ptr {self.warp_ptr(offset)}")

    def field_of(self, base_offset: int, offset: int) -> str:
        """An i64 read through a pointer field of the warp (CTA or launch)."""
        base = self.op(f"load ptr, ptr {self.warp_ptr(base_offset)}")
        p = self.op(f"getelementptr i8, ptr {base}, i64 {offset}")
        return self.op(f"load i64, ptr {p}")

    def slot_ptr(self, reg: Reg) -> str:
        """Pointer to a register's place in the frame."""
        return self.once(f"sp{reg.index}", lambda: self.op(f"getelementptr i8, ptr %frame, i64 {self.slots[reg]}"))

    def scratch_ptr(self, index: int) -> str:
        """Pointer to scratch lane-vector `index` (256 bytes each)."""
        return self.warp_ptr(L.W_SCRATCH + 256 * index)

    def scratch_address(self, index: int) -> str:
        """The same as i64, for runtime calls."""
        offset = L.W_SCRATCH + 256 * index
        return self.once(f"sa{offset}", lambda: self.op(f"add i64 %w, {offset}"))

    # ------------------------------------------------------------ masks
    def lanes(self) -> str:
        """i32 mask of the lane group, without the instruction's guard."""
        if self.masked:
            return self.once("lanes", lambda: self.op(f"trunc i64 {self.warp_field(L.W_MASK)} to i32"))
        return self.once("lanes", lambda: self.op(f"trunc i64 {self.warp_field(L.W_LIVE)} to i32"))

    def lanes_vector(self) -> str:
        """The lane group as <32 x i1>."""
        lanes = self.lanes()
        return self.once("lanesv", lambda: self.op(f"bitcast i32 {lanes} to <32 x i1>"))

    def active(self) -> str:
        """i64 mask of lanes that execute the current instruction (group and guard)."""
        lanes = self.lanes()
        if self.guard is not None:
            bits = self.op(f"bitcast <32 x i1> {self.guard} to i32")
            lanes = self.op(f"and i32 {lanes}, {bits}")
            return self.op(f"zext i32 {lanes} to i64")
        return self.once("active", lambda: self.op(f"zext i32 {lanes} to i64"))

    def active_vector(self) -> str:
        """The same as <32 x i1>."""
        if self.guard is None:
            return self.lanes_vector()
        return self.op(f"and <32 x i1> {self.lanes_vector()}, {self.guard}")

    # ------------------------------------------------------------ registers
    def begin_block(self, masked: bool) -> None:
        """Forget block-local state."""
        self.cache.clear()
        self.dirty.clear()
        self.block_values.clear()
        self.masked = masked
        self.fallible = False

    def reg(self, reg: Reg) -> str:
        """Current value of a register as `<32 x iN>`."""
        value = self.cache.get(reg)
        if value is None:
            if reg not in self.slots:  # never written on any path: poison
                value = self.splat(ivec(reg.bits), _poison(reg))
            elif reg.bits == 1:
                raw = self.op(f"load i32, ptr {self.slot_ptr(reg)}")
                value = self.op(f"bitcast i32 {raw} to <32 x i1>")
            else:
                value = self.op(f"load {ivec(reg.bits)}, ptr {self.slot_ptr(reg)}, align 64")
            self.cache[reg] = value
        return value

    def write(self, reg: Reg, value: str) -> None:
        """Set a register from `<32 x iN>` of its own width, under group mask and guard."""
        ty = ivec(reg.bits)
        if self.guard is not None or self.masked:
            if self.masked:
                mask = self.active_vector()
            else:
                mask = self.guard
            value = self.op(f"select <32 x i1> {mask}, {ty} {value}, {ty} {self.reg(reg)}")
        self.cache[reg] = value
        self.dirty[reg] = None

    def flush(self, keep: set[Reg]) -> None:
        """Store changed registers that are needed later (`keep`)."""
        for reg in self.dirty:
            if (reg in keep or reg in self.framed) and reg in self.slots:
                self.store_slot(reg)
        self.dirty.clear()

    def to_frame(self, regs: list[Reg]) -> None:
        """Store registers that have changed, for a unit to read."""
        for reg in regs:
            if reg in self.dirty:
                self.store_slot(reg)
                del self.dirty[reg]

    def forget_framed(self) -> None:
        """Registers that a unit may have changed are read from the frame anew."""
        for reg in self.framed:
            if reg not in self.dirty:
                self.cache.pop(reg, None)

    def store_slot(self, reg: Reg) -> None:
        """Store a register's cached value to the frame."""
        self._store(reg, self.cache[reg], self.slot_ptr(reg))

    def store_at(self, reg: Reg, offset: int) -> None:
        """Store a register's present value at some other offset of the frame."""
        self._store(reg, self.reg(reg), self.op(f"getelementptr i8, ptr %frame, i64 {offset}"))

    def _store(self, reg: Reg, value: str, place: str) -> None:
        if reg.bits == 1:
            raw = self.op(f"bitcast <32 x i1> {value} to i32")
            self.line(f"store i32 {raw}, ptr {place}")
        else:
            self.line(f"store {ivec(reg.bits)} {value}, ptr {place}, align 64")

    # ------------------------------------------------------------ operands
    def value(self, operand: object, ty: str) -> str:
        """An operand as the lane vector of PTX type `ty`. Wider registers are truncated, as the ISA allows."""
        bits = TYPE_BITS[ty]
        if isinstance(operand, Reg):
            return self._as(self._resize(self.reg(operand), operand.bits, bits, ty), ty)
        if isinstance(operand, Imm):
            return self._immediate(operand, ty)
        if isinstance(operand, Neg):
            inner = self.value(operand.operand, ty)
            if ty == "pred":
                return self.op(f"xor <32 x i1> {inner}, splat (i1 true)")
            if ty in FLOAT:
                return self.op(f"fneg {vec(ty)} {inner}")
            return self.op(f"sub {vec(ty)} zeroinitializer, {inner}")
        if isinstance(operand, Special):
            return self.resize(self.special(operand.name), ty)
        if isinstance(operand, Sym):
            address = self.symbol(operand)
            return self.op(f"trunc <32 x i64> {address} to {vec(ty)}") if bits < 64 else address
        raise Unsupported(f"operand {operand!r}")

    def resize(self, typed: tuple[str, int], ty: str) -> str:
        """(value, bits) as an unsigned integer to type `ty`."""
        value, bits = typed
        return self._as(self._resize(value, bits, TYPE_BITS[ty], "u64"), ty)

    def _resize(self, value: str, have: int, want: int, ty: str) -> str:
        if have == want:
            return value
        if have > want:
            return self.op(f"trunc {ivec(have)} {value} to {ivec(want)}")
        how = "sext" if ty in SIGNED else "zext"
        return self.op(f"{how} {ivec(have)} {value} to {ivec(want)}")

    def _as(self, value: str, ty: str) -> str:
        if ty in FLOAT:
            return self.op(f"bitcast {ivec(TYPE_BITS[ty])} {value} to {vec(ty)}")
        return value

    def _immediate(self, imm: Imm, ty: str) -> str:
        bits = TYPE_BITS[ty]
        value = imm.value
        if ty == "pred":
            return self.splat("<32 x i1>", "true" if value else "false")
        if imm.float_bits and (ty in FLOAT or ty in ("bf16",)) and imm.float_bits != bits:
            value = _convert_float_bits(value, imm.float_bits, ty)
        elif not imm.float_bits and ty in ("f32", "f64"):
            value = struct.unpack("<I" if bits == 32 else "<Q", struct.pack("<f" if bits == 32 else "<d", value))[0]
        value &= (1 << bits) - 1
        text = self.splat(ivec(bits), value)
        if ty in FLOAT:
            return self.op(f"bitcast {ivec(bits)} {text} to {vec(ty)}")
        return text

    def set(self, operand: object, value: str, ty: str) -> None:
        """Write a result of PTX type `ty`; a wider register is sign- or zero-extended."""
        if isinstance(operand, Sink):
            return
        if not isinstance(operand, Reg):
            raise Unsupported(f"result operand {operand!r}")
        bits = TYPE_BITS[ty]
        if ty in FLOAT:
            value = self.op(f"bitcast {vec(ty)} {value} to {ivec(bits)}")
        self.write(operand, self._resize(value, bits, operand.bits, ty))

    def symbol(self, sym: Sym) -> str:
        """Address of a variable, kernel parameter or function as <32 x i64>."""
        if sym.name not in self.symbols:
            raise Unsupported(f"address of {sym.name}")
        space, place = self.symbols[sym.name]
        if space == "shared":
            base = self.op(f"add i64 {self.warp_field(L.W_SMEM_BASE)}, {place + sym.offset}")
        elif space == "local":
            return self.splat("<32 x i64>", place + sym.offset)
        elif space == "param":
            base = self.op(f"add i64 {self.warp_field(L.W_PARAMS)}, {place + sym.offset}")
        else:
            table = self.op(f"inttoptr i64 {self.field_of(L.W_LAUNCH, L.L_SYMBOLS)} to ptr")
            p = self.op(f"getelementptr i64, ptr {table}, i64 {place}")
            base = self.op(f"load i64, ptr {p}")
            if sym.offset:
                base = self.op(f"add i64 {base}, {sym.offset}")
        return self.broadcast("i64", base)

    def broadcast(self, ty: str, scalar: str) -> str:
        """A scalar in every lane."""
        one = self.op(f"insertelement <32 x {ty}> poison, {ty} {scalar}, i64 0")
        return self.op(f"shufflevector <32 x {ty}> {one}, <32 x {ty}> poison, <32 x i32> zeroinitializer")

    def address(self, mem: Mem) -> str:
        """A memory operand's address as <32 x i64>."""
        if isinstance(mem.base, Sym):
            return self.symbol(Sym(mem.base.name, mem.offset))
        if isinstance(mem.base, Imm):
            return self.splat("<32 x i64>", mem.base.value + mem.offset)
        if not isinstance(mem.base, Reg):
            raise Unsupported(f"address {mem.base!r}")
        base = self._resize(self.reg(mem.base), mem.base.bits, 64, "u64")
        if mem.offset:
            base = self.op(f"add <32 x i64> {base}, {self.splat('<32 x i64>', mem.offset)}")
        return base

    # ------------------------------------------------------------ special registers
    def special(self, name: str) -> tuple[str, int]:
        """(value, bits) of a special register."""
        from tensorladder.vgpu.codegen.special import special

        return special(self, name)

    # ------------------------------------------------------------ runtime calls
    def call(self, name: str, *args: str | int, fallible: bool = False) -> str:
        """Call a runtime function: the warp, then i64 arguments. `fallible`: check for an error at the block's end."""
        passed = ", ".join(f"i64 {a}" for a in ("%w", *args))
        self.declare(f"declare i64 @{name}({', '.join(['i64'] * (len(args) + 1))})")
        self.fallible |= fallible
        return self.op(f"call i64 @{name}({passed})")

    def spill(self, value: str, ty: str, index: int) -> str:
        """Store a lane vector to scratch `index`; gives the address as i64."""
        self.line(f"store {ty} {value}, ptr {self.scratch_ptr(index)}, align 64")
        return self.scratch_address(index)

    def reload(self, ty: str, index: int) -> str:
        """Load a lane vector from scratch `index`."""
        return self.op(f"load {ty}, ptr {self.scratch_ptr(index)}, align 64")

    def intrinsic(self, name: str, result: str, *args: tuple[str, str]) -> str:
        """Call an LLVM intrinsic with (type, value) arguments."""
        self.declare(f"declare {result} @{name}({', '.join(t for t, _ in args)})")
        return self.op(f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in args)})")

    @property
    def iid(self) -> int:
        """Number of the current instruction, for messages and hooks."""
        return self.instr.index


def _poison(reg: Reg) -> int:
    """What a register holds that nothing writes; a shadow says that all of it is undefined."""
    if reg.bits == 1:
        return 1 if reg.shadow else 0
    return -1


def _convert_float_bits(value: int, have: int, ty: str) -> int:
    x = struct.unpack("<f" if have == 32 else "<d", value.to_bytes(have // 8, "little"))[0]
    if ty == "f64":
        return struct.unpack("<Q", struct.pack("<d", x))[0]
    if ty == "f32":
        import numpy as np

        return int(np.float32(x).view(np.uint32))
    if ty == "f16":
        return struct.unpack("<H", struct.pack("<e", x))[0]
    return struct.unpack("<I", struct.pack("<f", x))[0] >> 16
