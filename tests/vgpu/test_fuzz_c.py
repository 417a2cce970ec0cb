"""A few random C programs on the virtual GPU and through the host's compiler, bit for bit; `fuzz_c.py` runs many."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tensorladder.core.errors import MissingExtra
from tests.vgpu import fuzz_c


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no host C compiler")
@pytest.mark.parametrize("seed", [3008, 3018, 3019, 3021])
def test_random_programs(seed: int, tmp_path: Path) -> None:
    program = fuzz_c.Program(seed)
    try:
        ptx = fuzz_c.compiled(program.device, "sm_80", False, tmp_path)
    except MissingExtra as e:
        pytest.skip(str(e))
    states, counters = program.expected(tmp_path)
    for policy in ("eager", "random:3"):
        got, counted = program.got(ptx, policy)
        np.testing.assert_array_equal(got, states)
        np.testing.assert_array_equal(counted, counters)
