"""Block-scaled formats: what their definitions say about scales and elements, and where factors lie in memory."""

from __future__ import annotations

import numpy as np
import pytest

from tensorladder.core import smallfloat
from tensorladder.problems import examine
from tensorladder.problems.block_scaled import (
    FORMATS,
    GEMM_BLOCK_SCALED,
    block_scales,
    dequantise,
    pack,
    quantise,
    unblock_scales,
    unpack,
)

NAMES = tuple(FORMATS)


SPREAD = {"mxfp8": 20, "nvfp4": 4}  # powers of two that rows may differ by: e4m3 scales reach less far


def drawn(rows, k, spread):
    generator = np.random.default_rng(0)
    return generator.standard_normal((rows, k)) * 2.0 ** generator.integers(-spread, spread, (rows, 1))


def test_mx_scales_are_the_powers_of_two_of_the_definition():
    x = np.zeros((5, 32))
    x[:, 7] = (448, 1, -3.5, 2.0**-140, 0)
    codes, scales = quantise(x, FORMATS["mxfp8"])
    # floor(log2(max)) - 8 with a bias of 127, not below code 0; a block of zeros has the smallest scale
    assert scales[:, 0].tolist() == [127, 119, 120, 0, 0]
    assert smallfloat.decode(codes[:3, 7], "e4m3").tolist() == [448, 256, -448]


def test_nvfp4_scales_bring_the_largest_element_to_six():
    x = np.zeros((4, 16))
    x[:, 3] = (6, -12, 2688, 0)
    codes, scales = quantise(x, FORMATS["nvfp4"])
    assert smallfloat.decode(scales[:, 0], "ue4m3").tolist() == [1, 2, 448, 0]
    assert smallfloat.decode(codes[:, 3], "e2m1").tolist() == [6, -6, 6, 0]


@pytest.mark.parametrize("name", NAMES)
def test_no_element_is_farther_off_than_half_a_step(name):
    form = FORMATS[name]
    x = drawn(200, 128, SPREAD[name])
    codes, scales = quantise(x, form)
    back = dequantise(pack(codes, form), block_scales(scales, x.shape[1], form), form)
    factor = np.repeat(smallfloat.decode(scales, form.scale), form.block, axis=1)
    top = smallfloat.FORMATS[form.element].max
    # Half a unit in the last place of the largest binade, where not clamped.
    half = factor * 2.0 ** np.floor(np.log2(top)) * 2.0 ** -(smallfloat.FORMATS[form.element].mantissa + 1)
    inside = abs(x) <= top * factor
    assert (abs(back - x)[inside] <= half[inside]).all() and inside.mean() > 0.9
    assert (abs(back)[~inside] == (top * factor)[~inside]).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (128, 4), (130, 5), (300, 12)])
def test_factors_lie_where_the_isa_says(name, rows, blocks):
    form = FORMATS[name]
    scales = np.random.default_rng(rows).integers(0, 255, (rows, blocks)).astype(np.uint8)
    blocked = block_scales(scales, blocks * form.block, form)
    assert blocked.shape == (-(-rows // 128), -(-blocks // 4), 512)
    for row, column in ((0, 0), (rows - 1, blocks - 1), (rows // 2, blocks // 3)):
        inside = 16 * (row % 32) + 4 * (row % 128 // 32) + column % 4
        assert blocked[row // 128, column // 4, inside] == scales[row, column]
    assert np.array_equal(unblock_scales(blocked, rows, blocks), scales)
    assert blocked.sum(dtype=np.int64) == scales.sum(dtype=np.int64)  # zeros beyond the edge


def test_two_elements_of_four_bits_a_byte_the_even_one_low():
    codes = np.array([[1, 2, 15, 0]], np.uint8)
    assert pack(codes, FORMATS["nvfp4"]).tolist() == [[0x21, 0x0F]]
    assert np.array_equal(unpack(pack(codes, FORMATS["nvfp4"]), FORMATS["nvfp4"]), codes)


@pytest.mark.parametrize("name", NAMES)
def test_a_scale_at_the_wrong_place_is_found(name):
    """A kernel that takes the factors of a neighbouring row or block gives another result."""
    case = GEMM_BLOCK_SCALED.make((64, 32, 256), name)
    form = FORMATS[name]
    b = dequantise(case.arrays["B"], case.arrays["SB"], form)
    scales = unblock_scales(case.arrays["SA"], 64, 256 // form.block)
    for axis in (0, 1):
        wrong = block_scales(np.roll(scales, 1, axis=axis), 256, form)
        case.arrays["C"][...] = dequantise(case.arrays["A"], wrong, form) @ b.T
        assert not examine(case).ok
    case.arrays["C"][...] = dequantise(case.arrays["A"], case.arrays["SA"], form) @ b.T
    assert examine(case).ok
