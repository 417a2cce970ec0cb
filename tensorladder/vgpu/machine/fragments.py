"""Accumulators and A of WGMMA where they are, in fragment registers: LLVM IR that multiplies without moving them.

A register of 32 lanes is 8 rows by 4 (D: every second of 8) columns: lane 4 g + t. Of a 64 x N matrix D, warp w of the
warpgroup holds rows 16 w to 16 w + 15; register 4 j + 2 h + e has rows 8 h + g of these and columns 8 j + 2 t + e, with
f16 one register for both e (PTX ISA, "Register Fragments" of wgmma.mma_async; core.atoms.wgmma_d). For the product the
operands are spread to that form first:

    spread A   [warp][k][h][lane]   the row of each lane: 32 elements, each row four times
    packed B   [j][k][e][t]         the eight columns of a block, even ones first

Then a step of a block is four fused multiply-adds of 32 lanes, in order of k as everywhere (matmul). Elements are
float32 or int32; frames are where a warp's registers lie (layout.W_FRAME), tables hold offsets in them.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from tensorladder.vgpu.machine.elements import ELEMENTS, Writer, extern, mask, shuffle, widen

#: product functions: accumulate in f32 or f64 to f32 or f16 registers; integers wrapping or saturating
F32, F32_WIDE, F16, F16_WIDE, S32, S32_SAT = range(6)
PRODUCTS = ("f32", "f32_wide", "f16", "f16_wide", "s32", "s32_sat")
#: element types of A in registers; the codes are those of `operands`
A_TYPES = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 3, "e5m2": 4, "s8": 8, "u8": 9}


def _product_call(name: str):
    @intrinsic
    def product(typing, table, frames, a, b, blocks, k, keep):
        """D = A B, plus D where `keep`: table of D's offsets (i32), four frames, spread A, packed B, N/8, K."""
        return types.void(*[types.int64] * 7), extern(name, 7)

    return product


_f32, _f32_wide, _f16, _f16_wide, _s32, _s32_sat = (_product_call(f"tl_wgmma_{name}") for name in PRODUCTS)


def _register_call(name: str):
    @intrinsic
    def spread(typing, table, frames, dst, flip):
        """A from four registers (offsets, i32, in `table`) of each of four frames; `flip` is xored to every element."""
        return types.void(*[types.int64] * 4), extern(name, 4)

    return spread


_ra_f16, _ra_bf16, _ra_tf32, _ra_e4m3, _ra_e5m2, _ra_s8, _ra_u8 = (_register_call(f"tl_spread_{n}") for n in A_TYPES)


@intrinsic
def spread_rows(typing, dst, src, pitch, k, flip):
    """Spread A from `k` lines of 64 elements, `pitch` bytes apart; `flip` is xored to every element."""
    return types.void(*[types.int64] * 5), extern("tl_spread_rows", 5)


@intrinsic
def pack_columns(typing, dst, src, pitch, k, blocks):
    """Packed B from `k` lines of 8 `blocks` elements, `pitch` bytes apart."""
    return types.void(*[types.int64] * 5), extern("tl_pack_columns", 5)


# ---------------------------------------------------------------- IR
def _load_accumulators(w: Writer, kind: str) -> list[str]:
    """The four lane vectors of a block, (h, e) order; zeros unless %keep."""
    acc = _accumulator(kind)
    out = []
    if kind.startswith("f16"):
        for h in range(2):
            raw = w.op(f"load <64 x half>, ptr %d{h}, align 4")
            for e in range(2):
                part = shuffle(w, 64, "half", raw, [2 * lane + e for lane in range(32)])
                out.append(w.op(f"fpext <32 x half> {part} to <32 x {acc}>"))
    else:
        stored = "i32" if acc == "i32" else "float"
        for r in range(4):
            value = w.op(f"load <32 x {stored}>, ptr %d{r}, align 4")
            out.append(w.op(f"fpext <32 x float> {value} to <32 x double>") if acc == "double" else value)
    return [w.op(f"select i1 %kept, <32 x {acc}> {value}, <32 x {acc}> zeroinitializer") for value in out]


def _accumulator(kind: str) -> str:
    if kind.startswith("s32"):
        return "i32"
    return "double" if kind.endswith("wide") else "float"


def _store_accumulators(w: Writer, kind: str, values: list[str]) -> None:
    acc = _accumulator(kind)
    if kind.startswith("f16"):
        for h in range(2):
            pair = [w.op(f"fptrunc <32 x {acc}> {values[2 * h + e]} to <32 x half>") for e in range(2)]
            order = mask([i // 2 + 32 * (i % 2) for i in range(64)])
            both = w.op(f"shufflevector <32 x half> {pair[0]}, <32 x half> {pair[1]}, {order}")
            w.line(f"store <64 x half> {both}, ptr %d{h}, align 4")
        return
    for r, value in enumerate(values):
        if acc == "double":
            value = w.op(f"fptrunc <32 x double> {value} to <32 x float>")
        w.line(f"store <32 x {'i32' if acc == 'i32' else 'float'}> {value}, ptr %d{r}, align 4")


def _step(w: Writer, acc: str) -> None:
    """One k: %t0 to %t3 from %s0 to %s3, A at %ap (two lane vectors), B at %bp (two of four elements)."""
    stored = "i32" if acc == "i32" else "float"
    rows, columns = [], []
    for h in range(2):
        p = w.op(f"getelementptr i8, ptr %ap, i64 {128 * h}")
        rows.append(w.op(f"load <32 x {stored}>, ptr {p}, align 64"))
    for e in range(2):
        p = w.op(f"getelementptr i8, ptr %bp, i64 {16 * e}")
        columns.append(w.op(f"load <4 x {stored}>, ptr {p}, align 16"))
    if acc == "double":
        rows = [w.op(f"fpext <32 x float> {x} to <32 x double>") for x in rows]
        columns = [w.op(f"fpext <4 x float> {x} to <4 x double>") for x in columns]
    columns = [shuffle(w, 4, acc, x, [lane % 4 for lane in range(32)]) for x in columns]
    v = f"<32 x {acc}>"
    for h in range(2):
        for e in range(2):
            r = 2 * h + e
            if acc == "i32":
                w.line(f"%t{r} = add {v} {w.op(f'mul {v} {rows[h]}, {columns[e]}')}, %s{r}")
            else:
                fma = f"@llvm.fma.v32{'f32' if acc == 'float' else 'f64'}"
                w.line(f"%t{r} = call {v} {fma}({v} {rows[h]}, {v} {columns[e]}, {v} %s{r})")


def _product(kind: str) -> str:
    """tl_wgmma_<kind>: warps, blocks of eight columns, k."""
    w = Writer()
    acc = _accumulator(kind)
    v = f"<32 x {acc}>"
    count = 2 if kind.startswith("f16") else 4
    for r in range(count):
        p = w.op(f"getelementptr i32, ptr %tj, i64 {r}")
        offset = w.op(f"load i32, ptr {p}, align 4")
        w.line(f"%d{r} = getelementptr i8, ptr %frame, i32 {offset}")
    start = _load_accumulators(w, kind)
    sums = ["zeroinitializer"] * 4 if kind == "s32_sat" else start
    w.line("br label %step\nstep:")
    w.line("%p = phi i64 [0, %block], [%pn, %step]")
    w.line("%ap = phi ptr [%aw, %block], [%an, %step]\n  %bp = phi ptr [%bj, %block], [%bn, %step]")
    for r in range(4):
        w.line(f"%s{r} = phi {v} [{sums[r]}, %block], [%t{r}, %step]")
    _step(w, acc)
    w.line("%an = getelementptr i8, ptr %ap, i64 256\n  %bn = getelementptr i8, ptr %bp, i64 32")
    w.line("%pn = add i64 %p, 1\n  %more = icmp slt i64 %pn, %k\n  br i1 %more, label %step, label %out\nout:")
    ends = [f"%t{r}" for r in range(4)]
    if kind == "s32_sat":
        ends = [w.op(f"call {v} @llvm.sadd.sat.v32i32({v} {c}, {v} {t})") for c, t in zip(start, ends, strict=True)]
    _store_accumulators(w, kind, ends)
    body = "\n".join(w.lines)
    return f"""define void @tl_wgmma_{kind}(i64 %ti, i64 %fi, i64 %ai, i64 %bi, i64 %blocks, i64 %k, i64 %keep) {{
entry:
  %table = inttoptr i64 %ti to ptr
  %frames = inttoptr i64 %fi to ptr
  %a = inttoptr i64 %ai to ptr
  %b = inttoptr i64 %bi to ptr
  %kept = icmp ne i64 %keep, 0
  %abytes = mul i64 %k, 256
  %bbytes = mul i64 %k, 32
  br label %warp
warp:
  %w = phi i64 [0, %entry], [%wn, %warpdone]
  %wp = getelementptr ptr, ptr %frames, i64 %w
  %frame = load ptr, ptr %wp
  %wa = mul i64 %w, %abytes
  %aw = getelementptr i8, ptr %a, i64 %wa
  br label %block
block:
  %j = phi i64 [0, %warp], [%jn, %out]
  %jb = mul i64 %j, %bbytes
  %bj = getelementptr i8, ptr %b, i64 %jb
  %jt = mul i64 %j, {count}
  %tj = getelementptr i32, ptr %table, i64 %jt
{body}
  %jn = add i64 %j, 1
  %again = icmp slt i64 %jn, %blocks
  br i1 %again, label %block, label %warpdone
warpdone:
  %wn = add i64 %w, 1
  %others = icmp slt i64 %wn, 4
  br i1 %others, label %warp, label %end
end:
  ret void
}}"""


def _spread_registers(ty: str) -> str:
    """tl_spread_<type>: register 2 b + h of a warp holds rows 8 h + g, columns from per (4 b + t) on."""
    w = Writer()
    per, bits = ELEMENTS[ty]
    acc = "i32" if ty in ("s8", "u8") else "float"
    wide = 4 * per
    for block in range(2):
        for h in range(2):
            p = w.op(f"getelementptr i32, ptr %table, i64 {2 * block + h}")
            offset = w.op(f"load i32, ptr {p}, align 4")
            p = w.op(f"getelementptr i8, ptr %frame, i32 {offset}")
            raw = w.op(f"load <{32 * per} x i{bits}>, ptr {p}, align 4")
            value = widen(w, ty, 32 * per, raw, acc)
            value = w.op(f"bitcast <{32 * per} x {acc}> {value} to <{32 * per} x i32>")
            for kk in range(wide):
                rows = shuffle(w, 32 * per, "i32", value, [lane // 4 * wide + kk for lane in range(32)])
                rows = w.op(f"xor <32 x i32> {rows}, %flips")
                p = w.op(f"getelementptr i8, ptr %dw, i64 {256 * (wide * block + kk) + 128 * h}")
                w.line(f"store <32 x i32> {rows}, ptr {p}, align 64")
    body = "\n".join(w.lines)
    return f"""define void @tl_spread_{ty}(i64 %ti, i64 %fi, i64 %di, i64 %flip) {{
entry:
  %table = inttoptr i64 %ti to ptr
  %frames = inttoptr i64 %fi to ptr
  %d = inttoptr i64 %di to ptr
{_FLIPS}
  br label %warp
warp:
  %w = phi i64 [0, %entry], [%wn, %warp]
  %wp = getelementptr ptr, ptr %frames, i64 %w
  %frame = load ptr, ptr %wp
  %wd = mul i64 %w, {256 * 2 * wide}
  %dw = getelementptr i8, ptr %d, i64 %wd
{body}
  %wn = add i64 %w, 1
  %more = icmp slt i64 %wn, 4
  br i1 %more, label %warp, label %end
end:
  ret void
}}"""


_FLIPS = """  %flip32 = trunc i64 %flip to i32
  %flip1 = insertelement <32 x i32> poison, i32 %flip32, i64 0
  %flips = shufflevector <32 x i32> %flip1, <32 x i32> poison, <32 x i32> zeroinitializer"""


def _rearrange(name: str, count: str, picks: list[int], flips: bool) -> str:
    """Each 8 elements of each of k lines, permuted, to their place; `count` is the number of eights a line.

    Spread A: eight number 2 w + h of line p goes to ((w k + p) 2 + h) 128. Packed B: eight j to (j k + p) 32.
    """
    n = len(picks)
    tail = ", i64 %flip" if flips else ", i64 %blocks"
    if flips:
        place = """  %w = lshr i64 %j, 1
  %h = and i64 %j, 1
  %wk = mul i64 %w, %k
  %wkp = add i64 %wk, %p
  %two = mul i64 %wkp, 2
  %slot = add i64 %two, %h
  %to = mul i64 %slot, 128"""
        change = "  %z = xor <32 x i32> %y, %flips"
    else:
        place = """  %jk = mul i64 %j, %k
  %jkp = add i64 %jk, %p
  %to = mul i64 %jkp, 32"""
        change = f"  %z = freeze <{n} x i32> %y"
    return f"""define void @{name}(i64 %di, i64 %si, i64 %pitch, i64 %k{tail}) {{
entry:
  %d = inttoptr i64 %di to ptr
  %s = inttoptr i64 %si to ptr
{_FLIPS if flips else ""}
  br label %line
line:
  %p = phi i64 [0, %entry], [%pn, %lineend]
  %pp = mul i64 %p, %pitch
  %sp = getelementptr i8, ptr %s, i64 %pp
  br label %eight
eight:
  %j = phi i64 [0, %line], [%jn, %eight]
  %jb = mul i64 %j, 32
  %sj = getelementptr i8, ptr %sp, i64 %jb
  %x = load <8 x i32>, ptr %sj, align 4
  %y = shufflevector <8 x i32> %x, <8 x i32> poison, {mask(picks)}
{change}
{place}
  %dj = getelementptr i8, ptr %d, i64 %to
  store <{n} x i32> %z, ptr %dj, align 4
  %jn = add i64 %j, 1
  %again = icmp slt i64 %jn, {count}
  br i1 %again, label %eight, label %lineend
lineend:
  %pn = add i64 %p, 1
  %more = icmp slt i64 %pn, %k
  br i1 %more, label %line, label %end
end:
  ret void
}}"""


def text() -> str:
    """LLVM IR of tl_wgmma_<product>, tl_spread_<type>, tl_spread_rows and tl_pack_columns."""
    parts = [
        "declare <32 x float> @llvm.fma.v32f32(<32 x float>, <32 x float>, <32 x float>)",
        "declare <32 x double> @llvm.fma.v32f64(<32 x double>, <32 x double>, <32 x double>)",
        "declare <32 x i32> @llvm.sadd.sat.v32i32(<32 x i32>, <32 x i32>)",
    ]
    parts += [_product(kind) for kind in PRODUCTS]
    parts += [_spread_registers(ty) for ty in A_TYPES]
    parts.append(_rearrange("tl_spread_rows", "8", [lane // 4 for lane in range(32)], True))
    parts.append(_rearrange("tl_pack_columns", "%blocks", [0, 2, 4, 6, 1, 3, 5, 7], False))
    return "\n".join(parts)
