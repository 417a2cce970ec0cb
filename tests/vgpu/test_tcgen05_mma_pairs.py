"""tcgen05.mma of CTA pairs (cta_group::2) and with block scales, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tensorladder.core import smallfloat
from tensorladder.core.errors import KernelError
from tests.vgpu import mma_kernels as K
from tests.vgpu.mma_kernels import NONE, SW64, SW128, Job, codes, idesc, mma, numbers, scaled_idesc
from tests.vgpu.test_tcgen05_mma import KIND_OF, SIZE, d_words, default_tile, tmem_rows

#: columns of scale factors of A and B, and of A
SFA, SFB, TMEM_A = 448, 464, 480


def place_d(words: list[np.ndarray], values: np.ndarray, at: int, d: str) -> None:
    """Write an M x N matrix D into the tensor memory of one or two CTAs, in the layout of its shape."""
    m, n = values.shape
    rows = m // len(words)
    for cta, part in enumerate(np.split(d_words(values, d), len(words))):
        if len(words) == 2 and rows == 64:  # 2 x 2: the right half of the columns lies in lanes 64 to 127
            words[cta][:64, at : at + n // 2] = part[:, : n // 2]
            words[cta][64:, at : at + n // 2] = part[:, n // 2 :]
        else:
            words[cta][:rows, at : at + n] = part


def scale_words(words: np.ndarray, column: int, scales: np.ndarray, factor_id: int, partitions: range) -> None:
    """Scale factors (rows x 1, 2 or 4 codes) in the lane partitions named: row r in lane r mod 32, column r / 32."""
    for r, row in enumerate(scales):
        for q in partitions:
            bytes_ = words[32 * q + r % 32, column + r // 32 : column + r // 32 + 1].view(np.uint8)
            bytes_[factor_id : factor_id + len(row)] = row


class Case:
    """An instruction of one CTA or a pair, with or without scales, and the matrix that comes out."""

    def __init__(self, seed, a="f16", b=None, m=256, n=64, d="f32", pair=True, sa=SW128, sb=SW128, ta=False, tb=False,
                 a_tmem=False, masks=(), kind="", vector=0, scale="ue8m0", ida=0, idb=0, more="",
                 spread=4):  # fmt: skip
        b = b or a
        rng = np.random.default_rng(seed)
        ctas = 2 if pair else 1
        k, at = K.DEPTH[a], 32
        self.va, self.vb = numbers(rng, a, m, k), numbers(rng, b, n, k)
        images = [rng.integers(0, 256, SIZE).astype(np.uint8) for _ in range(ctas)]
        words = [rng.integers(0, 1 << 32, (K.LANES, K.COLUMNS), dtype=np.uint32) for _ in range(ctas)]
        start = numbers(rng, "s8" if d == "s32" else "f16", m, n) + 0.0
        place_d(words, start, at, d)
        tile_a = default_tile(a, m // ctas, sa, ta, 0)
        tile_b = default_tile(b, n // ctas, sb, tb, SIZE // 2)
        halves = zip(np.split(codes(self.va, a), ctas), np.split(codes(self.vb, b), ctas), strict=True)
        for cta, (ca, cb) in enumerate(halves):
            tile_b.place(images[cta], cb, b)
            if a_tmem:
                rows = tmem_rows(ca, a)
                words[cta][: len(rows), TMEM_A : TMEM_A + 8] = rows
                if pair and m == 128:
                    words[cta][64:, TMEM_A : TMEM_A + 8] = rows
            else:
                tile_a.place(images[cta], ca, a)
        fa, fb = np.ones((m, k)), np.ones((n, k))
        if vector:
            fa, fb = self._scales(rng, words, m, n, k, vector, scale, ida, idb, spread)
        self.want = start + (self.va * fa) @ (self.vb * fb).T
        where = f"tmem:{TMEM_A:#x}" if a_tmem else tile_a.descriptor
        if vector:
            descriptor = scaled_idesc(a, b, m, n, scale, ida=ida, idb=idb, ta=ta, tb=tb)
            line = mma(kind, at, where, tile_b.descriptor, descriptor, True, pair=pair, more=".block_scale" + more,
                       scales=(SFA, SFB))  # fmt: skip
        else:
            descriptor = idesc(a, b, m, n, d, ta=ta, tb=tb)
            line = mma(KIND_OF[a], at, where, tile_b.descriptor, descriptor, True, pair=pair, masks=masks)
        self.start, self.words, self.d, self.at = start, words, d, at
        self.job = Job(images, [line], words)

    def _scales(self, rng, words, m, n, k, vector, scale, ida, idb, spread):
        """Draw and place scale factors; as matrices of the operands' shapes."""
        ctas = len(words)
        if scale == "ue8m0":
            sa, sb = (rng.integers(126, 129, (rows, vector)).astype(np.uint8) for rows in (m, n))
        else:
            sa, sb = (smallfloat.encode(rng.choice(K.FEW, (rows, vector)), "ue4m3").astype(np.uint8) for rows in (m, n))
        for cta in range(ctas):
            scale_words(words[cta], SFA, sa[cta * m // ctas :][: m // ctas], ida, range(spread))
            if ctas == 2 and m == 128:
                scale_words(words[cta], SFB, sb[: n // 2], idb, range(2))
                scale_words(words[cta], SFB, sb[n // 2 :], idb, range(2, 4))
            else:
                scale_words(words[cta], SFB, sb, idb, range(4))
        return (np.repeat(smallfloat.decode(s, scale), k // vector, axis=1) for s in (sa, sb))

    def check(self, policy="eager"):
        expected = [w.copy() for w in self.words]
        place_d(expected, self.want, self.at, self.d)
        got = K.run(self.job, policy)
        for cta, words in enumerate(expected):
            np.testing.assert_array_equal(got[cta], words)


# ---------------------------------------------------------------- pairs
@pytest.mark.parametrize("policy", K.POLICIES)
@pytest.mark.parametrize("m", [128, 256])
def test_pair(m, policy):
    Case(1, m=m, n=256).check(policy)


@pytest.mark.parametrize("ty", ["bf16", "tf32", "e4m3", "s8"])
@pytest.mark.parametrize("m", [128, 256])
def test_pair_types(ty, m):
    Case(2, ty, m=m, n=96, d="s32" if ty == "s8" else "f32").check()


@pytest.mark.parametrize("m", [128, 256])
@pytest.mark.parametrize("swizzle", [NONE, SW64])
def test_pair_transposed(m, swizzle):
    Case(3, m=m, n=48, sa=swizzle, sb=swizzle, ta=True, tb=True).check()


@pytest.mark.parametrize("m", [128, 256])
@pytest.mark.parametrize("ty", ["f16", "e3m2"])
def test_pair_a_in_tensor_memory(m, ty):
    Case(5, ty, m=m, n=32, a_tmem=True).check()


def test_pair_16_bit_sums():
    Case(6, m=128, d="f16").check()


@pytest.mark.parametrize("m", [128, 256])
def test_pair_disabled_lanes(m):
    """The first four words are lanes of the even CTA, the others of the odd one."""
    masks = [0x1, 0xF0, 0x80000000, 0xFFFF, 0x2, 0, 0xFFFFFFFF, 0x10]
    case = Case(7, m=m, masks=masks)
    off = np.array([masks[lane // 32] >> (lane % 32) & 1 for lane in range(256)], bool).reshape(2, 128)
    if m == 256:
        case.want[off.ravel()] = case.start[off.ravel()]
    else:
        n = case.want.shape[1] // 2
        for cta in range(2):
            rows = slice(64 * cta, 64 * cta + 64)
            for half in range(2):
                part = (rows, slice(half * n, half * n + n))
                lanes = off[cta, 64 * half : 64 * half + 64]
                case.want[part][lanes] = case.start[part][lanes]
    case.check()


# ---------------------------------------------------------------- block scales
FORMS = [
    ("mxf8f6f4", "e4m3", 1, "ue8m0", ""), ("mxf8f6f4", "e5m2", 1, "ue8m0", ".scale_vec::1X"),
    ("mxf8f6f4", "e2m1", 1, "ue8m0", ".block32"), ("mxf4", "mxf4", 2, "ue8m0", ""),
    ("mxf4", "mxf4", 2, "ue8m0", ".scale_vec::2X"), ("mxf4nvf4", "mxf4", 2, "ue8m0", ".block32"),
    ("mxf4nvf4", "mxf4", 4, "ue8m0", ".scale_vec::4X"), ("mxf4nvf4", "mxf4", 4, "ue4m3", ".block16"),
]  # fmt: skip


@pytest.mark.parametrize("kind, ty, vector, scale, more", FORMS)
def test_block_scales(kind, ty, vector, scale, more):
    Case(11, ty, m=128, n=72, pair=False, kind=kind, vector=vector, scale=scale, more=more).check()


@pytest.mark.parametrize("m", [128, 256])
@pytest.mark.parametrize("kind, ty, vector, scale, more", [FORMS[0], FORMS[4], FORMS[7]])
def test_pair_block_scales(m, kind, ty, vector, scale, more):
    Case(13, ty, m=m, n=192, kind=kind, vector=vector, scale=scale, more=more).check()


def test_block_scales_under_every_policy():
    for policy in K.POLICIES:
        Case(14, "mxf4", m=256, n=256, kind="mxf4nvf4", vector=4, scale="ue4m3", more=".scale_vec::4X").check(policy)


@pytest.mark.parametrize("factor_id", [1, 2, 3])
def test_scale_factor_ids(factor_id):
    Case(15, "e4m3", "e2m3", m=128, pair=False, kind="mxf8f6f4", vector=1, ida=factor_id, idb=3 - factor_id).check()
    if factor_id == 2:
        Case(16, "mxf4", m=128, pair=False, kind="mxf4", vector=2, ida=2).check()


def test_scaled_operands_in_other_places():
    Case(17, "e4m3", m=128, pair=False, kind="mxf8f6f4", vector=1, ta=True, tb=True).check()
    for m, pair in ((128, False), (128, True), (256, True)):
        Case(18, "e2m1", "e4m3", m=m, pair=pair, kind="mxf8f6f4", vector=1, a_tmem=True).check()
        Case(19, "mxf4", m=m, pair=pair, kind="mxf4", vector=2, a_tmem=True).check()


def test_huge_scales():
    """2**127 times 448 is no f32, but its product with 2**-127 times something is."""
    case = Case(21, "e4m3", m=128, n=32, pair=False, kind="mxf8f6f4", vector=1)
    words = case.words[0]
    scale_words(words, SFA, np.full((128, 1), 254, np.uint8), 0, range(4))
    scale_words(words, SFB, np.full((32, 1), 0, np.uint8), 0, range(4))
    case.want = case.start + case.va @ case.vb.T  # 2**127 * 2**-127
    case.check()


def test_nan_scale():
    case = Case(22, "e4m3", m=128, n=32, pair=False, kind="mxf8f6f4", vector=1)
    scale_words(case.words[0], SFA, np.array([[255]], np.uint8), 0, range(4))
    got = K.run(case.job)[0][:, 32:64].view(np.float32)
    assert np.isnan(got[0]).all() and np.isfinite(got[1:]).all()


def test_scales_in_one_partition_only():
    case = Case(23, "e4m3", m=128, pair=False, kind="mxf8f6f4", vector=1, spread=1)
    with pytest.raises(KernelError, match=r"scale factors of A .* not the same in all lane partitions"):
        case.check()
