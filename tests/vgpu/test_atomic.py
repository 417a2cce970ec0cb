"""atom and red against numpy: every operation and type in global, shared and generic memory; contention; errors."""

from __future__ import annotations

import numpy as np

from tests.vgpu.ptx_kernels import TYPES, Case, bits, cases_test, compare, floats, ints, pair, ptx_of, run

N = 256


# ---------------------------------------------------------------- what memory holds afterwards
def _cas(old, b, c):
    return np.where(old == b, c, old)


def _flush(x):
    tiny = np.abs(x) < np.finfo(np.float32).tiny
    return np.where(tiny, np.copysign(np.float32(0), x), x)


def _half_add(a, b):
    return (a.astype(np.float32) + b.astype(np.float32)).astype(np.float16)


def _widen(a):
    return (a.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _bf16_add(a, b):
    total = (_widen(a) + _widen(b)).view(np.uint32)
    rounded = (total + 0x7FFF + (total >> 16 & 1)) >> 16
    return np.where(total & 0x7FFFFFFF > 0x7F800000, 0x7FFF, rounded).astype(np.uint16)


def _on_halves(fn, dtype):
    def run(a, b):
        return fn(a.view(dtype), b.view(dtype)).view(np.uint32)

    return run


INTEGER = {
    "add": lambda a, b: a + b,
    "min": np.minimum,
    "max": np.maximum,
    "inc": lambda a, b: np.where(a >= b, 0, a + np.uint32(1)),
    "dec": lambda a, b: np.where((a == 0) | (a > b), b, a - np.uint32(1)),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "exch": lambda a, b: b,
}
OPERATIONS = [
    (f"{op}.{ty}", ty, INTEGER[op])
    for op, types in (
        ("add", ("u32", "s32", "u64")), ("min", ("u32", "s32", "u64", "s64")), ("max", ("u32", "s32", "u64", "s64")),
        ("inc", ("u32",)), ("dec", ("u32",)), ("and", ("b32", "b64")), ("or", ("b32", "b64")), ("xor", ("b32", "b64")),
        ("exch", ("b32", "b64")),
    )
    for ty in types
]  # fmt: skip
FLOATING = [
    ("add.f32", "f32", lambda a, b: a + b),
    ("add.f64", "f64", lambda a, b: a + b),
    ("add.noftz.f16", "f16", _half_add),
    ("add.noftz.bf16", "bf16", _bf16_add),
    ("add.noftz.f16x2", "f16x2", _on_halves(_half_add, np.float16)),
    ("add.noftz.bf16x2", "bf16x2", _on_halves(_bf16_add, np.uint16)),
]


def values(ty, seed):
    if ty in ("f16x2", "bf16x2"):
        return pair(*(floats(ty[:-2], N, seed + k) for k in range(2))).view(np.uint32)
    return floats(ty, N, seed) if "f" in ty else ints(ty, N, seed)


#: how a thread's cell gets to where the atomic works and back
_PLACES = {
    "global": "mul.wide.u32 %o, %idx, {size}; add.u64 %p, %cells, %o;\n{atom} [%p]{rest};",
    "": "mul.wide.u32 %o, %idx, {size}; add.u64 %p, %cells, %o;\n{atom} [%p]{rest};",
    "shared": """
        .shared .align 16 .b8 tile[2048];
        mul.wide.u32 %o, %idx, {size}; add.u64 %p, %cells, %o; mov.u64 %q, tile; add.u64 %q, %q, %o;
        ld.global.b{bits} %t, [%p]; st.shared.b{bits} [%q], %t;
        {atom} [%q]{rest};
        ld.shared.b{bits} %t, [%q]; st.global.b{bits} [%p], %t;""",
}


def atomic_case(op, ty, fn, space, operands=1, red=False, seed=1, mods=""):
    """Every thread has a cell of its own: the result is the old value, the cell the new one."""
    old, b = values(ty, seed), values(ty, seed + 10)
    inputs = {"b": (ty, b)}
    if operands == 2:
        b[::2] = old[::2]
        inputs["c"] = (ty, values(ty, seed + 20))
    size = np.dtype(TYPES[ty][0]).itemsize
    dot = f".{space}" if space else ""
    name = f"{'red' if red else 'atom'}{mods}{dot}.{op}"
    body = f".reg .b64 %o, %p, %q; .reg .b{8 * size} %t;\n" + _PLACES[space].format(
        atom=name if red else f"{name} %d,",
        rest="".join(f", %{x}" for x in inputs),
        size=size,
        bits=8 * size,
    )

    def reference(b, cells, c=None):
        x, y = (cells, b)
        if op == "add.f32" and space != "shared":
            x, y = _flush(cells), _flush(b)
        new = fn(x, y, c) if operands == 2 else fn(x, y)
        if op == "add.f32" and space != "shared":
            new = _flush(new)
        return {"cells": new.astype(cells.dtype)} | ({} if red else {"d": cells})

    return Case(
        f"{name}", body, inputs, {} if red else {"d": ty}, reference, buffers={"cells": old}, compare=_same(ty),
        version="8.1", draws=False, block=N,
    )  # fmt: skip


def _same(ty):
    parts = {"f16x2": np.float16, "f32": np.float32, "f64": np.float64, "f16": np.float16}.get(ty)

    def compare(name, got, want, inputs):
        if ty.startswith("bf16"):
            g, w = _widen(got.view(np.uint16)), _widen(want.view(np.uint16))
        elif parts is None:
            return got == want
        else:
            g, w = got.view(parts), want.view(parts)
        agree = (np.isnan(g) & np.isnan(w)) | ((g == w) & (np.signbit(g) == np.signbit(w)))
        return agree.reshape(len(got), -1).all(axis=1)

    return compare


CELLS = [atomic_case(op, ty, fn, "global") for op, ty, fn in OPERATIONS]
CELLS += [atomic_case(op, ty, fn, space, seed=5) for space in ("global", "shared", "") for op, ty, fn in FLOATING]
_SHARED = ("add.u32", "dec.u32", "min.s64")
CELLS += [atomic_case(op, ty, fn, "shared", seed=3) for op, ty, fn in OPERATIONS if op in _SHARED]
CELLS += [
    atomic_case(f"cas.{ty}", ty, _cas, space, 2) for ty in ("b16", "b32", "b64") for space in ("global", "shared")
]
CELLS += [atomic_case(op, ty, fn, "global", red=True) for op, ty, fn in [OPERATIONS[0], OPERATIONS[4], *FLOATING[:2]]]
CELLS += [
    atomic_case(op, ty, fn, "global", mods=mods)
    for (op, ty, fn), mods in zip(OPERATIONS[1:4], (".acq_rel.gpu", ".relaxed.sys", ".release.cta"), strict=True)
]


# ---------------------------------------------------------------- vectors, 128 bits
def vector_case(vector, ty, op, fn):
    """A vector of `vector` elements a thread, each added or compared on its own."""
    size = np.dtype(TYPES[ty][0]).itemsize
    old = np.concatenate([values(ty, 30 + k) for k in range(vector)])
    inputs = {f"b{k}": (ty, values(ty, 40 + k)) for k in range(vector)}
    outs = ", ".join(f"%d{k}" for k in range(vector))
    name = f"atom.global.{op}.v{vector}.{ty}"
    body = f""".reg .b64 %o, %p;
        mul.wide.u32 %o, %idx, {size * vector}; add.u64 %p, %cells, %o;
        {name} {{{outs}}}, [%p], {{{", ".join(f"%{k}" for k in inputs)}}};"""

    def reference(cells, **b):
        columns = cells.reshape(N, vector)
        results = {f"d{k}": columns[:, k].copy() for k in range(vector)}
        flushed = _flush if ty == "f32" else lambda x: x
        new = [flushed(fn(flushed(results[f"d{k}"]), flushed(b[f"b{k}"]))) for k in range(vector)]
        return results | {"cells": np.stack(new, axis=1).reshape(-1)}

    return Case(
        name, body, inputs, {f"d{k}": ty for k in range(vector)}, reference, buffers={"cells": old}, compare=_same(ty),
        version="8.1", draws=False, block=N,
    )  # fmt: skip


def _extreme(largest):
    def fn(a, b):
        """A number wins over a NaN, +0 is more than -0."""
        order = [np.where(x.view(np.int16) < 0, x.view(np.int16) ^ 0x7FFF, x.view(np.int16)) for x in (a, b)]
        first = order[0] > order[1] if largest else order[0] < order[1]
        return np.where(np.isnan(a), b, np.where(np.isnan(b), a, np.where(first, a, b)))

    return fn


VECTORS = [
    vector_case(2, "f32", "add", lambda a, b: a + b),
    vector_case(4, "f32", "add", lambda a, b: a + b),
    vector_case(8, "f16", "add.noftz", _half_add),
    vector_case(2, "bf16x2", "add.noftz", _on_halves(_bf16_add, np.uint16)),
    vector_case(4, "f16x2", "max.noftz", _on_halves(_extreme(True), np.float16)),
    vector_case(2, "f16", "min.noftz", _extreme(False)),
]


def _wide_reference(b, c, cells):
    rows = cells.reshape(N, 2)
    hit = (rows[:, 0] == b) & (rows[:, 1] == b + 1)
    new = rows.copy()
    new[hit] = np.stack([c, c], axis=1)[hit]
    return {"d": rows[:, 0].copy(), "e": rows[:, 1].copy(), "cells": new.reshape(-1)}


_LOW = bits("b64", N, 50)
_ROWS = np.stack([_LOW, _LOW + 1], axis=1)
_ROWS[::3, 1] = 5
WIDE = [
    Case(
        "cas.b128",
        """.reg .b64 %o, %p, %h; .reg .b128 %x, %y, %z;
        mul.wide.u32 %o, %idx, 16; add.u64 %p, %cells, %o; add.u64 %h, %b, 1;
        mov.b128 %x, {%b, %h}; mov.b128 %y, {%c, %c};
        atom.global.cas.b128 %z, [%p], %x, %y;
        mov.b128 {%d, %e}, %z;""",
        {"b": ("b64", _LOW), "c": ("b64", bits("b64", N, 51))},
        {"d": "b64", "e": "b64"},
        _wide_reference,
        buffers={"cells": _ROWS.reshape(-1)},
        version="8.3",
        draws=False,
    )
]

# ---------------------------------------------------------------- contention
CONTENTION = [
    Case(
        "one counter for all",
        "atom.global.add.u32 %d, [%counter], 1;",
        {},
        {"d": "u32"},
        lambda counter: {"counter": np.array([N], np.uint32)},
        n=N,
        buffers={"counter": np.zeros(1, np.uint32)},
    ),
    Case(
        "every ticket once",
        """.reg .b64 %o, %p; .reg .b32 %t;
        atom.global.inc.u32 %t, [%counter], 0xffff;
        mul.wide.u32 %o, %t, 4; add.u64 %p, %tickets, %o; red.global.add.u32 [%p], 1;""",
        {},
        {},
        lambda counter, tickets: {"counter": np.array([N], np.uint32), "tickets": np.ones(N, np.uint32)},
        n=N,
        buffers={"counter": np.zeros(1, np.uint32), "tickets": np.zeros(N, np.uint32)},
    ),
    Case(
        "histogram in shared memory",
        """.shared .align 4 .u32 bins[8];
        .reg .b64 %o, %p; .reg .b32 %t, %k, %b; .reg .pred %q;
        mov.u32 %b, bins; mov.u32 %t, %tid.x; setp.lt.u32 %q, %t, 8;
        mad.lo.u32 %k, %t, 4, %b; @%q st.shared.u32 [%k], 0;
        bar.sync 0;
        and.b32 %k, %idx, 7; mad.lo.u32 %k, %k, 4, %b; red.shared.add.u32 [%k], %idx;
        bar.sync 0;
        mad.lo.u32 %k, %t, 4, %b; mul.wide.u32 %o, %t, 4; add.u64 %p, %sums, %o;
        @%q ld.shared.u32 %k, [%k]; @%q red.global.add.u32 [%p], %k;""",
        {},
        {},
        lambda sums: {"sums": np.array([np.arange(k, N, 8).sum() for k in range(8)], np.uint32)},
        n=N,
        buffers={"sums": np.zeros(8, np.uint32)},
    ),
    Case(
        "spin lock between warps and lanes",
        """.reg .b32 %old, %v; .reg .pred %q; .reg .b64 %cell;
        add.u64 %cell, %lock, 4;
        AGAIN:
        atom.global.acquire.gpu.cas.b32 %old, [%lock], 0, 1;
        setp.ne.u32 %q, %old, 0;
        @%q bra AGAIN;
        ld.volatile.global.u32 %v, [%cell]; add.u32 %v, %v, %idx; st.volatile.global.u32 [%cell], %v;
        atom.global.release.gpu.exch.b32 %old, [%lock], 0;""",
        {},
        {},
        lambda lock: {"lock": np.array([0, N * (N - 1) // 2], np.uint32)},
        n=N,
        buffers={"lock": np.zeros(2, np.uint32)},
    ),
]

CASES = [*CELLS, *VECTORS, *WIDE, *CONTENTION]
test_cases = cases_test(CASES)


# ---------------------------------------------------------------- errors
def test_misaligned_and_out_of_bounds():
    import pytest

    from tensorladder import vgpu
    from tensorladder.core.errors import KernelError

    for step, message in ((2, "misaligned: 4 bytes"), (4 * N, "out of bounds: 4 bytes")):
        case = Case("bad", f".reg .b64 %p; add.u64 %p, %cells, {step};\nred.global.add.u32 [%p], 1;", {}, {}, n=32)
        case = Case(case.name, case.body, {}, {}, n=32, buffers={"cells": np.zeros(N, np.uint32)})
        with pytest.raises(KernelError, match=message) as caught:
            vgpu.launch(ptx_of(case), "kernel", 1, 32, [case.buffers["cells"]])
        assert "red.global.add.u32 (PTX line" in str(caught.value)


def test_refused_by_name():
    import pytest

    from tensorladder import vgpu
    from tensorladder.core.errors import Unsupported

    case = Case(
        "refused", "multimem.red.relaxed.sys.global.add.u32 [%cells], 1;", {}, {}, n=32, version="8.1",
        buffers={"cells": np.zeros(N, np.uint32)},
    )  # fmt: skip
    with pytest.raises(Unsupported, match=r"multimem\.red"):
        vgpu.launch(ptx_of(case), "kernel", 1, 32, [case.buffers["cells"]])


# ---------------------------------------------------------------- collisions
def test_lanes_that_collide_go_one_after_the_other():
    """Any operation on few cells by one warp: old values and cells as if lane 0 came first, then lane 1, ..."""
    import pytest

    pytest.importorskip("hypothesis")
    from hypothesis import given, settings
    from hypothesis import strategies as st

    def kernel(op, ty, space):
        size = np.dtype(TYPES[ty][0]).itemsize
        at = f"mul.wide.u32 %o, %i, {size}; add.u64 %p, %cells, %o;"
        if space == "shared":
            bits_ = 8 * size
            body = f""".shared .align 8 .b8 tile[64]; .reg .b32 %t; .reg .b{bits_} %v; .reg .pred %few;
            mov.u32 %t, tile; mad.lo.u32 %t, %idx, {size}, %t; mul.wide.u32 %o, %idx, {size}; add.u64 %p, %cells, %o;
            setp.lt.u32 %few, %idx, 8; @%few ld.global.b{bits_} %v, [%p]; @%few st.shared.b{bits_} [%t], %v;
            bar.warp.sync -1;
            mov.u32 %t, tile; mad.lo.u32 %t, %i, {size}, %t; atom.shared.{op} %d, [%t], %b; bar.warp.sync -1;
            mov.u32 %t, tile; mad.lo.u32 %t, %idx, {size}, %t; @%few ld.shared.b{bits_} %v, [%t];
            @%few st.global.b{bits_} [%p], %v;"""
        else:
            body = at + f"atom.global.{op} %d, [%p], %b;"
        return ".reg .b64 %o, %p;\n" + body

    @settings(max_examples=5, database=None, deadline=None, derandomize=True)
    @given(st.lists(st.integers(0, 7), min_size=32, max_size=32), st.integers(0, 2**32 - 1))
    def holds(cells, seed):
        index = np.array(cells, np.uint32)
        for op, ty, fn in OPERATIONS + FLOATING[:3]:
            space = "shared" if seed & 1 or op == "add.f32" else "global"
            old, b = values(ty, seed % 1000)[:8].copy(), values(ty, seed % 999 + 1)[:32].copy()
            want, seen = old.copy(), np.zeros_like(b)
            for lane in range(32):
                k = slice(cells[lane], cells[lane] + 1)
                seen[lane] = want[k][0]
                with np.errstate(all="ignore"):
                    want[k] = fn(want[k], b[lane : lane + 1])
            case = Case(
                op, kernel(op, ty, space), {"i": ("u32", index), "b": (ty, b)}, {"d": ty}, buffers={"cells": old},
                compare=_same(ty), version="8.1", block=32,
            )  # fmt: skip
            compare(case, run(case), {"d": seen, "cells": want}, "one after the other")

    holds()
