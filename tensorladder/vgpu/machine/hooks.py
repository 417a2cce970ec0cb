"""What the checked variant tells: event records (accesses, arrivals, effects), and the hazard checker's events.

`record` appends to a buffer. `observe` calls the hazard checker (vgpu/check), a library of its own that the launch
names by address, so that machines without one carry nothing of it.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.raw import call_hook, fetch_add, ld64, st64

#: what an event is (first field of a record)
EVENT_READ, EVENT_WRITE, EVENT_ATOMIC, EVENT_ARRIVE, EVENT_ISSUE, EVENT_EFFECT, EVENT_WAIT, EVENT_FENCE = range(8)

#: what the checker is told, with its three numbers (host: a host address; op: an operation, filled in)
(CHECK_ACCESS,  # addresses of the lanes (host), bytes a lane, kind of access | space << 8 | scope << 10 (memory.hook)
 CHECK_START,  # a CTA (the subject) starts
 CHECK_END,  # a CTA (the subject) ends
 CHECK_FENCE,  # what (codegen.sync), addresses of the lanes where it names a tensor map
 CHECK_BAR,  # barrier, operation, thread count
 CHECK_BAR_DONE,  # of a CTA (the subject): barrier
 CHECK_CLUSTER_ARRIVE,  # generation, relaxed
 CHECK_CLUSTER_WAIT,  # generation
 CHECK_INIT,  # mbarrier (host), count
 CHECK_INVAL,  # mbarrier (host)
 CHECK_ARRIVE,  # mbarrier (host), count | lanes that arrive together << 32, flags of mbarrier.tl_mbar_arrive
 CHECK_TX,  # mbarrier (host), bytes
 CHECK_FLIP,  # mbarrier (host): the phase is complete
 CHECK_WAIT,  # mbarrier (host), parity or state, flags of mbarrier.tl_mbar_wait
 CHECK_ASYNC_ARRIVE,  # mbarrier (host), what CHECK_ISSUE or CHECK_CP_ARRIVE noted (A_CHECK)
 CHECK_CP,  # addresses (host): destinations, sources; bytes a lane
 CHECK_CP_ARRIVE,  # gives what to note
 CHECK_COMMIT,  # field of the warp: W_CP_GROUP or W_BULK_GROUP
 CHECK_WAIT_GROUPS,  # field of the warp, kind of wait, groups that may be pending
 CHECK_ISSUE,  # op: a copy, or an operation of tcgen05; gives what to note
 CHECK_WGMMA,  # op, slot of the warp in its warpgroup
 CHECK_WGMMA_COMMIT,
 CHECK_WGMMA_WAIT,  # groups that may be pending
 CHECK_WGMMA_SETTLE,  # last group that is waited for
 CHECK_TMEM_ALLOC,  # place of the address (host), column, columns
 CHECK_TMEM_DEALLOC,  # column, columns
 CHECK_TMEM_LD,  # shape, registers, step
 CHECK_TMEM_ST,  # shape, registers, step
 CHECK_MAP,  # addresses (host), bytes | place in the map << 32: a tensor map in memory is changed, or copied
 CHECK_REGISTERS,  # table of registers' offsets, count, 0 read or 1 written: wgmma may be using them
 CHECK_ABSENT,  # lanes that ended, what they went on with: lanes wait for them at this instruction
 CHECK_MEMBERS,  # two member masks, lanes with the second one: they differ at one collective
 CHECK_APART,  # other instruction: lanes of a warp are at one barrier by two instructions
 CHECK_WARP_SYNC,  # mask: a bar.warp.sync of these lanes is complete
 CHECK_GRID_WAIT,  # griddepcontrol.wait
 CHECK_UNDEFINED,  # how an undefined value matters (codegen.undefined); this and what follows: check.values
 CHECK_ORIGIN,  # an undefined value comes from here
 CHECK_SHADOW_LD,  # addresses (host), vectors for shadows, bytes of an element | elements a lane << 8
 CHECK_SHADOW_ST,  # the same of what was stored
 CHECK_SHADOW_TMEM_LD,  # words (host) of the lanes, registers for shadows, shape | step << 4 | count << 8
 CHECK_SHADOW_TMEM_ST,
 ) = range(41)  # fmt: skip
#: kinds of a CHECK_ACCESS, low four bits; strong: .volatile, .relaxed and stronger, atomics; aligned: the whole warp's
ACCESS_READ, ACCESS_WRITE, ACCESS_ATOMIC = 0, 1, 2
ACCESS_STRONG, ACCESS_ACQUIRE, ACCESS_RELEASE, ACCESS_ALIGNED = 16, 32, 64, 128
#: the scope of a strong access: all of the GPU's threads (.gpu, .sys), the CTA's, the cluster's
ACCESS_SPACE, ACCESS_SCOPE = 8, 10
ACCESS_WIDTH = 12  # of a store's elements, as a power of two: they are in scratch 1 and on
ACCESS_EXCHANGE = 1 << 15  # an atomic that leaves nothing of what was there
SCOPE_GPU, SCOPE_CTA, SCOPE_CLUSTER = range(3)


@helper
def observe(w, what, a, b, c, lanes, iid):
    """Tell the hazard checker of something a warp does; what it answers, 0 without one."""
    check = ld64(ld64(w + L.W_LAUNCH) + L.L_CHECK)
    if check == 0:
        return 0
    return call_hook(check, w, what, a, b, c, lanes, iid)


@helper
def observe_cta(c, what, a):
    """Tell the hazard checker of something that happens to a CTA."""
    check = ld64(ld64(c + L.C_LAUNCH) + L.L_CHECK)
    if check != 0:
        call_hook(check, c, what, a, 0, 0, 0, 0)


@helper
def record(w, what, a, b, lanes, iid):
    """Append (what, CTA, warp, clock, instruction, lanes, a, b) in the checked variant; past the end, count only."""
    launch = ld64(w + L.W_LAUNCH)
    events = ld64(launch + L.L_HOOKS)
    if events == 0:
        return
    n = fetch_add(launch + L.L_HOOKS_USED, 1)
    if n >= ld64(launch + L.L_HOOKS_SIZE):
        return
    p = events + 64 * n
    st64(p, what)
    st64(p + 8, ld64(ld64(w + L.W_CTA) + L.C_LINEAR))
    st64(p + 16, ld64(w + L.W_WARPID))
    st64(p + 24, ld64(w + L.W_CLOCK))
    st64(p + 32, iid)
    st64(p + 40, lanes)
    st64(p + 48, a)
    st64(p + 56, b)


@export
def tl_hook_access(w, what, addresses, lanes, size, iid):
    """An access of a lane group: host addresses (resolved); what: as for CHECK_ACCESS. Events keep the first one."""
    if lanes == 0:
        return 0
    if ld64(ld64(w + L.W_LAUNCH) + L.L_CHECK) != 0:
        return observe(w, CHECK_ACCESS, addresses, size, what, lanes, iid)
    lane = 0
    while lane < L.LANES - 1 and (lanes >> lane) & 1 == 0:
        lane += 1
    record(w, what & 15, ld64(addresses + 8 * lane), size | ((what >> ACCESS_SPACE & 3) << 32), lanes, iid)
    return 0


@export
def tl_break(w, point, ahead, lanes, iid):
    """Lanes have come to breakpoint `point` of the kernel, `ahead` instructions after W_CLOCK: 1 to stop the launch.

    Lanes that execute an instruction again after they have waited at it have come there before.
    """
    retry = ld64(w + L.W_RETRY)
    fresh = lanes & ~retry
    st64(w + L.W_RETRY, retry & ~lanes)
    if fresh == 0 or ld64(w + L.W_ERROR) != 0:
        return 0
    return call_hook(ld64(ld64(w + L.W_LAUNCH) + L.L_BREAK), w, point, ahead, 0, 0, fresh, iid)


@export
def tl_retry(w, lanes):
    """Lanes wait at a breakpoint's instruction, which they are then to execute again."""
    st64(w + L.W_RETRY, ld64(w + L.W_RETRY) | lanes)
    return 0


@export
def tl_hook_registers(w, table, count, write, lanes, iid):
    """Registers (offsets in the frame, i32) that a wgmma.mma_async may be using are read (0) or written (1)."""
    if lanes != 0:
        observe(w, CHECK_REGISTERS, table, count, write, lanes, iid)
    return 0
