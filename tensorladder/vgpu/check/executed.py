"""What has been executed before what: arrivals and waits order that even where they are .relaxed and order no memory.

A warp that goes on after a wait comes after all arrivals of the phase. For data that is not enough, but it is for a
phase that a late warp could miss, for a copy that its receiver saw complete before the sender exits, and for tensor
memory. Only kernels with relaxed arrivals or waits have these clocks beside V; in all others V says the same.
"""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.clocks import clear, clock_of, copy, fenced_tensor, join, known
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import ld64


@helper
def separate(x):
    """Whether the kernel orders execution by something that orders no memory."""
    return ld64(x + X.X_EXECUTED) != 0


@helper
def executed(x, n):
    """What was executed before a warp's next instruction: a clock."""
    if not separate(x):
        return known(x, n)
    clock = ld64(x + X.X_EXECUTED) + n * ld64(x + X.X_CLOCK_BYTES)
    join(x, clock, known(x, n))
    return clock


@helper
def known_to_tensor(x, n):
    """What a warp's tcgen05 operations come after: tcgen05.fence::after_thread_sync makes that what was executed before
    it (PTX ISA, the tcgen05 memory consistency model)."""
    if not separate(x):
        return known(x, n)
    clock = ld64(x + X.X_PAD)
    copy(x, clock, known(x, n))
    join(x, clock, fenced_tensor(x, n))
    return clock


@helper
def forget_executed(x, n):
    """A CTA starts."""
    if separate(x):
        clear(x, ld64(x + X.X_EXECUTED) + n * ld64(x + X.X_CLOCK_BYTES))


# ---------------------------------------------------------------- mbarriers, by number
@helper
def of_barrier(x, number):
    """Clock of an mbarrier's phase that runs; that of the complete ones follows."""
    return ld64(x + X.X_B_EXECUTED) + 2 * number * ld64(x + X.X_CLOCK_BYTES)


@helper
def forget_phases(x, number):
    """mbarrier.init."""
    if separate(x):
        clear(x, of_barrier(x, number))
        clear(x, of_barrier(x, number) + ld64(x + X.X_CLOCK_BYTES))


@helper
def arrives(x, n, number):
    """A warp arrives at an mbarrier, or an operation that it issues will."""
    if separate(x):
        join(x, of_barrier(x, number), executed(x, n))


@helper
def phase_over(x, number, running):
    """A phase is complete, whose V is given."""
    if separate(x):
        clock = of_barrier(x, number)
        complete = clock + ld64(x + X.X_CLOCK_BYTES)
        join(x, complete, clock)
        join(x, complete, running)
        clear(x, clock)


@helper
def executed_in_phase(x, number, running, k):
    """How far a component had come when an mbarrier's phase that runs, whose V is given, became complete."""
    if not separate(x):
        return clock_of(running, k)
    return max(clock_of(running, k), clock_of(of_barrier(x, number), k))


@helper
def waited(x, n, number):
    """A warp has waited for a phase of an mbarrier."""
    if separate(x):
        join(x, executed(x, n), of_barrier(x, number) + ld64(x + X.X_CLOCK_BYTES))


# ---------------------------------------------------------------- barriers of a CTA and of a cluster
@helper
def of_bar(x, slot, index):
    """Clock of a named barrier."""
    return ld64(x + X.X_BAR_EXECUTED) + (16 * slot + index) * ld64(x + X.X_CLOCK_BYTES)


@helper
def of_cluster(x, cluster, generation):
    """Clock of a generation of a cluster's barrier."""
    return ld64(x + X.X_CLUSTER_EXECUTED) + (2 * cluster + (generation & 1)) * ld64(x + X.X_CLOCK_BYTES)


@helper
def come_to(x, n, clock):
    """A warp comes to a barrier."""
    if separate(x):
        join(x, clock, executed(x, n))


@helper
def go_on(x, n, clock):
    """A warp leaves a barrier."""
    if separate(x):
        join(x, executed(x, n), clock)


@helper
def forget(x, clock):
    """A barrier's next round begins."""
    if separate(x):
        clear(x, clock)
