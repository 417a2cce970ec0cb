"""f32 and f64 arithmetic (PTX ISA, "Floating Point Instructions"), packed f32x2, and mixed precision with f16 or bf16.

Every rounding is exact. Approximate forms (div, rcp, sqrt, rsqrt) give the correctly rounded result, which is within
the error that the ISA allows. The 16-bit types are in `half`, transcendental functions in `approx`.
"""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen import fp, half
from tensorladder.vgpu.codegen.emit import Emitter, vec
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.ptx.nodes import Instr

_HALF = {"f16", "f16x2", "bf16", "bf16x2"}

#: mnemonic -> modifiers that each type takes
_MODS = {
    "add": {"f32": "rn rz rm rp ftz sat", "f64": "rn rz rm rp", "f32x2": "rn rz rm rp ftz"},
    "fma": {"f32": "rn rz rm rp ftz sat", "f64": "rn rz rm rp", "f32x2": "rn rz rm rp ftz"},
    "div": {"f32": "approx full rn rz rm rp ftz", "f64": "rn rz rm rp"},
    "min": {"f32": "ftz NaN xorsign abs", "f64": ""},
    "neg": {"f32": "ftz", "f64": ""},
}
_MODS |= {"sub": _MODS["add"], "mul": _MODS["add"], "mad": _MODS["fma"], "max": _MODS["min"], "abs": _MODS["neg"]}
_MIXED = {"add": 1, "sub": 1, "fma": 2}  # leading 16-bit operands of the mixed forms


def arithmetic(e: Emitter, i: Instr) -> None:
    """add, sub, mul, fma, mad, div, min, max, neg, abs of a floating type. Raises Unsupported for others."""
    ty = i.mods[-1]
    if ty in ("f16", "bf16") and "f32" in i.mods:
        _mixed(e, i)
    elif ty in _HALF:
        half.arithmetic(e, i)
    elif ty == "f32x2":
        _packed(e, i)
    else:
        mods = _modifiers(i, ty, 1)
        args = [e.value(o, ty) for o in i.operands[1:]]
        e.set(i.operands[0], _compute(e, i.op, ty, mods, args), ty)


def _modifiers(i: Instr, ty: str, types: int) -> frozenset[str]:
    allowed = _MODS.get(i.op, {}).get(ty)
    if allowed is None:
        raise Unsupported(i.text)
    return fp.modifiers(i, types, allowed)


def _compute(e: Emitter, op: str, ty: str, mods: frozenset[str], args: list[str]) -> str:
    if "ftz" in mods:
        args = [fp.flush(e, a, ty) for a in args]
    if op in ("min", "max"):
        return _extremes(e, op, ty, mods, args)
    if op in ("neg", "abs"):
        value = e.op(f"fneg {vec(ty)} {args[0]}") if op == "neg" else fp.absolute(e, args[0], ty)
        return fp.finish(e, value, ty, mods, args)
    name, mode = "fma" if op in ("fma", "mad") else f"f{op}", fp.rounding(mods)
    value = fp.rounded(e, name, ty, mode, *args)
    if "ftz" in mods and name in ("fmul", "fma", "fdiv"):  # sums are never rounded to a subnormal
        scaled = [a if k == 1 else _scale(e, a) for k, a in enumerate(args)]
        value, mods = fp.flush_tiny(e, value, fp.rounded(e, name, ty, mode, *scaled)), mods - {"ftz"}
    if op == "div" and "approx" in mods:
        value = _huge_divisor(e, value, args[1])
    return fp.finish(e, value, ty, mods, _nan_order(op, args))


def _nan_order(op: str, args: list[str]) -> list[str]:
    """f64 operands by whose NaN wins, the last one first (seen on an H200)."""
    return args[::-1] if op == "div" else [args[0], *args[:0:-1]]


def _scale(e: Emitter, a: str) -> str:
    return e.op(f"fmul {fp.F32} {a}, {fp.const(e, 'f32', 2.0**24)}")


def _extremes(e: Emitter, op: str, ty: str, mods: frozenset[str], args: list[str]) -> str:
    """Of two or three operands; .abs compares magnitudes, .xorsign gives the result the xor of the signs."""
    signs = [fp.bits_of(e, a, ty) for a in args] if "xorsign" in mods else []
    if "abs" in mods:
        args = [fp.absolute(e, a, ty) for a in args]
    value = args[0]
    for other in args[1:]:
        value = fp.extreme(e, op, value, other, ty, "NaN" in mods)
    if not signs:
        return value
    sign = e.op(f"and {fp.I32} {e.op(f'xor {fp.I32} {signs[0]}, {signs[1]}')}, {e.splat(fp.I32, 0x80000000)}")
    signed = fp.from_bits(e, e.op(f"or {fp.I32} {fp.bits_of(e, value, ty)}, {sign}"), ty)
    return fp.select(e, fp.is_nan(e, value, ty), vec(ty), value, signed)


def _huge_divisor(e: Emitter, value: str, divisor: str) -> str:
    """div.approx of a finite number by one above 2**126 is 0, and of infinity NaN (ISA, div)."""
    size = fp.absolute(e, divisor, "f32")
    huge = e.op(f"fcmp ogt {fp.F32} {size}, {fp.const(e, 'f32', 2.0**126)}")
    zero = e.op(f"fmul {fp.F32} {value}, zeroinitializer")  # keeps the sign; infinity gives NaN
    return fp.select(e, huge, fp.F32, zero, value)


def _packed(e: Emitter, i: Instr) -> None:
    """f32x2: each half by itself."""
    mods = _modifiers(i, "f32x2", 1)
    pairs = [fp.unpack(e, e.value(o, "b64"), 32) for o in i.operands[1:]]
    halves = []
    for k in range(2):
        args = [fp.from_bits(e, pair[k], "f32") for pair in pairs]
        halves.append(fp.bits_of(e, _compute(e, i.op, "f32", mods, args), "f32"))
    e.set(i.operands[0], fp.pack(e, halves[0], halves[1], 32), "b64")


def _mixed(e: Emitter, i: Instr) -> None:
    """f32 operations with leading 16-bit operands, which convert exactly (ISA, "Mixed Precision")."""
    if i.op not in _MIXED or i.mods[-2] != "f32":
        raise Unsupported(i.text)
    ty = i.mods[-1]
    mods = fp.modifiers(i, 2, "rn rz rm rp sat")
    count = _MIXED[i.op]
    args = [fp.widen(e, e.value(o, "b16"), ty) for o in i.operands[1 : 1 + count]]
    args += [e.value(o, "f32") for o in i.operands[1 + count :]]
    e.set(i.operands[0], _compute(e, i.op, "f32", mods, args), "f32")


@instruction("rcp", forms="f32: .approx .rn .rz .rm .rp .ftz; f64: .rn .rz .rm .rp, .approx.ftz")
def rcp(e: Emitter, i: Instr) -> None:
    """1 / a."""
    ty = i.mods[-1]
    mods = fp.modifiers(i, 1, "approx rn rz rm rp ftz" if ty in ("f32", "f64") else "")
    a = e.value(i.operands[1], ty)
    if ty == "f64" and "approx" in mods:
        e.set(i.operands[0], _gross(e, a, lambda x: _inverse(e, x, "f64", "rn")), ty)
        return
    if "ftz" in mods:
        a = fp.flush(e, a, ty)
    mode = fp.rounding(mods)
    value = _inverse(e, a, ty, mode)
    if "ftz" in mods:
        value = fp.flush_tiny(e, value, fp.rounded(e, "fdiv", ty, mode, fp.const(e, ty, 2.0**24), a))
    e.set(i.operands[0], fp.finish(e, value, ty, mods - {"ftz"}, [a]), ty)


def _inverse(e: Emitter, a: str, ty: str, mode: str) -> str:
    return fp.rounded(e, "fdiv", ty, mode, fp.const(e, ty, 1.0), a)


def _gross(e: Emitter, a: str, function) -> str:
    """The f64 approximations: they see and give the upper 32 bits alone and flush subnormals (rcp.approx.ftz.f64)."""
    high = e.splat(fp.I64, 0xFFFFFFFF00000000)
    a = fp.from_bits(e, e.op(f"and {fp.I64} {fp.bits_of(e, fp.flush(e, a, 'f64'), 'f64')}, {high}"), "f64")
    bits = e.op(f"and {fp.I64} {fp.bits_of(e, fp.flush(e, function(a), 'f64'), 'f64')}, {high}")
    # NaN by its bits: LLVM takes `x < 0 ? NaN : sqrt(x)` for sqrt(x) with any NaN
    size = e.op(f"and {fp.I64} {bits}, {e.splat(fp.I64, (1 << 63) - 1)}")
    nan = e.op(f"icmp ugt {fp.I64} {size}, {e.splat(fp.I64, fp.BITS['f64'][0])}")
    return fp.from_bits(e, fp.select(e, nan, fp.I64, e.splat(fp.I64, 0x7FFFFFFF00000000), bits), "f64")


@instruction("sqrt", forms="f32: .approx .rn .rz .rm .rp .ftz; f64: .rn .rz .rm .rp")
def sqrt(e: Emitter, i: Instr) -> None:
    """Square root."""
    ty = i.mods[-1]
    mods = fp.modifiers(i, 1, {"f32": "approx rn rz rm rp ftz", "f64": "rn rz rm rp"}.get(ty, ""))
    a = e.value(i.operands[1], ty)
    if "ftz" in mods:
        a = fp.flush(e, a, ty)
    root = fp.rounded(e, "sqrt", ty, fp.rounding(mods), a)
    if "ftz" in mods:
        root = fp.flush(e, root, ty)
    root = fp.canonical(e, root, ty, by_bits=True) if ty == "f32" else fp.pass_nans(e, root, [a])
    e.set(i.operands[0], root, ty)


def _inverse_root(e: Emitter, x: str) -> str:
    return _inverse(e, fp.rounded(e, "sqrt", "f64", "rn", x), "f64", "rn")


def _rsqrt(e: Emitter, a: str) -> str:
    return fp.narrow_f64(e, _inverse_root(e, e.op(f"fpext {fp.F32} {a} to {fp.F64}")), "rn")


@instruction("rsqrt", forms="f32 and f64: .approx .ftz")
def rsqrt(e: Emitter, i: Instr) -> None:
    """1 / sqrt(a), by way of f64."""
    ty = i.mods[-1]
    mods = fp.modifiers(i, 1, "approx ftz")
    a = e.value(i.operands[1], ty)

    def function(x: str) -> str:
        return _inverse_root(e, x)

    if ty == "f64":
        value = _gross(e, a, function) if "ftz" in mods else fp.pass_nans(e, function(a), [a])
    else:
        if "ftz" in mods:
            a = fp.flush(e, a, ty)
        value = fp.finish(e, e.outline("approx_rsqrt", fp.F32, [(fp.F32, a)], _rsqrt), ty, mods)
    e.set(i.operands[0], value, ty)


# masks of llvm.is.fpclass: bits from 0 are signalling and quiet NaN, -infinity, -normal, -subnormal, -0, and their
# mirror from +0; zero counts as normal (ISA, testp)
_TESTS = {
    "finite": 0x1F8, "infinite": 0x204, "number": 0x3FC, "notanumber": 0x003, "normal": 0x168, "subnormal": 0x090,
}  # fmt: skip


@instruction("testp", forms="all tests on f32 and f64")
def testp(e: Emitter, i: Instr) -> None:
    """Test a number's class."""
    test, ty = i.mods
    if test not in _TESTS:
        raise Unsupported(i.text)
    name = f"llvm.is.fpclass.v32{ty}"
    e.declare(f"declare <32 x i1> @{name}({vec(ty)}, i32 immarg)")
    a = e.value(i.operands[1], ty)
    e.set(i.operands[0], e.op(f"call <32 x i1> @{name}({vec(ty)} {a}, i32 {_TESTS[test]})"), "pred")


@instruction("copysign", forms="f32, f64")
def copysign(e: Emitter, i: Instr) -> None:
    """The magnitude of the second operand with the sign of the first."""
    (ty,) = i.mods
    sign, size = (e.value(o, ty) for o in i.operands[1:3])
    e.set(i.operands[0], e.intrinsic(f"llvm.copysign.v32{ty}", vec(ty), (vec(ty), size), (vec(ty), sign)), ty)
