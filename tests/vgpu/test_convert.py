"""cvt and cvt.pack against rationals, core.smallfloat and an H200, bit for bit."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np

from tensorladder.core import smallfloat
from tests.vgpu import exact
from tests.vgpu.ptx_kernels import TYPES, Case, cases_test, floats, ints, pair, run

N = 1024
INTS = [f"{s}{n}" for n in (8, 16, 32, 64) for s in "us"]
FLOATS = ["f16", "bf16", "f32", "f64"]
WORD = {"f16": "b16", "bf16": "b16", "f32": "b32", "f64": "b64"}
MODES = ("rn", "rz", "rm", "rp")
INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
# narrower targets need sm_90 (bf16) or sm_89 (fp8), and sm_100a has the four- and six-bit formats
HOPPER = {"version": "8.1", "target": "sm_90a"}
BLACKWELL = {"version": "8.6", "target": "sm_100a", "silicon": False}


def many(
    name: str, ty: str, x: np.ndarray, forms: dict[str, str], reference, outputs: dict[str, str], **options
) -> Case:
    """One kernel that converts %a by several opcodes: forms is result name -> opcode."""
    body = "\n".join(f"{opcode} %{n}, %a;" for n, opcode in forms.items())
    return Case(name, body, {"a": (ty, x)}, outputs, reference, **options)


# ---------------------------------------------------------------- integers
def bounds(ty: str) -> tuple[int, int]:
    info = np.iinfo(TYPES[ty][0])
    return int(info.min), int(info.max)


def between_integers(ty: str) -> Case:
    """To every type, plainly (bits are kept or the value extends) and with .sat."""
    targets = [t for t in INTS if t != ty]
    clamps = [t for t in targets if bounds(t)[0] > bounds(ty)[0] or bounds(t)[1] < bounds(ty)[1]]
    forms = {f"d_{t}": f"cvt.{t}.{ty}" for t in targets} | {f"s_{t}": f"cvt.sat.{t}.{ty}" for t in clamps}

    def reference(a: np.ndarray) -> dict[str, np.ndarray]:
        out = {}
        for t in targets:
            low, high = bounds(t)
            out[f"d_{t}"] = a.astype(TYPES[t][0])
            if t not in clamps:
                continue
            clamped = [min(max(int(v), low), high) for v in a.tolist()]
            out[f"s_{t}"] = np.array(clamped, TYPES[t][0])
        return out

    return many(f"integers of {ty}", ty, ints(ty, N, 3), forms, reference, {n: n[2:] for n in forms}, **HOPPER)


def from_integer(ty: str, to: str) -> Case:
    """Every rounding; integers of 64 bits also near ties of the target."""
    x = ints(ty, N, 4)
    if ty[1:] == "64":
        digits = exact.FORMATS[to][0]
        step = 1 << (62 - digits)
        near = (ints("u32", N, 5).astype(np.int64) % 3 - 1) + step * (
            2 * ints("u32", N, 6).astype(np.int64) % (1 << digits) + 1
        )
        x = np.where(np.arange(N) % 2 == 0, x, near.astype(x.dtype))
    forms = {m: f"cvt.{m}.{to}.{ty}" for m in MODES}

    def reference(a: np.ndarray) -> dict[str, np.ndarray]:
        numbers = [Fraction(int(v)) for v in a.tolist()]
        return {m: exact.bits(np.array([exact.round_to(q, to, m) if q else 0.0 for q in numbers]), to) for m in MODES}

    return many(f"{to} from {ty}", ty, x, forms, reference, dict.fromkeys(forms, WORD[to]), **HOPPER)


def to_integer(ty: str) -> Case:
    """Every target and rounding: clamped; NaN gives 0, or the top bit where one side has 64 bits."""
    raw = floats(ty, N, 7)
    rng = np.random.default_rng(8)
    scale = np.exp2(rng.integers(-2, 15 if ty == "f16" else 66, N))
    wide = np.sign(rng.standard_normal(N)) * (rng.integers(0, 9, N) / 8 + rng.integers(0, 3, N)) * scale
    ramp = exact.bits(wide.astype({"f16": np.float16}.get(ty, np.float32)), ty) if ty != "bf16" else (
        wide.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)  # fmt: skip
    x = np.where(rng.random(N) < 0.5, raw.view(ramp.dtype), ramp)
    targets = [t for t in INTS if ty != "bf16" or t[1:] != "8"]  # the ISA has no bf16 to 8 bits
    forms = {f"{m}_{t}": f"cvt.{m}.{t}.{ty}" for t in targets for m in INTEGRAL}

    def reference(a: np.ndarray) -> dict[str, np.ndarray]:
        v = exact.values(a, ty)
        out = {}
        for t in targets:
            low, high = bounds(t)
            nan = 1 << (int(t[1:]) - 1) if ty == "f64" or t[1:] == "64" else 0
            for m, rounded in INTEGRAL.items():
                numbers = [
                    nan if k != k else low if k < low else high if k > high else int(k) for k in rounded(v).tolist()
                ]
                out[f"{m}_{t}"] = np.array([k & ((1 << int(t[1:])) - 1) for k in numbers], f"u{int(t[1:]) // 8}")
        return out

    return many(f"integers from {ty}", WORD[ty], x, forms, reference, {n: n[4:] for n in forms}, **HOPPER)


def packs() -> Case:
    """cvt.pack: the first operand above the second."""
    types = {"u16": 16, "s16": 16, "u8": 8, "s8": 8, "u4": 4, "s4": 4, "u2": 2, "s2": 2}
    inputs = {"a": ("s32", ints("s32", N, 9)), "b": ("s32", ints("s32", N, 10) >> 20), "c": ("b32", ints("b32", N, 11))}
    body = "\n".join(
        f"cvt.pack.sat.{t}.s32{'' if n == 16 else '.b32'} %{t}, %a, %b{'' if n == 16 else ', %c'};"
        for t, n in types.items()
    )

    def reference(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> dict[str, np.ndarray]:
        out = {}
        for t, n in types.items():
            low, high = (0, (1 << n) - 1) if t[0] == "u" else (-(1 << (n - 1)), (1 << (n - 1)) - 1)
            x, y = (np.clip(v.astype(np.int64), low, high) & ((1 << n) - 1) for v in (a, b))
            out[t] = (x << n | y | (c.astype(np.int64) << 2 * n if n < 16 else 0)).astype(np.uint32)
        return out

    return Case("cvt.pack", body, inputs, dict.fromkeys(types, "b32"), reference)


# ---------------------------------------------------------------- floats
def between_floats(ty: str, to: str, suffixes: tuple[str, ...]) -> Case:
    """Rounding and modifiers, from the real number once."""
    x = ties(ty, to) if to != ty else floats(ty, N, 13)
    forms = {("d_" + s.replace(".", "_")): f"cvt{'.' + s if s else ''}.{to}.{ty}" for s in suffixes}

    def reference(a: np.ndarray) -> dict[str, np.ndarray]:
        return {n: converted(a, ty, to, opcode.split(".")[1:-2]) for n, opcode in forms.items()}

    name = f"{to} from {ty} {' '.join(suffixes)}"
    return many(name, WORD[ty], x, forms, reference, dict.fromkeys(forms, WORD[to]), **HOPPER)


def ties(ty: str, to: str) -> np.ndarray:
    """Numbers of `ty` about numbers of `to` and the middle between two of them, and any others."""
    x = floats(ty, N, 14)
    digits, wide = exact.FORMATS[to][0], exact.FORMATS[ty][0]
    if wide <= digits:
        return x.view(exact.FORMATS[ty][4])
    raw = floats(ty, N, 15).view(exact.FORMATS[ty][4])
    rng = np.random.default_rng(16)
    tail = np.array(1, raw.dtype) << np.array(wide - digits, raw.dtype)
    middle = (raw & ~(tail - 1)) | (tail >> 1)
    near = middle + rng.integers(-1, 2, N).astype(raw.dtype)
    return np.where(rng.random(N) < 0.5, near, x.view(raw.dtype))


def converted(a: np.ndarray, ty: str, to: str, mods: list[str]) -> np.ndarray:
    """Bits of a conversion with modifiers."""
    x = exact.values(a, ty)
    if "ftz" in mods and ty == "f32":
        x = exact.flushed(x, ty)
    for m in mods:
        x = INTEGRAL.get(m, lambda v: v)(x)
    mode = next((m for m in mods if m in MODES), "rn")
    if to in ("f16", "bf16"):
        flags = {k: True for k in ("sat", "relu", "satfinite") if k in mods}
        result = smallfloat.encode(x, to, mode, **flags).astype(np.uint16)
    else:
        real = x
        x = np.array([exact.round_to(Fraction(v), to, mode) if np.isfinite(v) and v else v for v in x.tolist()])
        if "ftz" in mods and to == "f32":
            tiny = [bool(np.isfinite(v)) and v != 0 and exact.tiny(Fraction(v), to, mode) for v in real.tolist()]
            x = np.where(tiny, np.copysign(0.0, x), x)
        result = exact.bits(exact.saturated(x) if "sat" in mods else x, to)
    if "sat" in mods:
        return result
    return np.where(np.isnan(exact.values(a, ty)), converted_nan(a, ty, to, mods, result), result)


def converted_nan(a: np.ndarray, ty: str, to: str, mods: list[str], canonical: np.ndarray) -> np.ndarray:
    """Where f64 or no arithmetic is concerned, an H200 keeps a NaN's sign and the upper bits of its payload."""
    if ty == "bf16" and to == "f32":
        return a.astype(np.uint32) << 16
    if "f64" not in (ty, to):
        return canonical
    word = np.ascontiguousarray(a).view(exact.FORMATS[ty][4]).astype(np.uint64)
    if "ftz" in mods and ty == "f32":
        word = np.full_like(word, 0x7FFFFFFF)
    have, want = (8 * np.dtype(exact.FORMATS[t][4]).itemsize for t in (ty, to))
    digits = {t: exact.FORMATS[t][0] - 1 for t in (ty, to)}
    sign, payload = word >> np.uint64(have - 1), word & np.uint64((1 << digits[ty]) - 1)
    payload = (payload << np.uint64(52 - digits[ty]) | np.uint64(1 << 51)) >> np.uint64(52 - digits[to])
    exponent = ((1 << (want - 1 - digits[to])) - 1) << digits[to]
    return (sign << np.uint64(want - 1) | np.uint64(exponent) | payload).astype(exact.FORMATS[to][4])


DIRECTED = tuple(f"{m}{s}" for m in MODES for s in ("", ".sat"))
SCALARS = [
    *(between_floats(ty, ty, ("rni", "rzi", "rmi", "rpi", "sat", "rni.sat")) for ty in ("f16", "f32", "f64")),
    between_floats("f32", "f32", ("ftz", "ftz.sat", "rzi.ftz")),
    between_floats("f64", "f32", (*DIRECTED, "rn.ftz", "rp.ftz.sat")),
    between_floats("f32", "f64", ("", "sat", "ftz")),
    between_floats("f16", "f32", ("", "sat")), between_floats("f16", "f64", ("",)),
    between_floats("bf16", "f32", ("",)), between_floats("bf16", "f64", ("",)),
    between_floats("f32", "f16", (*DIRECTED, "rn.ftz", "rn.relu", "rz.relu", "rn.satfinite", "rn.relu.satfinite")),
    between_floats("f64", "f16", DIRECTED),
    between_floats("f32", "bf16", ("rn", "rz", "rm", "rp", "rn.relu", "rz.relu", "rn.satfinite", "rn.relu.satfinite")),
    between_floats("f64", "bf16", MODES),
    between_floats("f16", "bf16", MODES), between_floats("bf16", "f16", MODES),
]  # fmt: skip


# ---------------------------------------------------------------- packed formats
def packed(to: str, suffix: str, options: dict) -> Case:
    """Two f32: the first to the upper element."""
    element = to.removesuffix("x2")
    inputs = {"a": ("f32", spread(element, 17)), "b": ("f32", spread(element, 18))}
    mode, *mods = suffix.split(".")
    bits = {"e2m1": 4, "f16": 16, "bf16": 16}.get(element, 8)
    container = {4: "b8", 8: "b16", 16: "b32"}[bits]

    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        high, low = (smallfloat.encode(x, element, mode, **dict.fromkeys(mods, True)) for x in (a, b))
        return (high << bits | low).astype(np.uint32)

    body = f"cvt.{suffix}.{to}.f32 %d, %a, %b;"
    if container == "b8":
        body = f".reg .b8 %n; cvt.{suffix}.{to}.f32 %n, %a, %b; cvt.u16.u8 %d, %n;"
    return Case(f"cvt.{suffix}.{to}.f32", body, inputs, {"d": container}, reference, **options)


def spread(element: str, seed: int) -> np.ndarray:
    """f32 about a format's range, with special values."""
    rng = np.random.default_rng(seed)
    if element == "ue8m0":
        return floats("f32", N, seed)
    top = smallfloat.FORMATS[element].max
    with np.errstate(over="ignore"):
        x = (rng.uniform(-1.2, 1.2, N) * top * np.exp2(-rng.integers(0, 12, N))).astype(np.float32)
    return np.where(rng.random(N) < 0.2, floats("f32", N, seed), x)


def repacked(to: str, ty: str, suffix: str, options: dict) -> Case:
    """A pair from a pair, element by element."""
    bits = {"e2m1x2": 4, "f16x2": 16, "bf16x2": 16}
    have, want = bits.get(ty, 8), bits.get(to, 8)
    mode, *mods = suffix.split(".")
    source, container = ({4: "b8", 8: "b16", 16: "b32"}[n] for n in (have, want))
    codes = {4: lambda: np.arange(N, dtype=np.uint8), 8: lambda: ints("b16", N, 19)}.get(
        have, lambda: pair(floats(ty[:-2], N, 20).view(np.uint16), floats(ty[:-2], N, 21).view(np.uint16))
    )()
    if ty[:-2] in ("e2m3", "e3m2"):
        codes &= 0x3F3F

    def reference(a: np.ndarray) -> np.ndarray:
        raw = a.astype(np.uint32)
        flags = dict.fromkeys(mods, True)
        low, high = (
            smallfloat.convert(raw >> s & ((1 << have) - 1), ty[:-2], to[:-2], mode, **flags) for s in (0, have)
        )
        return (high << want | low).astype(np.uint32)

    body = f"cvt.{suffix}.{to}.{ty} %d, %a;"
    if source == "b8":
        body = f".reg .b8 %n; cvt.u8.u16 %n, %a; cvt.{suffix}.{to}.{ty} %d, %n;"
    return Case(f"cvt.{suffix}.{to}.{ty}", body, {"a": (source, codes)}, {"d": container}, reference,
                draws=ty[:2] != "e2" and ty[:2] != "e3", **options)  # fmt: skip


def tf32(suffix: str) -> Case:
    """.rna only cuts NaNs, and .satfinite then takes one step off, as seen on an H200."""
    mode, *mods = suffix.split(".")
    x = ties("f32", "f16").view(np.float32)

    def reference(a: np.ndarray) -> np.ndarray:
        result = smallfloat.encode(a, "tf32", mode, **dict.fromkeys(mods, True))
        cut = (a.view(np.uint32) & np.uint32(0xFFFFE000)) - np.uint32(0x2000 if "satfinite" in mods else 0)
        return np.where(np.isnan(a) & (mode == "rna"), cut, result)

    options = HOPPER if mods in ([], ["relu"]) or mode == "rna" else BLACKWELL
    return Case(
        f"cvt.{suffix}.tf32", f"cvt.{suffix}.tf32.f32 %d, %a;", {"a": ("f32", x)}, {"d": "b32"}, reference, **options
    )


PACKED = [
    *(packed(to, s, HOPPER) for to in ("f16x2", "bf16x2") for s in ("rn", "rz", "rn.relu", "rz.relu", "rn.satfinite")),
    *(packed(to, f"rn.satfinite{r}", HOPPER) for to in ("e4m3x2", "e5m2x2") for r in ("", ".relu")),
    *(packed(to, f"rn.satfinite{r}", BLACKWELL) for to in ("e2m3x2", "e3m2x2", "e2m1x2") for r in ("", ".relu")),
    *(packed("ue8m0x2", s, BLACKWELL) for s in ("rz", "rp", "rz.satfinite", "rp.satfinite")),
    *(repacked(f, "f16x2", f"rn.satfinite{r}", HOPPER) for f in ("e4m3x2", "e5m2x2") for r in ("", ".relu")),
    *(repacked("f16x2", f, f"rn{r}", HOPPER) for f in ("e4m3x2", "e5m2x2") for r in ("", ".relu")),
    *(repacked("f16x2", f, "rn", BLACKWELL) for f in ("e2m3x2", "e3m2x2", "e2m1x2")),
    repacked("bf16x2", "ue8m0x2", "rn", BLACKWELL),
    repacked("ue8m0x2", "bf16x2", "rp.satfinite", BLACKWELL),
    *(tf32(s) for s in ("rna", "rn", "rz", "rn.relu", "rz.relu", "rna.satfinite", "rn.satfinite", "rz.relu.satfinite")),
]

CASES = [
    *(between_integers(ty) for ty in INTS),
    *(from_integer(ty, to) for ty in INTS for to in FLOATS if (ty[1:], to) != ("8", "bf16")),
    *(to_integer(ty) for ty in FLOATS), packs(), *SCALARS, *PACKED,
]  # fmt: skip
test_cases = cases_test(CASES)


def test_every_recorded_conversion_is_the_h200s():
    """The recording of core.smallfloat's tests, every bit of it, NaNs too."""
    recorded = np.load(Path(__file__).parents[1] / "data" / "cvt_h200.npz")
    registers = {"f32": "b32", "f16x2": "b32", "e4m3x2": "b16", "e5m2x2": "b16", "f16": "b16", "bf16": "b16",
                 "tf32": "b32", "bf16x2": "b32"}  # fmt: skip
    sources = {
        source: [k for k in recorded.files if k.startswith(source + "/")] for source in ("f32_a", "f32_b", "pairs")
    }
    for source, keys in sources.items():
        x = recorded[source].astype(np.uint32)
        padded = np.concatenate([x, np.zeros(-len(x) % 128, np.uint32)])
        lines, outputs = [".reg .f32 %three; .reg .b16 %low; mov.f32 %three, 0f40400000; cvt.u16.u32 %low, %a;"], {}
        for k, key in enumerate(keys):
            op = key.split("/")[1]
            to, ty = op.split(".")[-2:]
            operand = "%low" if registers[ty] == "b16" else "%a"
            second = ", %three" if ty == "f32" and to.endswith("x2") else ""
            lines.append(f"{op} %d{k}, {operand}{second};")
            outputs[f"d{k}"] = registers[to]
        got = run(Case(source, "\n".join(lines), {"a": ("b32", padded)}, outputs))
        for k, key in enumerate(keys):
            np.testing.assert_array_equal(got[f"d{k}"][: len(x)], recorded[key], err_msg=key)


def test_what_is_not_modelled_is_refused_by_name():
    import pytest

    from tensorladder.core.errors import Unsupported

    a = {"a": ("f32", np.zeros(128, np.float32))}
    for op in ("cvt.rs.satfinite.e4m3x4.f32 %d, {%a, %a, %a, %a}, %a;", "cvt.rs.f16x2.f32 %d, %a, %a, %a;"):
        with pytest.raises(Unsupported, match=r"cvt\.rs"):
            run(Case("refused", op, a, {"d": "b32"}, target="sm_100a", version="8.7"))
