"""The tensor map codec against the driver of an H200.

tensormap_h200.json: 55 calls of cuTensorMapEncodeTiled; tensormap_sweep_h200.json: 870 more around every rule (driver
580.159); tensormap_im2col_h200.json: cuTensorMapEncodeIm2col. `words` is null where the driver refused.
"""

import dataclasses
import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorladder.core import tensormap
from tensorladder.core.errors import Unsupported, UsageError
from tensorladder.core.tensormap import TensorMap, decode, encode, from_driver_call, validate

DATA = Path(__file__).parents[1] / "data"
SAMPLES = json.loads((DATA / "tensormap_h200.json").read_text())
SWEEP = json.loads((DATA / "tensormap_sweep_h200.json").read_text())
IM2COL = json.loads((DATA / "tensormap_im2col_h200.json").read_text())


def call(c, compute_capability=(9, 0)):
    n = c["rank"]
    strides = None if c.get("null_strides") else c["strides"][: n - 1] if n else []
    return from_driver_call(
        c["dt"], c["addr"], c["dims"][:n], strides, c["box"][:n], c["es"][:n], c["inter"], c["sw"], c["l2"], c["oob"],
        compute_capability=compute_capability,
    )  # fmt: skip


def packed(c):
    return struct.pack("<16Q", *c["words"])


@pytest.mark.parametrize("calls", [SAMPLES, SWEEP], ids=["samples", "sweep"])
def test_refuses_exactly_what_the_driver_refuses(calls):
    wrong = []
    for i, c in enumerate(calls):
        try:
            call(c)
            refused = False
        except UsageError:
            refused = True
        if refused != (c["words"] is None):
            wrong.append((i, {k: v for k, v in c.items() if k != "words"}))
    assert not wrong
    assert any(c["words"] is None for c in calls)


@pytest.mark.parametrize("calls", [SAMPLES, SWEEP], ids=["samples", "sweep"])
def test_words_are_the_drivers(calls):
    accepted = [c for c in calls if c["words"] is not None]
    for c in accepted:
        made = call(c)
        assert list(struct.unpack("<16Q", encode(made))) == c["words"]
        assert decode(packed(c)) == made
    assert len(accepted) > 40


def test_decoded_fields_are_the_arguments():
    for c in SAMPLES + SWEEP:
        if c["words"] is None:
            continue
        m = decode(packed(c))
        assert (m.address, m.rank, list(m.dims), list(m.strides), list(m.box), list(m.element_strides)) == (
            c["addr"], c["rank"], c["dims"], c["strides"], c["box"], c["es"],
        )  # fmt: skip
        assert (m.interleave, m.swizzle, m.l2_promotion, m.oob_nan) == (c["inter"], c["sw"], c["l2"], bool(c["oob"]))


def test_im2col_is_refused_by_name():
    accepted = [c for c in IM2COL if c["words"] is not None]
    for c in accepted:
        with pytest.raises(Unsupported, match="im2col"):
            decode(packed(c))
    assert len(accepted) > 40


def test_maps_built_by_compilers_decode():
    """CuTe DSL sets bits 1 and 21 of word 1 and leaves words 8 to 15 unwritten."""
    sample = SAMPLES[0]
    words = list(sample["words"])
    words[1] |= 1 << 1 | 1 << 21
    words[8:] = [0xDEADBEEF12345678] * 8
    assert decode(struct.pack("<16Q", *words)) == decode(packed(sample))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"address": 8}, "address"),
        ({"dims": (0, 512)}, r"dims\[0\]"),
        ({"strides": (520,)}, r"strides\[0\]"),
        ({"strides": (1 << 40,)}, r"2\*\*40"),
        ({"box": (60, 128)}, "multiple of 16"),
        ({"box": (128, 128)}, "swizzle span"),
        ({"box": (64, 257)}, r"box\[1\]"),
        ({"element_strides": (1, 9)}, r"element_strides\[1\]"),
        ({"interleave": 1}, "rank 3"),
        ({"dtype": "u16", "oob_nan": True}, "NaN"),
        ({"swizzle_atomicity": 1}, "10.0"),
        ({"strides": ()}, "entries"),
        ({"dtype": "f12"}, "element type"),
    ],
)
def test_each_refusal_names_its_rule(change, rule):
    good = TensorMap(0x7F0000000000, "f16", 2, (256, 512), (512,), (64, 128), (1, 1), swizzle=3)
    assert validate(good) is good
    with pytest.raises(UsageError, match=rule) as caught:
        validate(dataclasses.replace(good, **change))
    assert "\n" not in str(caught.value)


def test_atoms_and_packed_types_wait_for_blackwell():
    c = dict(SAMPLES[0], sw=4)
    assert call(c, (10, 0)).swizzle_atomicity == 1
    assert decode(encode(call(c, (10, 0)))) == call(c, (10, 0))
    with pytest.raises(UsageError, match="16U4"):
        call(dict(SAMPLES[0], dt=13))
    with pytest.raises(UsageError, match="capability 9"):
        call(SAMPLES[0], (8, 0))


@given(st.binary(min_size=128, max_size=128))
def test_arbitrary_bytes_decode_or_are_refused(data):
    try:
        m = decode(data)
    except (UsageError, Unsupported):
        return
    assert decode(encode(m)) == m


@pytest.mark.parametrize("size", [0, 64, 127, 129])
def test_wrong_length(size):
    with pytest.raises(UsageError, match="128 bytes"):
        decode(bytes(size))


def test_box_bytes_use_the_ceiling():
    m = TensorMap(0, "f32", 2, (64, 64), (256,), (8, 5), (2, 2))
    assert m.box_shape == (8, 3)
    assert m.box_bytes == 8 * 3 * 4
    assert tensormap.describe(m)["swizzle"] == "none"


@st.composite
def maps(draw):
    rank = draw(st.integers(1, 5))
    kind = draw(st.sampled_from(tensormap.ELEMENT_TYPES))

    def many(low, high, n=rank):
        return tuple(draw(st.lists(st.integers(low, high), min_size=n, max_size=n)))

    return TensorMap(
        address=draw(st.integers(0, (1 << 57) - 1)) & ~15, dtype=kind.name, rank=rank, dims=many(1, 1 << 32),
        strides=tuple(16 * s for s in many(0, (1 << 36) - 1, rank - 1)), box=many(1, 256), element_strides=many(1, 8),
        interleave=draw(st.integers(0, 2)), swizzle=draw(st.integers(0, 3)), swizzle_atomicity=draw(st.integers(0, 3)),
        l2_promotion=draw(st.integers(0, 3)), oob_nan=draw(st.booleans()),
    )  # fmt: skip


@given(maps())
def test_decode_inverts_encode(m):
    assert decode(encode(m)) == m


def test_fields_do_not_overlap():
    seen = [0] * 16
    for f in tensormap.DESCRIPTOR_FIELDS:
        mask = ((1 << f.width) - 1) << f.low
        assert not seen[f.word] & mask and f.low + f.width <= 64
        seen[f.word] |= mask
