"""Values of lanes and of memory: as data, as short as they can be said, and as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

#: numpy types of the elements that a dump can show; bf16 is made from its bits
ELEMENTS = {
    "u8": np.uint8, "s8": np.int8, "u16": np.uint16, "s16": np.int16, "u32": np.uint32, "s32": np.int32,
    "u64": np.uint64, "s64": np.int64, "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
#: how to read registers whose type says no more than a size
_OF_BITS = {8: "u8", 16: "u16", 32: "u32", 64: "u64"}
_HALVES = {"f16x2": "f16", "bf16x2": "bf16"}


def element(type_: str, bits: int) -> str:
    """The element type in which a PTX type of so many bits is shown."""
    return type_ if type_ in ELEMENTS else _OF_BITS[bits]


def numbers(raw: np.ndarray, name: str) -> list[Any]:
    """Bytes as JSON numbers of an element type; what JSON cannot say is text, with the bits."""
    data = raw.view(ELEMENTS[name])
    if name == "bf16":
        data = (data.astype(np.uint32) << 16).view(np.float32)
    if data.dtype.kind != "f":
        return [int(x) for x in data]
    bits = raw.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[ELEMENTS[name]().itemsize])
    digits = 2 * bits.dtype.itemsize
    return [
        float(x) if math.isfinite(x) else f"{'nan' if math.isnan(x) else x} ({int(b):#0{digits + 2}x})"
        for x, b in zip(data, bits, strict=True)
    ]


def of_register(raw: np.ndarray, type_: str, bits: int, mask: int) -> dict[str, Any]:
    """A register's values in the lanes of a mask. raw: 32 lanes, bytes; of a predicate four bytes, a bit a lane.

    {"lanes": mask} for predicates; {"uniform": x}; {"first": x, "step": d} for x + d * lane (integers, all 32 lanes);
    {"values": [...]}, a value a lane of the mask in order.
    """
    if bits == 1:
        return {"lanes": int(raw.view(np.uint32)[0]) & mask}
    rows = raw.reshape(32, bits // 8)[[lane for lane in range(32) if mask >> lane & 1]]
    if bits == 128:
        return compressed([f"0x{row[::-1].tobytes().hex()}" for row in rows])
    if type_ in _HALVES:
        pairs = [numbers(row, _HALVES[type_]) for row in rows.copy()]
        return compressed([tuple(pair) for pair in pairs])
    name = element(type_, bits)
    made = numbers(np.ascontiguousarray(rows).reshape(-1), name)
    return compressed(made, bits if ELEMENTS[name]().dtype.kind in "iu" and mask == 0xFFFFFFFF else 0)


def compressed(values: Sequence[Any], bits: int = 0) -> dict[str, Any]:
    """Values in the shortest of the three forms of `of_register`; bits: they are integers that wrap at this width."""
    if all(value == values[0] for value in values):
        return {"uniform": _plain(values[0])}
    if bits and len(values) > 2:
        step = values[1] - values[0]
        if all((b - a - step) % (1 << bits) == 0 for a, b in pairwise(values)):
            return {"first": values[0], "step": step}
    return {"values": [_plain(value) for value in values]}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def text_of(value: Any) -> str:
    """One value for a person."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return f"({', '.join(text_of(x) for x in value)})"
    if isinstance(value, int) and abs(value) > 9999:
        return f"{value} ({value:#x})" if value >= 0 else str(value)
    return str(value)


def lines_of(found: dict[str, Any], row: int = 8) -> list[str]:
    """What `of_register` gave, as lines for a person."""
    if "lanes" in found:
        return [f"true in {lanes_text(found['lanes'])}" if found["lanes"] else "false"]
    if "uniform" in found:
        return [text_of(found["uniform"])]
    if "step" in found:
        return [f"{text_of(found['first'])} {'+' if found['step'] >= 0 else '-'} {abs(found['step'])} * lane"]
    words = [f"{x:#x}" if isinstance(x, int) and x > 9999 else text_of(x) for x in found["values"]]
    return [" ".join(words[k : k + row]) for k in range(0, len(words), row)]


def lanes_text(mask: int) -> str:
    """Lanes of a mask: "all lanes", "lanes 0-15,20", "no lanes"."""
    if mask == 0xFFFFFFFF:
        return "all lanes"
    runs: list[list[int]] = []
    for lane in (lane for lane in range(32) if mask >> lane & 1):
        if runs and runs[-1][-1] == lane - 1:
            runs[-1][1:] = [lane]
        else:
            runs.append([lane])
    if not runs:
        return "no lanes"
    many = len(runs) > 1 or len(runs[0]) > 1
    return f"lane{'s' * many} {','.join('-'.join(map(str, run)) for run in runs)}"
