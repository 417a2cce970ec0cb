"""Alignment and descriptors: addresses that an access cannot have, descriptors that say something impossible."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.memory import SmemAllocator

from tensorladder.zoo.case import Case

CASES = [
    Case(
        name="alignment-bulk-copy",
        wrong="a bulk copy to shared memory that starts 4 bytes past a multiple of 16",
        kind="alignment",
        language="cuda",
    ),
    Case(
        name="alignment-vector-load",
        wrong="16 bytes at a time from an address that is a multiple of 4",
        kind="alignment",
        language="cuda",
    ),
    Case(
        name="alignment-ldmatrix",
        wrong="rows of 20 bytes, so that every other row starts off the 16 bytes that ldmatrix reads",
        kind="alignment",
    ),
    Case(
        name="descriptor-instruction",
        wrong="the instruction descriptor says M = 48, which no tensor core multiplies",
        kind="descriptor",
        language="cuda",
        arch="sm_100a",
    ),
]


@cute.kernel
def alignment_ldmatrix(x: cute.Tensor, out: cute.Tensor, broken: cutlass.Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    pitch = 5 if broken else 8
    buffer = SmemAllocator().allocate_tensor(cutlass.Uint32, cute.make_layout(8 * 8), 128)
    buffer[tidx] = x[tidx]
    cute.arch.sync_threads()
    if tidx < 32:
        address = buffer.iterator.toint() + tidx % 8 * (4 * pitch)
        load = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{$w0}}, [{$r0}];"
        out[tidx] = cute.arch.inline_ptx(  # hazard: alignment-ldmatrix
            load, write_only_types=[cutlass.Uint32], read_only_args=[address]
        )
