"""What z0 and z1 print is what the library's functions say: two independent derivations of the same layouts."""

from __future__ import annotations

import numpy as np
import pytest

from tensorladder.core import swizzle
from tensorladder.core.atoms import mma_atom
from tensorladder.core.layout import tv_to_mn
from tensorladder.problems.layouts import SWIZZLE, TV_TO_MN


@pytest.mark.parametrize(("dtype", "cols"), [("fp16", 64), ("fp16", 128), ("fp32", 32), ("fp32", 96)])
def test_swizzled_image_by_the_library(dtype, cols):
    case = SWIZZLE.make((16, cols), dtype)
    x = case.arrays["X"]
    where = swizzle.mode("128B")(np.arange(x.size) * x.itemsize) // x.itemsize
    image = np.empty_like(x).ravel()
    image[where] = x.ravel()
    assert np.array_equal(image.reshape(x.shape), case.reference()["Y"])


@pytest.mark.parametrize("warps", [(1, 1), (2, 2), (1, 4), (4, 2)])
def test_accumulator_coordinates_by_the_library(warps):
    """The instruction's own TV layout, placed by hand: warps along M first, the second instruction 8 * warps_n on."""
    where = tv_to_mn(mma_atom("m16n8k16", 16).c, (16, 8))
    reference = TV_TO_MN.make(warps, "int32").reference()["MN"]
    for warp in range(warps[0] * warps[1]):
        for value in range(8):
            m0, n0 = 16 * (warp % warps[0]), 8 * (warp // warps[0]) + 8 * warps[1] * (value // 4)
            expected = where[:, value % 4] + (m0, n0)
            assert np.array_equal(reference[32 * warp : 32 * warp + 32, value], expected)
