"""What the rungs in TIRx share: names of element types, and the two layouts of an accumulator."""

from __future__ import annotations

from tvm.tirx.layout import S, TCol, TileLayout, TLane, tid_in_wg

ELEMENTS = {"fp16": "float16", "bf16": "bfloat16"}
LANES = 128  # of tensor memory


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def tmem_layout(columns: int) -> TileLayout:
    """(lanes, columns) of an accumulator in tensor memory: row i in lane i."""
    return TileLayout(S[(LANES, columns) : (1 @ TLane, 1 @ TCol)])


def row_a_thread(columns: int) -> TileLayout:
    """(rows, columns) over the registers of a warpgroup: thread i holds row i."""
    return TileLayout(S[(LANES, columns) : (1 @ tid_in_wg, 1)])
