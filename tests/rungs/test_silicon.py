"""What the rungs gave on an H200 (tests/data/silicon/rungs_h200.jsonl) against what the virtual GPU gives now.

SIMT rungs agree to the last bit. Tensor-core rungs sum products in another order inside one instruction, so a few
results round to a neighbour in fp16; the recording says how many did. Rows with `numerics` agree to the last bit under
that setting, whole kernels of WGMMA among them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

from tensorladder.measure import run_rung
from tensorladder.rungs import rung

ROWS = [
    json.loads(line) for line in (Path(__file__).parents[1] / "data/silicon/rungs_h200.jsonl").read_text().splitlines()
]
EXACT = [row for row in ROWS[1:] if "digest" in row]


@pytest.mark.parametrize("row", EXACT, ids=lambda row: f"{row['rung']}-{row['dtype']}")
def test_same_bits_as_silicon(row: dict) -> None:
    info = rung.find(row["rung"])
    asked = {key: row[key] for key in ("dtype", "arch", "numerics") if key in row}
    result = run_rung(info, shape=tuple(row["shape"]), seed=ROWS[0]["seed"], **asked)
    assert result.ok, result.message
    assert result.record()["digest"] == row["digest"]


def test_every_rung_was_right_on_silicon() -> None:
    assert {row["rung"] for row in ROWS[1:]} == {info.name for info in rung.catalog() if "sm_90a" in info.archs}
    # sums of fp8 are cut to 13 bits there, which only `--numerics exact` does too
    wide = [row for row in ROWS[1:] if row["dtype"] != "e4m3"]
    # an exponential of the chip's has other last bits, which float32 shows
    few = [row for row in wide if row["dtype"] != "fp32"]
    assert all(row["differ"] <= row["elements"] / 200 and row["relative_norm"] < 1e-4 for row in few)
    assert all(row["relative_norm"] < 1e-6 for row in wide if row["dtype"] == "fp32")
