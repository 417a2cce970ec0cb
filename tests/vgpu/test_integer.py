"""Integer arithmetic and carry chains against numpy.

The ISA leaves division by zero open ("unspecified, machine-specific value"); what an H200 gives is the reference here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.vgpu.ptx_kernels import TYPES, Case, cases_test, ints, pair

N = 512
INTS = ("u16", "s16", "u32", "s32", "u64", "s64")
CARRY = ("u32", "s32", "u64", "s64")


def bits_of(ty: str) -> int:
    return 8 * np.dtype(TYPES[ty][0]).itemsize


def exact(a: np.ndarray) -> np.ndarray:
    """As Python integers."""
    return a.astype(object)


def wrapped(values: np.ndarray, ty: str) -> np.ndarray:
    """Python integers to a PTX type, modulo its size."""
    mask = (1 << bits_of(ty)) - 1
    raw = np.array([int(v) & mask for v in values], np.uint64)
    return raw.astype(f"u{bits_of(ty) // 8}").view(TYPES[ty][0])


def clamped(values: np.ndarray, ty: str) -> np.ndarray:
    """Python integers to a PTX type, saturated."""
    info = np.iinfo(TYPES[ty][0])
    return np.array([min(max(int(v), info.min), info.max) for v in values], TYPES[ty][0])


def case(op: str, types: list[str], out: str, fn, **options) -> Case:
    """One instruction with operands %a, %b, .. of the given types and result %d. fn gets and gives Python integers."""
    names = "abcdefgh".replace("d", "")[: len(types)]
    inputs = {n: (ty, ints(ty, N, k)) for k, (n, ty) in enumerate(zip(names, types, strict=True))}
    text = f"{op} %d, " + ", ".join(f"%{n}" for n in names) + ";"
    finish = clamped if ".sat" in op else wrapped

    def reference(**arrays):
        return finish(fn(*(exact(arrays[n]) for n in names)), out)

    return Case(op, text, inputs, {"d": out}, reference, **options)


# ---------------------------------------------------------------- plain arithmetic
def truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Quotient towards zero; all ones over zero."""
    return np.array(
        [-1 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(a, b)], object
    )


def remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """With the dividend's sign; all ones over zero."""
    return np.array([-1 if y == 0 else x - q * y for x, y, q in zip(a, b, truncated(a, b))], object)


BINARY = {"add": np.add, "sub": np.subtract, "min": np.minimum, "max": np.maximum, "div": truncated, "rem": remainder,
          "mul.lo": np.multiply}  # fmt: skip


def high(ty: str):
    return lambda a, b: (a * b) >> bits_of(ty)


def wide(ty: str) -> str:
    return f"{ty[0]}{2 * bits_of(ty)}"


def plain_cases() -> list[Case]:
    cases = [case(f"{op}.{ty}", [ty, ty], ty, fn) for op, fn in BINARY.items() for ty in INTS]
    cases += [case(f"mul.hi.{ty}", [ty, ty], ty, high(ty)) for ty in INTS]
    cases += [case(f"mul.wide.{ty}", [ty, ty], wide(ty), np.multiply) for ty in INTS[:4]]
    cases += [case(f"mad.lo.{ty}", [ty] * 3, ty, lambda a, b, c: a * b + c) for ty in INTS]
    cases += [case(f"mad.hi.{ty}", [ty] * 3, ty, lambda a, b, c, ty=ty: high(ty)(a, b) + c) for ty in INTS]
    cases += [case(f"mad.wide.{ty}", [ty, ty, wide(ty)], wide(ty), lambda a, b, c: a * b + c) for ty in INTS[:4]]
    cases += [case(f"sad.{ty}", [ty] * 3, ty, lambda a, b, c: c + abs(a - b)) for ty in INTS]
    cases += [case(f"{op}.{ty}", [ty], ty, fn) for op, fn in (("abs", abs), ("neg", np.negative)) for ty in INTS[1::2]]
    cases += [
        case("add.sat.s32", ["s32"] * 2, "s32", np.add),
        case("sub.sat.s32", ["s32"] * 2, "s32", np.subtract),
        case("mad.hi.sat.s32", ["s32"] * 3, "s32", lambda a, b, c: ((a * b) >> 32) + c),
        case("min.relu.s32", ["s32"] * 2, "s32", lambda a, b: np.maximum(np.minimum(a, b), 0)),
        case("max.relu.s32", ["s32"] * 2, "s32", lambda a, b: np.maximum(np.maximum(a, b), 0)),
    ]
    return cases


def low24(a: np.ndarray, ty: str) -> np.ndarray:
    low = a & 0xFFFFFF
    return low - ((low >> 23) << 24) if ty == "s32" else low


def mul24_cases() -> list[Case]:
    cases = []
    for ty in ("u32", "s32"):
        for mode, shift in (("lo", 0), ("hi", 16)):

            def product(a, b, ty=ty, shift=shift):
                return wrapped((low24(a, ty) * low24(b, ty)) >> shift, ty).astype(object)

            cases.append(case(f"mul24.{mode}.{ty}", [ty] * 2, ty, product))
            cases.append(case(f"mad24.{mode}.{ty}", [ty] * 3, ty, lambda a, b, c, p=product: p(a, b) + c))
            if (mode, ty) == ("hi", "s32"):
                cases.append(case("mad24.hi.sat.s32", [ty] * 3, ty, lambda a, b, c, p=product: p(a, b) + c))
    return cases


# ---------------------------------------------------------------- packed and dot products
def packed(ty: str, seed: int) -> np.ndarray:
    return pair(ints(ty[:3], N, seed), ints(ty[:3], N, seed + 50))


def packed_cases() -> list[Case]:
    cases = []
    for op in ("add", "min", "max", "min.relu", "max.relu"):
        for ty in ("u16x2", "s16x2"):
            if "relu" in op and ty == "u16x2":
                continue

            def reference(a, b, op=op, dtype=TYPES[ty[:3]][0]):
                value = BINARY[op.split(".")[0]](a.view(dtype), b.view(dtype))
                value = np.maximum(value, 0) if "relu" in op else value
                return value.astype(dtype).view(np.uint32)

            inputs = {"a": (ty, packed(ty, 1)), "b": (ty, packed(ty, 2))}
            cases.append(Case(f"{op}.{ty}", f"{op}.{ty} %d, %a, %b;", inputs, {"d": ty}, reference))
    return cases


def fields(word: np.ndarray, dtype) -> np.ndarray:
    """(n, elements) of words, as Python integers."""
    return word.view(dtype).reshape(len(word), -1).astype(object)


def dot_cases() -> list[Case]:
    cases = []
    for ta in ("u32", "s32"):
        for tb in ("u32", "s32"):
            out = "s32" if "s32" in (ta, tb) else "u32"
            (byte_a, half_a), (byte_b, _) = (
                (np.int8, np.int16) if t == "s32" else (np.uint8, np.uint16) for t in (ta, tb)
            )

            def dp4a(a, b, c, byte_a=byte_a, byte_b=byte_b, out=out):
                return wrapped((fields(a, byte_a) * fields(b, byte_b)).sum(1) + exact(c), out)

            def dp2a(a, b, c, half=half_a, byte=byte_b, out=out, first=0):
                return wrapped((fields(a, half) * fields(b, byte)[:, first : first + 2]).sum(1) + exact(c), out)

            def dp2a_hi(a, b, c, f=dp2a):
                return f(a, b, c, first=2)

            inputs = {"a": (ta, ints(ta, N, 1)), "b": (tb, ints(tb, N, 2)), "c": (out, ints(out, N, 3))}
            for op, fn in (("dp4a", dp4a), ("dp2a.lo", dp2a), ("dp2a.hi", dp2a_hi)):
                cases.append(Case(f"{op}.{ta}.{tb}", f"{op}.{ta}.{tb} %d, %a, %b, %c;", inputs, {"d": out}, fn))
    return cases


# ---------------------------------------------------------------- carries
def chain(ty: str, body: str, fn, name: str, outs: tuple[str, ...] = ("d0", "d1", "d2")) -> Case:
    """Operands a0..a2, b0..b2 of a multi-word computation; fn gets Python integers of all of them."""
    names = [f"{x}{k}" for x in "ab" for k in range(3)]
    inputs = {n: (ty, ints(ty, N, k + 1)) for k, n in enumerate(names)}
    width = bits_of(ty)

    def reference(**arrays):
        words = {n: exact(arrays[n].view(f"u{width // 8}")) for n in names}
        total = fn(words, width)
        return tuple(wrapped(t, ty) for t in total)

    return Case(name, body.replace("$", ty), inputs, dict.fromkeys(outs, ty), reference)


def long(words: dict, x: str, width: int) -> np.ndarray:
    return sum(words[f"{x}{k}"] << (width * k) for k in range(3))


def split(total: np.ndarray, width: int) -> tuple[np.ndarray, ...]:
    return tuple(total >> (width * k) for k in range(3))


def add_long(words: dict, width: int) -> tuple[np.ndarray, ...]:
    return split(long(words, "a", width) + long(words, "b", width), width)


def sub_long(words: dict, width: int) -> tuple[np.ndarray, ...]:
    return split(long(words, "a", width) - long(words, "b", width), width)


def mad_long(words: dict, width: int) -> tuple[np.ndarray, ...]:
    """(a1 a0) * b0 + (b2 b1), three words."""
    factor = words["a0"] + (words["a1"] << width)
    return split(factor * words["b0"] + words["b1"] + (words["b2"] << width), width)


ADD = "add.cc.$ %d0, %a0, %b0; addc.cc.$ %d1, %a1, %b1; addc.$ %d2, %a2, %b2;"
SUB = "sub.cc.$ %d0, %a0, %b0; subc.cc.$ %d1, %a1, %b1; subc.$ %d2, %a2, %b2;"
MAD = """mad.lo.cc.$ %d0, %a0, %b0, %b1; madc.lo.cc.$ %d1, %a1, %b0, %b2; madc.hi.$ %d2, %a1, %b0, 0;
mad.hi.cc.$ %d1, %a0, %b0, %d1; addc.$ %d2, %d2, 0;"""
GUARDED = """{ .reg .pred %p; setp.lt.u32 %p, %idx, 256;
add.cc.$ %d0, %a0, %b0; @%p add.cc.$ %d2, %a2, %b2; addc.$ %d1, 0, 0; }"""
ACROSS = """{ .reg .pred %p; and.b32 %_flag, %idx, 1; setp.eq.u32 %p, %_flag, 0;
add.cc.$ %d0, %a0, %b0; @%p bra ODD; mul.lo.$ %d2, %a2, %a2;
ODD: addc.cc.$ %d1, %a1, %b1; @!%p bra EVEN; mul.lo.$ %d2, %b2, %b2;
EVEN: addc.$ %d2, %d2, 0; }"""


def guarded(words: dict, width: int) -> tuple[np.ndarray, ...]:
    """A guard that is false leaves CC.CF alone."""
    first, third = words["a0"] + words["b0"], words["a2"] + words["b2"]
    low = np.arange(len(first)) < 256
    carry = np.where(low, third >> width, first >> width)
    return first, carry, np.where(low, third, 0)


def across(words: dict, width: int) -> tuple[np.ndarray, ...]:
    """The carry outlives branches."""
    d0, d1 = words["a0"] + words["b0"], words["a1"] + words["b1"]
    d1 = d1 + (d0 >> width)
    even = np.arange(len(d0)) % 2 == 0
    d2 = np.where(even, words["b2"] * words["b2"], words["a2"] * words["a2"])
    return d0, d1, d2 + (d1 >> width)


def whole(case: Case) -> Case:
    """A case whose reference counts threads: property tests, which draw one warp, leave it alone."""
    return replace(case, draws=False)


def carry_cases() -> list[Case]:
    cases = []
    for ty in CARRY:
        cases += [chain(ty, ADD, add_long, f"add.cc.{ty}"), chain(ty, SUB, sub_long, f"sub.cc.{ty}")]
    for ty in ("u32", "u64"):
        cases.append(chain(ty, MAD, mad_long, f"mad.cc.{ty}"))
    for ty in ("s32", "s64"):
        body = "mad.hi.cc.$ %d0, %a0, %b0, %b1; madc.hi.$ %d1, %a1, %b0, %b2;"
        cases.append(chain(ty, body, signed_high, f"mad.hi.cc.{ty}", ("d0", "d1")))
    body = GUARDED.replace("add.cc.$ %d0", "mov.u32 %d2, 0; add.cc.$ %d0", 1)
    cases.append(whole(chain("u32", body, guarded, "add.cc under a guard")))
    cases.append(whole(chain("u32", ACROSS, across, "carry across branches")))
    return cases


def signed_high(words: dict, width: int) -> tuple[np.ndarray, ...]:
    def signed(x):
        return x - ((x >> (width - 1)) << width)

    mask = (1 << width) - 1
    first = ((signed(words["a0"]) * signed(words["b0"])) >> width & mask) + words["b1"]
    second = ((signed(words["a1"]) * signed(words["b0"])) >> width & mask) + words["b2"] + (first >> width)
    return first, second


def immediate_cases() -> list[Case]:
    """Constant divisors take another way through the code generator."""
    cases = []
    for ty, divisor in (("u32", 7), ("s32", -5), ("s32", -1), ("u64", 10), ("s64", -1), ("u16", 3), ("s32", 64)):
        for op in ("div", "rem"):
            inputs = {"a": (ty, ints(ty, N, 3))}

            def reference(a, op=op, ty=ty, divisor=divisor):
                return wrapped(BINARY[op](exact(a), np.full(len(a), divisor, object)), ty)

            text = f"{op}.{ty} %d, %a, {divisor};"
            cases.append(Case(f"{op}.{ty} by {divisor}", text, inputs, {"d": ty}, reference))
    return cases


CASES = plain_cases() + mul24_cases() + packed_cases() + dot_cases() + carry_cases() + immediate_cases()
test_cases = cases_test(CASES)
