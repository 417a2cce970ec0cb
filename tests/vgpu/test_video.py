"""Video instructions against their pseudo-code in Python.

Chips from Maxwell on have none of the scalar ones: ptxas writes out other code for them, which in three cases does not
do what the ISA's pseudo-code says; there `departs` tells the difference.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.vgpu.ptx_kernels import TYPES, Case, bits, cases_test, ints

N = 256
ORDER = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}
OPERATIONS = {
    "vadd": lambda x, y: x + y,
    "vsub": lambda x, y: x - y,
    "vabsdiff": lambda x, y: abs(x - y),
    "vmin": min,
    "vmax": max,
    "vavrg": lambda x, y: (x + y + (x + y >= 0)) >> 1,
}


def part(word: int, width: int, place: int, signed: bool) -> int:
    """A byte, half or word, extended by its sign."""
    value = word >> width * place & ((1 << width) - 1)
    return value - (1 << width) if signed and value >> (width - 1) else value


def clamp(value: int, width: int, signed: bool) -> int:
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if signed else (0, (1 << width) - 1)
    return min(max(value, low), high)


def selector(name: str) -> tuple[int, int]:
    return (32, 0) if not name else (8 if name[0] == "b" else 16, int(name[1]))


def rows(fn, out: str):
    """An array function from one of Python integers (the operands' bits)."""

    def reference(**arrays):
        columns = [a.view(np.uint32).tolist() for a in arrays.values()]
        raw = [fn(*row) & 0xFFFFFFFF for row in zip(*columns)]
        return np.array(raw, np.uint32).view(TYPES[out][0])

    return reference


def words(types: tuple[str, ...]) -> dict:
    return {n: (ty, (ints if k % 2 else bits)(ty, N, k + 3)) for k, (n, ty) in enumerate(zip("abc", types))}


def scalar(op: str, types: str, sat: str = "", sels: tuple[str, str, str] = ("", "", ""), second: str = "") -> Case:
    """vop.dtype.atype.btype{.sat}{.op2} %d{.dsel}, %a{.asel}, %b{.bsel}{, %c}."""
    to, ta, tb = types.split()
    shift, _, mode = op.partition(".")

    def one(a: int, b: int, c: int) -> int:
        x, y = (part(w, *selector(s), ty == "s32") for w, s, ty in ((a, sels[1], ta), (b, sels[2], tb)))
        if shift in ("vshl", "vshr"):
            y = min(y, 32) if mode == "clamp" else y & 31
            value = x << y if shift == "vshl" else x >> y
        else:
            value = OPERATIONS[op](x, y)
        width = selector(sels[0])[0]
        value = clamp(value, width, to == "s32") if sat else value
        return joined(value, c, to, sels[0], second)

    dots = ["." + s if s else "" for s in sels]
    name = f"{shift}.{to}.{ta}.{tb}{sat}" + (f".{mode}" if mode else "") + (f".{second}" if second else "")
    third = ", %c" if second or sels[0] else ""
    text = f"{name} %d{dots[0]}, %a{dots[1]}, %b{dots[2]}{third};"
    return Case(f"{name} {' '.join(sels).strip()}", text, words((ta, tb, to)), {"d": to}, rows(one, to))


def joined(value: int, c: int, to: str, dsel: str, second: str) -> int:
    if dsel:
        width, place = selector(dsel)
        mask = ((1 << width) - 1) << width * place
        return value << width * place & mask | c & ~mask
    value, c = (part(x & 0xFFFFFFFF, 32, 0, to == "s32") for x in (value, c))
    return {"": value, "add": value + c, "min": min(value, c), "max": max(value, c)}[second]


def vset(how: str, types: str, sels: tuple[str, str, str], second: str = "") -> Case:
    ta, tb = types.split()

    def one(a: int, b: int, c: int) -> int:
        x, y = (part(w, *selector(s), ty == "s32") for w, s, ty in ((a, sels[1], ta), (b, sels[2], tb)))
        return joined(int(ORDER[how](x, y)), c, "u32", sels[0], second)

    dots = ["." + s if s else "" for s in sels]
    name = f"vset.{ta}.{tb}.{how}" + (f".{second}" if second else "")
    text = f"{name} %d{dots[0]}, %a{dots[1]}, %b{dots[2]}{', %c' if second or sels[0] else ''};"
    return Case(f"{name} {' '.join(sels).strip()}", text, words((ta, tb, "u32")), {"d": "u32"}, rows(one, "u32"))


def simd(op: str, types: str, how: str = "", sels: tuple[str, str, str] = ("", "", "")) -> Case:
    """vop2 and vop4, vset2 and vset4; how: "", ".sat" or ".add"."""
    base, count = op.split(".")[0][:-1], int(op.split(".")[0][-1])
    width = 32 // count
    order = op.split(".")[1] if base == "vset" else ""
    *rest, ta, tb = types.split()
    to = rest[0] if rest else "u32"

    def places(name: str, first: int) -> list[int]:
        return [int(x) for x in reversed(name[1:])] if name else list(range(first, first + count))

    def one(a: int, b: int, c: int) -> int:
        both = b << 32 | a
        x = [part(both, width, p, ta == "s32") for p in places(sels[1], 0)]
        y = [part(both, width, p, tb == "s32") for p in places(sels[2], count)]
        fn = (lambda p, q: int(ORDER[order](p, q))) if order else OPERATIONS[base]
        t = [fn(p, q) for p, q in zip(x, y)]
        if how == ".sat":
            t = [clamp(v, width, to == "s32") for v in t]
        chosen = {int(k) for k in sels[0][1:]} if sels[0] else set(range(count))
        if how == ".add":
            return c + sum(v for k, v in enumerate(t) if k in chosen)
        for k in chosen:
            mask = ((1 << width) - 1) << width * k
            c = c & ~mask | t[k] << width * k & mask
        return c

    dots = ["." + s if s else "" for s in sels]
    name = f"{base}{count}." + ".".join([*types.split(), *([order] if order else [])]) + how
    text = f"{name} %d{dots[0]}, %a{dots[1]}, %b{dots[2]}, %c;"
    return Case(f"{name} {' '.join(sels).strip()}", text, words((ta, tb, to)), {"d": to}, rows(one, to))


CASES = [
    *(scalar(op, "s32 s32 s32") for op in ("vadd", "vsub", "vabsdiff", "vmin", "vmax")),
    *(scalar(op, "u32 u32 u32", ".sat") for op in ("vadd", "vsub", "vabsdiff")),
    scalar("vadd", "s32 u32 s32", ".sat", ("", "b0", "h1")),
    scalar("vsub", "s32 u32 u32", "", ("", "h0", "h0"), "max"),
    scalar("vabsdiff", "u32 s32 s32", ".sat", ("", "b3", "b1"), "add"),
    scalar("vmin", "s32 s32 u32", ".sat", ("h0", "", "b2")),
    scalar("vmax", "u32 u32 s32", "", ("b2", "h1", "")),
    scalar("vadd", "u32 u32 u32", ".sat", ("b1", "b0", "b0")),
    scalar("vmin", "s32 s32 s32", "", ("", "b0", "h0"), "min"),
    scalar("vshl.clamp", "u32 u32 u32", "", ("", "b1", "b0")),
    scalar("vshl.wrap", "s32 s32 u32", "", ("", "h0", ""), "add"),
    scalar("vshr.clamp", "s32 s32 u32", "", ("", "", "b0")),
    scalar("vshr.wrap", "u32 u32 u32", "", ("h1", "", "")),
    vset("lt", "s32 s32", ("", "", "")),
    vset("ne", "u32 u32", ("", "b0", "b1"), "add"),
    vset("ge", "u32 s32", ("b3", "h0", "b2")),
    *(simd(op + n, "s32 s32 s32", ".sat") for n in "24" for op in ("vadd", "vsub")),
    *(simd(op + n, "u32 u32 u32") for n in "24" for op in OPERATIONS),
    *(simd(op + n, "s32 s32 s32", ".add") for n in "24" for op in OPERATIONS),
    simd("vadd2", "u32 s32 u32", ".sat", ("h1", "h31", "h02")),
    simd("vabsdiff4", "u32 u32 u32", ".add", ("b210", "b0123", "b7461")),
    simd("vmax4", "s32 s32 u32", "", ("b32", "b7654", "b3210")),
    simd("vset2.gt", "s32 s32"),
    simd("vset4.le", "u32 u32", ".add", ("b3210", "b3210", "b7654")),
    simd("vset4.ne", "s32 u32", "", ("b1", "", "")),
]
DEPARTS = {
    "vadd.u32.u32.u32.sat": "ISA: tmp = optSaturate(ta + tb), to [0, 0xffffffff]; an H200 gives the wrapped sum",
    "vmin.s32.s32.u32.sat h0  b2": "ISA: clamp to [-0x8000, 0x7fff]; an H200 gives 0x7fff for values below",
    "vshr.u32.u32.u32.wrap h1": "ISA: merges the low half of tmp into d.h1; an H200 merges its high half",
}
CASES = [replace(case, departs=DEPARTS.get(case.name.strip(), "")) for case in CASES]
test_cases = cases_test(CASES)
