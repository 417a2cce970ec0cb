"""Probes: a kernel's own clock readings, written to a buffer that `core.probes` sizes, poisons and decodes.

A rung names what it marks (`RUNG.probes`), takes the buffer as a last argument that may be None, and calls `start` and
`mark`. Without a buffer nothing is emitted: the code is that of a kernel without probes. With one, a mark is two
special registers and one 8-byte store of one thread, some ten instructions and no wait: the clock of the SM, which
tells cycles apart, and the low half of %globaltimer, which all SMs share but which ticks coarsely (PTX ISA, "Special
Registers").
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op

from tensorladder.core.probes import HEADER, Plan

_START = """{
.reg .pred p;
.reg .b32 thread, sm;
.reg .b64 wide, now;
mov.u32 thread, %tid.x;
and.b32 thread, thread, MASK;
setp.eq.u32 p, thread, 0;
mov.u32 sm, %smid;
cvt.u64.u32 wide, sm;
mov.u64 now, %globaltimer;
@p st.global.b64 [$0], wide;
@p st.global.b64 [$0+8], now;
}"""
_MARK = """{
.reg .pred p;
.reg .b32 thread, cycles, now;
mov.u32 thread, %tid.x;
and.b32 thread, thread, MASK;
setp.eq.u32 p, thread, 0;
mov.u32 cycles, %clock;
mov.u32 now, %globaltimer_lo;
@p st.global.v2.b32 [$0], {cycles, now};
}"""


def buffer(plan: Plan, ctas: int, iterations: int) -> cute.Tensor:
    """The buffer's stand-in for `cute.compile`: int64, (CTAs, tracks, header and marks)."""
    shape = plan.shape(ctas, iterations)
    return cute.runtime.make_fake_compact_tensor(cutlass.Int64, shape, stride_order=(2, 1, 0), assumed_align=16)


def start(probes: cute.Tensor | None, cta: Any, track: Any, threads: int = 32) -> None:
    """Say which SM the CTA is on, and the time: once a track, before its first mark.

    probes: the buffer; None: nothing is emitted. cta: the CTA's number. track: the track's, in the rung's plan.
    threads: those at this place are a part of the (one-dimensional) CTA that begins at a multiple of this power of
    two; the first of them writes.
    """
    if probes is not None:
        _emit(_START.replace("MASK", str(threads - 1)), _address(probes, cta, track, 0))


def mark(probes: cute.Tensor | None, cta: Any, track: Any, number: Any, threads: int = 32) -> None:
    """Write the clocks of now: mark `number` of the track, as `core.probes` numbers them; the rest as for `start`."""
    if probes is not None:
        _emit(_MARK.replace("MASK", str(threads - 1)), _address(probes, cta, track, HEADER + number))


def _address(probes: cute.Tensor, cta: Any, track: int, slot: Any) -> Any:
    _, tracks, slots = probes.shape
    return (probes.iterator + ((cta * tracks + track) * slots + slot)).toint()


@dsl_user_op
def _emit(text: str, address: Any, *, loc: Any = None, ip: Any = None) -> None:
    llvm.inline_asm(
        None,
        [cutlass.Int64(address).ir_value(loc=loc, ip=ip)],
        text,
        "l,~{memory}",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )
