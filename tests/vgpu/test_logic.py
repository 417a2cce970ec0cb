"""Logic, shifts, counting bits and bit fields against the ISA's pseudo-code in Python."""

from __future__ import annotations

import numpy as np

from tests.vgpu.ptx_kernels import TYPES, Case, bits, cases_test, ints

N = 512
BITS = ("b16", "b32", "b64")


def width_of(ty: str) -> int:
    return 8 * np.dtype(TYPES[ty][0]).itemsize


def loop(fn, dtype):
    """An array function from a function of Python integers (unsigned values of the operands)."""

    def reference(**arrays):
        columns = [a.view(f"u{a.dtype.itemsize}").tolist() for a in arrays.values()]
        raw = [int(fn(*row)) & ((1 << 8 * np.dtype(dtype).itemsize) - 1) for row in zip(*columns)]
        return np.array(raw, np.uint64).astype(f"u{np.dtype(dtype).itemsize}").view(dtype)

    return reference


def small(n: int, seed: int, about: int) -> np.ndarray:
    """Shift amounts and places: below and around `about`, and any 32 bits now and then."""
    rng = np.random.default_rng(seed)
    near = rng.integers(0, 2 * about, n).astype(np.uint32)
    return np.where(rng.integers(0, 8, n) == 0, ints("u32", n, seed), near)


# ---------------------------------------------------------------- logic
def logic_cases() -> list[Case]:
    cases = []
    for op, fn in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
        for ty in (*BITS, "pred"):
            a, b = (ints("u32", N, k) & 1 if ty == "pred" else ints(ty, N, k) for k in (1, 2))
            inputs = {"a": (ty, a), "b": (ty, b)}
            cases.append(Case(f"{op}.{ty}", f"{op}.{ty} %d, %a, %b;", inputs, {"d": ty}, lambda a, b, fn=fn: fn(a, b)))
    for ty in (*BITS, "pred"):
        a = ints("u32", N, 1) & 1 if ty == "pred" else ints(ty, N, 1)
        cases.append(
            Case(f"not.{ty}", f"not.{ty} %d, %a;", {"a": (ty, a)}, {"d": ty}, lambda a, ty=ty: inverted(a, ty))
        )
        if ty != "pred":
            cases.append(Case(f"cnot.{ty}", f"cnot.{ty} %d, %a;", {"a": (ty, a)}, {"d": ty}, lambda a: a == 0))
    return cases


def inverted(a: np.ndarray, ty: str) -> np.ndarray:
    return a == 0 if ty == "pred" else ~a


def lop3_reference(table: int):
    def reference(a, b, c):
        total = np.zeros_like(a)
        for k in range(8):
            if table >> k & 1:
                total |= (a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c)
        return total

    return reference


def lop3_cases() -> list[Case]:
    """All 256 tables, 32 of them a kernel; and the forms with a predicate."""
    three = {n: ("b32", bits("b32", N, k)) for k, n in enumerate("abc")}
    cases = []
    for first in range(0, 256, 32):
        tables = range(first, first + 32)
        body = "\n".join(f"lop3.b32 %d{t}, %a, %b, %c, {t};" for t in tables)

        def reference(a, b, c, tables=tables):
            return {f"d{t}": lop3_reference(t)(a, b, c) for t in tables}

        outs = {f"d{t}": "b32" for t in tables}
        cases.append(Case(f"lop3.b32 {first}", body, three, outs, reference, silicon=first == 96))
    few = {n: ("b32", ints("b32", N, k) & 3) for k, n in enumerate("abc")} | {"q": ("pred", ints("u32", N, 9) & 1)}
    for how, join in (("or", np.logical_or), ("and", np.logical_and)):

        def with_predicate(a, b, c, q, join=join):
            d = lop3_reference(0x80)(a, b, c)
            return d, join(d != 0, q != 0), join(d != 0, q == 0)

        body = f"lop3.{how}.b32 %d|%p, %a, %b, %c, 0x80, %q; lop3.{how}.b32 _|%r, %a, %b, %c, 0x80, !%q;"
        outs = {"d": "b32", "p": "pred", "r": "pred"}
        cases.append(Case(f"lop3.{how}.b32", body, few, outs, with_predicate, version="8.2"))
    return cases


# ---------------------------------------------------------------- shifts
def shift_cases() -> list[Case]:
    cases = []
    for op, types in (("shl", BITS), ("shr", (*BITS, "u16", "u32", "u64", "s16", "s32", "s64"))):
        for ty in types:
            w = width_of(ty)

            def reference(a, n, op=op, w=w, signed=ty[0] == "s"):
                if op == "shl":
                    return a << n if n < w else 0
                value = a - (1 << w) if signed and a >> (w - 1) else a
                return value >> min(n, w)

            inputs = {"a": (ty, ints(ty, N, 1)), "b": ("u32", small(N, 2, w))}
            cases.append(Case(f"{op}.{ty}", f"{op}.{ty} %d, %a, %b;", inputs, {"d": ty}, loop(reference, TYPES[ty][0])))
    for where in "lr":
        for mode in ("wrap", "clamp"):

            def funnel(a, b, c, where=where, mode=mode):
                n = min(c, 32) if mode == "clamp" else c & 31
                both = b << 32 | a
                return both << n >> 32 if where == "l" else both >> n

            op = f"shf.{where}.{mode}.b32"
            inputs = {"a": ("b32", bits("b32", N, 1)), "b": ("b32", bits("b32", N, 2)), "c": ("u32", small(N, 3, 32))}
            cases.append(Case(op, f"{op} %d, %a, %b, %c;", inputs, {"d": "b32"}, loop(funnel, np.uint32)))
    body = "shl.b32 %d, %a, 3; shr.s32 %e, %a, 40; shl.b32 %f, %a, 32; shr.u32 %g, %a, 31;"
    outs = dict.fromkeys("defg", "b32")

    def constants(a):
        return a << np.uint32(3), a.view(np.int32) >> 31, np.zeros_like(a), a >> np.uint32(31)

    cases.append(Case("shifts by constants", body, {"a": ("b32", ints("b32", N, 4))}, outs, constants))
    return cases


# ---------------------------------------------------------------- counting and finding
def find(a: int, ty: str, shift: bool) -> int:
    w = width_of(ty)
    if ty[0] == "s" and a >> (w - 1):
        a = ~a & ((1 << w) - 1)
    place = a.bit_length() - 1
    return w - 1 - place if shift and place >= 0 else place


def nth_set(mask: int, base: int, offset: int) -> int:
    """The ISA's pseudo-code of fns."""
    offset -= (offset >> 31) << 32
    if offset == 0:
        return base if base < 32 and mask >> base & 1 else -1
    place, left, step = base, abs(offset) - 1, 1 if offset > 0 else -1
    while 0 <= place < 32:
        if mask >> place & 1:
            if left == 0:
                return place
            left -= 1
        place += step
    return -1


def count_cases() -> list[Case]:
    cases = []
    for ty in ("b32", "b64"):
        w = width_of(ty)
        table = {
            "popc": (lambda a: bin(a).count("1"), "u32"),
            "clz": (lambda a, w=w: w - a.bit_length(), "u32"),
            "brev": (lambda a, w=w: int(format(a, f"0{w}b")[::-1], 2), ty),
        }
        for op, (fn, out) in table.items():
            inputs = {"a": (ty, ints(ty, N, 1))}
            reference = loop(fn, TYPES[out][0])
            cases.append(Case(f"{op}.{ty}", f"{op}.{ty} %d, %a;", inputs, {"d": out}, reference))
    for ty in ("u32", "s32", "u64", "s64"):
        for flag in ("", ".shiftamt"):
            op = f"bfind{flag}.{ty}"
            fn = loop(lambda a, ty=ty, flag=flag: find(a, ty, bool(flag)), np.uint32)
            cases.append(Case(op, f"{op} %d, %a;", {"a": (ty, ints(ty, N, 1))}, {"d": "u32"}, fn))
    rng = np.random.default_rng(5)
    inputs = {
        "a": ("b32", ints("b32", N, 1)),
        "b": ("b32", rng.integers(0, 32, N).astype(np.uint32)),
        "c": ("s32", rng.integers(-34, 35, N).astype(np.int32) // rng.integers(1, 9, N).astype(np.int32)),
    }
    cases.append(
        Case("fns.b32", "fns.b32 %d, %a, %b, %c;", inputs, {"d": "b32"}, loop(nth_set, np.uint32), draws=False)
    )
    return cases


# ---------------------------------------------------------------- bit fields
def eight_bits(x: int, top: int) -> int:
    """Places and lengths: the ISA restricts them to 255; beyond, 32-bit forms mask and 64-bit forms do not."""
    return x & 255 if top == 31 else min(x, 255)


def extract(a: int, b: int, c: int, ty: str) -> int:
    """The ISA's pseudo-code of bfe."""
    top = width_of(ty) - 1
    place, length = eight_bits(b, top), eight_bits(c, top)
    sign = 0 if ty[0] == "u" or length == 0 else a >> min(place + length - 1, top) & 1
    found = 0
    for k in range(top + 1):
        bit = a >> (place + k) & 1 if k < length and place + k <= top else sign
        found |= bit << k
    return found


def insert(a: int, b: int, c: int, e: int, ty: str) -> int:
    """The ISA's pseudo-code of bfi."""
    top = width_of(ty) - 1
    place, length = eight_bits(c, top), eight_bits(e, top)
    for k in range(length):
        if place + k <= top:
            b = b & ~(1 << (place + k)) | (a >> k & 1) << (place + k)
    return b


def extended(a: int, b: int, mode: str, signed: bool) -> int:
    """The ISA's pseudo-code of szext."""
    n = b & 31
    too_large = b >= 32 and mode == "clamp"
    mask = 0 if too_large else (0xFFFFFFFF << n) & 0xFFFFFFFF
    sign = 0 if n == 0 or too_large or not signed else a >> ((n - 1) & 31) & 1
    return a & ~mask | (mask if sign else 0)


def ones(a: int, b: int, mode: str) -> int:
    """The ISA's pseudo-code of bmsk."""
    a1, b1 = a & 31, b & 31
    mask0, total = 0xFFFFFFFF << a1, a1 + b1
    mask1 = 0xFFFFFFFF << total
    overflow = total >= 32
    if mode == "clamp":
        if a >= 32:
            overflow, mask0 = True, 0
        overflow = overflow or b >= 32
    if overflow:
        mask1 = 0
    elif b1 == 0:
        mask1 = 0xFFFFFFFF
    return mask0 & ~mask1


def field_cases() -> list[Case]:
    cases = []
    for ty in ("u32", "s32", "u64", "s64"):
        w = width_of(ty)
        inputs = {"a": (ty, ints(ty, N, 1)), "b": ("u32", small(N, 2, w)), "c": ("u32", small(N, 3, w))}
        fn = loop(lambda a, b, c, ty=ty: extract(a, b, c, ty), TYPES[ty][0])
        cases.append(Case(f"bfe.{ty}", f"bfe.{ty} %d, %a, %b, %c;", inputs, {"d": ty}, fn))
    for ty in ("b32", "b64"):
        w = width_of(ty)
        inputs = {"a": (ty, ints(ty, N, 1)), "b": (ty, ints(ty, N, 2))}
        inputs |= {"c": ("u32", small(N, 3, w)), "e": ("u32", small(N, 4, w))}
        fn = loop(lambda a, b, c, e, ty=ty: insert(a, b, c, e, ty), TYPES[ty][0])
        cases.append(Case(f"bfi.{ty}", f"bfi.{ty} %d, %a, %b, %c, %e;", inputs, {"d": ty}, fn))
    for mode in ("clamp", "wrap"):
        for ty in ("u32", "s32"):
            inputs = {"a": (ty, ints(ty, N, 1)), "b": ("u32", small(N, 2, 32))}
            fn = loop(lambda a, b, mode=mode, ty=ty: extended(a, b, mode, ty == "s32"), TYPES[ty][0])
            cases.append(Case(f"szext.{mode}.{ty}", f"szext.{mode}.{ty} %d, %a, %b;", inputs, {"d": ty}, fn))
        inputs = {"a": ("u32", small(N, 1, 32)), "b": ("u32", small(N, 2, 32))}
        fn = loop(lambda a, b, mode=mode: ones(a, b, mode), np.uint32)
        cases.append(Case(f"bmsk.{mode}.b32", f"bmsk.{mode}.b32 %d, %a, %b;", inputs, {"d": "b32"}, fn))
    return cases


CASES = logic_cases() + lop3_cases() + shift_cases() + count_cases() + field_cases()
test_cases = cases_test(CASES)
