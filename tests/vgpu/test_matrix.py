"""mma.sync, ldmatrix, stmatrix, movmatrix against numpy, with the fragment formulas of the PTX ISA."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("llvmlite")
pytest.importorskip("ml_dtypes")

from tensorladder.core import smallfloat
from tensorladder.vgpu import Device, launch
from tensorladder.vgpu.machine.tensorcore import MMAS, Mma

LANE = np.arange(32)
G, T = LANE // 4, LANE % 4
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s32": 32, "f64": 64}


def decode(codes: np.ndarray, ty: str) -> np.ndarray:
    """Bit patterns to float64 values."""
    if ty in ("s8", "u8", "s32"):
        return codes.astype({"s8": np.int8, "u8": np.uint8, "s32": np.int32}[ty]).astype(np.float64)
    if ty == "f32":
        return codes.astype(np.uint32).view(np.float32).astype(np.float64)
    if ty == "f64":
        return codes.astype(np.uint64).view(np.float64)
    if ty == "tf32":
        return (codes.astype(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)
    return smallfloat.decode(codes, ty).astype(np.float64)


def random_codes(rng: np.random.Generator, shape: tuple[int, ...], ty: str) -> np.ndarray:
    """Bit patterns of normal random values (integers: any)."""
    if ty in ("s8", "u8"):
        return rng.integers(0, 256, shape, dtype=np.uint64)
    if ty == "s32":
        return rng.integers(0, 2**32, shape, dtype=np.uint64)
    x = rng.standard_normal(shape)
    if ty == "f64":
        return x.view(np.uint64)
    if ty in ("f32", "tf32"):
        return x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return smallfloat.encode(x.astype(np.float32), ty).astype(np.uint64)


def pack(matrix: np.ndarray, bits: int, rows: list[np.ndarray], cols: list[list[np.ndarray]]) -> np.ndarray:
    """Fragment registers (register, lane) from a matrix of codes; cols[r]: columns of the elements of register r."""
    out = np.zeros((len(rows), 32), np.uint64)
    for r, row in enumerate(rows):
        for e, col in enumerate(cols[r]):
            out[r] |= matrix[row, col] << np.uint64(e * bits)
    return out


def a_places(f: Mma):
    per = max(1, 32 // BITS[f.a])
    rows, cols = [], []
    for r in range(f.registers[0]):
        half, block = r % f.halves, r // f.halves
        rows.append(G + 8 * half)
        cols.append([4 * per * block + per * T + e for e in range(per)])
    return rows, cols


def b_places(f: Mma):
    per = max(1, 32 // BITS[f.b])
    return [G] * f.registers[1], [[4 * per * r + per * T + e for e in range(per)] for r in range(f.registers[1])]


def acc_places(f: Mma, ty: str):
    if ty == "f16":
        return [G + 8 * h for h in range(f.halves)], [[2 * T, 2 * T + 1]] * f.halves
    return [G + 8 * (r // 2) for r in range(2 * f.halves)], [[2 * T + r % 2] for r in range(2 * f.halves)]


def kernel(f: Mma) -> str:
    wide = f.a == "f64"
    reg, size = ("b64", 8) if wide else ("b32", 4)
    na, nb, nc, nd = f.registers
    body = []
    at = 0
    for name, n in (("a", na), ("b", nb), ("c", nc)):
        for r in range(n):
            body.append(f"ld.global.{reg} %{name}{r}, [%in+{at * 32 * size}];")
            at += 1
    names = {
        k: "{" + ", ".join(f"%{k}{r}" for r in range(n)) + "}" for k, n in (("a", na), ("b", nb), ("c", nc), ("d", nd))
    }
    types = "f64.f64.f64.f64" if wide else f"{f.d}.{f.a}.{f.b}.{f.c}"
    sat = ".satfinite" if f.satfinite else ""
    operands = ", ".join(names[k] for k in "dabc")
    body.append(f"mma.sync.aligned.m{f.m}n{f.n}k{f.k}.row.col{sat}.{types} {operands};")
    body += [f"st.global.{reg} [%out+{r * 32 * size}], %d{r};" for r in range(nd)]
    decl = "".join(f".reg .{reg} %{k}<{n}>;\n" for k, n in (("a", na), ("b", nb), ("c", nc), ("d", nd)))
    nl = "\n"
    return f""".version 8.4
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 pin, .param .u64 pout) {{
.reg .b64 %in, %out, %t; .reg .b32 %l;
{decl}
ld.param.u64 %in, [pin]; ld.param.u64 %out, [pout];
mov.u32 %l, %laneid; mul.wide.u32 %t, %l, {size};
add.s64 %in, %in, %t; add.s64 %out, %out, %t;
{nl.join(body)}
ret; }}
"""


def run(f: Mma, seed: int, numerics: str = "f32"):
    rng = np.random.default_rng(seed)
    a, b = random_codes(rng, (f.m, f.k), f.a), random_codes(rng, (f.n, f.k), f.b)
    c = random_codes(rng, (f.m, f.n), f.c)
    word = np.uint64 if f.a == "f64" else np.uint32
    regs = np.concatenate(
        [pack(a, BITS[f.a], *a_places(f)), pack(b, BITS[f.b], *b_places(f)), pack(c, BITS[f.c], *acc_places(f, f.c))]
    ).astype(word)
    out = np.zeros((f.registers[3], 32), word)
    device = Device("sm_90a", numerics=numerics)
    launch(kernel(f), "k", 1, 32, [regs, out], device=device)
    d = np.zeros((f.m, f.n), np.uint64)
    rows, cols = acc_places(f, f.d)
    for r, row in enumerate(rows):
        for e, col in enumerate(cols[r]):
            d[row, col] = (out[r].astype(np.uint64) >> np.uint64(e * BITS[f.d])) & np.uint64(2 ** BITS[f.d] - 1)
    product = decode(a, f.a) @ decode(b, f.b).T
    return decode(d, f.d), product, decode(c, f.c), d


@pytest.mark.parametrize("f", list(MMAS.values()), ids=lambda f: f.name[7:])
def test_mma(f: Mma) -> None:
    got, product, c, codes = run(f, f.k)
    want = product + c
    if f.d == "s32":
        if f.satfinite:
            assert np.array_equal(got, np.clip(want, -(2.0**31), 2.0**31 - 1))
        else:
            assert np.array_equal(codes, want.astype(np.int64).astype(np.uint64) & np.uint64(0xFFFFFFFF))
        return
    eps = {"f16": 2.0**-10, "f32": 2.0**-21, "f64": 2.0**-50}[f.d]
    assert np.all(np.abs(got - want) <= eps * (np.abs(want) + np.sqrt(f.k) * 2))
    assert np.linalg.norm(got - want) <= eps * np.linalg.norm(want)


def test_f64_numerics_rounds_once() -> None:
    f = MMAS[(16, 8, 16, "f32", "f16", "f16", "f32", False)]
    got, product, c, _ = run(f, 3, "f64")
    assert np.array_equal(got, (product + c).astype(np.float32).astype(np.float64))


MATRIX = """.version 8.4
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 pin, .param .u64 pout) {{
.reg .b64 %in, %out, %t; .reg .b32 %l, %s, %v<4>, %x<4>;
.shared .align 16 .b8 buffer[1024];
ld.param.u64 %in, [pin]; ld.param.u64 %out, [pout];
mov.u32 %l, %laneid; mov.u32 %s, buffer;
mul.wide.u32 %t, %l, 16; add.s64 %in, %in, %t;
shl.b32 %l, %l, 4; add.u32 %s, %s, %l;
{body}
mov.u32 %l, %laneid; mul.wide.u32 %t, %l, 4; add.s64 %out, %out, %t;
{store}
ret; }}
"""


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix(count: int, trans: bool) -> None:
    regs = "{" + ", ".join(f"%v{i}" for i in range(count)) + "}"
    body = f"""ld.global.v4.b32 {{%x0, %x1, %x2, %x3}}, [%in];
st.shared.v4.b32 [%s], {{%x0, %x1, %x2, %x3}}; bar.warp.sync 0xffffffff;
ldmatrix.sync.aligned.m8n8.x{count}{".trans" if trans else ""}.shared.b16 {regs}, [%s];"""
    store = "".join(f"st.global.b32 [%out+{128 * i}], %v{i};\n" for i in range(count))
    rng = np.random.default_rng(count)
    rows = rng.integers(0, 2**16, (4, 8, 8), dtype=np.uint16)
    out = np.zeros((count, 32), np.uint32)
    launch(MATRIX.format(body=body, store=store), "k", 1, 32, [rows, out])
    m = rows[:count].transpose(0, 2, 1) if trans else rows[:count]
    want = m[:, G, 2 * T].astype(np.uint32) | m[:, G, 2 * T + 1].astype(np.uint32) << 16
    assert np.array_equal(out, want)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", [False, True])
def test_stmatrix(count: int, trans: bool) -> None:
    regs = "{" + ", ".join(f"%x{i}" for i in range(count)) + "}"
    body = f"""ld.global.v4.b32 {{%x0, %x1, %x2, %x3}}, [%in];
stmatrix.sync.aligned.m8n8.x{count}{".trans" if trans else ""}.shared.b16 [%s], {regs}; bar.warp.sync 0xffffffff;
ld.shared.v4.b32 {{%v0, %v1, %v2, %v3}}, [%s];"""
    store = "".join(f"st.global.b32 [%out+{128 * i}], %v{i};\n" for i in range(4))
    rng = np.random.default_rng(count + 10)
    fragment = rng.integers(0, 2**32, (32, 4), dtype=np.uint32)
    out = np.zeros((4, 32), np.uint32)
    launch(MATRIX.format(body=body, store=store), "k", 1, 32, [fragment, out])
    rows = np.ascontiguousarray(out.T).view(np.uint16).reshape(4, 8, 8)[:count]
    want = np.zeros((count, 8, 8), np.uint16)
    want[:, G, 2 * T] = (fragment.T[:count] & 0xFFFF).astype(np.uint16)
    want[:, G, 2 * T + 1] = (fragment.T[:count] >> 16).astype(np.uint16)
    assert np.array_equal(rows, want.transpose(0, 2, 1) if trans else want)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_of_bytes(count: int) -> None:
    regs = "{" + ", ".join(f"%x{i}" for i in range(count)) + "}"
    body = f"""ld.global.v4.b32 {{%x0, %x1, %x2, %x3}}, [%in];
stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8 [%s], {regs}; bar.warp.sync 0xffffffff;
ld.shared.v4.b32 {{%v0, %v1, %v2, %v3}}, [%s];"""
    store = "".join(f"st.global.b32 [%out+{128 * i}], %v{i};\n" for i in range(4))
    fragment = np.random.default_rng(count).integers(0, 2**32, (32, 4), dtype=np.uint32)
    out = np.zeros((4, 32), np.uint32)
    text = MATRIX.format(body=body, store=store).replace("8.4", "8.6").replace("sm_90a", "sm_100a")
    launch(text, "k", 1, 32, [fragment, out])
    rows = np.ascontiguousarray(out.T).view(np.uint8).reshape(4, 8, 16)[:count]
    want = np.zeros((count, 16, 8), np.uint8)
    for byte in range(4):
        want[:, G + 8 * (byte // 2), 2 * T + byte % 2] = (fragment.T[:count] >> (8 * byte)).astype(np.uint8)
    assert np.array_equal(rows, want.transpose(0, 2, 1))


def test_movmatrix() -> None:
    body = "ld.global.b32 %x0, [%in];\nmovmatrix.sync.aligned.m8n8.trans.b16 %v0, %x0;"
    rng = np.random.default_rng(5)
    fragment = rng.integers(0, 2**32, (32, 4), dtype=np.uint32)
    out = np.zeros((1, 32), np.uint32)
    launch(MATRIX.format(body=body, store="st.global.b32 [%out], %v0;"), "k", 1, 32, [fragment, out])
    m = np.zeros((8, 8), np.uint16)
    m[G, 2 * T], m[G, 2 * T + 1] = fragment[:, 0] & 0xFFFF, fragment[:, 0] >> 16
    turned = m.T
    assert np.array_equal(out[0], turned[G, 2 * T].astype(np.uint32) | turned[G, 2 * T + 1].astype(np.uint32) << 16)


def test_ldmatrix_misaligned_row_is_an_error() -> None:
    from tensorladder.core.errors import KernelError

    body = "add.u32 %s, %s, 4;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%v0}, [%s];"
    with pytest.raises(KernelError, match="misaligned: 16 bytes at shared address"):
        launch(MATRIX.format(body=body, store=""), "k", 1, 32, [np.zeros(128, np.uint32), np.zeros(32, np.uint32)])
