"""Collectives of a warp against numpy: shfl, vote, match, redux, elect, activemask."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.vgpu.ptx_kernels import Case, bits, cases_test, compare, expected, floats, ints, run

N = 256
LANE = np.arange(N) % 32
U32 = np.uint32


def warps(x):
    """A row for each warp."""
    return np.asarray(x).reshape(-1, 32)


def per_warp(fn):
    """Apply a function of 32 lanes (it gives 32 results, or one for all) to each warp."""

    def run(**inputs):
        count = len(next(iter(inputs.values()))) // 32
        rows = [fn(*(warps(v)[w] for v in inputs.values())) for w in range(count)]
        if isinstance(rows[0], tuple):
            return tuple(np.concatenate([np.broadcast_to(r[k], 32) for r in rows]) for k in range(len(rows[0])))
        return np.concatenate([np.broadcast_to(r, 32) for r in rows])

    return run


# ---------------------------------------------------------------- shfl
def shuffle(mode, a, b, c):
    """The ISA's pseudo-code for one warp."""
    value, inside = a.copy(), np.zeros(32, bool)
    for lane in range(32):
        bval, cval, segment = int(b[lane]) & 31, int(c[lane]) & 31, int(c[lane]) >> 8 & 31
        low = lane & segment
        limit = low | (cval & ~segment)
        j = {"up": lane - bval, "down": lane + bval, "bfly": lane ^ bval, "idx": low | (bval & ~segment)}[mode]
        inside[lane] = j >= limit if mode == "up" else j <= limit
        value[lane] = a[j] if inside[lane] else a[lane]
    return value, inside


def shfl_case(name, mode, b, c, mask="-1"):
    """b and c: immediates, or arrays of an operand a lane."""
    inputs = {"a": ("b32", bits("b32", N, 3))}
    operands = []
    for letter, operand in (("b", b), ("c", c)):
        if isinstance(operand, int):
            operands.append(str(operand))
        else:
            inputs[letter] = ("b32", operand.astype(U32))
            operands.append(f"%{letter}")

    def one(a, *rest):
        rest = list(rest)
        full = [np.full(32, o) if isinstance(o, int) else rest.pop(0) for o in (b, c)]
        return shuffle(mode, a, *full)

    body = f"shfl.sync.{mode}.b32 %d|%p, %a, {operands[0]}, {operands[1]}, {mask};"
    return Case(name, body, inputs, {"d": "b32", "p": "pred"}, per_warp(one), draws=False)


def segments(width):
    """Operand c for sub-warps of `width` lanes, as __shfl_sync makes it."""
    return (32 - width) << 8


_STATIC = [("up", 1, 0), ("up", 5, segments(8)), ("up", 0, 0), ("down", 1, 31), ("down", 7, segments(16) | 31)]
_STATIC += [
    ("bfly", 16, 31),
    ("bfly", 3, segments(4) | 31),
    ("bfly", 31, 15),
    ("idx", 0, 31),
    ("idx", 37, segments(8) | 31),
]
SHFL = [shfl_case(f"shfl.{m} {b} {c}", m, b, c) for m, b, c in _STATIC]
SHFL += [
    shfl_case(f"shfl.{m} registers", m, ints("b32", N, 5), ints("b32", N, 6)) for m in ("up", "down", "bfly", "idx")
]
SHFL += [shfl_case("shfl.idx register lane", "idx", ints("b32", N, 8), 31)]


# ---------------------------------------------------------------- votes
def vote(mode):
    def one(p, m):
        members = [[k for k in range(32) if int(m[lane]) >> k & 1] for lane in range(32)]
        if mode == "ballot":
            return np.array([sum(int(p[k]) << k for k in mm) for mm in members], U32)
        fold = {"all": all, "any": any, "uni": lambda x: len({*x}) == 1}[mode]
        return np.array([fold([bool(p[k]) for k in mm]) for mm in members])

    return per_warp(one)


#: masks of tiles of a warp: every lane names its own tile
TILES = np.repeat(np.array([0xFFFFFFFF, 0xFFFF, 0xFF, 0xF, 3, 1, 0xFFFFFFFF, 0xFFFF], np.uint64), 32)
WIDTH = np.repeat([32, 16, 8, 4, 2, 1, 32, 16], 32)
TILES = (TILES << (LANE // WIDTH * WIDTH).astype(np.uint64)).astype(U32)
_SOME = np.random.default_rng(4).integers(0, 2, N).astype(bool)
_SOME[:64] = np.arange(64) < 32  # one warp all true, one all false
VOTES = []
for _mode, _ty in (("all", "pred"), ("any", "pred"), ("uni", "pred"), ("ballot", "b32")):
    VOTES.append(
        Case(
            f"vote.{_mode} tiles",
            f"vote.sync.{_mode}.{_ty} %d, %p, %m;",
            {"p": ("pred", _SOME), "m": ("b32", TILES)},
            {"d": _ty},
            vote(_mode),
            draws=False,
        )
    )
VOTES.append(
    Case(
        "vote.any negated",
        "vote.sync.any.pred %d, !%p, -1;",
        {"p": ("pred", _SOME)},
        {"d": "pred"},
        per_warp(lambda p: np.any(~p)),
        draws=False,
    )
)
VOTES.append(
    Case(
        "ballot spelled first",
        "vote.ballot.sync.b32 %d, %p, 0xffffffff;",
        {"p": ("pred", _SOME)},
        {"d": "b32"},
        per_warp(lambda p: U32(sum(int(x) << k for k, x in enumerate(p)))),
        silicon=False,
        draws=False,
    )
)
MASKS = [
    Case("activemask", "activemask.b32 %d;", {}, {"d": "b32"}, lambda: np.full(N, 0xFFFFFFFF, U32), n=N),
    Case(
        "elect",
        "elect.sync %d|%p, %m;",
        {"m": ("b32", TILES)},
        {"d": "b32", "p": "pred"},
        per_warp(
            lambda m: (
                np.array([(int(x) & -int(x)).bit_length() - 1 for x in m], U32),
                np.array([int(x) & -int(x) == 1 << k for k, x in enumerate(m)]),
            )
        ),
        draws=False,
    ),
    Case(
        "elect without lane",
        "elect.sync _|%p, -1;",
        {},
        {"p": "pred"},
        lambda: LANE == 0,
        n=N,
    ),
]


# ---------------------------------------------------------------- match and redux
def match(every):
    def one(a, m):
        found, same = np.zeros(32, U32), np.zeros(32, bool)
        for lane in range(32):
            members = [k for k in range(32) if int(m[lane]) >> k & 1]
            equal = sum(1 << k for k in members if a[k] == a[lane])
            same[lane] = equal == int(m[lane])
            found[lane] = equal if same[lane] or not every else 0
        return (found, same) if every else found

    return per_warp(one)


MATCH = []
for _ty in ("b32", "b64"):
    _few = (np.random.default_rng(9).integers(0, 3, N) * (1 << (40 if _ty == "b64" else 20))).astype(
        f"u{int(_ty[1:]) // 8}"
    )
    _few[192:224] = 7
    for _how in ("any", "all"):
        _dest = "%d" if _how == "any" else "%d|%p"
        MATCH.append(
            Case(
                f"match.{_how} {_ty}",
                f"match.{_how}.sync.{_ty} {_dest}, %a, %m;",
                {"a": (_ty, _few), "m": ("b32", TILES)},
                {"d": "b32"} | ({"p": "pred"} if _how == "all" else {}),
                match(_how == "all"),
                draws=False,
            )
        )

_FOLD = {
    "add": lambda x: x.sum(dtype=x.dtype), "min": np.min, "max": np.max, "and": np.bitwise_and.reduce,
    "or": np.bitwise_or.reduce, "xor": np.bitwise_xor.reduce,
}  # fmt: skip


def over_members(fold):
    """fold(values of the members) for each lane."""

    def one(a, m):
        return np.array([fold(a[[k for k in range(32) if int(x) >> k & 1]]) for x in m])

    return per_warp(one)


def float_extreme(largest, nan):
    def fold(x):
        kept = x[~np.isnan(x)]
        if len(kept) == 0 or (nan and len(kept) < len(x)):
            return np.float32(np.nan)
        order = np.where(kept.view(np.int32) < 0, kept.view(np.int32) ^ 0x7FFFFFFF, kept.view(np.int32))
        return kept[np.argmax(order) if largest else np.argmin(order)]

    return fold


REDUX = []
for _op, _ty in [("add", "u32"), ("add", "s32"), ("min", "u32"), ("max", "u32"), ("min", "s32"), ("max", "s32"),
                 ("and", "b32"), ("or", "b32"), ("xor", "b32")]:  # fmt: skip
    _a = (_ty, ints(_ty, N, 12))
    _whole = per_warp(lambda a, f=_FOLD[_op]: f(a))
    _body = f"redux.sync.{_op}.{_ty} %d, %a,"
    REDUX.append(Case(f"redux.{_op}.{_ty}", f"{_body} -1;", {"a": _a}, {"d": _ty}, _whole, draws=False))
    REDUX.append(
        Case(
            f"redux.{_op}.{_ty} tiles",
            f"{_body} %m;",
            {"a": _a, "m": ("b32", TILES)},
            {"d": _ty},
            over_members(_FOLD[_op]),
            draws=False,
        )
    )
for _op in ("min", "max"):
    for _mods in ("", ".abs", ".NaN", ".abs.NaN"):
        _fold = float_extreme(_op == "max", "NaN" in _mods)
        REDUX.append(
            Case(
                f"redux.{_op}{_mods}.f32",
                f"redux.sync.{_op}{_mods}.f32 %d, %a, %m;",
                {"a": ("f32", floats("f32", N, 13)), "m": ("b32", TILES)},
                {"d": "f32"},
                over_members((lambda x, f=_fold: f(np.abs(x))) if "abs" in _mods else _fold),
                version="8.6",
                target="sm_100a",
                silicon=False,
                draws=False,
            )
        )

CASES = [*SHFL, *VOTES, *MASKS, *MATCH, *REDUX]
test_cases = cases_test(CASES)


# ---------------------------------------------------------------- any values, any parts of a warp
def _parts(labels):
    """Masks of the lanes with a lane's own label."""
    labels = np.asarray(labels)
    return np.array([sum(1 << k for k in range(32) if labels[k] == x) for x in labels], U32)


def _apart(case):
    """The same collective in three branches, chosen by the lowest lane of the part: parts run at different PCs."""
    last = case.body.rstrip()
    return replace(
        case,
        body=f""".reg .b32 %low, %k; .reg .pred %b1, %b2;
        brev.b32 %low, %m; clz.b32 %low, %low; rem.u32 %k, %low, 3;
        setp.eq.u32 %b1, %k, 1; setp.eq.u32 %b2, %k, 2;
        @%b1 bra ONE; @%b2 bra TWO;
        {last}
        bra OUT;
        ONE: {last}
        bra OUT;
        TWO: {last}
        OUT:""",
    )


def test_any_parts_of_a_warp_together_and_apart():
    import pytest

    pytest.importorskip("hypothesis")
    from hypothesis import given
    from hypothesis import settings as limits
    from hypothesis import strategies as st

    tiled = [case for case in CASES if "m" in case.inputs]
    assert len(tiled) > 20
    both = [(case, _apart(case)) for case in tiled]

    @limits(max_examples=6, database=None, deadline=None, derandomize=True)
    @given(st.lists(st.integers(0, 3), min_size=32, max_size=32), st.integers(0, 2**32 - 1))
    def holds(labels, seed):
        masks = _parts(labels)
        rng = np.random.default_rng(seed)
        for pair in both:
            arrays = {"m": masks}
            for name, (_, old) in pair[0].inputs.items():
                if name != "m":
                    few = rng.choice(old, 3)  # equal values are what match looks for
                    arrays[name] = np.where(rng.integers(0, 2, 32) == 1, rng.choice(few, 32), rng.choice(old, 32))
            for case in pair:
                small = replace(case.with_inputs(**arrays), block=32, n=0)
                compare(small, run(small), expected(small), "reference")

    holds()


def test_any_shuffle():
    import pytest

    pytest.importorskip("hypothesis")
    from hypothesis import given
    from hypothesis import settings as limits
    from hypothesis import strategies as st

    lanes = st.lists(st.integers(0, 63), min_size=32, max_size=32)
    clamps = st.lists(st.integers(0, 0x1FFF), min_size=1, max_size=32)

    @limits(max_examples=30, database=None, deadline=None, derandomize=True)
    @given(lanes, clamps)
    def holds(b, c):
        for case in SHFL:
            if {"b", "c"} <= set(case.inputs):
                small = case.with_inputs(a=bits("b32", 32, 1), b=np.array(b, U32), c=np.array((c * 32)[:32], U32))
                small = replace(small, block=32, n=0)
                compare(small, run(small), expected(small), "reference")

    holds()
