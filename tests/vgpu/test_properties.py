"""Every instruction case on values that hypothesis chooses, in diverged lanes, against the case's reference.

The kernels are those of the test modules' CASES, which run there with all lanes together; here one warp gets drawn
bits, and a failure shrinks to the simplest values.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.vgpu.ptx_kernels import TYPES, Case, check_diverged

pytest.importorskip("hypothesis")
from hypothesis import given, settings
from hypothesis import strategies as st

LANES = 32


def registered() -> list:
    """(module.case, case) of all modules with cases that may be drawn for."""
    found = []
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if path.stem == Path(__file__).stem:
            continue
        text = path.read_text()
        if "\nCASES" in text:
            try:
                module = importlib.import_module(f"tests.vgpu.{path.stem}")
            except (ImportError, pytest.skip.Exception):  # told where that module's own tests are collected
                continue
            found += [pytest.param(c, id=f"{path.stem[5:]}-{c.name}") for c in module.CASES if drawable(c)]
    return found


def drawable(case: Case) -> bool:
    return case.draws and case.reference is not None and not case.buffers and bool(case.inputs)


def values(ty: str) -> st.SearchStrategy:
    """One warp of bits: anything, small numbers and extremes."""
    if ty == "pred":
        one = st.booleans().map(int)
    else:
        top = (1 << 8 * np.dtype(TYPES[ty][0]).itemsize) - 1
        one = st.one_of(st.integers(0, top), st.integers(0, min(top, 40)), st.integers(max(0, top - 8), top))
    pool = st.lists(one, min_size=1, max_size=8)
    return pool.map(lambda items: (items * LANES)[:LANES])


def as_array(ty: str, items: list[int]) -> np.ndarray:
    dtype = np.dtype(TYPES[ty][0])
    return np.array(items, np.uint64).astype(f"u{dtype.itemsize}").view(dtype)


@pytest.mark.parametrize("case", registered())
def test_drawn_values_in_diverged_lanes(case: Case) -> None:
    """A third of the lanes are in a branch: they give what all would give, and the others keep their registers."""

    @settings(max_examples=10, database=None, deadline=None, derandomize=True)
    @given(st.fixed_dictionaries({name: values(ty) for name, (ty, _) in case.inputs.items()}))
    def holds(drawn: dict[str, list[int]]) -> None:
        arrays = {name: as_array(case.inputs[name][0], items) for name, items in drawn.items()}
        check_diverged(replace(case.with_inputs(**arrays), block=LANES, n=0))

    holds()
