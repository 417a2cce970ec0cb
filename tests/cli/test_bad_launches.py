"""Your own PTX, asked for wrongly: one UsageError of one line; a kernel that faults is one KernelError."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensorladder.core.errors import KernelError, TensorladderError, UsageError

pytest.importorskip("llvmlite")
pytest.importorskip("numba")

PTX = (Path(__file__).parents[1] / "data" / "saxpy.ptx").read_text()
N = 1000


def launch(**changes):
    """saxpy over 1000 elements, with changes; the arrays."""
    from tensorladder import vgpu

    x, y = np.arange(N, dtype=np.float32), np.ones(N, np.float32)
    asked = {"ptx_text": PTX, "kernel": "saxpy", "grid": 4, "block": 256, "args": [x, y, np.float32(2), np.int32(N)]}
    vgpu.launch(**{**asked, **changes})
    return x, y


def test_asked_rightly_it_runs():
    x, y = launch()
    assert np.array_equal(y, 1 + 2 * x)


def arguments(**changes):
    """saxpy's arguments with some replaced, by position."""
    args = [np.ones(N, np.float32), np.ones(N, np.float32), np.float32(2), np.int32(N)]
    for position, value in changes.items():
        args[int(position[1:])] = value
    return {"args": args}


# what -> (changes, a word that the refusal has to hold)
REFUSED = {
    "no such kernel": ({"kernel": "daxpy"}, "saxpy"),
    "too few arguments": ({"args": []}, "4"),
    "too many arguments": ({"args": [1, 2, 3, 4, 5]}, "4"),
    "an array for a number": (arguments(_2=np.ones(1, np.float32)), "saxpy_a"),
    "a double for a float": (arguments(_2=np.float64(2)), "saxpy_a"),
    "a string for a number": (arguments(_3="1000"), "saxpy_n"),
    "a list for an array": (arguments(_0=[1.0, 2.0]), "saxpy_x"),
    "nothing for an array": (arguments(_0=None), "saxpy_x"),
    "bytes of the wrong length": (arguments(_3=b"\0\0"), "saxpy_n"),
    "an empty grid": ({"grid": 0}, "grid"),
    "a grid of four dimensions": ({"grid": (1, 1, 1, 1)}, "grid"),
    "a negative block": ({"block": (-32,)}, "block"),
    "a block above the limit": ({"block": (1024, 2)}, "1024"),
    "an architecture of another maker": ({"arch": "gfx942"}, "gfx942"),
    "clusters where there are none": ({"cluster": 2}, "cluster"),
    "negative shared memory": ({"smem": -1}, "shared memory"),
    "no such policy": ({"policy": "sometimes"}, "sometimes"),
    "a policy with a bad seed": ({"policy": "random:x"}, "random"),
    "PTX that ends early": ({"ptx_text": PTX[:700]}, "PTX"),
    "PTX without a header": ({"ptx_text": PTX.split("\n", 4)[4]}, ".version"),
    "PTX that is C": ({"ptx_text": "int main() { return 0; }"}, "PTX"),
    "PTX with a word that is none": ({"ptx_text": PTX.replace("fma.rn.f32", "fmadd.f32")}, "fmadd"),
    "PTX with a type that is none": ({"ptx_text": PTX.replace("fma.rn.f32", "fma.rn.f33")}, "f33"),
    "PTX with a register nobody declared": ({"ptx_text": PTX.replace("%f3, %f1, %f2", "%f3, %g1, %f2")}, "%g1"),
    "PTX with a label that is not there": ({"ptx_text": PTX.replace("bra DONE", "bra AWAY")}, "AWAY"),
    "PTX for 32-bit addresses": ({"ptx_text": PTX.replace(".address_size 64", ".address_size 32")}, "address_size"),
    "empty text": ({"ptx_text": ""}, "PTX"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_in_one_line(what):
    changes, word = REFUSED[what]
    with pytest.raises(TensorladderError) as refusal:
        launch(**changes)
    message = str(refusal.value)
    assert word in message and "\n" not in message
    assert isinstance(refusal.value, UsageError), f"{type(refusal.value).__name__}: {message}"


# What the hardware would fault on: an error of the kernel, which names the array or the rule.
FAULTS = {
    "reads past the end of an array": (arguments(_0=np.ones(N - 1, np.float32)), "argument 0"),
    "reads memory that is nobody's": (arguments(_1=np.uint64(64)), "ld.global.f32"),
    "more shared memory than there is": ({"smem": 1 << 20}, "shared memory"),
    "a block above .maxntid": ({"block": 512}, ".maxntid"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_one_line(what):
    changes, word = FAULTS[what]
    with pytest.raises(KernelError) as fault:
        launch(**changes)
    assert word in str(fault.value) and "\n" not in str(fault.value)
