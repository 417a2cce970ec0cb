"""f32, f64, f32x2 and mixed-precision arithmetic against rational arithmetic, bit for bit, and against an H200."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.vgpu.exact import bits as bits_of
from tests.vgpu.exact import exact, extreme, flushed, pass_nans, saturated, values
from tests.vgpu.ptx_kernels import Case, cases_test, floats, pair

N = 1024
WORD = {"f32": "b32", "f64": "b64", "f32x2": "b64"}
MODES = ("rn", "rz", "rm", "rp")


def operands(ty: str, count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Operands of one size about half the time, so that sums cancel and roundings are ties."""
    arrays = {}
    rng = np.random.default_rng([seed, 5])
    for k, name in enumerate("abc"[:count]):
        x = floats(ty, N, seed + 10 * k)
        coarse = (rng.integers(-64, 64, N) * np.exp2(rng.integers(-3, 3, N))).astype(x.dtype)
        arrays[name] = np.where(rng.random(N) < 0.3, coarse, x)
    if count == 3:  # c near -a*b: what only a fused operation gets right
        with np.errstate(all="ignore"):
            near = (-arrays["a"] * arrays["b"]).astype(arrays["c"].dtype)
        arrays["c"] = np.where(rng.random(N) < 0.3, near, arrays["c"])
    return arrays


def arithmetic(op: str, ty: str, suffixes: tuple[str, ...] = MODES, seed: int = 0) -> Case:
    """One kernel with all the forms of an operation in `suffixes`, such as "rz.ftz"."""
    count = {"fma": 3, "rcp": 1, "sqrt": 1}.get(op, 2)
    arrays = operands(ty, count, seed)
    names = {s.replace(".", "_") or "plain": s for s in suffixes}
    args = ", ".join(f"%{n}" for n in arrays)
    body = "\n".join(f"{op}{'.' + s if s else ''}.{ty} %{n}, {args};" for n, s in names.items())

    def reference(**inputs: np.ndarray) -> dict[str, np.ndarray]:
        out = {}
        for n, s in names.items():
            mods = s.split(".")
            mode = next((m for m in mods if m in MODES), "rn")
            out[n] = exact(op, ty, mode, *inputs.values(), ftz="ftz" in mods, sat="sat" in mods)
        return out

    name = f"{op}.{ty} {' '.join(suffixes)}"
    return Case(name, body, {n: (ty, a) for n, a in arrays.items()}, dict.fromkeys(names, WORD[ty]), reference)


def packed(op: str, suffix: str, count: int) -> Case:
    """f32x2: both halves, each with its own operands."""
    low, high = operands("f32", count, 3), operands("f32", count, 4)
    inputs = {n: ("f32x2", pair(low[n], high[n])) for n in low}
    mods = suffix.split(".")

    def reference(**_: np.ndarray) -> np.ndarray:
        halves = [exact(op, "f32", mods[0], *x.values(), ftz="ftz" in mods) for x in (low, high)]
        return pair(*halves)

    body = f"{op}.{suffix}.f32x2 %d, {', '.join('%' + n for n in inputs)};"
    return Case(f"{op}.{suffix}.f32x2", body, inputs, {"d": "b64"}, reference, silicon=False, target="sm_100a",
                version="8.6", draws=False)  # fmt: skip


def mixed(op: str, suffix: str, ty: str) -> Case:
    """Leading 16-bit operands, f32 addend and result."""
    count = 2 if op == "fma" else 1
    inputs = {n: (ty, floats(ty, N, 20 + k)) for k, n in enumerate("ab"[:count])}
    inputs["c"] = ("f32", floats("f32", N, 30))
    mods = suffix.split(".")

    def reference(**arrays: np.ndarray) -> np.ndarray:
        return exact(op, "f32", mods[0], *arrays.values(), types=(*(ty,) * count, "f32"), sat="sat" in mods)

    body = f"{op}.{suffix}.f32.{ty} %d, {', '.join('%' + n for n in inputs)};"
    return Case(f"{op}.{suffix}.f32.{ty}", body, inputs, {"d": "b32"}, reference, silicon=False, target="sm_100a",
                version="8.6")  # fmt: skip


def extremes(ty: str, suffixes: tuple[str, ...], count: int = 2) -> Case:
    """min and max with modifiers."""
    arrays = operands(ty, 2, 40) | ({"c": floats(ty, N, 60)} if count == 3 else {})
    forms = {f"{op}_{s.replace('.', '_')}": (op, s) for op in ("min", "max") for s in suffixes}
    args = ", ".join(f"%{n}" for n in arrays)
    body = "\n".join(f"{op}{'.' + s if s else ''}.{ty} %{n}, {args};" for n, (op, s) in forms.items())

    def reference(**inputs: np.ndarray) -> dict[str, np.ndarray]:
        return {
            n: extreme(op, ty, *inputs.values(), nan="NaN" in s, absolute="abs" in s, xorsign="xorsign" in s,
                       ftz="ftz" in s)
            for n, (op, s) in forms.items()
        }  # fmt: skip

    options = {} if count == 2 else {"silicon": False, "target": "sm_100a", "version": "8.8"}
    name, outputs = f"min/max.{ty} {count} operands", dict.fromkeys(forms, WORD[ty])
    return Case(name, body, {n: (ty, a) for n, a in arrays.items()}, outputs, reference, **options)


def unary(op: str, ty: str, function: Callable[[np.ndarray], np.ndarray]) -> Case:
    """neg and abs: NaN is made canonical (f32) or quiet (f64), whatever the sign."""

    def reference(a: np.ndarray) -> np.ndarray:
        result = bits_of(function(values(a, ty)), ty)
        return pass_nans(result, (a,)) if ty == "f64" else result

    x = {"a": (ty, floats(ty, N, 70))}
    return Case(f"{op}.{ty}", f"{op}.{ty} %d, %a;", x, {"d": WORD[ty]}, reference)


TESTS = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")


def classes(ty: str) -> Case:
    """testp: zero counts as normal (ISA, testp)."""
    tiny = float(np.finfo({"f32": np.float32, "f64": np.float64}[ty]).tiny)

    def reference(a: np.ndarray) -> dict[str, np.ndarray]:
        x = values(a, ty)
        finite, small = np.isfinite(x), (np.abs(x) < tiny) & (x != 0)
        return {"finite": finite, "infinite": np.isinf(x), "number": ~np.isnan(x), "notanumber": np.isnan(x),
                "normal": finite & ~small, "subnormal": small}  # fmt: skip

    body = "\n".join(f"testp.{t}.{ty} %{t}, %a;" for t in TESTS)
    return Case(f"testp.{ty}", body, {"a": (ty, floats(ty, N, 80))}, dict.fromkeys(TESTS, "pred"), reference)


def copysign(ty: str) -> Case:
    """The first operand's sign."""
    inputs = {"a": (ty, floats(ty, N, 81)), "b": (ty, floats(ty, N, 82))}
    return Case(f"copysign.{ty}", f"copysign.{ty} %d, %a, %b;", inputs, {"d": ty}, lambda a, b: np.copysign(b, a))


def immediates() -> Case:
    """Constants as operands, and negated ones."""
    body = "fma.rn.f32 %d, %a, 0fC0490FDB, 0f3F800000; add.f64 %x, %b, 0d3FF8000000000000;"
    inputs = {"a": ("f32", floats("f32", N, 83)), "b": ("f64", floats("f64", N, 84))}

    def reference(a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
        pi, one = np.full(len(a), 0xC0490FDB, np.uint32).view(np.float32), np.ones(len(a), np.float32)
        return {"d": exact("fma", "f32", "rn", a, pi, one), "x": exact("add", "f64", "rn", b, np.full(len(b), 1.5))}

    return Case("immediates", body, inputs, {"d": "b32", "x": "b64"}, reference)


def at_the_smallest_normal() -> Case:
    """Products about 2**-126 within a rounding: .ftz takes what is below with an unbounded exponent."""
    rng = np.random.default_rng(90)
    a = (1 + rng.integers(1, 2**20, N) * 2.0**-23).astype(np.float32)
    b = (1 / a.astype(np.float64)).astype(np.float32)
    a = (a * np.float32(2.0**-126)).astype(np.float32)
    b = np.where(rng.random(N) < 0.5, b, np.nextafter(b, np.float32(0)))
    b = np.where(rng.random(N) < 0.3, np.nextafter(b, np.float32(0)), b) * rng.choice(np.array([1, -1], np.float32), N)
    forms = {f"{op}_{m}": (op, m) for op in ("mul", "fma", "div") for m in MODES}
    last = {"mul": "%b", "fma": "%b, 0f80000000", "div": "%c"}
    body = "\n".join(f"{op}.{m}.ftz.f32 %{n}, %a, {last[op]};" for n, (op, m) in forms.items())
    inputs = {"a": ("f32", a), "b": ("f32", b), "c": ("f32", (1 / b).astype(np.float32))}

    def reference(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> dict[str, np.ndarray]:
        zero = np.full(len(a), -0.0, np.float32)
        args = {"mul": (a, b), "fma": (a, b, zero), "div": (a, c)}
        return {n: exact(op, "f32", m, *args[op], ftz=True) for n, (op, m) in forms.items()}

    return Case("ftz at 2**-126", body, inputs, dict.fromkeys(forms, "b32"), reference)


MORE = ("ftz", "sat", "rz.ftz", "rm.ftz", "rp.ftz.sat", "rn.ftz.sat", "rz.sat")
CASES = [
    *(arithmetic(op, ty, seed=k) for k, op in enumerate(("add", "sub", "mul", "fma", "div")) for ty in ("f32", "f64")),
    *(arithmetic(op, ty, seed=k) for k, op in enumerate(("rcp", "sqrt")) for ty in ("f32", "f64")),
    *(arithmetic(op, "f32", MORE, seed=50) for op in ("add", "sub", "mul")),
    arithmetic("fma", "f32", tuple(m for m in MORE if m[0] == "r"), seed=50),
    *(arithmetic(op, "f32", ("rn.ftz", "rz.ftz", "rm.ftz", "rp.ftz"), seed=51) for op in ("div", "rcp", "sqrt")),
    *(packed(op, s, n) for op, n in (("add", 2), ("sub", 2), ("mul", 2), ("fma", 3)) for s in ("rn", "rz.ftz")),
    *(mixed(op, s, ty) for op in ("add", "sub", "fma") for ty, s in (("bf16", "rn"), ("f16", "rp.sat"))),
    extremes("f32", ("", "ftz", "NaN", "ftz.NaN", "xorsign.abs", "NaN.xorsign.abs", "ftz.xorsign.abs")),
    extremes("f64", ("",)),
    extremes("f32", ("", "NaN", "abs", "ftz.NaN.abs"), 3),
    unary("neg", "f32", np.negative), unary("neg", "f64", np.negative), unary("abs", "f32", np.abs),
    unary("abs", "f64", np.abs), unary("neg.ftz", "f32", lambda x: flushed(-x, "f32")),
    unary("abs.ftz", "f32", lambda x: flushed(np.abs(x), "f32")),
    classes("f32"), classes("f64"), copysign("f32"), copysign("f64"), immediates(), at_the_smallest_normal(),
]  # fmt: skip
test_cases = cases_test(CASES)


def test_the_reference_saturates():
    np.testing.assert_array_equal(saturated(np.array([np.nan, -1.0, -0.0, 0.25, 7.0])), [0, 0, 0, 0.25, 1])


def test_the_rounding_mode_of_the_process_does_not_leak_in():
    """A thread that rounds upwards starts a launch: results are to nearest, and its own mode is as before."""
    import ctypes
    import platform

    import pytest

    from tests.vgpu.ptx_kernels import run

    upward = {"x86_64": 0x800, "aarch64": 0x400000}.get(platform.machine())
    if upward is None:
        pytest.skip("the host's constant for rounding upwards is not known here")
    libm = ctypes.CDLL("libm.so.6")
    a, b = operands("f32", 2, 91).values()
    a, b = (np.where(np.isfinite(x), x, 1).astype(np.float32) for x in (a, b))
    case = Case("add", "add.f32 %d, %a, %b;", {"a": ("f32", a), "b": ("f32", b)}, {"d": "b32"})
    run(case)
    libm.fesetround(upward)
    try:
        got = run(case)["d"]
        assert libm.fegetround() == upward
    finally:
        libm.fesetround(0)
    np.testing.assert_array_equal(got, exact("add", "f32", "rn", a, b))
