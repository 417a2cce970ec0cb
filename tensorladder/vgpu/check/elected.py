"""One lane hands on for its warp: what the others did before, with no bar.warp.sync between, is not handed on.

An arrival at an mbarrier, or a release through memory, is of the lane that executes it. A warp has one clock, so here
is kept which accesses of other lanes (lanes.py's log) such a release leaves out: whoever knows of the warp by it alone,
and not by a later release after the lanes have met, does not come after them. Where an .aligned instruction comes
between, all lanes have been there together: nothing is left out, since practice leans on that.
"""

from __future__ import annotations

from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.clocks import clock_of, known, warp_of, window_of
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.hooks import ACCESS_ALIGNED, ACCESS_STRONG
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.raw import ld32, ld64, st64, trailing_zeros

_OPEN = 1 << 40  # later than any clock: the lanes have not met since


@helper
def entry_of(log, write, k):
    """The k-th entry of a log's writes or reads."""
    return log + X.LOG_HEAD + X.ENTRY * ((0 if write != 0 else X.LOG_MOST) + k)


@helper
def left_of(x, n):
    """What releases of warp n left out: how many, then (LEFT_*) the newest."""
    return ld64(x + X.X_LEFT) + n * X.LEFT_BYTES


@helper
def left_at(left, k):
    """One of them."""
    return left + X.LEFT_HEAD + X.LEFT * (k % X.LEFT_MOST)


@helper
def closed(x, n):
    """All lanes of a warp have met: who learns of it from now on comes after all of them."""
    left = left_of(x, n)
    now = clock_of(known(x, n), n)
    for k in range(min(ld64(left), X.LEFT_MOST)):
        one = left_at(left, k)
        if ld64(one + X.LEFT_UNTIL) == _OPEN:
            st64(one + X.LEFT_UNTIL, now)


@helper
def all_there(w, log):
    """All lanes have executed an .aligned instruction since the last access or release: those in the log are over. Or
    some lanes a shuffle, a vote."""
    said = ld64(w + L.W_ALIGNED)
    if said == 0:
        return
    st64(w + L.W_ALIGNED, 0)
    for kind in range(2):
        for k in range(min(ld64(log + 8 * kind), X.LOG_MOST)):
            entry = entry_of(log, 1 - kind, k)
            st64(entry + X.ENTRY_TOGETHER, ld64(entry + X.ENTRY_TOGETHER) | (said & 1))
            st64(entry + X.ENTRY_COLLECTIVE, ld64(entry + X.ENTRY_COLLECTIVE) | (-1 if said & 1 else said >> 8))


@helper
def left_out(entry, lanes, live):
    """Lanes whose access is not handed on by a release of some lanes."""
    if ld64(entry + X.ENTRY_WHAT) & (ACCESS_STRONG | ACCESS_ALIGNED) or ld64(entry + X.ENTRY_TOGETHER) != 0:
        return 0
    others = ld64(entry + X.ENTRY_LANES) & live & ~lanes & ~ld64(entry + X.ENTRY_RELEASED)
    found = 0
    while others != 0:
        lane = trailing_zeros(others)
        others &= others - 1
        if ld32(entry + X.ENTRY_SEEN + 4 * lane) & lanes == 0:
            found |= 1 << lane
    return found


@helper
def settle_open(left, lanes, live, now):
    """A later release: of what earlier ones left out, it hands on what its lanes did or come after."""
    for k in range(min(ld64(left), X.LEFT_MOST)):
        one = left_at(left, k)
        if ld64(one + X.LEFT_UNTIL) != _OPEN:
            continue
        st64(one + X.LEFT_LANES, ld64(one + X.LEFT_LANES) & ~lanes)
        entry = ld64(one + X.LEFT_ENTRY)
        if ld64(entry + X.ENTRY_NUMBER) != ld64(one + X.LEFT_NUMBER) or left_out(entry, lanes, live) == 0:
            st64(one + X.LEFT_UNTIL, now)


@helper
def is_left(left, entry):
    """Whether it is noted already that an access was left out."""
    for k in range(min(ld64(left), X.LEFT_MOST)):
        one = left_at(left, k)
        if ld64(one + X.LEFT_ENTRY) == entry and ld64(one + X.LEFT_NUMBER) == ld64(entry + X.ENTRY_NUMBER):
            return True
    return False


@helper
def leave(left, entry, others, now, iid):
    """Note that an access of other lanes was left out, with the bytes that these have touched."""
    first = trailing_zeros(others)
    lo = ld64(entry + X.ENTRY_ADDRESSES + 8 * first)
    hi = lo
    for lane in range(first, L.LANES):
        if (others >> lane) & 1:
            lo = min(lo, ld64(entry + X.ENTRY_ADDRESSES + 8 * lane))
            hi = max(hi, ld64(entry + X.ENTRY_ADDRESSES + 8 * lane))
    count = ld64(left)
    st64(left, count + 1)
    one = left_at(left, count)
    st64(one + X.LEFT_COMPONENT, ld64(entry + X.ENTRY_COMPONENT))
    st64(one + X.LEFT_CLOCK, ld64(entry + X.ENTRY_CLOCK))
    st64(one + X.LEFT_FROM, now)
    st64(one + X.LEFT_UNTIL, _OPEN)
    st64(one + X.LEFT_LO, lo)
    st64(one + X.LEFT_HI, hi + ld64(entry + X.ENTRY_SIZE))
    st64(one + X.LEFT_LANES, others)
    st64(one + X.LEFT_ENTRY, entry)
    st64(one + X.LEFT_NUMBER, ld64(entry + X.ENTRY_NUMBER))
    st64(one + X.LEFT_IID, iid)


@helper
def release_by(x, w, n, log, lanes, iid):
    """Some lanes of a warp are to release what they have done: at an mbarrier, a barrier, a flag."""
    live = ld64(w + L.W_LIVE)
    left = left_of(x, n)
    now = clock_of(known(x, n), n)
    all_there(w, log)
    settle_open(left, lanes, live, now)
    for kind in range(2):
        for k in range(min(ld64(log + 8 * kind), X.LOG_MOST)):
            entry = entry_of(log, 1 - kind, k)
            others = left_out(entry, lanes, live)
            if others != 0 and not is_left(left, entry):
                leave(left, entry, others, now, iid)
                st64(x + X.X_ANY_LEFT, 1)
            st64(entry + X.ENTRY_RELEASED, ld64(entry + X.ENTRY_RELEASED) | lanes)


@helper
def releaser(x, k):
    """The warp that a component's accesses are of: its own, or its cp.async; -1: no such one."""
    if k < ld64(x + X.X_WARPS) * ld64(x + X.X_SLOTS):
        return k
    kind = ld64(ld64(x + X.X_COMPONENTS) + k * X.K_BYTES + X.K_KIND)
    return warp_of(x, k) if kind == X.K_IS_CP else -1


@helper
def was_left(x, v, epoch):
    """Of an access that is known by clock v: 1 + instruction of the release that left it out, 0 if none did.

    The accessed bytes are at X_PLACE.
    """
    k = (epoch >> 48) - 1
    n = releaser(x, k)
    space = ld64(x + X.X_SPACE)
    if n < 0 or n == ld64(x + X.X_WARP) or (space != X.SPACE_SHARED and space != X.SPACE_GLOBAL):
        return 0
    start = ld64(x + X.X_PLACE)
    if space == X.SPACE_SHARED:
        start = window_of(x, start)
    left = left_of(x, n)
    seen = clock_of(v, n)
    for i in range(min(ld64(left), X.LEFT_MOST)):
        one = left_at(left, i)
        if ld64(one + X.LEFT_COMPONENT) != k or ld64(one + X.LEFT_CLOCK) != (epoch >> 16) & 0xFFFFFFFF:
            continue
        if ld64(one + X.LEFT_LANES) == 0 or seen < ld64(one + X.LEFT_FROM) or seen >= ld64(one + X.LEFT_UNTIL):
            continue
        if start + ld64(x + X.X_LO) < ld64(one + X.LEFT_HI) and start + ld64(x + X.X_HI) > ld64(one + X.LEFT_LO):
            return ld64(one + X.LEFT_IID) + 1
    return 0
