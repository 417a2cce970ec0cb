"""Swizzles as bit arithmetic, and bank conflicts of the access patterns that kernels use them for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorladder.core.errors import Unsupported, UsageError
from tensorladder.core.swizzle import MODES, Swizzle, bank_conflicts, ldmatrix_conflicts, mode, tma_swizzle

swizzles = st.builds(
    lambda bits, base, extra, sign: Swizzle(bits, base, sign * (bits + extra)),
    st.integers(0, 4), st.integers(0, 6), st.integers(0, 3), st.sampled_from([1, -1]),
)  # fmt: skip


@given(swizzles, st.integers(0, 1 << 24))
def test_it_is_its_own_inverse_and_stays_in_its_period(s, x):
    assert s(s(x)) == x
    assert s(x) // s.period == x // s.period
    assert s(x) ^ x == (s(x) ^ x) & s.target_mask
    assert s(x + s.period) == s(x) + s.period


@given(swizzles)
def test_it_permutes_each_period(s):
    x = np.arange(min(s.period, 1 << 14), dtype=np.int64)
    if s.period <= 1 << 14:
        assert sorted(s(x).tolist()) == x.tolist()


@pytest.mark.parametrize(
    ("name", "bits"),
    [("128B", ((4, 7), (5, 8), (6, 9))), ("64B", ((4, 7), (5, 8))), ("32B", ((4, 7),)),
     ("128B_atom_32B", ((5, 7), (6, 8))), ("128B_atom_64B", ((6, 7),)), ("none", ())],
)  # fmt: skip
def test_modes_bit_by_bit(name, bits):
    """(target, source) bits of each mode, spelled out."""
    x = np.random.default_rng(0).integers(0, 1 << 18, 2000)
    want = x.copy()
    for target, source in bits:
        want ^= (x >> source & 1) << target
    np.testing.assert_array_equal(mode(name)(x), want)
    assert [mode(name)(int(v)) for v in x[:50]] == want[:50].tolist()


def test_modes_cover_what_tensor_maps_hold():
    assert tma_swizzle(3) == Swizzle(3, 4, 3) == mode("128B")
    assert tma_swizzle(0)(12345) == 12345
    # The driver writes these periods into word 9 of a tensor map.
    assert [tma_swizzle(s).period for s in range(4)] == [16, 256, 512, 1024]
    assert all(tma_swizzle(*pair) == mode(name) for name, pair in MODES.items())
    with pytest.raises(Unsupported, match="atomicity 2"):
        tma_swizzle(3, 2)


def test_recast_to_elements():
    """The 128-byte mode over f16 elements is CuTe's Swizzle<3,3,3>."""
    assert mode("128B").recast(1, 2) == Swizzle(3, 3, 3)
    x = np.arange(4096)
    np.testing.assert_array_equal(mode("128B").recast(1, 2)(x) * 2, mode("128B")(x * 2))
    assert mode("128B").recast(1, 2).recast(2, 1) == mode("128B")


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 8, 16, 17, 31, 32, 33, 64])
def test_strided_words(stride):
    """32 lanes at a stride of s words: gcd(s, 32)-way conflicts."""
    got = bank_conflicts(np.arange(32) * 4 * stride)
    assert got.wavefronts == np.gcd(stride, 32)
    assert got.ideal == 1 and got.extra == got.wavefronts - 1


def test_broadcast_and_subword_accesses_share_a_word():
    assert bank_conflicts(np.zeros(32)).wavefronts == 1
    assert bank_conflicts(np.arange(32), 1).wavefronts == 1
    assert bank_conflicts(np.arange(32) * 2, 2).wavefronts == 1


def test_wide_accesses_are_served_in_parts():
    assert bank_conflicts(np.arange(32) * 8, 8).wavefronts == 2
    assert bank_conflicts(np.arange(32) * 16, 16).wavefronts == 4
    assert bank_conflicts(np.arange(32) * 128, 16).degree == 8.0


def test_inactive_lanes_cost_nothing():
    addresses = np.arange(32) * 128
    assert bank_conflicts(addresses, active=[i < 4 for i in range(32)]).wavefronts == 4
    assert bank_conflicts(addresses, active=[False] * 32).degree == 1.0


def test_what_a_swizzle_is_for():
    """Eight rows of a tile with 128-byte rows collide; swizzled, padded, they do not."""
    rows = np.arange(8, dtype=np.int64) * 128
    assert ldmatrix_conflicts(rows).wavefronts == 8
    assert ldmatrix_conflicts(mode("128B")(rows)).wavefronts == 1
    assert ldmatrix_conflicts(np.arange(8) * (128 + 16)).wavefronts == 1
    for chunk in range(8):
        assert ldmatrix_conflicts(mode("128B")(rows + 16 * chunk)).wavefronts == 1
    half_rows = np.arange(8, dtype=np.int64) * 64
    assert ldmatrix_conflicts(half_rows).wavefronts == 4
    assert ldmatrix_conflicts(mode("64B")(half_rows)).wavefronts == 1


@given(st.lists(st.integers(0, 1 << 14), min_size=1, max_size=32), st.sampled_from([1, 2, 4, 8, 16]))
def test_bounds(addresses, width):
    got = bank_conflicts(np.array(addresses) * width, width)
    assert 1 <= got.ideal <= got.wavefronts <= len(addresses)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Swizzle(3, 4, 1), "S<3,4,1>"),
        (lambda: mode("256B"), "128B"),
        (lambda: mode("128B").recast(1, 32), "32 bytes"),
        (lambda: bank_conflicts(range(33)), "32 lanes"),
        (lambda: bank_conflicts([2], 4), "aligned"),
        (lambda: bank_conflicts([0], 3), "not 3"),
        (lambda: ldmatrix_conflicts(range(7)), "row addresses"),
    ],
)
def test_bad_input_is_one_line(call, says):
    with pytest.raises(UsageError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)
