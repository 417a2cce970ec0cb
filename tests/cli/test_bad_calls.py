"""The same from Python: bad arrays, PTX, files and architectures are one UsageError of one line each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensorladder.core import arch, dlpack, tensormap
from tensorladder.core.errors import UsageError
from tensorladder.frontends.raw import load_ptx
from tensorladder.measure.run import plan
from tensorladder.rungs.rung import find

HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"


def file(folder: Path, data: bytes) -> Path:
    path = folder / "kernel.ptx"
    path.write_bytes(data)
    return path


def misaligned() -> np.ndarray:
    """float32 elements, six bytes apart."""
    return np.lib.stride_tricks.as_strided(np.zeros(64, np.float32), (4,), (6,))


# what -> (the call, given a folder to write in; a word that the refusal has to hold)
CALLS = {
    "ptx file that is not there": (lambda folder: load_ptx(folder / "none.ptx"), "none.ptx"),
    "ptx path that is a folder": (load_ptx, "cannot read"),
    "empty ptx file": (lambda folder: load_ptx(file(folder, b"")), ".version"),
    "ptx that is machine code": (lambda folder: load_ptx(file(folder, b"\x7fELF\2\1")), "binary"),
    "ptx that is no text": (lambda folder: load_ptx(file(folder, b".version \xff\xfe")), "ASCII"),
    "ptx without a target": (lambda folder: load_ptx(".version 8.0\n.entry k() { ret; }\n"), ".target"),
    "ptx without a kernel": (lambda folder: load_ptx(HEADER), ".entry"),
    "ptx for an unknown target": (lambda folder: load_ptx(HEADER.replace("sm_80", "sm_42") + ".entry k() {}"), "sm_42"),
    "ptx that is C": (lambda folder: load_ptx("int main() {\n return 0; }\n"), ".version"),
    "architecture of another maker": (lambda folder: arch.find("gfx942"), "gfx942"),
    "architecture that is a number": (lambda folder: arch.find("9"), "'9'"),
    "array that is a list": (lambda folder: dlpack.view([1, 2, 3]), "list"),
    "array of strings": (lambda folder: dlpack.view(np.array(["a"])), "dtype"),
    "array of objects": (lambda folder: dlpack.view(np.array([None])), "dtype"),
    "array of the other byte order": (lambda folder: dlpack.view(np.zeros(4, ">f4")), "dtype"),
    "array with odd strides": (lambda folder: dlpack.view(misaligned()), "strides"),
    "tensor map that is too short": (lambda folder: tensormap.decode(b"\0" * 64), "64"),
    "tensor map of noise": (lambda folder: tensormap.decode(b"\xaa" * 128), "tensor map"),
    "shape as floats": (lambda folder: plan(find("a0"), shape=(1.5,)), "shape"),
    "shape of nothing": (lambda folder: plan(find("a0"), shape=()), "shape"),
    "dtype in capitals of another world": (lambda folder: plan(find("a0"), dtype="REAL*4"), "REAL*4"),
    "negative seed": (lambda folder: plan(find("a0"), seed=-3), "-3"),
}


@pytest.mark.parametrize("what", CALLS)
def test_refused_in_one_line(tmp_path, what):
    call, word = CALLS[what]
    with pytest.raises(UsageError) as refusal:
        call(tmp_path)
    message = str(refusal.value)
    assert word in message and "\n" not in message and refusal.value.exit_code == 2
