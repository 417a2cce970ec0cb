"""Small floats against results of an H200 (cvt_h200.npz), ml_dtypes, numpy, and their own definition."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorladder.core import smallfloat
from tensorladder.core.errors import UsageError
from tensorladder.core.smallfloat import FORMATS, convert, decode, encode, round_to, table

RECORDED = np.load(Path(__file__).parents[1] / "data" / "cvt_h200.npz")
SMALL = [n for n, f in FORMATS.items() if f.bits <= 16]
CODED = [n for n in SMALL if n != "ue8m0"]


def reference(op, x):
    """What instruction `op` makes of 32-bit registers `x`; the second operand of packing conversions was 3.0."""
    rounding, *modifiers, target, source = op.split(".")[1:]
    flags = dict.fromkeys(modifiers, True)
    if source == "f16x2":
        low, high = (convert(h, "f16", target[:-2], rounding, **flags) for h in (x & 0xFFFF, x >> 16))
        return low | high << 8
    if source != "f32":
        low, high = (convert(h, source[:-2], "f16", rounding, **flags) for h in (x & 0xFF, x >> 8 & 0xFF))
        return low | high << 16
    name = target.removesuffix("x2")
    code = convert(x, "f32", name, rounding, **flags)
    return code << FORMATS[name].bits | encode(3.0, name) if name != target else code


@pytest.mark.parametrize("key", [k for k in RECORDED.files if "/" in k])
def test_conversions_are_the_h200s(key):
    inputs, op = key.split("/")
    x = RECORDED[inputs]
    got, want = reference(op, x), RECORDED[key]
    if op.startswith("cvt.rna"):
        # Here Hopper cuts a NaN's low bits instead of making it canonical; any NaN is as good.
        nan = np.isnan(decode(x, "f32"))
        assert np.isnan(decode(want, "tf32"))[nan].all() and np.isnan(decode(got, "tf32"))[nan].all()
        got, want = got[~nan], want[~nan]
    np.testing.assert_array_equal(got, want)
    assert len(x) > 1000


def ml(name):
    pytest.importorskip("ml_dtypes")
    return smallfloat.numpy_dtype(name)


@pytest.mark.parametrize("name", [n for n in SMALL if n != "ue4m3"])
def test_every_code_is_what_ml_dtypes_says(name):
    dtype = ml(name)
    codes = np.arange(1 << FORMATS[name].bits)
    with np.errstate(invalid="ignore"):
        theirs = codes.astype(np.uint16 if dtype.itemsize == 2 else np.uint8).view(dtype).astype(np.float64)
    np.testing.assert_array_equal(decode(codes, name), theirs)
    np.testing.assert_array_equal(np.signbit(table(name)), np.signbit(theirs))


@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3", "e5m2", "e2m3", "e3m2", "e2m1"])
def test_nearest_even_is_what_ml_dtypes_rounds_to(name):
    dtype, top = ml(name), FORMATS[name].max
    rng = np.random.default_rng(1)
    values = (rng.uniform(-1, 1, 4000) * top * 2.0 ** -rng.integers(0, 30, 4000)).astype(np.float32)
    np.testing.assert_array_equal(round_to(values, name), values.astype(dtype).astype(np.float64))


@given(st.floats(width=32, allow_nan=False))
def test_f16_is_numpys(x):
    with np.errstate(over="ignore"):
        assert encode(x, "f16").item() == np.float16(x).view(np.uint16)


@pytest.mark.parametrize("name", CODED)
def test_encode_inverts_decode(name):
    codes = np.arange(1 << FORMATS[name].bits)
    values = decode(codes, name)
    number = ~np.isnan(values)
    for rounding in smallfloat.ROUNDINGS:
        np.testing.assert_array_equal(encode(values[number], name, rounding), codes[number])


@pytest.mark.parametrize("name", CODED)
@given(x=st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_directed_roundings_bracket(name, x):
    f = FORMATS[name]
    if not f.signed:
        x = abs(x)
    if abs(x) > f.max:
        return
    down, up, zero, near = (round_to(x, name, r).item() for r in ("rm", "rp", "rz", "rn"))
    assert down <= x <= up
    assert zero == (down if x >= 0 else up)
    assert near in (down, up)
    assert abs(near - x) == min(x - down, up - x)


@pytest.mark.parametrize(
    ("name", "top", "smallest"),
    [("e4m3", 448, 2**-9), ("e5m2", 57344, 2**-16), ("e3m2", 28, 2**-4), ("e2m3", 7.5, 2**-3), ("e2m1", 6, 0.5),
     ("ue4m3", 448, 2**-9), ("bf16", 3.3895313892515355e38, 2**-133), ("f16", 65504, 2**-24)],
)  # fmt: skip
def test_range(name, top, smallest):
    values = table(name)
    assert FORMATS[name].max == top == np.max(values[np.isfinite(values)])
    assert np.min(values[values > 0]) == smallest


def test_special_values():
    assert encode(np.nan, "e2m1").item() == 7  # no NaN: the largest number
    assert encode(np.nan, "e4m3").item() == 0x7F
    assert encode([np.inf, -np.inf], "e4m3").tolist() == [0x7E, 0xFE]
    assert encode([np.inf, 1e9], "f16", "rn").tolist() == [0x7C00, 0x7C00]
    assert encode([np.inf, 1e9], "f16", "rz").tolist() == [0x7C00, 0x7BFF]
    assert encode([-0.0, -2.0], "bf16", relu=True).tolist() == [0, 0]
    assert encode([-3.0, 7.0, np.nan], "f16", sat=True).tolist() == [0, 0x3C00, 0]


def test_ue8m0():
    assert decode([0, 127, 254], "ue8m0").tolist() == [2.0**-127, 1.0, 2.0**127]
    assert np.isnan(decode(255, "ue8m0"))
    assert encode([1.0, 1.5, 0.0, -3.0], "ue8m0", "rz").tolist() == [127, 127, 0, 128]
    assert encode([1.0, 1.5, 2.0**-130], "ue8m0", "rp").tolist() == [127, 128, 0]
    assert encode([np.inf, np.nan], "ue8m0", "rp").tolist() == [0xFF, 0xFF]
    assert encode([np.inf, 1.9 * 2.0**127], "ue8m0", "rp", satfinite=True).tolist() == [0xFE, 0xFE]
    with pytest.raises(UsageError, match="rz or rp"):
        encode(1.0, "ue8m0")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: encode(1.0, "f12"), "e4m3"),
        (lambda: encode(1.0, "f16", "rx"), "rna"),
        (lambda: encode(-1.0, "ue4m3"), "negative"),
        (lambda: table("tf32"), "32 bits"),
        (lambda: smallfloat.dtype_of("f12"), "bf16"),
        (lambda: smallfloat.name_of(np.complex64), "complex64"),
        (lambda: smallfloat.numpy_dtype("ue4m3"), "uint8"),
    ],
)
def test_bad_input_is_one_line(call, says):
    with pytest.raises(UsageError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_dtypes():
    assert smallfloat.name_of(np.float32) == "f32"
    assert smallfloat.numpy_dtype("float16") == np.float16
    assert smallfloat.element_bits("e2m1") == 4 and smallfloat.element_bytes("e2m1") == 1
    assert smallfloat.element_bytes("tf32") == 4
    for name in ("f16", "bf16", "e4m3", "e5m2", "s8", "u32", "f64"):
        assert smallfloat.name_of(ml(name)) == name
