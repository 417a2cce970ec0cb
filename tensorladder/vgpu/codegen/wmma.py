"""Warp-level matrices in fragments of the machine's own layout (PTX ISA, "Warp-level Matrix Instructions using wmma").

The ISA leaves open which lane holds which element; here it is the layout of mma.sync, so that wmma.mma is one or two
products of that kind. A shape of 8 rows is computed transposed. Fragments of f16 operands have eight registers by the
ISA; those that the layout does not need repeat the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.memory import hook
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.machine.layout import SPACE_GENERIC, SPACE_GLOBAL, SPACE_OWN
from tensorladder.vgpu.machine.tensorcore import MMAS, Mma
from tensorladder.vgpu.ptx.nodes import Imm, Instr, Mem, Reg, Vec

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")
_SPACES = {"global": SPACE_GLOBAL, "shared": SPACE_OWN, "shared::cta": SPACE_OWN}
#: bits of an element, elements of a register
_BITS = {"f16": (16, 2), "bf16": (16, 2), "tf32": (32, 1), "s8": (8, 4), "u8": (8, 4), "f64": (64, 1), "f32": (32, 1),
         "s32": (32, 1)}  # fmt: skip
_THREE = {(16, 16, 16), (32, 8, 16), (8, 32, 16)}
#: shapes of operands by type
_SHAPES = {"f16": _THREE, "bf16": _THREE, "s8": _THREE, "u8": _THREE, "tf32": {(16, 16, 8)}, "f64": {(8, 8, 4)}}
#: accumulators by type of the operands
_SUMS = {"f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "s8": ("s32",), "u8": ("s32",), "f64": ("f64",)}
_F16_REGISTERS = 8

#: places (row, column) of one register: a list an element, 32 lanes each
Places = list[list[tuple[int, int]]]


@dataclass(frozen=True)
class Shape:
    """A wmma shape for operands of one type, as products of mma.sync."""

    m: int
    n: int
    k: int
    ty: str

    @property
    def turned(self) -> bool:
        """Whether the product is computed transposed."""
        return self.m == 8 and self.n == 32

    @property
    def rows(self) -> int:
        """Rows of mma.sync's D over all products, before it is turned back."""
        return self.n if self.turned else self.m

    @property
    def part(self) -> tuple[int, int]:
        """(rows, K) of one mma.sync."""
        return (8, 4) if self.ty == "f64" else (16, self.k)

    @property
    def products(self) -> list[tuple[int, int]]:
        """(block of rows, block of eight columns) of each mma.sync."""
        columns = self.m if self.turned else self.n
        return [(r, c) for r in range(self.rows // self.part[0]) for c in range(columns // 8)]

    def _operand(self, wide: int, rows: int, halves: int) -> list[Places]:
        """Registers of a matrix of `rows` lines along K, blocks of 8 `halves` lines."""
        per = _BITS[self.ty][1]
        return [
            [[(8 * (halves * block + half) + lane // 4, wide * kb + per * (lane % 4) + e) for lane in range(32)]
             for e in range(per)]
            for block in range(rows // (8 * halves)) for kb in range(self.k // wide) for half in range(halves)
        ]  # fmt: skip

    def places(self, which: str, ty: str) -> list[Places]:
        """What each register of a fragment holds: (row, column) of matrix `which`; ty: of its elements."""
        if which in "cd":
            return self._sums(ty)
        wide = 4 * _BITS[ty][1]
        halves = self.part[0] // 8
        left = (which == "a") != self.turned  # mma.sync's A; the other has its columns along K
        rows = {"a": self.m, "b": self.n}[which]
        found = self._operand(wide, rows, halves if left else 1)
        if which == "b":
            found = [[[(c, r) for r, c in element] for element in register] for register in found]
        count = _F16_REGISTERS if ty == "f16" else len(found)
        return [found[r % len(found)] for r in range(count)]

    def _sums(self, ty: str) -> list[Places]:
        found = []
        for block, column in self.products:
            for half in range(self.part[0] // 8):
                elements = [
                    [(self.part[0] * block + 8 * half + lane // 4, 8 * column + 2 * (lane % 4) + e)
                     for lane in range(32)] for e in range(2)
                ]  # fmt: skip
                if self.turned:
                    elements = [[(c, r) for r, c in element] for element in elements]
                found += [elements] if ty == "f16" else [[element] for element in elements]
        return found

    def mma(self, d: str, c: str, satfinite: bool) -> Mma:
        """The mma.sync of each product."""
        rows, k = self.part
        return MMAS[rows, 8, k, d, self.ty, self.ty, c, satfinite]


def _shape(i: Instr, text: str, ty: str) -> Shape:
    """The shape that an instruction names; Unsupported where operands of type `ty` have none such."""
    found = _SHAPE.match(text)
    m, n, k = map(int, found.groups()) if found else (0, 0, 0)
    if (m, n, k) not in _SHAPES.get(ty, ()):
        raise Unsupported(i.text)
    return Shape(m, n, k, ty)


@instruction("wmma", kind="meet", results=lambda i: 0 if i.mods[:1] == ("store",) else 1,
             forms="load, store, mma: f16, bf16, s8, u8 in m16n16k16, m32n8k16, m8n32k16; tf32 in m16n16k8; f64 in "
                   "m8n8k4; row and col, stride",
             refused="s4, u4, b1, .satfinite of f16, roundings other than .rn")  # fmt: skip
def wmma(e: Emitter, i: Instr) -> None:
    """Dispatch on what follows the mnemonic."""
    what = i.mods[0] if i.mods else ""
    if what == "mma":
        return _mma(e, i)
    if what in ("load", "store") and i.mods[2:4] == ("sync", "aligned"):
        return _move(e, i, i.mods[1], what == "load")
    raise Unsupported(i.text)


def _move(e: Emitter, i: Instr, which: str, load: bool) -> None:
    """wmma.load.a, .b, .c and wmma.store.d: a register at a time, whole where its elements lie side by side."""
    if which not in ("abc" if load else "d") or len(i.mods) < 7 or i.mods[4] not in ("row", "col"):
        raise Unsupported(i.text)
    by_rows, ty = i.mods[4] == "row", i.mods[-1]
    spaces = i.mods[6:-1]
    if len(spaces) > 1 or any(m not in _SPACES for m in spaces) or ty not in _BITS:
        raise Unsupported(i.text)
    space = _SPACES[spaces[0]] if spaces else SPACE_GENERIC
    operands = [ty] if which in "ab" else [o for o, sums in _SUMS.items() if ty in sums]
    shapes = [o for o in operands if o in _SHAPES and _fits(i.mods[5], o)]
    if not shapes:
        raise Unsupported(i.text)
    shape = _shape(i, i.mods[5], shapes[0])
    places = shape.places(which, ty)
    fragment, memory = (i.operands[0], i.operands[1]) if load else (i.operands[1], i.operands[0])
    items = _items(i, fragment, len(places))
    if not isinstance(memory, Mem):
        raise Unsupported(i.text)
    rows, columns = {"a": (shape.m, shape.k), "b": (shape.k, shape.n)}.get(which, (shape.m, shape.n))
    stride = i.operands[2] if len(i.operands) > 2 else Imm(columns if by_rows else rows)
    pitch = e.op(f"zext <32 x i32> {e.value(stride, 'u32')} to <32 x i64>")
    base = e.address(memory)
    for item, register in zip(items, places, strict=True):
        turned = [[(r, c) if by_rows else (c, r) for r, c in element] for element in register]
        if load:
            _load(e, space, base, pitch, turned, ty, item)
        else:
            _store(e, space, base, pitch, turned, ty, item)


def _fits(text: str, ty: str) -> bool:
    found = _SHAPE.match(text)
    return bool(found) and tuple(map(int, found.groups())) in _SHAPES[ty]


def _side_by_side(register: Places) -> bool:
    """Whether the elements of every lane are neighbours in memory."""
    return all(
        place == (register[0][lane][0], register[0][lane][1] + e)
        for e, element in enumerate(register) for lane, place in enumerate(element)
    )  # fmt: skip


def _address(e: Emitter, base: str, pitch: str, element: list[tuple[int, int]], size: int) -> str:
    """Spill the lanes' addresses of an element: (line, place in the line) each."""
    lines, places = (", ".join(f"i64 {place[k] * size}" for place in element) for k in (0, 1))
    at = e.op(f"mul <32 x i64> {pitch}, <{lines}>")
    at = e.op(f"add <32 x i64> {at}, <{places}>")
    return e.spill(e.op(f"add <32 x i64> {base}, {at}"), "<32 x i64>", 0)


def _shadow(e: Emitter, item: object) -> Reg | None:
    """The register that says which bits of another one are undefined, None where none may be."""
    return e.undefined.shadows.get(item) if e.undefined is not None and isinstance(item, Reg) else None


def _load(e: Emitter, space: int, base: str, pitch: str, register: Places, ty: str, item: Reg) -> None:
    """One register, and its shadow."""
    bits, per = _BITS[ty]
    whole = bits * per
    step = whole if _side_by_side(register) else bits
    shadow = _shadow(e, item)
    values, shadows = [], []
    for element in register[:: step // bits]:
        address = _address(e, base, pitch, element, bits // 8)
        e.call("tl_ld", space, address, e.active(), e.scratch_address(1), step // 8, 1, step // 8, e.iid, fallible=True)
        hook(e, "read", space, step // 8, aligned=True)
        values.append(e.reload(f"<32 x i{step}>", 1))
        if shadow is not None and space != SPACE_GLOBAL:
            e.call("tl_shadow_part", address, e.active(), e.scratch_address(1), step // 8, e.iid)
            shadows.append(e.reload(f"<32 x i{step}>", 1))
    e.set(item, _joined(e, values, step, whole), f"b{whole}")
    if shadow is not None:
        e.write(shadow, _joined(e, shadows, step, whole) if shadows else e.splat(f"<32 x i{whole}>", 0))


def _joined(e: Emitter, parts: list[str], step: int, whole: int) -> str:
    """Integers of `step` bits as one of `whole`, the first one lowest."""
    value = parts[0] if step == whole else ""
    for n, narrow in enumerate(parts if step != whole else ()):
        part = e.op(f"zext <32 x i{step}> {narrow} to <32 x i{whole}>")
        part = e.op(f"shl <32 x i{whole}> {part}, {e.splat(f'<32 x i{whole}>', step * n)}")
        value = e.op(f"or <32 x i{whole}> {value}, {part}") if n else part
    return value


def _store(e: Emitter, space: int, base: str, pitch: str, register: Places, ty: str, item: Reg) -> None:
    """One register, and its shadow."""
    bits, per = _BITS[ty]
    whole = bits * per
    step = whole if _side_by_side(register) else bits
    shadow = _shadow(e, item)
    value = e.value(item, f"b{whole}")
    for n, element in enumerate(register[:: step // bits]):
        e.spill(_part(e, value, step, whole, n), f"<32 x i{step}>", 1)
        address = _address(e, base, pitch, element, bits // 8)
        e.call("tl_st", space, address, e.active(), e.scratch_address(1), step // 8, 1, e.iid, fallible=True)
        hook(e, "write", space, step // 8, aligned=True)
        if shadow is not None:
            e.spill(_part(e, e.reg(shadow), step, whole, n), f"<32 x i{step}>", 1)
            e.call("tl_shadow_st", address, e.active(), e.scratch_address(1), step // 8, 1, e.iid)


def _part(e: Emitter, value: str, step: int, whole: int, n: int) -> str:
    """The n-th integer of `step` bits in one of `whole`."""
    if step == whole:
        return value
    part = e.op(f"lshr <32 x i{whole}> {value}, {e.splat(f'<32 x i{whole}>', step * n)}")
    return e.op(f"trunc <32 x i{whole}> {part} to <32 x i{step}>")


def _items(i: Instr, operand: object, count: int) -> tuple:
    items = operand.items if isinstance(operand, Vec) else (operand,)
    if len(items) != count:
        raise Unsupported(f"{i.text} with {len(items)} registers")
    return items


def _mma(e: Emitter, i: Instr) -> None:
    """wmma.mma; the layouts that it names are those of the loads, which leave no trace in a fragment here."""
    layouts, rest = i.mods[3:5], list(i.mods[5:])
    if i.mods[1:3] != ("sync", "aligned") or any(m not in ("row", "col") for m in layouts) or len(rest) < 3:
        raise Unsupported(i.text)
    satfinite = rest[-1] == "satfinite"
    types = [m for m in rest[1 : len(rest) - satfinite] if m != "rn" or "f64" not in rest]
    if len(types) == 2:
        types = [types[0], "f16", "f16", types[1]]
    if len(types) != 4 or types[1] != types[2]:
        raise Unsupported(i.text)
    d, ty, _, c = types
    shape = _shape(i, rest[0], ty)
    if d not in _SUMS[ty] or c not in _SUMS[ty] or (satfinite and ty not in ("s8", "u8")):
        raise Unsupported(i.text)
    form = shape.mma(d, c, satfinite)
    na, nb, nc, nd = form.registers
    fragments = {which: _items(i, operand, len(shape.places(which, t)))
                 for which, operand, t in zip("dabc", i.operands, (d, ty, ty, c), strict=True)}  # fmt: skip
    llvm, reg = ("<32 x i64>", "b64") if ty == "f64" else ("<32 x i32>", "b32")
    left, right = ("b", "a") if shape.turned else ("a", "b")
    values = {w: [e.value(r, reg) for r in items] for w, items in fragments.items() if w != "d"}
    results = []
    for n, (block, column) in enumerate(shape.products):
        operands = [*values[left][na * block : na * (block + 1)], *values[right][nb * column : nb * (column + 1)]]
        operands += values["c"][nc * n : nc * (n + 1)]
        for slot, value in enumerate(operands):
            e.spill(value, llvm, slot)
        e.call(form.name, e.scratch_address(0))
        results += [e.reload(llvm, na + nb + k) for k in range(nd)]
    if e.undefined is not None:
        _shadows_of_products(e, i, shape, form.registers, fragments, (left, right), d == "f16")
    for item, value in zip(fragments["d"], results, strict=True):
        e.set(item, value, reg)


def _shadows_of_products(e: Emitter, i: Instr, shape: Shape, counts: tuple[int, ...], fragments: dict[str, tuple],
                         sides: tuple[str, str], halves: bool) -> None:  # fmt: skip
    """Which elements of D are undefined, product by product; C may have other registers an element than D."""
    na, nb, nc, nd = counts
    a, b = (fragments[side] for side in sides)
    for n, (block, column) in enumerate(shape.products):
        c = [fragments["c"][nc * n + k * nc // nd] for k in range(nd)]
        parts = [fragments["d"][nd * n : nd * (n + 1)], a[na * block : na * (block + 1)],
                 b[nb * column : nb * (column + 1)], tuple(c)]  # fmt: skip
        e.undefined.product(e, parts, halves, f"{i.index}_{n}")
