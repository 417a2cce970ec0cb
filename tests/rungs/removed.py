"""A rung with a piece of its text replaced, run: the twin tests of CuTe DSL's and of TIRx's rungs share it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tensorladder.core.errors import TensorladderError
from tensorladder.measure import run_rung
from tensorladder.rungs.rung import find, load


def must_show(
    name: str, text: str, instead: str, shape: Any, knobs: dict, policy: str, folder: Path, patch: pytest.MonkeyPatch
) -> None:
    """The rung with `instead` in the place of `text` is wrong, or stops with an error of ours."""
    info = find(name)
    source = info.path.read_text()
    assert source.count(text) == 1
    module = f"{info.path.stem}_without_{len(source.partition(text)[0])}"
    path = folder / f"{module}.py"
    path.write_text(source.replace(text, instead))
    patch.syspath_prepend(str(folder))
    broken = dataclasses.replace(info, module=module, path=path)
    config = dataclasses.replace(load(broken).RUNG.config(), **knobs)
    try:
        result = run_rung(broken, shape=shape, policy=policy, config=config, timeout=30)
    except TensorladderError as stopped:
        assert "internal" not in str(stopped)
    else:
        assert not result.ok, f"{text!r} seems not to be needed"
