"""Waits whose scope is too narrow for who arrived: what they leave in doubt.

A wait on an mbarrier is an acquire of its CTA's scope where it names no other one (PTX ISA, mbarrier.try_wait). What a
thread of another CTA released is then not ordered, though the phase is complete: its ordinary writes, and those of
st.async, want .acquire.cluster, or fence.acq_rel.cluster after the wait. What copies bring is there with the phase.

A warp that has waited so is in doubt: beside V it has a clock of what it knows without such waits. An mbarrier that
other CTAs arrive at, and a named barrier that a warp in doubt has arrived at, have one too. Only reads of what was
written are judged: that a slot may be written again needs no more than the arrival.
"""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.clocks import before, clear, copy, join, known, record_of, release_to, slot_record
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import ld64, st64

_OTHERS = -1


@helper
def without_doubt(x, n):
    """What warp n knows without doubtful waits; only where it is in doubt, V else."""
    return ld64(x + X.X_DOUBTS) + n * ld64(x + X.X_CLOCK_BYTES)


@helper
def in_doubt(x, n):
    """1 + instruction of the wait that left a warp in doubt, 0: none did."""
    return ld64(record_of(x, n) + X.Z_DOUBT)


@helper
def learn(x, n, src):
    """A warp is to learn what is in src (V), beyond doubt."""
    if in_doubt(x, n) != 0:
        join(x, without_doubt(x, n), src)


@helper
def learn_some(x, n, src, wait):
    """A warp is to learn something of which src is beyond doubt, because of a wait (1 + instruction)."""
    if in_doubt(x, n) == 0:
        copy(x, without_doubt(x, n), known(x, n))
    st64(record_of(x, n) + X.Z_DOUBT, wait)
    join(x, without_doubt(x, n), src)


@helper
def fenced_widely(x, n):
    """A fence of the cluster's scope or a wider one."""
    st64(record_of(x, n) + X.Z_DOUBT, 0)


# ---------------------------------------------------------------- mbarriers
@helper
def own_clocks(x, b):
    """Of an mbarrier's phase that runs, what is beyond doubt; of the complete ones after it."""
    number = (b - ld64(x + X.X_B)) // X.B_BYTES
    return ld64(x + X.X_B_OWN) + 2 * number * ld64(x + X.X_CLOCK_BYTES)


@helper
def hand_on(x, n, b, clocks):
    """A warp arrives: what it has done and knows goes into the phase that runs, whose clocks are given."""
    if ld64(x + X.X_CROSS) != 0:
        other = n // ld64(x + X.X_WARPS) != ld64(b + X.B_SLOT)
        doubt = in_doubt(x, n)
        own = own_clocks(x, b)
        if other or doubt != 0:
            if ld64(b + X.B_DOUBT) == 0:
                size = ld64(x + X.X_CLOCK_BYTES)
                copy(x, own, clocks)
                copy(x, own + size, clocks + 2 * size)
            st64(b + X.B_DOUBT, _OTHERS if other else doubt)
        if ld64(b + X.B_DOUBT) != 0 and not other:
            join(x, own, without_doubt(x, n) if doubt != 0 else known(x, n))
    release_to(x, n, clocks)


@helper
def own_complete(x, b):
    """The phase of an mbarrier that ran is complete."""
    if ld64(b + X.B_DOUBT) != 0:
        own = own_clocks(x, b)
        join(x, own + ld64(x + X.X_CLOCK_BYTES), own)
        clear(x, own)


@helper
def learn_from(x, n, b, complete, wide, iid):
    """A warp has waited for an mbarrier, and is to learn what its complete phases hold; wide: the wait is."""
    doubt = ld64(b + X.B_DOUBT)
    if doubt == 0 or wide:
        learn(x, n, complete)
    else:
        learn_some(x, n, own_clocks(x, b) + ld64(x + X.X_CLOCK_BYTES), iid + 1 if doubt == _OTHERS else doubt)


# ---------------------------------------------------------------- named barriers
@helper
def bar_clock(x, slot, index):
    """What of a named barrier's clock is beyond doubt."""
    return ld64(x + X.X_BAR_DOUBTS) + (16 * slot + index) * ld64(x + X.X_CLOCK_BYTES)


@helper
def arrive_at_bar(x, n, index, clock):
    """A warp is to arrive at a named barrier, whose V is given."""
    slot = n // ld64(x + X.X_WARPS)
    doubt = in_doubt(x, n)
    at = slot_record(x, slot) + X.Y_BAR_DOUBT + 8 * index
    if doubt != 0:
        if ld64(at) == 0:
            copy(x, bar_clock(x, slot, index), clock)
        st64(at, doubt)
    if ld64(at) != 0:
        join(x, bar_clock(x, slot, index), without_doubt(x, n) if doubt != 0 else known(x, n))


@helper
def learn_at_bar(x, n, slot, index, clock):
    """A warp is to learn what a named barrier holds."""
    doubt = ld64(slot_record(x, slot) + X.Y_BAR_DOUBT + 8 * index)
    if doubt == 0:
        learn(x, n, clock)
    else:
        learn_some(x, n, bar_clock(x, slot, index), doubt)


# ---------------------------------------------------------------- reads
@helper
def reads(x, n):
    """Warp n is about to access memory."""
    st64(x + X.X_DOUBT, without_doubt(x, n) if in_doubt(x, n) != 0 else 0)


@helper
def known_for_sure(x, w, epoch, site, shared):
    """Whether a read of the warp that accesses (X_DOUBT) may see the write w, which is ordered before it."""
    if (epoch | w) & X.EPOCH_ASYNC:
        return True
    at = ld64(x + X.X_COMPONENTS) + ((w >> 48) - 1) * X.K_BYTES
    slot = ld64(at + X.K_SLOT)
    if ld64(at + X.K_KIND) == X.K_IS_MBARRIER:  # st.async, into that CTA by a warp of another one
        slot = (site >> 20) % (ld64(x + X.X_WARPS) * ld64(x + X.X_SLOTS)) // ld64(x + X.X_WARPS)
    mine = ld64(x + X.X_WARP) // ld64(x + X.X_WARPS)
    size = ld64(x + X.X_SIZE)
    return slot == mine or slot // size != mine // size or before(x, ld64(x + X.X_DOUBT), w, shared)
