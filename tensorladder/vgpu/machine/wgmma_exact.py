"""WGMMA in Hopper's own arithmetic (matmul._exact): eight rows at a time, out of the fragments and back."""

from __future__ import annotations

from tensorladder.vgpu.machine import fragments as F
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.matmul import float_kind, gemm
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.operands import E4M3, E5M2
from tensorladder.vgpu.machine.raw import f16_to_f32, f32_to_f16, ld16, ld32, ld64, ldf32, st16, st32, stf32


@helper
def gather_rows(half, table, frame, h, n, keep, d):
    """Rows 8 h to 8 h + 7 of a warp's accumulators as 8 x n float32; zeros unless `keep`."""
    for c in range(n):
        for g in range(8):
            at = d + 4 * (g * n + c)
            lane = 4 * g + (c & 7) // 2
            if keep == 0:
                st32(at, 0)
            elif half != 0:
                place = frame + ld32(table + 4 * (2 * (c >> 3) + h)) + 4 * lane + 2 * (c & 1)
                stf32(at, f16_to_f32(ld16(place)))
            else:
                st32(at, ld32(frame + ld32(table + 4 * (4 * (c >> 3) + 2 * h + (c & 1))) + 4 * lane))


@helper
def scatter_rows(half, table, frame, h, n, d):
    """The inverse of gather_rows."""
    for c in range(n):
        for g in range(8):
            at = d + 4 * (g * n + c)
            lane = 4 * g + (c & 7) // 2
            if half != 0:
                place = frame + ld32(table + 4 * (2 * (c >> 3) + h)) + 4 * lane + 2 * (c & 1)
                st16(place, f32_to_f16(ldf32(at)))
            else:
                st32(frame + ld32(table + 4 * (4 * (c >> 3) + 2 * h + (c & 1))) + 4 * lane, ld32(at))


@helper
def multiply_exact(product, ty, table, frames, spread, lines, pitch, n, k, keep, d):
    """D = A B (+ D): spread A and `k` lines of B, `pitch` bytes apart; d: room for 8 x n float32."""
    half = 1 if product == F.F16 else 0
    kind = float_kind(L.NUMERICS_EXACT, 1 if ty in (E4M3, E5M2) else 0, half)
    for group in range(8):
        warp = group >> 1
        h = group & 1
        frame = ld64(frames + 8 * warp)
        gather_rows(half, table, frame, h, n, keep, d)
        a = spread + 128 * (2 * warp * k + h)
        gemm(kind, d, 4 * n, a, 16, 256, lines, pitch, 8, n, k)
        scatter_rows(half, table, frame, h, n, d)
