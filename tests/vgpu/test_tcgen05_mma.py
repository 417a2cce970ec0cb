"""tcgen05.mma: every kind, type, shape and layout against numpy; what descriptors may not say; every policy."""

from __future__ import annotations

import numpy as np
import pytest

from tensorladder.core import smallfloat
from tests.vgpu import mma_kernels as K
from tests.vgpu.mma_kernels import ATOM32, NONE, SW32, SW64, SW128, Job, Tile, codes, idesc, mma, numbers

SIZE = 64 * 1024
KIND_OF = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "e4m3": "f8f6f4", "e5m2": "f8f6f4", "e2m3": "f8f6f4",
           "e3m2": "f8f6f4", "e2m1": "f8f6f4", "s8": "i8", "u8": "i8"}  # fmt: skip


def lanes_of(m: int) -> np.ndarray:
    """Lanes of D's rows of one CTA (not pairs of M = 128)."""
    rows = np.arange(m)
    return 32 * (rows // 16) + rows % 16 if m == 64 else rows


def d_numbers(words: np.ndarray, d: str) -> np.ndarray:
    """Words of tensor memory as numbers."""
    if d == "f16":
        return words.astype(np.uint16).view(np.float16).astype(np.float64)
    return np.ascontiguousarray(words).view(np.int32 if d == "s32" else np.float32).astype(np.float64)


def d_words(values: np.ndarray, d: str) -> np.ndarray:
    """Numbers as words of tensor memory."""
    if d == "f16":
        return values.astype(np.float16).view(np.uint16).astype(np.uint32)
    return values.astype(np.int32 if d == "s32" else np.float32).view(np.uint32)


def default_tile(ty: str, rows: int, swizzle: str, transposed: bool, start: int) -> Tile:
    """A dense tile of this layout."""
    size = K.BITS[ty] // 8
    if not transposed:
        if swizzle == NONE:
            return Tile(NONE, False, start, lbo=16 * rows, sbo=128)
        return Tile(swizzle, False, start, lbo=0, sbo=8 * K.SPANS[swizzle])
    if swizzle == NONE:
        return Tile(NONE, True, start, lbo=16 * 8 * (-(-rows * size // 16)), sbo=128)
    span = K.SPANS[swizzle]
    group = 4 if swizzle == ATOM32 else 8
    lbo = group * span
    return Tile(swizzle, True, start, lbo=lbo, sbo=lbo * -(-rows * size // span))


class Case:
    """One CTA, one instruction: operands, their bytes, and the matrix that comes out."""

    def __init__(self, seed, a="f16", b=None, m=128, n=32, d="f32", sa=SW128, sb=SW128, ta=False, tb=False,
                 accumulate=True, at=0, lane=0, a_tmem=False, **flags):  # fmt: skip
        b = b or a
        rng = np.random.default_rng(seed)
        self.m, self.n, self.d, self.at, self.lane = m, n, d, at, lane
        k = K.DEPTH[a]
        self.va, self.vb = numbers(rng, a, m, k), numbers(rng, b, n, k)
        image = rng.integers(0, 256, SIZE).astype(np.uint8)
        self.tile_a = default_tile(a, m, sa, ta, 0)
        self.tile_b = default_tile(b, n, sb, tb, SIZE // 2)
        self.words = rng.integers(0, 1 << 32, (K.LANES, K.COLUMNS), dtype=np.uint32)
        self.start = numbers(rng, "s8" if d == "s32" else "f16", m, n) + 0.0
        rows = lanes_of(m) + lane
        self.words[rows, at : at + n] = d_words(self.start, d)
        where: int | str = self.tile_a.descriptor
        if a_tmem:
            where = f"tmem:{(lane << 16) + 480:#x}"
            self.words[rows, 480:488] = tmem_rows(codes(self.va, a), a)
        else:
            self.tile_a.place(image, codes(self.va, a), a)
        self.tile_b.place(image, codes(self.vb, b), b)
        self.sum = self.va @ self.vb.T
        self.want = self.sum + (self.start if accumulate else 0)
        options = {key: flags.pop(key) for key in ("masks", "scale_d", "more") if key in flags}
        descriptor = idesc(a, b, m, n, d, ta=ta, tb=tb, **flags)
        line = mma(KIND_OF[a], (lane << 16) + at, where, self.tile_b.descriptor, descriptor, accumulate, **options)
        self.job = Job([image], [line], [self.words])

    def expected(self) -> np.ndarray:
        words = self.words.copy()
        words[lanes_of(self.m) + self.lane, self.at : self.at + self.n] = d_words(self.want, self.d)
        return words

    def check(self, policy="eager", **options):
        got = K.run(self.job, policy, **options)[0]
        np.testing.assert_array_equal(got, self.expected())


def tmem_rows(values: np.ndarray, ty: str) -> np.ndarray:
    """Rows of A as 8 words of tensor memory: narrow floats in a byte each, E2M1 in its middle bits."""
    if ty in ("e2m3", "e3m2", "e2m1"):
        values = values << 2 if ty == "e2m1" else values
        return values.astype(np.uint8).view(np.uint32)
    return K.packed(values, ty).view(np.uint32)


@pytest.mark.parametrize("policy", K.POLICIES)
def test_f16(policy):
    Case(1, n=256).check(policy)


@pytest.mark.parametrize("n", [8, 24, 64, 136, 248])
@pytest.mark.parametrize("m", [64, 128])
def test_shapes(m, n):
    Case(n, m=m, n=n, at=32).check()


def test_m64_upper_lanes():
    Case(3, m=64, n=40, at=8, lane=16).check()


@pytest.mark.parametrize("ty", ["f16", "bf16", "tf32", "e4m3", "s8", "u8"])
@pytest.mark.parametrize("swizzle", [NONE, SW32, SW64, SW128, ATOM32])
def test_layouts(ty, swizzle):
    """K-major and MN-major of either matrix, where the ISA has them."""
    d = "s32" if ty in ("s8", "u8") else "f32"
    Case(5, ty, m=128, n=48, d=d, sa=swizzle, sb=swizzle).check()
    if (swizzle == ATOM32) == (ty == "tf32"):
        Case(6, ty, m=128, n=48, d=d, sa=swizzle, sb=SW128, ta=True).check()
        Case(7, ty, m=64, n=48, d=d, sa=SW32, sb=swizzle, tb=True).check()


@pytest.mark.parametrize("a", ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"])
@pytest.mark.parametrize("b", ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"])
def test_narrow_mixes(a, b):
    Case(11, a, b, n=32).check()


@pytest.mark.parametrize("ty", ["f16", "tf32", "e4m3", "e2m3", "e3m2", "e2m1", "s8"])
@pytest.mark.parametrize("m", [64, 128])
def test_a_in_tensor_memory(ty, m):
    Case(13, ty, m=m, n=64, d="s32" if ty == "s8" else "f32", a_tmem=True, lane=16 if m == 64 else 0).check()


@pytest.mark.parametrize("flags", [{"na": True}, {"nb": True}, {"na": True, "nb": True}])
def test_negation(flags):
    case = Case(17, **flags)
    case.want = case.start + case.sum * (-1) ** len(flags)
    case.check()


def test_f16_sums():
    """D of 16 bits: low halves of words; the upper halves are cleared."""
    Case(19, d="f16", n=64).check()
    Case(20, "e4m3", "e2m1", d="f16", m=64, n=64).check()


def test_replaces_d():
    Case(21, accumulate=False).check()
    Case(22, "s8", d="s32", accumulate=False).check()


def test_scale_input_d():
    case = Case(23, scale_d=3, masks=[0, 0, 0, 0])
    case.want = case.start / 8 + case.sum
    case.check()


@pytest.mark.parametrize("m", [64, 128])
def test_disabled_lanes(m):
    masks = [0x80000001, 0, 0xFFFFFFFF, 0x00FF00FF]
    case = Case(27, m=m, masks=masks)
    rows = lanes_of(m)
    off = np.array([masks[lane // 32] >> (lane % 32) & 1 for lane in rows], bool)
    case.want[off] = case.start[off]
    case.check()


def test_saturation():
    for saturate in (False, True):
        case = Case(29, "u8", "u8", d="s32", saturate=saturate)
        near = np.random.default_rng(1).integers(2**31 - 3 * 10**6, 2**31, case.start.shape)
        case.words[: case.m, : case.n] = near.astype(np.int32).view(np.uint32)
        total = near + case.sum.astype(np.int64)
        case.want = np.minimum(total, 2**31 - 1) if saturate else (total + 2**31) % 2**32 - 2**31
        case.check()


def test_collector_hints():
    for use in ("fill", "use", "lastuse", "discard"):
        Case(31, more=f".collector::a::{use}").check()


def test_every_code():
    """Each code of a narrow type, times one, is its value."""
    for ty in ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1"):
        count = 1 << K.BITS[ty]
        every = np.resize(np.arange(count, dtype=np.uint32), (128, 32))
        image = np.zeros(SIZE, np.uint8)
        a, b = default_tile(ty, 128, SW128, False, 0), default_tile("e4m3", 32, SW128, False, SIZE // 2)
        a.place(image, every, ty)
        b.place(image, codes(np.eye(32), "e4m3"), "e4m3")
        line = mma("f8f6f4", 0, a.descriptor, b.descriptor, idesc(ty, "e4m3", 128, 32))
        got = K.run(Job([image], [line]))[0][:, :32].view(np.float32)
        want = smallfloat.decode(every, ty).astype(np.float32)
        # a NaN or infinity in a row makes all of the row's sums NaN
        odd = ~np.isfinite(want).all(axis=1)
        np.testing.assert_array_equal(got[~odd], want[~odd])
        assert np.isnan(got[odd]).sum() >= 31 * odd.sum()


def test_rounding_in_order_of_k():
    """Sums in f32, one fused multiply-add an element, so that instructions over K give the bits of one over all."""
    rng = np.random.default_rng(37)
    values_a, values_b = rng.normal(size=(128, 64)), rng.normal(size=(64, 64))
    ca, cb = codes(values_a, "f16"), codes(values_b, "f16")
    image = np.zeros(SIZE, np.uint8)
    lines = []
    for step in range(4):
        a, b = Tile(start=32 * step), Tile(start=SIZE // 2 + 32 * step)
        a.place(image, ca[:, 16 * step : 16 * step + 16], "f16")
        b.place(image, cb[:, 16 * step : 16 * step + 16], "f16")
        lines.append(mma("f16", 64, a.descriptor, b.descriptor, idesc("f16", "f16", 128, 64), step > 0))
    exact_a, exact_b = smallfloat.decode(ca, "f16"), smallfloat.decode(cb, "f16")
    total = np.zeros((128, 64), np.float32)
    for k in range(64):
        total = (total + np.outer(exact_a[:, k], exact_b[:, k])).astype(np.float32)
    outs = [K.run(Job([image], lines), policy)[0][:, 64:128] for policy in K.POLICIES]
    got = outs[0].view(np.float32)
    assert all(np.array_equal(o, outs[0]) for o in outs)
    assert (got == total).mean() > 0.999  # numpy rounds twice
    np.testing.assert_allclose(got, exact_a @ exact_b.T, rtol=1e-4, atol=1e-5)


def test_base_offset():
    """A tile whose swizzle pattern does not begin at a multiple of its period."""
    for swizzle in (SW128, SW64, SW32):
        case = Case(41)
        image = case.job.images[0]
        for tile, values in ((Tile(swizzle, start=3 * 128, sbo=1024, base=3), case.va),
                             (Tile(swizzle, start=SIZE // 2 + 128, sbo=1024, base=1), case.vb)):  # fmt: skip
            tile.place(image, codes(values, "f16"), "f16")
        a, b = Tile(swizzle, start=3 * 128, sbo=1024, base=3), Tile(swizzle, start=SIZE // 2 + 128, sbo=1024, base=1)
        case.job.lines = [mma("f16", 0, a.descriptor, b.descriptor, idesc("f16", "f16", 128, 32), True)]
        case.check()


def test_one_rounding_with_f64_numerics():
    from tensorladder import vgpu

    case = Case(43, n=64)
    rng = np.random.default_rng(43)
    ca, cb = codes(rng.normal(size=(128, 16)), "f16"), codes(rng.normal(size=(64, 16)), "f16")
    case.tile_a.place(case.job.images[0], ca, "f16")
    case.tile_b.place(case.job.images[0], cb, "f16")
    got = K.run(case.job, device=vgpu.Device(arch="sm_100a", numerics="f64"))[0][:, :64].view(np.float32)
    want = case.start + smallfloat.decode(ca, "f16") @ smallfloat.decode(cb, "f16").T
    np.testing.assert_array_equal(got, want.astype(np.float32))


def test_checked_variant():
    Case(47, n=64).check(checked=True)
