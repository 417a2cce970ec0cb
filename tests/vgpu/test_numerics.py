"""`numerics="exact"` against what an H200's tensor cores gave (tests/data/silicon/tensor_core_h200.npz), bit for bit.

The recording holds products of 8 x 8 tiles over one instruction's K: random operands of several exponent ranges,
subnormals, sums that overflow, infinities, NaNs and accumulators from zero to far larger than the products.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")
ml_dtypes = pytest.importorskip("ml_dtypes")

from tensorladder.core.errors import Unsupported, UsageError  # noqa: E402
from tensorladder.vgpu import Device, launch  # noqa: E402
from tensorladder.vgpu.machine.native import runtime  # noqa: E402

RECORDED = np.load(Path(__file__).parents[1] / "data/silicon/tensor_core_h200.npz")
TYPES = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip


def values(name: str, ty: str) -> np.ndarray:
    """Operand tiles as float32, (tiles, 8, K)."""
    words = RECORDED[f"{name}_{ty}"]
    rows = np.ascontiguousarray(words).view(np.uint8).reshape(-1, 32).view(TYPES[ty]).astype(np.float32)
    if ty == "tf32":
        rows = (rows.view(np.uint32) & 0xFFFFE000).view(np.float32)
    return rows.reshape(*words.shape[:2], -1)


def product(kind: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """C + A B^T of every tile by one of the runtime's functions."""
    d = c.copy()
    turned = np.ascontiguousarray(b.transpose(0, 2, 1))
    for i in range(len(d)):
        runtime().call(f"tl_gemm_{kind}", d[i].ctypes.data, d[i].strides[0], a[i].ctypes.data, *a[i].strides,
                       turned[i].ctypes.data, turned[i].strides[0], 8, 8, a.shape[2])  # fmt: skip
    return d


@pytest.mark.parametrize("ty", TYPES)
def test_wgmma_rounds_as_hopper(ty):
    kind = "exact_f8" if ty in ("e4m3", "e5m2") else "exact"
    got = product(kind, values("a", ty), values("b", ty), RECORDED[f"c_{ty}"].view(np.float32))
    assert np.array_equal(got.view(np.uint32), RECORDED[f"wgmma_{ty}"])


def test_the_plain_model_is_not_exact():
    got = product("f32", values("a", "f16"), values("b", "f16"), RECORDED["c_f16"].view(np.float32))
    assert (got.view(np.uint32) != RECORDED["wgmma_f16"]).mean() > 0.05


def test_half_sums_round_to_nearest():
    with np.errstate(over="ignore"):
        c = RECORDED["c_f16"].view(np.float32).astype(np.float16)
    got = product("exact_f16", values("a", "f16"), values("b", "f16"), c.astype(np.float32)).astype(np.float16)
    assert np.array_equal(got.view(np.uint16), RECORDED["mma_f16_f16"])


MMA = """.version 8.4
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc) {{
.reg .b64 %a, %b, %c, %t; .reg .b32 %l, %g, %q, %n, %o, %x<4>, %y<2>, %f<4>;
ld.param.u64 %a, [pa]; ld.param.u64 %b, [pb]; ld.param.u64 %c, [pc];
mov.u32 %l, %laneid; mov.u32 %n, %ctaid.x; shr.u32 %g, %l, 2; and.b32 %q, %l, 3;
mad.lo.u32 %o, %g, 32, 0; mad.lo.u32 %o, %q, 4, %o; mad.lo.u32 %o, %n, 256, %o;
mul.wide.u32 %t, %o, 1; add.s64 %a, %a, %t; add.s64 %b, %b, %t;
ld.global.b32 %x0, [%a]; ld.global.b32 %x2, [%a+16]; ld.global.b32 %y0, [%b]; ld.global.b32 %y1, [%b+16];
mov.b32 %x1, %x0; mov.b32 %x3, %x2;
mul.lo.u32 %o, %g, {row}; mad.lo.u32 %o, %q, {item}, %o; mad.lo.u32 %o, %n, {tile}, %o;
mul.wide.u32 %t, %o, 1; add.s64 %c, %c, %t;
{body}
ret; }}
"""
F32 = """ld.global.v2.b32 {{%f0, %f1}}, [%c]; mov.b32 %f2, %f0; mov.b32 %f3, %f1;
mma.sync.aligned.{shape}.row.col.f32.{ty}.{ty}.f32
{{%f0,%f1,%f2,%f3}}, {{%x0,%x1,%x2,%x3}}, {{%y0,%y1}}, {{%f0,%f1,%f2,%f3}};
st.global.v2.b32 [%c], {{%f0, %f1}};"""
F16 = """ld.global.b32 %f0, [%c]; mov.b32 %f1, %f0;
mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%f0,%f1}, {%x0,%x1,%x2,%x3}, {%y0,%y1}, {%f0,%f1};
st.global.b32 [%c], %f0;"""


@pytest.mark.parametrize("ty", TYPES)
def test_mma_rounds_as_hopper(ty):
    shape = {"tf32": "m16n8k8", "e4m3": "m16n8k32", "e5m2": "m16n8k32"}.get(ty, "m16n8k16")
    text = MMA.format(row=32, item=8, tile=256, body=F32.format(shape=shape, ty=ty))
    a, b, c = (RECORDED[f"{n}_{ty}"].copy() for n in "abc")
    launch(text, "k", len(a), 32, [a, b, c], device=Device("sm_90a", numerics="exact"))
    name = f"mma_{ty}" if f"mma_{ty}" in RECORDED else f"wgmma_{ty}"
    assert np.array_equal(c, RECORDED[name])


def test_mma_with_half_sums_rounds_as_hopper():
    with np.errstate(over="ignore"):
        c = RECORDED["c_f16"].view(np.float32).astype(np.float16)
    a, b = RECORDED["a_f16"].copy(), RECORDED["b_f16"].copy()
    text = MMA.format(row=16, item=4, tile=128, body=F16)
    launch(text, "k", len(a), 32, [a, b, c], device=Device("sm_90a", numerics="exact"))
    assert np.array_equal(c.view(np.uint16), RECORDED["mma_f16_f16"])


#: one tile a CTA; a stride of zero between the groups of eight rows gives A eight times over
WGMMA = """.version 8.4
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc) {{
.reg .b64 %a, %b, %c, %t, %da, %db; .reg .b32 %i, %n, %r, %h, %o, %s, %f<4>, %x<4>; .reg .pred %p, %z;
.shared .align 128 .b8 tiles[512];
ld.param.u64 %a, [pa]; ld.param.u64 %b, [pb]; ld.param.u64 %c, [pc];
mov.u32 %i, %tid.x; mov.u32 %n, %ctaid.x; mul.wide.u32 %t, %n, 256;
add.s64 %a, %a, %t; add.s64 %b, %b, %t; mul.wide.u32 %t, %n, {tile}; add.s64 %c, %c, %t;
mov.u32 %s, tiles; shr.u32 %r, %i, 1; and.b32 %h, %i, 1;
mad.lo.u32 %o, %h, 128, %s; mad.lo.u32 %o, %r, 16, %o;
setp.ge.u32 %p, %i, 16; @%p bra JOIN;
mul.wide.u32 %t, %i, 16; add.s64 %a, %a, %t; add.s64 %b, %b, %t;
ld.global.v4.b32 {{%x0, %x1, %x2, %x3}}, [%a]; st.shared.v4.b32 [%o], {{%x0, %x1, %x2, %x3}};
ld.global.v4.b32 {{%x0, %x1, %x2, %x3}}, [%b]; st.shared.v4.b32 [%o+256], {{%x0, %x1, %x2, %x3}};
JOIN:
fence.proxy.async; bar.sync 0;
and.b32 %s, %s, 0x3ffff; shr.u32 %s, %s, 4; cvt.u64.u32 %da, %s; or.b64 %da, %da, 0x80000; add.s64 %db, %da, 16;
and.b32 %i, %i, 31; mul.wide.u32 %t, %i, {item}; add.s64 %c, %c, %t; setp.eq.u32 %z, %i, %i;
{body}
ret; }}
"""
WGMMA_TAIL = """wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
mov.u32 %i, %tid.x; setp.ge.u32 %p, %i, 32; """
WGMMA_F32 = (
    """ld.global.v2.b32 {{%f0, %f1}}, [%c]; mov.b32 %f2, %f0; mov.b32 %f3, %f1; wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.{shape}.f32.{ty}.{ty} {{%f0,%f1,%f2,%f3}}, %da, %db, %z, 1, 1{majors};
"""
    + WGMMA_TAIL
    + "@!%p st.global.v2.b32 [%c], {{%f0, %f1}};"
)
WGMMA_F16 = (
    """ld.global.b32 %f0, [%c]; mov.b32 %f1, %f0; wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%f0,%f1}, %da, %db, %z, 1, 1, 0, 0;
"""
    + WGMMA_TAIL
    + "@!%p st.global.b32 [%c], %f0;"
)


@pytest.mark.parametrize("ty", TYPES)
def test_a_wgmma_kernel_rounds_as_hopper(ty):
    shape = {"tf32": "m64n8k8", "e4m3": "m64n8k32", "e5m2": "m64n8k32"}.get(ty, "m64n8k16")
    body = WGMMA_F32.format(shape=shape, ty=ty, majors=", 0, 0" if shape == "m64n8k16" else "")
    a, b, c = (RECORDED[f"{n}_{ty}"].copy() for n in "abc")
    launch(WGMMA.format(tile=256, item=8, body=body), "k", len(a), 128, [a, b, c],
           device=Device("sm_90a", numerics="exact"))  # fmt: skip
    assert np.array_equal(c, RECORDED[f"wgmma_{ty}"])


def test_a_wgmma_kernel_with_half_sums_rounds_as_hopper():
    with np.errstate(over="ignore"):
        c = RECORDED["c_f16"].view(np.float32).astype(np.float16)
    a, b = RECORDED["a_f16"].copy(), RECORDED["b_f16"].copy()
    launch(WGMMA.format(tile=128, item=4, body=WGMMA_F16), "k", len(a), 128, [a, b, c],
           device=Device("sm_90a", numerics="exact"))  # fmt: skip
    assert np.array_equal(c.view(np.uint16), RECORDED["mma_f16_f16"])


def test_refused_where_not_measured():
    with pytest.raises(Unsupported, match="sm_100a"):
        Device("sm_100a", numerics="exact")
    with pytest.raises(UsageError, match="f32, f64, exact"):
        Device("sm_90a", numerics="f16")
    body = F16.replace("m16n8k16", "m16n8k32").replace(".f16.f16.f16.f16", ".f16.e4m3.e4m3.f16")
    x = np.zeros(256, np.uint32)
    with pytest.raises(Unsupported, match=r"m16n8k32\.row\.col\.f16\.e4m3"):
        text = MMA.format(row=16, item=4, tile=128, body=body)
        launch(text, "k", 1, 32, [x, x, x], device=Device("sm_90a", numerics="exact"))
