"""Building blocks of floating-point code: what PTX asks of every operation beyond the operation itself.

NaN results are those of the chip: the canonical NaN up to f32, an operand's NaN made quiet for f64. `.ftz` flushes
subnormals to zero of the same sign, `.sat` clamps to [0, 1] with NaN to +0, `.relu` clamps negatives (and -0) to +0.
Directed roundings run under the host's own rounding mode, in functions of their own that set and restore it, so that
they are exactly rounded without emulation. Fused and narrow results are rounded once: intermediate results in a wider
format are rounded to odd.
"""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter, ivec, vec
from tensorladder.vgpu.ptx.nodes import TYPE_BITS, Instr

F32, F64, I16, I32, I64 = "<32 x float>", "<32 x double>", "<32 x i16>", "<32 x i32>", "<32 x i64>"

ROUNDINGS = ("rn", "rz", "rm", "rp")
_MODE = {"rz": 0, "rn": 1, "rp": 2, "rm": 3}  # operands of llvm.set.rounding

#: (exponent mask, sign mask, bits of the NaN that operations produce) by type
BITS = {
    "f16": (0x7C00, 0x8000, 0x7FFF),
    "bf16": (0x7F80, 0x8000, 0x7FFF),
    "f32": (0x7F800000, 0x80000000, 0x7FFFFFFF),
    "f64": (0x7FF0000000000000, 0x8000000000000000, 0xFFF8000000000000),
}


def modifiers(i: Instr, types: int, allowed: str) -> frozenset[str]:
    """The modifiers before the last `types`, all of them in `allowed` (words); else Unsupported names the odd one."""
    mods = i.mods[: len(i.mods) - types]
    known = allowed.split()
    for m in mods:
        if m not in known:
            raise Unsupported(f"{i.text} (.{m})")
    return frozenset(mods)


def rounding(mods: frozenset[str]) -> str:
    """The rounding modifier among `mods`; rn without one."""
    return next((r for r in ROUNDINGS if r in mods), "rn")


# ---------------------------------------------------------------- bits
def bits_of(e: Emitter, value: str, ty: str) -> str:
    """A float vector's bits as integers."""
    return e.op(f"bitcast {vec(ty)} {value} to {ivec(TYPE_BITS[ty])}")


def from_bits(e: Emitter, value: str, ty: str) -> str:
    """Integers as floats."""
    return e.op(f"bitcast {ivec(TYPE_BITS[ty])} {value} to {vec(ty)}")


def const(e: Emitter, ty: str, value: float) -> str:
    """A constant float vector of PTX type f32 or f64; `value` must be exact in f32 for the former."""
    import struct

    word = struct.unpack("<Q", struct.pack("<d", value))[0]  # LLVM writes both types' constants as doubles
    return f"splat ({'float' if ty == 'f32' else 'double'} 0x{word:016X})"


def select(e: Emitter, cond: str, ty: str, a: str, b: str) -> str:
    """cond ? a : b on vectors of LLVM type `ty`."""
    return e.op(f"select <32 x i1> {cond}, {ty} {a}, {ty} {b}")


def is_nan(e: Emitter, value: str, ty: str) -> str:
    """<32 x i1>: NaN lanes."""
    return e.op(f"fcmp uno {vec(ty)} {value}, zeroinitializer")


def canonical(e: Emitter, value: str, ty: str, by_bits: bool = False) -> str:
    """NaNs become the NaN that the chip's operations give.

    by_bits: look for NaN by integers, as LLVM takes `x < 0 ? NaN : sqrt(x)` for sqrt(x) with any NaN.
    """
    ints = ivec(TYPE_BITS[ty])
    bits = bits_of(e, value, ty)
    if by_bits:
        exponent, sign, _ = BITS[ty]
        size = e.op(f"and {ints} {bits}, {e.splat(ints, sign - 1)}")
        bad = e.op(f"icmp ugt {ints} {size}, {e.splat(ints, exponent)}")
    else:
        bad = is_nan(e, value, ty)
    return from_bits(e, select(e, bad, ints, e.splat(ints, BITS[ty][2]), bits), ty)


def quiet_f64(e: Emitter, value: str) -> str:
    """A NaN's bits (<32 x i64>) as f64 operations pass it on: sign and payload kept, made quiet."""
    return e.op(f"or {I64} {bits_of(e, value, 'f64')}, {e.splat(I64, 1 << 51)}")


def pass_nans(e: Emitter, value: str, args: list[str]) -> str:
    """An f64 result: the NaN of the last of `args` that is one, else the default NaN."""
    bits = bits_of(e, canonical(e, value, "f64", by_bits=True), "f64")
    for a in args:
        bits = select(e, is_nan(e, a, "f64"), I64, quiet_f64(e, a), bits)
    return from_bits(e, bits, "f64")


def flush_bits(e: Emitter, bits: str, ty: str) -> str:
    """Subnormals (as integers of `ty`'s width) to zero of the same sign."""
    ints = ivec(TYPE_BITS[ty])
    exponent, sign, _ = BITS[ty]
    field = e.op(f"and {ints} {bits}, {e.splat(ints, exponent)}")
    small = e.op(f"icmp eq {ints} {field}, zeroinitializer")
    zero = e.op(f"and {ints} {bits}, {e.splat(ints, sign)}")
    return select(e, small, ints, zero, bits)


def flush(e: Emitter, value: str, ty: str) -> str:
    """Subnormals to zero of the same sign."""
    return from_bits(e, flush_bits(e, bits_of(e, value, ty), ty), ty)


def flush_tiny(e: Emitter, value: str, scaled: str) -> str:
    """.ftz of an f32 result whose rounding may have reached the smallest normal number, 2**-126.

    The chip flushes what is tiny after rounding with an unbounded exponent (IEEE 754, 7.5; seen on an H200).
    `scaled` is the same operation 2**24 times as large, which no subnormal rounding touches.
    """
    tiny = e.op(f"fcmp olt {F32} {absolute(e, scaled, 'f32')}, {const(e, 'f32', 2.0**-102)}")
    bits = bits_of(e, value, "f32")
    zero = e.op(f"and {I32} {bits}, {e.splat(I32, BITS['f32'][1])}")
    return from_bits(e, select(e, tiny, I32, zero, bits), "f32")


def absolute(e: Emitter, value: str, ty: str) -> str:
    """Clear the sign, NaNs' too."""
    ints = ivec(TYPE_BITS[ty])
    return from_bits(e, e.op(f"and {ints} {bits_of(e, value, ty)}, {e.splat(ints, BITS[ty][1] - 1)}"), ty)


# ---------------------------------------------------------------- results
def saturate(e: Emitter, value: str, ty: str) -> str:
    """.sat: clamp to [0, 1]; NaN and -0 give +0."""
    v = vec(ty)
    positive = e.op(f"fcmp ogt {v} {value}, zeroinitializer")
    value = select(e, positive, v, value, "zeroinitializer")
    below = e.op(f"fcmp olt {v} {value}, {const(e, ty, 1.0)}")
    return select(e, below, v, value, const(e, ty, 1.0))


def relu(e: Emitter, value: str, ty: str) -> str:
    """.relu: negatives and -0 give +0; NaN stays."""
    v = vec(ty)
    return select(e, e.op(f"fcmp ole {v} {value}, zeroinitializer"), v, "zeroinitializer", value)


def finish(e: Emitter, value: str, ty: str, mods: frozenset[str], args: list[str] | None = None) -> str:
    """An f32 or f64 result with .ftz, .sat and the right NaN. args: the operands of an f64 operation."""
    if "ftz" in mods:
        value = flush(e, value, ty)
    if "sat" in mods:
        return saturate(e, value, ty)
    return canonical(e, value, ty) if ty == "f32" else pass_nans(e, value, args or [])


# ---------------------------------------------------------------- rounding
_PLAIN = {"fadd": "fadd", "fsub": "fsub", "fmul": "fmul", "fdiv": "fdiv"}


def rounded(e: Emitter, op: str, ty: str, mode: str, *args: str) -> str:
    """`op` (fadd, fsub, fmul, fdiv, fma, sqrt) of f32 or f64 vectors, exactly rounded by `mode`."""
    v = vec(ty)
    suffix = f"v32{ty}"
    if mode == "rn":
        if op in _PLAIN:
            return e.op(f"{op} {v} {args[0]}, {args[1]}")
        return e.intrinsic(f"llvm.{op}.{suffix}", v, *((v, a) for a in args))
    name = f"directed_{op}_{ty}_{mode}"
    inner = f"llvm.experimental.constrained.{op}.{suffix}"
    types = [v] * len(args)
    named = ", ".join(f"{v} %a{k}" for k in range(len(args)))
    e.declare("declare void @llvm.set.rounding(i32)")
    e.declare(f"declare {v} @{inner}({', '.join([*types, 'metadata', 'metadata'])})")
    e.declare(
        f"define internal {v} @{name}({named}) noinline strictfp {{\n"
        f"  call void @llvm.set.rounding(i32 {_MODE[mode]}) strictfp\n"
        f'  %r = call {v} @{inner}({named}, metadata !"round.dynamic", metadata !"fpexcept.strict") strictfp\n'
        f"  call void @llvm.set.rounding(i32 1) strictfp\n"
        f"  ret {v} %r\n}}"
    )
    return e.op(f"call {v} @{name}({', '.join(f'{v} {a}' for a in args)})")


def narrow_f64(e: Emitter, value: str, mode: str) -> str:
    """f64 to f32, rounded by rn, rz, rm, rp, or to odd ("odd": for a second rounding to fewer than 23 bits).

    The nearest f32 is at most one step off; the sign of its error tells which way. Steps across infinity work, as
    infinity is the code after the largest number.
    """
    if mode == "rn":
        return e.op(f"fptrunc {F64} {value} to {F32}")
    return e.outline(f"narrow_{mode}", F32, [(F64, value)], lambda f, x: _narrow(f, x, mode))


def _narrow(e: Emitter, value: str, mode: str) -> str:
    near = e.op(f"fptrunc {F64} {value} to {F32}")
    back = e.op(f"fpext {F32} {near} to {F64}")
    bits = bits_of(e, near, "f32")
    if mode in ("rz", "odd"):
        size, true = absolute(e, back, "f64"), absolute(e, value, "f64")
        over = e.op(f"fcmp ogt {F64} {size}, {true}")
        bits = e.op(f"add {I32} {bits}, {e.op(f'sext <32 x i1> {over} to {I32}')}")
        if mode == "odd":
            inexact = e.op(f"fcmp one {F64} {back}, {value}")
            bits = e.op(f"or {I32} {bits}, {e.op(f'zext <32 x i1> {inexact} to {I32}')}")
        return from_bits(e, bits, "f32")
    wrong = e.op(f"fcmp {'olt' if mode == 'rp' else 'ogt'} {F64} {back}, {value}")
    # one step up in value is a larger code for positive numbers and a smaller one for negative numbers
    sign = e.op(f"ashr {I32} {bits}, {e.splat(I32, 31)}")
    step = e.op(f"or {I32} {sign}, {e.splat(I32, 1)}")
    if mode == "rm":
        step = e.op(f"sub {I32} zeroinitializer, {step}")
    bits = e.op(f"add {I32} {bits}, {select(e, wrong, I32, step, 'zeroinitializer')}")
    return from_bits(e, bits, "f32")


def sum_to_odd(e: Emitter, a: str, b: str) -> str:
    """f64 a + b rounded to odd, for one more rounding to fewer than 51 bits. Exact sums stay; no overflow expected."""
    return e.outline("sum_to_odd", F64, [(F64, a), (F64, b)], _sum_to_odd)


def _sum_to_odd(e: Emitter, a: str, b: str) -> str:
    total = e.op(f"fadd {F64} {a}, {b}")
    b_part = e.op(f"fsub {F64} {total}, {a}")
    a_part = e.op(f"fsub {F64} {total}, {b_part}")
    error = e.op(f"fadd {F64} {e.op(f'fsub {F64} {a}, {a_part}')}, {e.op(f'fsub {F64} {b}, {b_part}')}")
    inexact = e.op(f"fcmp one {F64} {error}, zeroinitializer")  # false where the sum is infinite or NaN
    bits, ebits = bits_of(e, total, "f64"), bits_of(e, error, "f64")
    differ = e.op(f"ashr {I64} {e.op(f'xor {I64} {bits}, {ebits}')}, {e.splat(I64, 63)}")
    cut = e.op(f"or {I64} {e.op(f'add {I64} {bits}, {differ}')}, {e.splat(I64, 1)}")
    return from_bits(e, select(e, inexact, I64, cut, bits), "f64")


# ---------------------------------------------------------------- 16-bit formats
def widen(e: Emitter, bits: str, ty: str) -> str:
    """f16 or bf16 (as <32 x i16>) to f32, exactly; NaNs keep a payload."""
    if ty == "f16":
        return e.op(f"fpext <32 x half> {e.op(f'bitcast {I16} {bits} to <32 x half>')} to {F32}")
    wide = e.op(f"shl {I32} {e.op(f'zext {I16} {bits} to {I32}')}, {e.splat(I32, 16)}")
    return from_bits(e, wide, "f32")


def narrow(e: Emitter, value: str, ty: str) -> str:
    """f32 to f16 or bf16 as <32 x i16>, rounded to nearest even; NaNs become 0x7fff."""
    nan = is_nan(e, value, "f32")
    if ty == "f16":
        half = e.op(f"fptrunc {F32} {value} to <32 x half>")
        bits = e.op(f"bitcast <32 x half> {half} to {I16}")
    else:
        wide = bits_of(e, value, "f32")
        high = e.op(f"lshr {I32} {wide}, {e.splat(I32, 16)}")
        bias = e.op(f"add {I32} {e.op(f'and {I32} {high}, {e.splat(I32, 1)}')}, {e.splat(I32, 0x7FFF)}")
        wide = e.op(f"lshr {I32} {e.op(f'add {I32} {wide}, {bias}')}, {e.splat(I32, 16)}")
        bits = e.op(f"trunc {I32} {wide} to {I16}")
    return select(e, nan, I16, e.splat(I16, 0x7FFF), bits)


def unpack(e: Emitter, value: str, bits: int) -> tuple[str, str]:
    """(low, high) elements of `bits` bits of a packed pair."""
    whole, part = ivec(2 * bits), ivec(bits)
    high = e.op(f"lshr {whole} {value}, {e.splat(whole, bits)}")
    return e.op(f"trunc {whole} {value} to {part}"), e.op(f"trunc {whole} {high} to {part}")


def pack(e: Emitter, low: str, high: str, bits: int) -> str:
    """A packed pair of elements of `bits` bits."""
    whole, part = ivec(2 * bits), ivec(bits)
    high = e.op(f"shl {whole} {e.op(f'zext {part} {high} to {whole}')}, {e.splat(whole, bits)}")
    return e.op(f"or {whole} {e.op(f'zext {part} {low} to {whole}')}, {high}")


# ---------------------------------------------------------------- minimum and maximum
def extreme(e: Emitter, op: str, a: str, b: str, ty: str, nan: bool = False) -> str:
    """min or max: -0 below +0; a number beats a NaN unless `nan`; NaN results are canonical."""
    v, ints = vec(ty), ivec(TYPE_BITS[ty])
    first, other, equal = ("olt", "ogt", "or") if op == "min" else ("ogt", "olt", "and")
    both = e.op(f"{equal} {ints} {bits_of(e, a, ty)}, {bits_of(e, b, ty)}")  # equal numbers: the sign decides
    rest = select(e, e.op(f"fcmp {other} {v} {a}, {b}"), v, b, from_bits(e, both, ty))
    value = select(e, e.op(f"fcmp {first} {v} {a}, {b}"), v, a, rest)
    if nan:
        bad = e.op(f"fcmp uno {v} {a}, {b}")
        quiet = from_bits(e, e.splat(ints, BITS[ty][2]), ty)
        return select(e, bad, v, quiet, value)
    value = select(e, is_nan(e, a, ty), v, b, select(e, is_nan(e, b, ty), v, a, value))
    if ty == "f64":  # with two NaNs, the second
        return from_bits(e, select(e, is_nan(e, value, ty), I64, quiet_f64(e, value), bits_of(e, value, ty)), ty)
    return canonical(e, value, ty)
