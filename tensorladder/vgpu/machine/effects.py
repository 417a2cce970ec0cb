"""What an asynchronous operation does when its time comes: one dispatch over the units that work on their own."""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.queue import enqueue, is_eager, release_op
from tensorladder.vgpu.machine.raw import ld64


@helper
def run_op(u, op):
    """Advance an operation by one stage: true when it is done and can be freed."""
    kind = ld64(op + L.A_KIND)
    return kind != 0


@helper
def submit(w, op, row, size):
    """Issue: run all stages now under the eager policy, else put it into the queue."""
    if not is_eager(w):
        enqueue(w, op, row, size)
        return
    u = ld64(w + L.W_UNIT)
    while not run_op(u, op):
        pass
    release_op(u, op)
