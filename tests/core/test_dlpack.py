"""DLPack views and producers: every dtype there and back, strides, read-only memory, lifetime."""

import gc

import numpy as np
import pytest

from tensorladder.core import dlpack
from tensorladder.core.errors import UsageError

ml_dtypes = pytest.importorskip("ml_dtypes")
torch = pytest.importorskip("torch")


def _dtype(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


@pytest.mark.parametrize("name", sorted(set(dlpack.DTYPES) - set(dlpack.LANES)))
def test_round_trip_through_a_capsule(name):
    array = np.arange(24, dtype=np.uint8).repeat(16)[: 6 * _dtype(name).itemsize].copy().view(_dtype(name))
    again = dlpack._of_capsule(dlpack.of_numpy(array).__dlpack__(), None)
    assert (again.data, again.shape, again.strides, again.dtype) == (array.ctypes.data, (6,), (1,), name)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float32", "bool"])
def test_torch_takes_it_without_a_copy(name):
    array = np.zeros((3, 5), _dtype(name)).T
    tensor = torch.from_dlpack(dlpack.Producer(array))
    assert str(tensor.dtype) == f"torch.{name}"
    assert tensor.shape == (5, 3) and tensor.stride() == (1, 5)
    assert tensor.data_ptr() == array.ctypes.data


def test_read_only_and_torch_views():
    array = np.arange(12.0).reshape(3, 4)
    array.flags.writeable = False
    assert dlpack.view(array).data == array.ctypes.data
    tensor = torch.zeros(4, 6, dtype=torch.bfloat16, requires_grad=True)[:, 2:]
    seen = dlpack.view(tensor)
    assert (seen.shape, seen.strides, seen.dtype) == ((4, 4), (6, 1), "bfloat16")
    assert seen.data == tensor.data_ptr()


def test_device_claim():
    assert dlpack.Producer(np.zeros(3), (dlpack.CUDA, 0)).__dlpack_device__() == (dlpack.CUDA, 0)
    assert dlpack._of_capsule(dlpack.Producer(np.zeros(3), (2, 0)).__dlpack__(), None).device == (2, 0)


def test_memory_lives_as_long_as_the_consumer():
    before = len(dlpack._alive)
    tensor = torch.from_dlpack(dlpack.Producer(np.full(1000, 7.0)))
    unused = dlpack.Producer(np.zeros(3)).__dlpack__()
    assert len(dlpack._alive) == before + 2
    assert tensor.sum() == 7000
    del tensor, unused
    gc.collect()
    assert len(dlpack._alive) == before


@pytest.mark.parametrize(
    "bad, word",
    [
        (np.zeros(3, "datetime64[s]"), "datetime64"),
        (np.zeros(3, ">f4"), ">f4"),
        (np.zeros(3, [("a", "u1"), ("b", "<u4")])["b"], "strides"),
        ([1, 2], "list"),
    ],
)
def test_refusals_are_one_line(bad, word):
    with pytest.raises(UsageError, match=word) as caught:
        dlpack.view(bad)
    assert "\n" not in str(caught.value)


def test_packed_pairs_of_4_bit_floats():
    torch = pytest.importorskip("torch")
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no float4_e2m1fn_x2")
    pairs = torch.arange(12, dtype=torch.uint8).reshape(3, 4).view(torch.float4_e2m1fn_x2)
    seen = dlpack.view(pairs)
    assert (seen.dtype, seen.shape, seen.itemsize) == ("float4_e2m1fn_x2", (3, 4), 1)
    assert seen.data == pairs.data_ptr()
    back = torch.from_dlpack(seen)
    assert back.dtype == pairs.dtype and torch.equal(back.view(torch.uint8), pairs.view(torch.uint8))
