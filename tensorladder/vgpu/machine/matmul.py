"""The product behind WGMMA and tcgen05.mma: small dense matrices in memory, as LLVM IR for this host's vectors.

`gemm` adds A (m x k) times B (k x n) to D (m x n, row by row). A is read an element at a time at any two strides, so it
may lie either way; B must have its columns side by side. A block of D stays in registers over the whole of k. Each
step is one fused multiply-add in order of k, so that a product cut along k gives the same bits in pieces and whole.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.elements import Writer, extern
from tensorladder.vgpu.machine.native import helper

#: float32 in steps of one fused multiply-add; float64 sums, rounded to float32 at the end; 32-bit integers, wrapping;
#: as Hopper's tensor cores add (see _exact): 16-bit and tf32 operands, 8-bit ones, and both with sums rounded to f16
GEMM_F32, GEMM_F64, GEMM_S32, GEMM_EXACT, GEMM_EXACT_F8, GEMM_EXACT_F16, GEMM_EXACT_F8_F16 = range(7)



def block_shape(features: str) -> tuple[int, int]:
    """(rows, columns) of D that a block keeps in vector registers: 32 of 16 floats, or smaller ones."""
    return (8, 32) if "+avx512f" in features else (4, 16)


def _product(name: str):
    @intrinsic
    def product(typing, d, ds, a, ar, ac, b, bs, m, n, k):
        """D += A B; see gemm."""
        return types.void(*[types.int64] * 10), extern(name, 10)

    return product


_KINDS = ("f32", "f64", "s32", "exact", "exact_f8", "exact_f16", "exact_f8_f16")
_f32, _f64, _s32, _exact_wide, _exact_f8, _exact_f16, _exact_f8_f16 = (_product(f"tl_gemm_{n}") for n in _KINDS)


@helper
def gemm(kind, d, d_stride, a, a_row, a_col, b, b_stride, m, n, k):
    """D += A B, of float32 or (GEMM_S32) int32 elements; strides in bytes, m and n multiples of 8.

    D[i][j] at d + i d_stride + 4 j, A[i][p] at a + i a_row + p a_col, B[p][j] at b + p b_stride + 4 j. All but GEMM_F32
    and GEMM_S32 round once a call: k is then the instruction's.
    """
    if kind == GEMM_F32:
        _f32(d, d_stride, a, a_row, a_col, b, b_stride, m, n, k)
    elif kind == GEMM_F64:
        _f64(d, d_stride, a, a_row, a_col, b, b_stride, m, n, k)
    elif kind == GEMM_S32:
        _s32(d, d_stride, a, a_row, a_col, b, b_stride, m, n, k)
    elif kind == GEMM_EXACT:
        _exact_wide(d, d_stride, a, a_row, a_col, b, b_stride, m, n, k)
    elif kind == GEMM_EXACT_F8:
        _exact_f8(d, d_stride, a, a_row, a_col, b, b_stride, m, n, k)
    elif kind == GEMM_EXACT_F16:
        _exact_f16(d, d_stride, a, a_row, a_col, b, b_stride, m, n, k)
    else:
        _exact_f8_f16(d, d_stride, a, a_row, a_col, b, b_stride, m, n, k)


@helper
def float_kind(numerics, narrow, half):
    """The kind of a product of floats under a launch's L_NUMERICS; narrow: 8-bit operands, half: f16 accumulators."""
    if numerics == L.NUMERICS_F64:
        return GEMM_F64
    if numerics == L.NUMERICS_F32:
        return GEMM_F32
    if half != 0:
        return GEMM_EXACT_F8_F16 if narrow != 0 else GEMM_EXACT_F16
    return GEMM_EXACT_F8 if narrow != 0 else GEMM_EXACT


@intrinsic
def transpose(typing, dst, dst_stride, src, src_stride, rows, cols):
    """dst[c][r] = src[r][c] for 32-bit elements; strides in bytes; rows and columns are multiples of 8."""
    return types.void(*[types.int64] * 6), extern("tl_transpose32", 6)


# ---------------------------------------------------------------- IR
def _block(name: str, kind: str, rows: int, vectors: int, width: int) -> str:
    """One block of D: `rows` rows of `vectors` vectors of `width` elements, summed over k in registers."""
    stored = {"f32": "float", "f64": "float", "s32": "i32"}[kind]
    acc = {"f32": "float", "f64": "double", "s32": "i32"}[kind]
    v, s = f"<{width} x {acc}>", f"<{width} x {stored}>"
    w = Writer()
    formal = "ptr %d, i64 %ds, ptr %a, i64 %ar, i64 %ac, ptr %b, i64 %bs, i64 %k"
    w.line(f"define internal void @{name}({formal}) {{\nentry:")
    rows_d, rows_a, start = [], [], []
    for r in range(rows):
        rows_d.append(w.at("%d", w.op(f"mul i64 %ds, {r}")))
        rows_a.append(w.op(f"mul i64 %ar, {r}"))
        for c in range(vectors):
            value = w.op(f"load {s}, ptr {w.at(rows_d[r], str(4 * width * c))}, align 4")
            start.append(w.op(f"fpext {s} {value} to {v}") if acc == "double" else value)
    w.line("  br label %loop\nloop:")
    count = rows * vectors
    w.line("  %p = phi i64 [0, %entry], [%next, %loop]")
    w.line("  %ap = phi ptr [%a, %entry], [%an, %loop]\n  %bp = phi ptr [%b, %entry], [%bn, %loop]")
    for i in range(count):
        w.line(f"  %s{i} = phi {v} [{start[i]}, %entry], [%t{i}, %loop]")
    columns = []
    for c in range(vectors):
        value = w.op(f"load {s}, ptr {w.at('%bp', str(4 * width * c))}, align 4")
        columns.append(w.op(f"fpext {s} {value} to {v}") if acc == "double" else value)
    for r in range(rows):
        one = w.op(f"load {stored}, ptr {w.at('%ap', rows_a[r])}, align 4")
        if acc == "double":
            one = w.op(f"fpext float {one} to double")
        one = w.op(f"insertelement {v} poison, {acc} {one}, i64 0")
        many = w.op(f"shufflevector {v} {one}, {v} poison, <{width} x i32> zeroinitializer")
        for c in range(vectors):
            i = r * vectors + c
            if acc == "i32":
                w.line(f"  %t{i} = add {v} {w.op(f'mul {v} {many}, {columns[c]}')}, %s{i}")
            else:
                short = f"v{width}{'f32' if acc == 'float' else 'f64'}"
                w.line(f"  %t{i} = call {v} @llvm.fma.{short}({v} {many}, {v} {columns[c]}, {v} %s{i})")
    w.line("  %an = getelementptr i8, ptr %ap, i64 %ac\n  %bn = getelementptr i8, ptr %bp, i64 %bs")
    w.line("  %next = add i64 %p, 1\n  %more = icmp slt i64 %next, %k\n  br i1 %more, label %loop, label %done\ndone:")
    for r in range(rows):
        for c in range(vectors):
            value = f"%t{r * vectors + c}"
            if acc == "double":
                value = w.op(f"fptrunc {v} {value} to {s}")
            w.line(f"  store {s} {value}, ptr {w.at(rows_d[r], str(4 * width * c))}, align 4")
    w.line("  ret void\n}")
    return "\n".join(w.lines)


#: fraction bits below the largest exponent that terms keep; fraction bits of the result (None: rounded to f16)
_EXACT = {"exact": (25, 23), "exact_f8": (13, 13), "exact_f16": (25, None), "exact_f8_f16": (13, None)}
_LOWEST = -133  # the largest exponent is taken to be at least this


def _exponent(w: Writer, value: str) -> str:
    """Exponents of eight doubles that are zero (far below all others), or normal."""
    bits = w.op(f"bitcast <8 x double> {value} to <8 x i64>")
    raised = w.op(f"and <8 x i64> {w.op(f'lshr <8 x i64> {bits}, splat (i64 52)')}, splat (i64 2047)")
    zero = w.op(f"icmp eq <8 x i64> {raised}, zeroinitializer")
    plain = w.op(f"sub <8 x i64> {raised}, splat (i64 1023)")
    return w.op(f"select <8 x i1> {zero}, <8 x i64> splat (i64 -5000), <8 x i64> {plain}")


def _power(w: Writer, exponent: str) -> str:
    """Two to the power of eight integers."""
    biased = w.op(f"add <8 x i64> {exponent}, splat (i64 1023)")
    return w.op(f"bitcast <8 x i64> {w.op(f'shl <8 x i64> {biased}, splat (i64 52)')} to <8 x double>")


def _larger(w: Writer, a: str, b: str) -> str:
    return w.op(f"call <8 x i64> @llvm.smax.v8i64(<8 x i64> {a}, <8 x i64> {b})")


def _cut(w: Writer, value: str) -> str:
    return w.op(f"call <8 x double> @llvm.trunc.v8f64(<8 x double> {value})")


def _exact(kind: str) -> str:
    """One row by eight columns as Hopper's tensor cores add, measured on an H200 for mma.sync and wgmma.

    e: the largest of the products' exponents (sums of their factors') and the accumulator's, which is -126 for f32
    subnormals; at least -133. Every product and the accumulator are cut (toward zero) below 2**(e - 25), 2**(e - 13)
    for 8-bit operands, and added without error. The sum is cut to f32, with 8-bit operands to 13 fraction bits;
    accumulators of f16 are rounded to nearest even. A sum of zero is positive.
    """
    kept, fraction = _EXACT[kind]
    w = Writer()
    formal = "ptr %d, i64 %ds, ptr %a, i64 %ar, i64 %ac, ptr %b, i64 %bs, i64 %k"
    w.line(f"define internal void @gemm_{kind}_8({formal}) {{\nentry:")
    c = w.op(f"fpext <8 x float> {w.op('load <8 x float>, ptr %d, align 4')} to <8 x double>")
    zero = w.op(f"fcmp oeq <8 x double> {c}, zeroinitializer")
    floor = w.op(f"select <8 x i1> {zero}, <8 x i64> splat (i64 {_LOWEST}), <8 x i64> splat (i64 -126)")
    first = _larger(w, _exponent(w, c), floor)

    def loop(name: str, state: str, ty: str, start: str, step) -> None:
        came = {"max": "entry", "sum": "scale"}[name]
        w.line(f"  br label %{name}\n{name}:\n  %p{name} = phi i64 [0, %{came}], [%n{name}, %{name}]")
        w.line(f"  {state} = phi <8 x {ty}> [{start}, %{came}], [{state}n, %{name}]")
        if name == "sum":
            w.line(f"  %plain = phi <8 x double> [{c}, %{came}], [%plainn, %{name}]")
        one = w.op(f"load float, ptr {w.at('%a', w.op(f'mul i64 %p{name}, %ac'))}, align 4")
        one = w.op(f"insertelement <8 x double> poison, double {w.op(f'fpext float {one} to double')}, i64 0")
        x = w.op(f"shufflevector <8 x double> {one}, <8 x double> poison, <8 x i32> zeroinitializer")
        y = w.op(f"load <8 x float>, ptr {w.at('%b', w.op(f'mul i64 %p{name}, %bs'))}, align 4")
        step(x, w.op(f"fpext <8 x float> {y} to <8 x double>"))
        w.line(f"  %n{name} = add i64 %p{name}, 1\n  %m{name} = icmp slt i64 %n{name}, %k")
        after = {"max": "scale", "sum": "round"}[name]
        w.line(f"  br i1 %m{name}, label %{name}, label %{after}\n{after}:")

    def highest(x: str, y: str) -> None:
        e = w.op(f"add <8 x i64> {_exponent(w, x)}, {_exponent(w, y)}")
        w.line(f"  %en = call <8 x i64> @llvm.smax.v8i64(<8 x i64> %e, <8 x i64> {e})")

    def term(x: str, y: str) -> None:
        product = w.op(f"fmul <8 x double> {x}, {y}")
        cut = _cut(w, w.op(f"fmul <8 x double> {product}, {up}"))
        w.line(f"  %sn = fadd <8 x double> %s, {cut}\n  %plainn = fadd <8 x double> %plain, {product}")

    loop("max", "%e", "i64", first, highest)
    up = _power(w, w.op(f"sub <8 x i64> splat (i64 {kept}), %en"))
    down = _power(w, w.op(f"sub <8 x i64> %en, splat (i64 {kept})"))
    start = _cut(w, w.op(f"fmul <8 x double> {c}, {up}"))
    loop("sum", "%s", "double", start, term)
    total = w.op(f"fmul <8 x double> %sn, {down}")
    if fraction is None:
        half = w.op(f"fptrunc <8 x double> {total} to <8 x half>")
        result = w.op(f"fpext <8 x half> {half} to <8 x float>")
    else:
        e = _larger(w, _exponent(w, total), "splat (i64 -126)")
        scaled = w.op(f"fmul <8 x double> {total}, {_power(w, w.op(f'sub <8 x i64> splat (i64 {fraction}), {e}'))}")
        back = _power(w, w.op(f"sub <8 x i64> {e}, splat (i64 {fraction})"))
        cut = w.op(f"fmul <8 x double> {_cut(w, scaled)}, {back}")
        result = w.op(f"fptrunc <8 x double> {cut} to <8 x float>")
    result = w.op(f"fadd <8 x float> {result}, zeroinitializer")  # a zero is positive
    # an infinity or a NaN among the operands: what IEEE 754 gives, and one NaN for all
    size = w.op("call <8 x double> @llvm.fabs.v8f64(<8 x double> %plainn)")
    finite = w.op(f"fcmp olt <8 x double> {size}, splat (double 0x7FF0000000000000)")
    ieee = w.op("fptrunc <8 x double> %plainn to <8 x float>")
    result = w.op(f"select <8 x i1> {finite}, <8 x float> {result}, <8 x float> {ieee}")
    number = w.op(f"fcmp ord <8 x float> {result}, {result}")
    nan = "splat (float 0x7FFFFFFFE0000000)"
    result = w.op(f"select <8 x i1> {number}, <8 x float> {result}, <8 x float> {nan}")
    w.line(f"  store <8 x float> {result}, ptr %d, align 4\n  ret void\n}}")
    return "\n".join(w.lines)


def _driver(kind: str, rows: int, widths: list[int]) -> str:
    """tl_gemm_<kind>: strips of columns, the widest first; down each strip, block by block."""
    out = [f"define void @tl_gemm_{kind}(i64 %di, i64 %ds, i64 %ai, i64 %ar, i64 %ac, i64 %bi, i64 %bs, "
           "i64 %m, i64 %n, i64 %k) {\nentry:\n  %d = inttoptr i64 %di to ptr\n  %a = inttoptr i64 %ai to ptr\n"
           "  %b = inttoptr i64 %bi to ptr\n  br label %next0"]  # fmt: skip
    came = [("entry", "0")]
    for s, width in enumerate(widths):
        froms = ", ".join(f"[{value}, %{block}]" for block, value in came)
        out.append(f"""next{s}:
  %j{s} = phi i64 {froms}, [%jn{s}, %stripdone{s}]
  %jn{s} = add i64 %j{s}, {width}
  %fits{s} = icmp sle i64 %jn{s}, %n
  br i1 %fits{s}, label %strip{s}, label %next{s + 1}
strip{s}:
  %jb{s} = mul i64 %j{s}, 4
  %dj{s} = getelementptr i8, ptr %d, i64 %jb{s}
  %bj{s} = getelementptr i8, ptr %b, i64 %jb{s}
  br label %rows{s}
rows{s}:
  %i{s} = phi i64 [0, %strip{s}], [%in{s}, %rows{s}]
  %id{s} = mul i64 %i{s}, %ds
  %ia{s} = mul i64 %i{s}, %ar
  %dp{s} = getelementptr i8, ptr %dj{s}, i64 %id{s}
  %ap{s} = getelementptr i8, ptr %a, i64 %ia{s}
  call void @gemm_{kind}_{width}(ptr %dp{s}, i64 %ds, ptr %ap{s}, i64 %ar, i64 %ac, ptr %bj{s}, i64 %bs, i64 %k)
  %in{s} = add i64 %i{s}, {rows}
  %again{s} = icmp slt i64 %in{s}, %m
  br i1 %again{s}, label %rows{s}, label %stripdone{s}
stripdone{s}:
  br label %next{s}""")
        came = [(f"next{s}", f"%j{s}")]
    out.append(f"next{len(widths)}:\n  ret void\n}}")
    return "\n".join(out)


def _transpose() -> str:
    """Tiles of 8 x 8: three rounds of exchanging halves, quarters and neighbours between rows."""
    w = Writer()
    w.line("define void @tl_transpose32(i64 %di, i64 %ds, i64 %si, i64 %ss, i64 %rows, i64 %cols) {\nentry:")
    w.line("  %d = inttoptr i64 %di to ptr\n  %s = inttoptr i64 %si to ptr\n  br label %outer\nouter:")
    w.line("  %r = phi i64 [0, %entry], [%rn, %outerdone]\n  br label %inner\ninner:")
    w.line("  %c = phi i64 [0, %outer], [%cn, %inner]")
    sr, sc, dc, dr = (w.op(f"mul i64 {a}") for a in ("%r, %ss", "%c, 4", "%c, %ds", "%r, 4"))
    src, dst = w.at("%s", w.op(f"add i64 {sr}, {sc}")), w.at("%d", w.op(f"add i64 {dc}, {dr}"))
    v = "<8 x i32>"
    x = [w.op(f"load {v}, ptr {w.at(src, w.op(f'mul i64 %ss, {i}'))}, align 4") for i in range(8)]
    for span in (4, 2, 1):
        y = list(x)
        for i in range(8):
            if i & span == 0:
                low = [j if j & span == 0 else 8 + (j ^ span) for j in range(8)]
                high = [j ^ span if j & span == 0 else 8 + j for j in range(8)]
                for k, order in ((i, low), (i | span, high)):
                    picks = ", ".join(f"i32 {o}" for o in order)
                    y[k] = w.op(f"shufflevector {v} {x[i]}, {v} {x[i | span]}, <8 x i32> <{picks}>")
        x = y
    for i in range(8):
        w.line(f"  store {v} {x[i]}, ptr {w.at(dst, w.op(f'mul i64 %ds, {i}'))}, align 4")
    w.line("  %cn = add i64 %c, 8\n  %ci = icmp slt i64 %cn, %cols\n  br i1 %ci, label %inner, label %outerdone")
    w.line("outerdone:\n  %rn = add i64 %r, 8\n  %ri = icmp slt i64 %rn, %rows\n  br i1 %ri, label %outer, label %end")
    w.line("end:\n  ret void\n}")
    return "\n".join(w.lines)


def text(features: str) -> str:
    """LLVM IR of tl_gemm_<kind> and tl_transpose32."""
    rows, columns = block_shape(features)
    parts = [
        f"declare <{n} x {t}> @llvm.fma.v{n}{s}(<{n} x {t}>, <{n} x {t}>, <{n} x {t}>)"
        for n, t, s in ((16, "float", "f32"), (8, "float", "f32"), (8, "double", "f64"))
    ]
    widths = sorted({columns, 16, 8}, reverse=True)
    for width in widths:
        vectors, lanes = max(width // 16, 1), min(width, 16)
        parts.append(_block(f"gemm_f32_{width}", "f32", rows, vectors, lanes))
        parts.append(_block(f"gemm_s32_{width}", "s32", rows, vectors, lanes))
    parts.append(_block("gemm_f64_8", "f64", 4, 1, 8))
    parts += [_driver("f32", rows, widths), _driver("s32", rows, widths), _driver("f64", 4, [8]), _transpose()]
    parts += [
        "declare <8 x i64> @llvm.smax.v8i64(<8 x i64>, <8 x i64>)",
        "declare <8 x double> @llvm.trunc.v8f64(<8 x double>)",
        "declare <8 x double> @llvm.fabs.v8f64(<8 x double>)",
    ]
    for kind in _EXACT:
        parts += [_exact(kind), _driver(kind, 1, [8])]
    return "\n".join(parts)
