"""Convolution as an implicit GEMM: borders, strides, dilations and any number of channels."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from tensorladder.core.errors import UsageError
from tensorladder.problems.convolution import CONVOLUTION, convolve, output_extents
from tensorladder.rungs.rung import find, load

# N, H, W, C, K, R, S, stride, padding, dilation
SHAPES = [
    (2, 9, 8, 24, 20, 3, 3, 1, 1, 1),  # vectors of 8 channels that tiles of K cut anywhere
    (1, 10, 7, 12, 33, 3, 2, 2, 1, 1),  # of 4; an odd number of filters
    (2, 11, 6, 6, 7, 2, 3, 3, 2, 2),  # of 2; taps apart
    (1, 6, 7, 3, 5, 3, 3, 1, 1, 1),  # one by one
    (3, 5, 4, 1, 1, 1, 1, 1, 0, 1),  # one channel, filter and tap
    (1, 4, 3, 8, 16, 3, 3, 1, 2, 3),  # a dilated filter that is larger than the image
    (1, 3, 2, 8, 8, 1, 1, 4, 3, 1),  # more padding than image: pixels that see nothing
]
SMALL = {"tile": (64, 32, 32), "warps_m": 2, "warps_n": 1, "stages": 3}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_the_reference_is_what_torch_computes(shape):
    torch = pytest.importorskip("torch")
    case = CONVOLUTION.make(shape, "fp32")
    *_, stride, padding, dilation = shape
    x, f = (torch.from_numpy(case.arrays[name].astype(np.float64)) for name in "XF")
    y = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), f.permute(0, 3, 1, 2), None, stride, padding, dilation)
    np.testing.assert_allclose(case.reference()["Y"], y.permute(0, 2, 3, 1).numpy(), rtol=1e-12, atol=1e-12)


def test_the_reference_is_the_sum_of_its_definition():
    shape = (2, 5, 4, 3, 2, 2, 3, 2, 1, 2)
    n, h, w, c, k, taps_r, taps_s, u, o, d = shape
    x, f = (CONVOLUTION.inputs(shape, "fp32")[name].astype(np.float64) for name in "XF")
    p, q = output_extents(shape)
    y = np.zeros((n, p, q, k))
    for place in itertools.product(*map(range, (n, p, q, k, taps_r, taps_s, c))):
        image, row, column, filter_, r, s, channel = place
        at = row * u - o + r * d, column * u - o + s * d
        if 0 <= at[0] < h and 0 <= at[1] < w:
            y[image, row, column, filter_] += x[image, at[0], at[1], channel] * f[filter_, r, s, channel]
    np.testing.assert_allclose(convolve(x, f, shape), y, rtol=1e-12, atol=1e-12)
    assert CONVOLUTION.flops(shape) == 2 * y.size * taps_r * taps_s * c


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1, 2, 9, 8, 8, 5, 1, 1, 1, 1), "R=5 taps, dilation 1, span 5 elements, and H=2 with padding 1 has 4"),
        ((1, 9, 4, 8, 8, 1, 3, 1, 0, 2), "S=3 taps, dilation 2, span 5 elements, and W=4 with padding 0 has 4"),
        ((1, 9, 4, 8, 8, 1, 3, 0, 0, 1), "stride=0 must be a positive integer"),
        ((1, 9, 4, 8, 8, 1, 3, 1, -1, 1), "padding=-1 must be"),
        ((1, 9, 4, 8), "takes --shape N,H,W,C,K,R,S,stride,padding,dilation"),
    ],
)
def test_what_cannot_be_is_refused(shape, words):
    with pytest.raises(UsageError, match=words):
        CONVOLUTION.check(shape, "fp16")


def config(**knobs):
    pytest.importorskip("cutlass")
    return load(find("b10")).RUNG.config(**knobs)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_any_shape_is_right_under_any_order_of_effects(shape):
    from tensorladder.measure.run import run_rung

    dtype = ("fp16", "bf16")[SHAPES.index(shape) % 2]
    asked = {"shape": shape, "dtype": dtype, "config": config(**SMALL)}
    results = [run_rung(find("b10"), policy=policy, **asked) for policy in ("eager", "lazy", "random:5")]
    assert all(result.ok for result in results), [result.message for result in results]
    assert len({result.digest for result in results}) == 1


@pytest.mark.parametrize("knobs", [{}, {"tile": (64, 64, 64), "stages": 2}, {"warps_m": 4, "raster": 1}])
def test_knobs_change_nothing(knobs):
    from tensorladder.measure.run import run_rung

    result = run_rung(find("b10"), shape=(2, 17, 15, 16, 136, 3, 3, 1, 1, 1), config=config(**knobs), arch="sm_90a")
    assert result.ok, result.message


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"tile": (128, 128, 48)}, "K must be 32 or 64"),
        ({"tile": (64, 32, 64), "warps_m": 1, "warps_n": 1}, "copy 4 rows at a time, no multiple of 8"),
        ({"tile": (100, 128, 32)}, "M does not fit the warps"),
        ({"tile": (128, 40, 32)}, "N does not fit the warps"),
        ({"stages": 1}, "stages=1: at least 2"),
        ({"stages": 20}, "bytes of shared memory, sm_80 has"),
        ({"warps_m": 64}, "4096 threads"),
    ],
)
def test_knobs_that_do_not_fit_are_refused(knobs, words):
    wanted = config(**knobs)
    with pytest.raises(UsageError, match=words):
        load(find("b10")).compile("sm_80", SHAPES[0], "fp16", wanted)


def test_offsets_of_more_than_32_bits_are_refused():
    wanted = config()
    with pytest.raises(UsageError, match=r"X has 2\^31 elements or more, offsets have 32 bits: split N"):
        load(find("b10")).compile("sm_80", (1 << 15, 256, 256, 8, 8, 3, 3, 1, 1, 1), "fp16", wanted)


def test_the_benchmark_judges_by_the_same_bounds():
    torch = pytest.importorskip("torch")
    from benchmarks.convolution import LAYERS, _expected

    case = CONVOLUTION.make(SHAPES[1], "fp16")
    value, allowed = _expected(torch, {name: torch.from_numpy(x) for name, x in case.arrays.items()}, SHAPES[1])
    filters = SHAPES[1][4]
    np.testing.assert_allclose(value.numpy(), case.reference()["Y"].reshape(-1, filters), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(allowed.numpy(), case.bounds()["Y"].reshape(-1, filters), rtol=1e-9)
    assert all(CONVOLUTION.check(shape, "fp16") for shape in LAYERS)


def test_the_page_has_what_was_measured():
    from benchmarks.convolution import table

    root = Path(__file__).parents[2]
    page = (root / "docs" / "convolution.md").read_text(encoding="utf-8")
    shown = page.split("<!-- convolution: begin -->")[1].split("<!-- convolution: end -->")[0].strip()
    assert shown == table(root / "benchmarks" / "results" / "convolution-h200.jsonl"), (
        "put what `python -m benchmarks.convolution table FILE` prints into docs/convolution.md"
    )
