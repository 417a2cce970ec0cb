"""f16, bf16 and their pairs against rational arithmetic, bit for bit, and against an H200."""

from __future__ import annotations

import numpy as np

from tests.vgpu.exact import bits, exact, extreme, flushed, values
from tests.vgpu.ptx_kernels import Case, cases_test, floats, pair

N = 1024
COUNT = {"fma": 3, "neg": 1, "abs": 1}


def operands(ty: str, count: int, seed: int) -> list[np.ndarray]:
    """Raw bits of operands. With three of them, many sums cancel or lie on ties but for a far smaller part."""
    arrays = [floats(ty, N, seed + 10 * k).view(np.uint16) for k in range(count)]
    if count < 3:
        return arrays
    rng = np.random.default_rng([seed, 9])
    a, b = (values(x, ty) for x in arrays[:2])
    with np.errstate(all="ignore"):
        product = -a * b
        product = np.where(np.abs(product) < float(np.float16(60000)) if ty == "f16" else True, product, 0.0)
        near = (
            product.astype(np.float32).view(np.uint32) >> 16 if ty == "bf16" else product.astype(np.float16).view("u2")
        )
    arrays[0][::9], arrays[1][4::9] = 0x7FF7, 0xFFF7  # what .oob takes for zero
    if ty == "f16":  # products within a rounding of 2**-14
        count = len(a[1::9])
        arrays[0][1::9], arrays[2][1::9] = rng.integers(0x3800, 0x3C00, count), 0x8000
        factor = (2.0**-14 / values(arrays[0], ty)[1::9]).astype(np.float16).view(np.uint16)
        arrays[1][1::9] = factor - rng.integers(0, 2, count).astype(np.uint16)
    tiny = rng.integers(1, 4, N) | (rng.integers(0, 2, N) << 15)  # the smallest subnormals
    pick = rng.random(N)
    arrays[2] = np.select([pick < 0.3, pick < 0.6], [near, tiny], arrays[2]).astype(np.uint16)
    return arrays


def arithmetic(op: str, ty: str, suffixes: tuple[str, ...], seed: int = 0) -> Case:
    """All forms of an operation in one kernel; in a pair, the halves have operands of their own."""
    kind, wide = ty.removesuffix("x2"), ty.endswith("x2")
    count = COUNT.get(op, 2)
    low = operands(kind, count, seed)
    high = operands(kind, count, seed + 100) if wide else []
    container = "b32" if wide else "b16"
    arrays = [pair(x, y) for x, y in zip(low, high, strict=True)] if wide else low
    inputs = {n: (container, x) for n, x in zip("abc", arrays, strict=False)}
    names = {"d_" + s.replace(".", "_"): s for s in suffixes}
    args = ", ".join(f"%{n}" for n in inputs)
    body = "\n".join(f"{op}{'.' + s if s else ''}.{ty} %{n}, {args};" for n, s in names.items())

    def reference(**given: np.ndarray) -> dict[str, np.ndarray]:
        parts = [x.view(np.uint16).reshape(len(x), -1).T.copy() for x in given.values()]
        found = {}
        for n, s in names.items():
            columns = [expected(op, kind, s.split("."), [x[k] for x in parts]) for k in range(len(parts[0]))]
            found[n] = pair(*columns) if wide else columns[0]
        return found

    outputs = dict.fromkeys(names, container)
    return Case(f"{op}.{ty} {' '.join(suffixes)}", body, inputs, outputs, reference, version="8.1")


def expected(op: str, ty: str, mods: list[str], arrays: list[np.ndarray]) -> np.ndarray:
    """Bits of one element."""
    ftz = "ftz" in mods
    if op in ("min", "max"):
        return extreme(op, ty, *arrays, nan="NaN" in mods, absolute="abs" in mods, xorsign="xorsign" in mods, ftz=ftz)
    if op in ("neg", "abs"):
        raw = arrays[0] ^ 0x8000 if op == "neg" else arrays[0] & 0x7FFF
        x = values(raw, ty)
        return bits(flushed(x, ty) if ftz else x, ty)
    result = exact(op, ty, "rn", *arrays, ftz=ftz, sat="sat" in mods, relu="relu" in mods)
    if "oob" in mods:
        for x in arrays[:2]:
            result = np.where(x & 0x7FFF == 0x7FF7, 0, result)
    return result.astype(np.uint16)


F16, BF16 = ("", "rn", "ftz", "sat", "rn.ftz.sat"), ("", "rn")
FMA16 = ("rn", "rn.ftz", "rn.sat", "rn.ftz.sat", "rn.relu", "rn.ftz.relu")
MIN16 = ("", "ftz", "NaN", "ftz.NaN", "xorsign.abs", "NaN.xorsign.abs", "ftz.NaN.xorsign.abs")
FORMS = {
    **{op: {"f16": F16, "bf16": BF16} for op in ("add", "sub", "mul")},
    "fma": {"f16": FMA16, "bf16": ("rn", "rn.relu")},
    **{op: {"f16": MIN16, "bf16": tuple(s for s in MIN16 if "ftz" not in s)} for op in ("min", "max")},
    **{op: {"f16": ("", "ftz"), "bf16": ("",)} for op in ("neg", "abs")},
}
CASES = [
    arithmetic(op, kind + wide, forms, 3 * k)
    for k, (op, kinds) in enumerate(FORMS.items())
    for kind, forms in kinds.items()
    for wide in ("", "x2")
] + [arithmetic("fma", ty, ("rn.oob", "rn.oob.relu"), 70) for ty in ("f16", "f16x2", "bf16", "bf16x2")]
test_cases = cases_test(CASES)


def test_a_product_on_a_tie_is_decided_by_the_smallest_addend():
    """bf16: 1.0078125**2 has 15 bits; with a subnormal added, f64 cannot hold the sum and rounding to odd decides."""
    from tests.vgpu.ptx_kernels import run

    a = np.full(128, 0x3F88, np.uint16)  # 1.0625: the square is 1.12890625, half way between two bf16
    c = np.where(np.arange(128) % 2, 0x0001, 0x8001).astype(np.uint16)
    got = run(Case("fma", "fma.rn.bf16 %d, %a, %a, %c;", {"a": ("b16", a), "c": ("b16", c)}, {"d": "b16"}))["d"]
    np.testing.assert_array_equal(got, np.where(np.arange(128) % 2, 0x3F91, 0x3F90))
