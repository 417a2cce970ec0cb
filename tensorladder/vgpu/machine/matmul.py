"""The product behind WGMMA and tcgen05.mma: small dense matrices in memory, as LLVM IR for this host's vectors.

`gemm` adds A (m x k) times B (k x n) to D (m x n, row by row). A is read an element at a time at any two strides, so it
may lie either way; B must have its columns side by side. A block of D stays in registers over the whole of k. Each
step is one fused multiply-add in order of k, so that a product cut along k gives the same bits in pieces and whole.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tensorladder.vgpu.machine.native import helper

#: float32 in steps of one fused multiply-add; float64 sums, rounded to float32 at the end; 32-bit integers, wrapping
GEMM_F32, GEMM_F64, GEMM_S32 = 0, 1, 2

_I64 = ir.IntType(64)
_KINDS = {GEMM_F32: "f32", GEMM_F64: "f64", GEMM_S32: "s32"}


def block_shape(features: str) -> tuple[int, int]:
    """(rows, columns) of D that a block keeps in vector registers: 32 of 16 floats, or smaller ones."""
    return (8, 32) if "+avx512f" in features else (4, 16)


def _extern(name: str, count: int):
    """An intrinsic that calls a function of this module's IR: `count` int64 arguments, no result."""

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(ir.VoidType(), [_I64] * count)
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)
        return context.get_dummy_value()

    return codegen


@intrinsic
def _gemm_f32(typing, d, ds, a, ar, ac, b, bs, m, n, k):
    return types.void(*[types.int64] * 10), _extern("tl_gemm_f32", 10)


@intrinsic
def _gemm_f64(typing, d, ds, a, ar, ac, b, bs, m, n, k):
    return types.void(*[types.int64] * 10), _extern("tl_gemm_f64", 10)


@intrinsic
def _gemm_s32(typing, d, ds, a, ar, ac, b, bs, m, n, k):
    return types.void(*[types.int64] * 10), _extern("tl_gemm_s32", 10)


@helper
def gemm(kind, d, d_stride, a, a_row, a_col, b, b_stride, m, n, k):
    """D += A B, of float32 (GEMM_F32, GEMM_F64) or int32 (GEMM_S32) elements; strides in bytes, m and n multiples of 8.

    D[i][j] at d + i d_stride + 4 j, A[i][p] at a + i a_row + p a_col, B[p][j] at b + p b_stride + 4 j.
    """
    if kind == GEMM_F32:
        _gemm_f32(d, d_stride, a, a_row, a_col, b, b_stride, m, n, k)
    elif kind == GEMM_F64:
        _gemm_f64(d, d_stride, a, a_row, a_col, b, b_stride, m, n, k)
    else:
        _gemm_s32(d, d_stride, a, a_row, a_col, b, b_stride, m, n, k)


@intrinsic
def transpose(typing, dst, dst_stride, src, src_stride, rows, cols):
    """dst[c][r] = src[r][c] for 32-bit elements; strides in bytes; rows and columns are multiples of 8."""
    return types.void(*[types.int64] * 6), _extern("tl_transpose32", 6)


# ---------------------------------------------------------------- IR
class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.n = 0

    def op(self, text: str) -> str:
        self.n += 1
        self.lines.append(f"  %x{self.n} = {text}")
        return f"%x{self.n}"

    def line(self, text: str) -> None:
        self.lines.append(text)

    def at(self, base: str, offset: str) -> str:
        return self.op(f"getelementptr i8, ptr {base}, i64 {offset}")


def _block(name: str, kind: str, rows: int, vectors: int, width: int) -> str:
    """One block of D: `rows` rows of `vectors` vectors of `width` elements, summed over k in registers."""
    stored = {"f32": "float", "f64": "float", "s32": "i32"}[kind]
    acc = {"f32": "float", "f64": "double", "s32": "i32"}[kind]
    v, s = f"<{width} x {acc}>", f"<{width} x {stored}>"
    w = _Writer()
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
    w = _Writer()
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
    """LLVM IR of tl_gemm_f32, tl_gemm_f64, tl_gemm_s32 and tl_transpose32."""
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
    return "\n".join(parts)
