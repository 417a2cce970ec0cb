"""setp, set, selp and slct against numpy."""

from __future__ import annotations

import numpy as np

from tests.vgpu.ptx_kernels import Case, cases_test, floats, halves, ints, pair

N = 512
SIGNED, UNSIGNED = ("s16", "s32", "s64"), ("u16", "u32", "u64")
FLOATS = ("f16", "bf16", "f32", "f64")
ORDER = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
BOOL = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def near(ty: str, seed: int, like: np.ndarray | None = None) -> np.ndarray:
    """Values of a type, a third of them equal to those of `like`."""
    base = ty[:-2] if ty.endswith("x2") else ty
    draw = floats if base in FLOATS else ints
    values = pair(draw(base, N, seed), draw(base, N, seed + 40)) if ty.endswith("x2") else draw(base, N, seed)
    if like is None:
        return values
    return np.where(np.random.default_rng(seed).integers(0, 3, N) == 0, like, values)


def two(ty: str) -> dict:
    a = near(ty, 1)
    return {"a": (ty, a), "b": (ty, near(ty, 2, a))}


def number(a: np.ndarray, ty: str, ftz: bool = False) -> np.ndarray:
    """Operands as numpy compares them."""
    if ty == "bf16":
        a = (a.astype(np.uint32) << 16).view(np.float32)
    if ftz:
        a = np.where(np.abs(a) < np.finfo(a.dtype).tiny, np.copysign(np.zeros_like(a), a), a)
    return a


def compared(how: str, a: np.ndarray, b: np.ndarray, ty: str, ftz: bool = False) -> np.ndarray:
    a, b = number(a, ty, ftz), number(b, ty, ftz)
    if ty not in FLOATS:
        return ORDER[NAMES.get(how, how)](a, b)
    unordered = np.isnan(a) | np.isnan(b)
    if how in ("num", "nan"):
        return unordered if how == "nan" else ~unordered
    if how.endswith("u"):
        return ORDER[how[:-1]](a, b) | unordered
    return ORDER[how](a, b) & ~unordered


ORDERED = tuple(ORDER)
UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
COMPARISONS = (
    [(ty, ORDERED) for ty in SIGNED]
    + [(ty, (*ORDERED, *NAMES)) for ty in UNSIGNED]
    + [(ty, ("eq", "ne")) for ty in ("b16", "b32", "b64")]
    + [(ty, (*ORDERED, *UNORDERED)) for ty in FLOATS]
)


def setp_cases() -> list[Case]:
    """All comparisons of a type in one kernel; with a predicate and two results in another."""
    cases = []
    for ty, how in COMPARISONS:
        for ftz in ("", ".ftz") if ty in ("f16", "f32") else ("",):
            body = "\n".join(f"setp.{h}{ftz}.{ty} %{h}_, %a, %b;" for h in how)

            def reference(a, b, ty=ty, how=how, ftz=bool(ftz)):
                return {f"{h}_": compared(h, a, b, ty, ftz) for h in how}

            cases.append(Case(f"setp{ftz}.{ty}", body, two(ty), {f"{h}_": "pred" for h in how}, reference))
        half = ty in ("f16", "bf16")  # these have one result
        body = "".join(
            f"setp.{how[-1]}.{op}.{ty} %{op}_p{'' if half else f'|%{op}_q'}, %a, %b, {'!' if op == 'or' else ''}%c;\n"
            for op in BOOL
        )

        def joined(a, b, c, ty=ty, h=how[-1], half=half):
            t = compared(h, a, b, ty)
            found = {}
            for op, fn in BOOL.items():
                other = c == 0 if op == "or" else c != 0
                found |= {f"{op}_p": fn(t, other)} | ({} if half else {f"{op}_q": fn(~t, other)})
            return found

        outs = {f"{op}_{x}": "pred" for op in BOOL for x in ("p" if half else "pq")}
        inputs = two(ty) | {"c": ("pred", ints("u32", N, 8) & 1)}
        cases.append(Case(f"setp with a predicate.{ty}", body, inputs, outs, joined))
    return cases


def packed(word: np.ndarray, ty: str) -> tuple[np.ndarray, np.ndarray]:
    return halves(word, np.float16 if ty == "f16x2" else np.uint16)


def packed_cases() -> list[Case]:
    cases = []
    for ty in ("f16x2", "bf16x2"):
        base = ty[:-2]
        how = ("lt", "neu", "nan")
        body = "\n".join(f"setp.{h}.{ty} %{h}_p|%{h}_q, %a, %b;" for h in how)
        body += f"\nsetp.gt.and.{ty} %and_p|%and_q, %a, %b, %c;"

        def reference(a, b, c, ty=ty, base=base, how=how):
            parts = list(zip(packed(a, ty), packed(b, ty)))
            found = {f"{h}_{x}": compared(h, l, r, base) for h in how for x, (l, r) in zip("pq", parts)}
            return found | {f"and_{x}": compared("gt", l, r, base) & (c != 0) for x, (l, r) in zip("pq", parts)}

        outs = {f"{h}_{x}": "pred" for h in (*how, "and") for x in "pq"}
        inputs = two(ty) | {"c": ("pred", ints("u32", N, 8) & 1)}
        cases.append(Case(f"setp.{ty}", body, inputs, outs, reference))
        for to in (ty, "u32"):

            def set_reference(a, b, ty=ty, base=base, to=to):
                one = {"f16x2": 0x3C00, "bf16x2": 0x3F80, "u32": 0xFFFF}[to]
                low, high = (compared("le", l, r, base) for l, r in zip(packed(a, ty), packed(b, ty)))
                return low.astype(np.uint32) * np.uint32(one) | high.astype(np.uint32) * np.uint32(one << 16)

            op = f"set.le.{to}.{ty}"
            cases.append(Case(op, f"{op} %d, %a, %b;", two(ty), {"d": "b32"}, set_reference))
    return cases


ONE = {"f32": np.float32(1), "f16": np.float16(1), "bf16": np.uint16(0x3F80), "u16": np.uint16(0xFFFF)}


def set_cases() -> list[Case]:
    cases = []
    forms = [(to, ty) for to in ("u32", "s32", "f32") for ty in ("u16", "s32", "b64", "f32", "f64")]
    forms += [(to, ty) for ty in ("f16", "bf16") for to in ("u16", "s16", "u32", "s32", ty)]
    forms += [("f16", "s32"), ("f16", "f32"), ("bf16", "f32")]
    for to, ty in forms:
        how = "ne" if ty[0] == "b" and ty != "bf16" else "ltu" if ty in FLOATS else "lt"

        def reference(a, b, c, to=to, ty=ty, how=how):
            one = ONE.get(to, np.uint32(0xFFFFFFFF)) if to != "s16" else ONE["u16"]
            t = compared(how, a, b, ty)
            return tuple(np.where(x, one, one.dtype.type(0)) for x in (t, t & (c != 0)))

        body = f"set.{how}.{to}.{ty} %d, %a, %b; set.{how}.and.{to}.{ty} %e, %a, %b, %c;"
        inputs = two(ty) | {"c": ("pred", ints("u32", N, 8) & 1)}
        cases.append(Case(f"set.{to}.{ty}", body, inputs, {"d": to, "e": to}, reference, version="8.1"))
    return cases


def select_cases() -> list[Case]:
    cases = []
    for ty in (*SIGNED, *UNSIGNED, "b16", "b32", "b64", "f32", "f64"):
        inputs = two(ty) | {"c": ("pred", ints("u32", N, 8) & 1)}
        cases.append(
            Case(f"selp.{ty}", f"selp.{ty} %d, %a, %b, %c;", inputs, {"d": ty}, lambda a, b, c: pick(c != 0, a, b))
        )
        inputs = two(ty) | {"c": ("s32", ints("s32", N, 8))}
        op = f"slct.{ty}.s32"
        cases.append(Case(op, f"{op} %d, %a, %b, %c;", inputs, {"d": ty}, lambda a, b, c: pick(c >= 0, a, b)))
    for ftz in ("", ".ftz"):

        def reference(a, b, c, ftz=bool(ftz)):
            return pick(number(c, "f32", ftz) >= 0, a, b)

        inputs = two("b32") | {"c": ("f32", floats("f32", N, 8))}
        op = f"slct{ftz}.b32.f32"
        cases.append(Case(op, f"{op} %d, %a, %b, %c;", inputs, {"d": "b32"}, reference))
    return cases


def pick(chosen: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """np.where that keeps NaNs' bits."""
    return np.where(chosen, a.view(f"u{a.dtype.itemsize}"), b.view(f"u{a.dtype.itemsize}")).view(a.dtype)


CASES = setp_cases() + packed_cases() + set_cases() + select_cases()
test_cases = cases_test(CASES)
