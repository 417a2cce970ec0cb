"""Warp-level matrix instructions as native functions: LLVM IR text, one function a shape and type.

A fragment register of 32 lanes is a row-major tile: lane 4 g + t holds row g, columns E t .. E t + E - 1 of 8 rows
(A), or column g of 8 (B, K-major), with E elements a register (PTX ISA, "Warp Level Matrix Instructions", "Matrix
Fragments for mma"). The product runs on lane vectors: for each k, accumulator register (half, e) gets
A[g + 8 half, k] times B[k, 2 t + e], both permutations of fragment registers. K steps are summed in order, each fused
and rounded to f32; with `numerics` f64 the whole sum is formed in f64 and rounded once; with `exact` fragments become
plain matrices and matmul.py adds as Hopper's tensor cores do.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.elements import ELEMENTS, Writer, mask, shuffle, widen


@dataclass(frozen=True)
class Mma:
    """One mma.sync form: shape, types of D, A, B, C, and saturation of integer sums."""

    m: int
    n: int
    k: int
    d: str
    a: str
    b: str
    c: str
    satfinite: bool = False

    @property
    def name(self) -> str:
        """Symbol of the native function."""
        sat = "_sat" if self.satfinite else ""
        return f"tl_mma_m{self.m}n{self.n}k{self.k}_{self.d}_{self.a}_{self.b}_{self.c}{sat}"

    @property
    def halves(self) -> int:
        """Groups of eight rows."""
        return self.m // 8

    @property
    def blocks(self) -> int:
        """Registers along K."""
        return self.k // (4 * ELEMENTS[self.a][0])

    @property
    def registers(self) -> tuple[int, int, int, int]:
        """Registers of A, B, C, D a lane (a register of f16 accumulators holds two)."""
        acc = {"f16": self.halves, "f32": 2 * self.halves, "s32": 2 * self.halves, "f64": 2 * self.halves}
        return self.halves * self.blocks, self.blocks, acc[self.c], acc[self.d]


def _table() -> list[Mma]:
    forms = []
    for k in (8, 16):
        sums = (("f16", "f16"), ("f32", "f32"), ("f16", "f32"), ("f32", "f16"))
        forms += [Mma(16, 8, k, d, "f16", "f16", c) for d, c in sums]
        forms.append(Mma(16, 8, k, "f32", "bf16", "bf16", "f32"))
    forms += [Mma(16, 8, k, "f32", "tf32", "tf32", "f32") for k in (4, 8)]
    for k in (16, 32):
        for d in ("f16", "f32"):
            forms += [Mma(16, 8, k, d, a, b, d) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")]
    for sat in (False, True):
        for m, k in ((8, 16), (16, 16), (16, 32)):
            forms += [Mma(m, 8, k, "s32", a, b, "s32", sat) for a in ("s8", "u8") for b in ("s8", "u8")]
    forms += [Mma(8, 8, 4, "f64", "f64", "f64", "f64")]
    forms += [Mma(16, 8, k, "f64", "f64", "f64", "f64") for k in (4, 8, 16)]
    return forms


MMAS: dict[tuple, Mma] = {(f.m, f.n, f.k, f.d, f.a, f.b, f.c, f.satfinite): f for f in _table()}


def _load_tile(w: Writer, ty: str, slot: int, acc: str, order: list[int] | None) -> tuple[str, int]:
    """A fragment register as elements of the accumulator's type, optionally permuted first (cheap on narrow types)."""
    elements, bits = ELEMENTS[ty]
    count = 32 * elements
    p = w.op(f"getelementptr i8, ptr %regs, i64 {256 * slot}")
    raw = w.op(f"load <{count} x i{bits}>, ptr {p}, align 64")
    if order is not None:
        raw = shuffle(w, count, f"i{bits}", raw, order)
    return widen(w, ty, count, raw, acc), count


def _accumulators(w: Writer, form: Mma, slot: int, acc: str) -> list[str]:
    """C as lane vectors of the accumulator type, in (half, e) order."""
    out = []
    if form.c == "f16":
        for half in range(form.halves):
            p = w.op(f"getelementptr i8, ptr %regs, i64 {256 * (slot + half)}")
            raw = w.op(f"load <64 x half>, ptr {p}, align 64")
            for e in range(2):
                part = shuffle(w, 64, "half", raw, [2 * lane + e for lane in range(32)])
                out.append(w.op(f"fpext <32 x half> {part} to <32 x {acc}>"))
        return out
    stored = {"f32": "float", "s32": "i32", "f64": "double"}[form.c]
    for r in range(2 * form.halves):
        p = w.op(f"getelementptr i8, ptr %regs, i64 {256 * (slot + r)}")
        value = w.op(f"load <32 x {stored}>, ptr {p}, align 64")
        if stored == "float" and acc == "double":
            value = w.op(f"fpext <32 x float> {value} to <32 x double>")
        out.append(value)
    return out


def _store(w: Writer, form: Mma, slot: int, acc: str, values: list[str]) -> None:
    if form.d == "f16":
        for half in range(form.halves):
            pair = []
            for e in range(2):
                pair.append(w.op(f"fptrunc <32 x {acc}> {values[2 * half + e]} to <32 x half>"))
            order = [i // 2 + 32 * (i % 2) for i in range(64)]
            both = w.op(f"shufflevector <32 x half> {pair[0]}, <32 x half> {pair[1]}, {mask(order)}")
            p = w.op(f"getelementptr i8, ptr %regs, i64 {256 * (slot + half)}")
            w.line(f"store <64 x half> {both}, ptr {p}, align 64")
        return
    for r, value in enumerate(values):
        if form.d == "f32" and acc == "double":
            value = w.op(f"fptrunc <32 x double> {value} to <32 x float>")
            stored = "float"
        else:
            stored = acc
        p = w.op(f"getelementptr i8, ptr %regs, i64 {256 * (slot + r)}")
        w.line(f"store <32 x {stored}> {value}, ptr {p}, align 64")


def _body(form: Mma, name: str, acc: str) -> str:
    w = Writer()
    elements = ELEMENTS[form.a][0]
    na, nb, _, _ = form.registers
    row = 4 * elements  # columns of one register's tile
    # B as [k][e][t] for its permutation to be four neighbours, repeated
    b_order = [(2 * t + e) * row + kk for kk in range(row) for e in range(2) for t in range(4)]
    a_tiles = [_load_tile(w, form.a, r, acc, None) for r in range(na)]
    b_tiles = [_load_tile(w, form.b, na + r, acc, b_order) for r in range(nb)]
    sums = _accumulators(w, form, na + nb, acc)
    start = list(sums)
    if form.satfinite:
        sums = ["zeroinitializer"] * len(sums)
    for k in range(form.k):
        block, kk = divmod(k, row)
        columns = []
        for e in range(2):
            value, count = b_tiles[block]
            columns.append(shuffle(w, count, acc, value, [kk * 8 + e * 4 + lane % 4 for lane in range(32)]))
        for half in range(form.halves):
            value, count = a_tiles[half + form.halves * block]
            rows = shuffle(w, count, acc, value, [(lane // 4) * row + kk for lane in range(32)])
            for e in range(2):
                r = 2 * half + e
                sums[r] = _multiply_add(w, acc, rows, columns[e], sums[r])
    if form.satfinite:
        add = "call <32 x i32> @llvm.sadd.sat.v32i32"
        sums = [w.op(f"{add}(<32 x i32> {c}, <32 x i32> {s})") for c, s in zip(start, sums)]
    _store(w, form, na + nb, acc, sums)
    nl = "\n"
    return f"define internal void @{name}(ptr %regs) {{\n{nl.join(w.lines)}\n  ret void\n}}\n"


def _multiply_add(w: Writer, acc: str, a: str, b: str, c: str) -> str:
    if acc == "i32":
        return w.op(f"add <32 x i32> {w.op(f'mul <32 x i32> {a}, {b}')}, {c}")
    short = "f32" if acc == "float" else "f64"
    return w.op(f"call <32 x {acc}> @llvm.fma.v32{short}(<32 x {acc}> {a}, <32 x {acc}> {b}, <32 x {acc}> {c})")


def exact_kind(form: Mma) -> str | None:
    """Which of matmul's functions adds as Hopper does for a form: "" for none is needed, None where not measured."""
    if form.d in ("s32", "f64"):
        return ""
    if form.a in ("e4m3", "e5m2"):
        return "f8" if form.d == form.c == "f32" and form.k == 32 else None
    return "exact_f16" if form.d == "f16" else "exact"


def _plain_matrices(w: Writer, form: Mma) -> tuple[str, str, str, list[str]]:
    """A (m x k), B (k x 8) and C (m x 8) as float32 matrices on the stack, and C's lane vectors."""
    elements = ELEMENTS[form.a][0]
    row = 4 * elements
    na, nb, _, _ = form.registers
    a, b, d = (w.op(f"alloca [{n} x float], align 64") for n in (form.m * form.k, form.k * 8, form.m * 8))
    for r in range(na):
        value, count = _load_tile(w, form.a, r, "float", None)
        block, half = divmod(r, form.halves)
        for i in range(8):
            line = shuffle(w, count, "float", value, list(range(i * row, (i + 1) * row)))
            p = w.op(f"getelementptr float, ptr {a}, i64 {(8 * half + i) * form.k + block * row}")
            w.line(f"store <{row} x float> {line}, ptr {p}, align 4")
    for r in range(nb):
        value, count = _load_tile(w, form.b, na + r, "float", None)
        turned = shuffle(w, count, "float", value, [(i % 8) * row + i // 8 for i in range(count)])
        p = w.op(f"getelementptr float, ptr {b}, i64 {r * row * 8}")
        w.line(f"store <{count} x float> {turned}, ptr {p}, align 4")
    sums = _accumulators(w, form, na + nb, "float")
    _exchange(w, form, d, sums)
    return a, b, d, sums


def _exchange(w: Writer, form: Mma, d: str, sums: list[str]) -> None:
    """Accumulator vectors (lane 4 g + t: row g, column 2 t + e) to rows of eight."""
    for half in range(form.halves):
        pair = f"<32 x float> {sums[2 * half]}, <32 x float> {sums[2 * half + 1]}"
        rows = w.op(f"shufflevector {pair}, {mask([i // 2 + 32 * (i % 2) for i in range(64)])}")
        p = w.op(f"getelementptr float, ptr {d}, i64 {64 * half}")
        w.line(f"store <64 x float> {rows}, ptr {p}, align 4")


def _fragments(w: Writer, form: Mma, d: str) -> list[str]:
    """The inverse of _exchange."""
    out = []
    for half in range(form.halves):
        p = w.op(f"getelementptr float, ptr {d}, i64 {64 * half}")
        rows = w.op(f"load <64 x float>, ptr {p}, align 4")
        out += [shuffle(w, 64, "float", rows, [2 * lane + e for lane in range(32)]) for e in range(2)]
    return out


def _pick(w: Writer, form: Mma, a: str, b: str, picked: tuple[int, int]) -> tuple[str, str]:
    """Of every four columns of A and rows of B those two."""
    columns = [4 * i + p for i in range(form.k // 4) for p in picked]
    k = len(columns)
    a_out, b_out = (w.op(f"alloca [{n} x float], align 64") for n in (form.m * k, k * 8))
    for r in range(form.m):
        line = w.op(f"load <{form.k} x float>, ptr {w.op(f'getelementptr float, ptr {a}, i64 {r * form.k}')}, align 4")
        p = w.op(f"getelementptr float, ptr {a_out}, i64 {r * k}")
        w.line(f"store <{k} x float> {shuffle(w, form.k, 'float', line, columns)}, ptr {p}, align 4")
    for n, c in enumerate(columns):
        line = w.op(f"load <8 x float>, ptr {w.op(f'getelementptr float, ptr {b}, i64 {8 * c}')}, align 4")
        w.line(f"store <8 x float> {line}, ptr {w.op(f'getelementptr float, ptr {b_out}, i64 {8 * n}')}, align 4")
    return a_out, b_out


def _one_nan(w: Writer, value: str) -> str:
    """The GPU's addition gives one NaN, 0x7fffffff."""
    number = w.op(f"fcmp ord <32 x float> {value}, {value}")
    nan = "splat (float 0x7FFFFFFFE0000000)"
    return w.op(f"select <32 x i1> {number}, <32 x float> {value}, <32 x float> {nan}")


def _exact_body(form: Mma, kind: str) -> str:
    """A form in matmul's arithmetic. Hopper makes 8-bit floats of two f16 products (bytes 0 and 1 of each word, then
    2 and 3) and adds the accumulator at the end, rounded to nearest (the SASS of mma.sync m16n8k32 for sm_90a)."""
    w = Writer()
    na, nb, _, _ = form.registers
    a, b, d, sums = _plain_matrices(w, form)

    def product(function: str, a: str, b: str, k: int) -> None:
        d_, a_, b_ = (w.op(f"ptrtoint ptr {p} to i64") for p in (d, a, b))
        passed = f"i64 {d_}, i64 32, i64 {a_}, i64 {4 * k}, i64 4, i64 {b_}, i64 32, i64 {form.m}, i64 8, i64 {k}"
        w.line(f"call void @tl_gemm_{function}({passed})")

    if kind == "f8":
        _exchange(w, form, d, ["zeroinitializer"] * len(sums))
        for picked in ((0, 1), (2, 3)):
            a_picked, b_picked = _pick(w, form, a, b, picked)
            product("exact", a_picked, b_picked, form.k // 2)
        parts = _fragments(w, form, d)
        sums = [_one_nan(w, w.op(f"fadd <32 x float> {p}, {s}")) for p, s in zip(parts, sums)]
    else:
        product(kind, a, b, form.k)
        sums = _fragments(w, form, d)
    _store(w, form, na + nb, "float", sums)
    nl = "\n"
    return f"define internal void @{form.name}.exact(ptr %regs) {{\n{nl.join(w.lines)}\n  ret void\n}}\n"


def ir() -> str:
    """LLVM IR of all matrix functions: i64 name(i64 warp, i64 registers); D takes C's place in the scratch slots."""
    parts = [
        "declare <32 x float> @llvm.fma.v32f32(<32 x float>, <32 x float>, <32 x float>)",
        "declare <32 x double> @llvm.fma.v32f64(<32 x double>, <32 x double>, <32 x double>)",
        "declare <32 x i32> @llvm.sadd.sat.v32i32(<32 x i32>, <32 x i32>)",
    ]
    for kind in ("exact", "exact_f16"):
        parts.append(f"declare void @tl_gemm_{kind}({', '.join(['i64'] * 10)})")
    for form in MMAS.values():
        acc = "i32" if form.d == "s32" else ("double" if form.d == "f64" else "float")
        bodies = {"body": _body(form, form.name + ".body", acc)}
        if acc == "float":
            bodies["wide"] = _body(form, form.name + ".wide", "double")
            exact = exact_kind(form)
            if exact is not None:
                bodies["exact"] = _exact_body(form, exact)
        parts += [*bodies.values(), _entry(form, bodies)]
    return "\n".join(parts)


def _entry(form: Mma, bodies: dict[str, str]) -> str:
    """The function that generated code calls: it picks a body by the launch's numerics."""
    cases = [(value, name) for value, name in ((1, "wide"), (2, "exact")) if name in bodies]
    switch = " ".join(f"i64 {value}, label %{name}" for value, name in cases)
    names = ["body", *(name for _, name in cases)]
    blocks = "".join(f"{name}:\n  call void @{form.name}.{name}(ptr %regs)\n  ret i64 0\n" for name in names)
    return f"""define i64 @{form.name}(i64 %w, i64 %r) {{
  %regs = inttoptr i64 %r to ptr
  %warp = inttoptr i64 %w to ptr
  %lp = getelementptr i8, ptr %warp, i64 {L.W_LAUNCH}
  %launch = load ptr, ptr %lp
  %np = getelementptr i8, ptr %launch, i64 {L.L_NUMERICS}
  %numerics = load i64, ptr %np
  switch i64 %numerics, label %body [{switch}]
{blocks}}}
"""
