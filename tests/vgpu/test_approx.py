"""ex2, lg2, sin, cos, tanh, rsqrt and the approximate divisions: within the ISA's error of float64, and near an H200.

Each case is compared with float64 and with the chip at twice the ISA's bound (the chip may be off by it itself); what
the virtual GPU claims of itself, one unit in the last place, is a test of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tests.vgpu.exact import flushed, values
from tests.vgpu.ptx_kernels import Case, cases_test, floats, pair, run

N = 1024
TINY = float(np.finfo(np.float32).tiny)


def within(relative: float = 0.0, absolute: float = 0.0, floor: float = 0.0, ty: str = "f32") -> Callable:
    """A comparison: specials alike, else |got - want| <= relative * |want| + absolute (and a subnormal step)."""

    def compare(name: str, got: np.ndarray, want: np.ndarray, inputs: dict[str, np.ndarray]) -> np.ndarray:
        if ty.endswith("x2"):
            g, w = (values(a.view(np.uint16), ty[:-2]).reshape(-1, 2) for a in (got, want))
            return agree(g, w).all(axis=1)
        return agree(values(got, ty), values(want, ty))

    def agree(g: np.ndarray, w: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            near = np.abs(g - w) <= relative * np.abs(w) + absolute + floor
        return (np.isnan(g) & np.isnan(w)) | (g == w) | near

    return compare


def case(op: str, function: Callable, x: np.ndarray, ty: str = "f32", **bounds: float) -> Case:
    """A function of one operand; the reference is float64's, rounded to the type."""
    ftz = ".ftz" in op

    def reference(a: np.ndarray) -> np.ndarray:
        w = values(a, ty)
        result = function(flushed(w, ty) if ftz else w)
        if ty != "f64":
            result = result.astype(np.float32)
        return flushed(result, ty).astype(result.dtype) if ftz else result

    near = within(**{k: 2 * v for k, v in bounds.items()}, ty=ty)
    anywhere = op[:3] not in ("sin", "cos") and ty == "f32"  # the bounds of the others hold in a range
    inputs = {"a": (ty, x)}
    return Case(f"{op}.{ty}", f"{op}.{ty} %d, %a;", inputs, {"d": ty}, reference, compare=near, draws=anywhere)


def small(op: str, function: Callable, ty: str, relative: float, absolute: float = 0.0) -> Case:
    """f16 or bf16, or pairs: the reference rounds float64 to the type by way of f32, so half a unit more is allowed."""
    kind, wide = ty.removesuffix("x2"), ty.endswith("x2")
    low, high = (moderate16(kind, s) for s in (1, 2))
    ftz = ".ftz" in op

    def reference(a: np.ndarray) -> np.ndarray:
        codes = a.view(np.uint16)
        x = values(codes, kind)
        y = function(flushed(x, kind) if ftz else x)
        y = (flushed(y, kind) if ftz else y).astype(np.float32)
        if kind == "f16":
            out = y.astype(np.float16).view(np.uint16)
        else:
            word = y.view(np.uint32)
            out = np.where(np.isnan(y), 0x7FFF, (word + 0x7FFF + (word >> 16 & 1)) >> 16).astype(np.uint16)
        return out.view(np.uint32) if wide else out

    container = "b32" if wide else "b16"
    floor = 2.0**-24 if kind == "f16" else 2.0**-133
    near = within(2 * relative, 2 * absolute, floor, ty)
    inputs = {"a": (container, pair(low, high) if wide else low)}
    return Case(f"{op}.{ty}", f"{op}.{ty} %d, %a;", inputs, {"d": container}, reference, compare=near)


def moderate16(ty: str, seed: int) -> np.ndarray:
    return floats(ty, N, seed).view(np.uint16)


def spread(low: float, high: float, seed: int, edges: bool = True) -> np.ndarray:
    """Uniform numbers of a range, and special values among them."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(low, high, N).astype(np.float32)
    return np.where(rng.random(N) < 0.3, floats("f32", N, seed), x) if edges else x


POSITIVE = np.abs(floats("f32", N, 12))
TURN = np.float32(2 * np.pi)
NORMAL64 = np.where(np.abs(floats("f64", N, 13)) < 1e300, floats("f64", N, 13), 3.0)


def log2(x: np.ndarray) -> np.ndarray:
    return np.log2(np.where(x < 0, np.nan, x))


def rsqrt(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return 1 / np.sqrt(x)


def upper(x: np.ndarray, ty: str = "f64") -> np.ndarray:
    """A number without its lower 32 bits."""
    return (x.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)


def ratio(op: str, bound: float, largest: float) -> Case:
    """Approximate division; divisors within the range that the ISA bounds the error in."""
    a, b = floats("f32", N, 30), floats("f32", N, 31)
    size = np.abs(b)
    b = np.where((size > largest) & np.isfinite(b) | (size < TINY) & (b != 0), 3.0, b).astype(np.float32)

    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        x, y = a.astype(np.float64), b.astype(np.float64)
        if ".ftz" in op:
            x, y = flushed(x, "f32"), flushed(y, "f32")
        q = (x / y).astype(np.float32)
        return flushed(q, "f32").astype(np.float32) if ".ftz" in op else q

    return Case(f"{op}.f32", f"{op}.f32 %d, %a, %b;", {"a": ("f32", a), "b": ("f32", b)}, {"d": "f32"}, reference,
                compare=within(2 * bound, floor=2 * TINY * 2.0**-22 if ".ftz" not in op else 2 * TINY),
                draws=False)  # fmt: skip


ONE_ULP = 2.0**-23
F32_CASES = [
    case("ex2.approx", np.exp2, spread(-160, 130, 1), relative=2**-22.5, floor=2.0**-149),
    case("ex2.approx.ftz", np.exp2, spread(-160, 130, 2), relative=2**-22.5, floor=TINY / 2),
    case("lg2.approx", log2, POSITIVE, absolute=2.0**-22, relative=2.0**-22),
    case("lg2.approx.ftz", log2, spread(-1, 3, 3), absolute=2.0**-22, relative=2.0**-22),
    case("sin.approx", np.sin, spread(-TURN, TURN, 4, False), absolute=2**-20.5),
    case("cos.approx", np.cos, spread(-TURN, TURN, 5, False), absolute=2**-20.5),
    case("sin.approx.ftz", np.sin, spread(-100 * np.pi, 100 * np.pi, 6, False), absolute=2**-14.7),
    case("cos.approx.ftz", np.cos, spread(-100 * np.pi, 100 * np.pi, 7, False), absolute=2**-14.7),
    case("tanh.approx", np.tanh, spread(-12, 12, 8), relative=2.0**-11),
    case("rsqrt.approx", rsqrt, POSITIVE, relative=2**-22.9),
    case("rsqrt.approx.ftz", rsqrt, spread(-1, 9, 10), relative=2**-22.9),
    case("rcp.approx", lambda x: 1 / x, floats("f32", N, 14), relative=ONE_ULP, floor=2.0**-149),
    case("rcp.approx.ftz", lambda x: 1 / x, floats("f32", N, 15), relative=ONE_ULP, floor=TINY / 2),
    case("sqrt.approx", np.sqrt, floats("f32", N, 16), relative=ONE_ULP, floor=2.0**-149),
    case("sqrt.approx.ftz", np.sqrt, floats("f32", N, 17), relative=ONE_ULP),
]
CASES = [
    *F32_CASES,
    ratio("div.full", 2 * ONE_ULP, 2.0**126), ratio("div.full.ftz", 2 * ONE_ULP, 2.0**126),
    ratio("div.approx", 2 * ONE_ULP, 2.0**126), ratio("div.approx.ftz", 2 * ONE_ULP, 2.0**126),
    case("rcp.approx.ftz", lambda x: upper(1 / upper(x)), NORMAL64, "f64", relative=2.0**-20),
    case("rsqrt.approx.ftz", lambda x: upper(rsqrt(upper(x))), NORMAL64, "f64", relative=2.0**-20),
    case("rsqrt.approx", rsqrt, np.abs(NORMAL64), "f64", relative=2.0**-22),
    *(small("ex2.approx", np.exp2, ty, 2**-9.9) for ty in ("f16", "f16x2")),
    *(small("ex2.approx.ftz", np.exp2, ty, 2.0**-7) for ty in ("bf16", "bf16x2")),
    *(small("tanh.approx", np.tanh, ty, 2**-10.987, 2**-10.987) for ty in ("f16", "f16x2")),
    *(small("tanh.approx", np.tanh, ty, 2.0**-8, 2.0**-8) for ty in ("bf16", "bf16x2")),
]  # fmt: skip
test_cases = cases_test(CASES)


def test_results_are_within_one_unit_of_float64():
    """But for sin and cos, whose argument is rounded like the chip's."""
    for c in F32_CASES:
        if c.name[:3] in ("sin", "cos"):
            continue
        got = run(c)["d"]
        with np.errstate(all="ignore"):
            want = np.asarray(c.reference(**c.arrays()))
        tight = replace(c, compare=within(ONE_ULP, floor=2.0**-149))
        assert tight.compare("d", got, want, {}).all(), c.name


def test_sine_of_many_turns_stays_on_the_circle():
    x = np.concatenate([np.float32(2.0) ** np.arange(-149, 107), [0.0] * 64, [-0.0] * 64]).astype(np.float32)
    body = "sin.approx.f32 %s, %a; cos.approx.f32 %c, %a;"
    got = run(Case("circle", body, {"a": ("f32", x)}, {"s": "f32", "c": "f32"}))
    s, c = got["s"].astype(np.float64), got["c"].astype(np.float64)
    np.testing.assert_allclose(s * s + c * c, 1, rtol=1e-6)
    np.testing.assert_array_equal(np.signbit(got["s"][-128:]), [False] * 64 + [True] * 64)
    tiny = np.abs(x) < 1e-4
    np.testing.assert_allclose(s[tiny], x[tiny].astype(np.float64), rtol=1e-6, atol=2.0**-149)


def test_a_quotient_by_a_huge_number_is_zero():
    b = np.where(np.arange(128) % 2, 2.0**127, -(2.0**127)).astype(np.float32)
    a = np.where(np.arange(128) < 64, 2.0**100, np.inf).astype(np.float32)
    got = run(Case("div", "div.approx.f32 %d, %a, %b;", {"a": ("f32", a), "b": ("f32", b)}, {"d": "f32"}))["d"]
    assert (got[:64] == 0).all() and np.isnan(got[64:]).all()
