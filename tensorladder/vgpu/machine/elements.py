"""Elements of matrix operands in LLVM IR text: what mma.sync, WGMMA and tcgen05.mma share when they unpack them.

Values are vectors `<n x ty>`, given by their names; a Writer collects the instructions that make them.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils

#: elements a 32-bit (f64: 64-bit) register, storage bits of an element
ELEMENTS = {
    "f16": (2, 16), "bf16": (2, 16), "tf32": (1, 32), "e4m3": (4, 8), "e5m2": (4, 8), "s8": (4, 8), "u8": (4, 8),
    "f64": (1, 64),
}  # fmt: skip

_I64 = ir.IntType(64)


def extern(name: str, count: int):
    """Code of a numba intrinsic that calls a function of the runtime's IR: `count` int64 arguments, no result."""

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(ir.VoidType(), [_I64] * count)
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)
        return context.get_dummy_value()

    return codegen


class Writer:
    """Lines of a function, with names for results."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.n = 0

    def op(self, text: str) -> str:
        """An instruction with a result; gives its name."""
        self.n += 1
        self.lines.append(f"  %x{self.n} = {text}")
        return f"%x{self.n}"

    def line(self, text: str) -> None:
        """Anything else: instructions without a result, labels."""
        self.lines.append("  " + text)

    def at(self, base: str, offset: str) -> str:
        """The pointer `offset` bytes (an i64) after `base`."""
        return self.op(f"getelementptr i8, ptr {base}, i64 {offset}")


def mask(indices: list[int]) -> str:
    """A shuffle's mask."""
    return f"<{len(indices)} x i32> <" + ", ".join(f"i32 {i}" for i in indices) + ">"


def shuffle(w: Writer, count: int, ty: str, value: str, indices: list[int]) -> str:
    """Elements of a vector in another order."""
    return w.op(f"shufflevector <{count} x {ty}> {value}, <{count} x {ty}> poison, {mask(indices)}")


def widen(w: Writer, ty: str, n: int, raw: str, acc: str) -> str:
    """Stored elements (integers `raw`) as float or double (`acc`); s8 and u8 as i32, f64 as double."""
    if ty in ("s8", "u8"):
        return w.op(f"{'sext' if ty == 's8' else 'zext'} <{n} x i8> {raw} to <{n} x i32>")
    if ty == "f64":
        return w.op(f"bitcast <{n} x i64> {raw} to <{n} x double>")
    if ty == "f16":
        half = w.op(f"bitcast <{n} x i16> {raw} to <{n} x half>")
        value = w.op(f"fpext <{n} x half> {half} to <{n} x float>")
    elif ty == "bf16":
        wide = w.op(f"zext <{n} x i16> {raw} to <{n} x i32>")
        value = w.op(f"bitcast <{n} x i32> {w.op(f'shl <{n} x i32> {wide}, splat (i32 16)')} to <{n} x float>")
    elif ty == "tf32":
        cut = w.op(f"and <{n} x i32> {raw}, splat (i32 -8192)")
        value = w.op(f"bitcast <{n} x i32> {cut} to <{n} x float>")
    elif ty == "e5m2":
        wide = w.op(f"zext <{n} x i8> {raw} to <{n} x i16>")
        shifted = w.op(f"shl <{n} x i16> {wide}, splat (i16 8)")
        half = w.op(f"bitcast <{n} x i16> {shifted} to <{n} x half>")
        value = w.op(f"fpext <{n} x half> {half} to <{n} x float>")
    else:
        wide = w.op(f"zext <{n} x i8> {raw} to <{n} x i32>")
        value = small_float(w, 4, 3, wide, n, has_nan=True)
    if acc == "double":
        value = w.op(f"fpext <{n} x float> {value} to <{n} x double>")
    return value


def small_float(w: Writer, exponent: int, mantissa: int, bits: str, n: int, *, has_nan: bool = False) -> str:
    """Floats of 1 + exponent + mantissa bits (in i32 lanes `bits`) as float; has_nan: all ones is a NaN (e4m3).

    Exponent and mantissa go to their places and an exact multiplication moves the bias; subnormals come out right.
    """
    width = exponent + mantissa
    bias = (1 << (exponent - 1)) - 1
    factor = (127 - bias + 1023) << 52
    low = w.op(f"and <{n} x i32> {bits}, splat (i32 {(1 << width) - 1})")
    placed = w.op(f"shl <{n} x i32> {low}, splat (i32 {23 - mantissa})")
    placed = w.op(f"bitcast <{n} x i32> {placed} to <{n} x float>")
    size = w.op(f"fmul <{n} x float> {placed}, splat (float {factor:#018x})")
    if has_nan:
        nan = w.op(f"icmp eq <{n} x i32> {low}, splat (i32 {(1 << width) - 1})")
        size = w.op(f"select <{n} x i1> {nan}, <{n} x float> splat (float 0x7FF8000000000000), <{n} x float> {size}")
    sign = w.op(f"and <{n} x i32> {bits}, splat (i32 {1 << width})")
    sign = w.op(f"shl <{n} x i32> {sign}, splat (i32 {31 - width})")
    both = w.op(f"or <{n} x i32> {w.op(f'bitcast <{n} x float> {size} to <{n} x i32>')}, {sign}")
    return w.op(f"bitcast <{n} x i32> {both} to <{n} x float>")
