"""What is said of each code of the checker that is not simply two accesses; words.py fills it in."""

from __future__ import annotations

from tensorladder.core.findings import Verdict
from tensorladder.vgpu.check import layout as X

_PROXY_FIX = (
    "fence.proxy.async.shared::cta by every thread that wrote, after its writes and before the barrier that hands "
    "the data on"
)
_WRITE_FIRST = "write it first; a stage that a copy has yet to fill wants a wait"
#: (kind, verdict, message, fix) of what is not simply two accesses
TEXTS: dict[int, tuple[str, Verdict | None, str, str]] = {
    X.PROXY: (
        "missing-proxy-fence", None,
        "{here} reads through the async proxy what {other} wrote through the generic proxy: no fence.proxy.async by "
        "the writing threads comes between the write and the barrier that hands it on", _PROXY_FIX,
    ),
    X.PROXY_LATE: (
        "missing-proxy-fence", Verdict.REVIEW,
        "{here} reads through the async proxy what {other} wrote through the generic proxy: the reader's warp executed "
        "fence.proxy.async after it learned of the write, the writing threads none before they handed it on (a fence "
        "works within its thread, says the ISA; its memory model has room for one anywhere on the way)", _PROXY_FIX,
    ),
    X.PROXY_COPIED: (
        "missing-proxy-fence", Verdict.REVIEW,
        "{here} reads through the async proxy what {other} copied, which is a write of the generic proxy: no "
        "fence.proxy.async comes between the wait for the copy and this (published kernels have none, and an H200 was "
        "never seen to read what was there before)",
        "fence.proxy.async.shared::cta after the wait for the copies, by the threads that copied or by the reader",
    ),
    X.CANCEL_NOT_FENCED: (
        "missing-proxy-fence", Verdict.REVIEW,
        "{here} lets the async proxy write its answer over one that {other} of {who} has read: no fence.proxy.async "
        "comes between",
        "fence.proxy.async.shared::cta by who reads the answer, before the arrival that lets the next one be asked for",
    ),
    X.PROXY_WRITE: (
        "missing-proxy-fence", Verdict.REVIEW,
        "{here} overwrites through the async proxy what {other} wrote through the generic proxy, with no "
        "fence.proxy.async between: the two writes may land in either order", _PROXY_FIX,
    ),
    X.LANES_RACE: (
        "race", None,
        "{here} by lane {b} and {other} by lane {a} of the same warp use the same bytes: no bar.warp.sync that names "
        "both comes between, and lanes need not run in lockstep",
        "bar.warp.sync (__syncwarp) of the lanes between the two; shfl, vote and other collectives order no memory",
    ),
    X.LANES_TOGETHER: (
        "race", Verdict.REVIEW,
        "{here} by lane {b} and {other} by lane {a} of the same warp use the same bytes: no bar.warp.sync comes "
        "between, only the warp-wide instruction keeps the lanes together",
        "bar.warp.sync (__syncwarp) between the two",
    ),
    X.LANES_HANDED: (
        "race", None,
        "{here} uses what {other} of {who} wrote, which it knows of by {release} alone: other lanes of that warp wrote "
        "it, with no bar.warp.sync between, so the arrival does not come after them",
        "bar.warp.sync (__syncwarp) before one lane arrives for its warp",
    ),
    X.LANES_FREED: (
        "race", Verdict.REVIEW,
        "{here} writes what {other} of {who} reads, which it knows of by {release} alone: other lanes of that warp "
        "read it, with no bar.warp.sync between, so the arrival does not come after them",
        "bar.warp.sync (__syncwarp) before one lane arrives for its warp",
    ),
    X.LANES_COPIED: (
        "race", Verdict.REVIEW,
        "{here} by lane {b} reads what {other} by lane {a} of the same warp wrote: no bar.warp.sync comes between, so "
        "the lane that copies does not come after it",
        "bar.warp.sync (__syncwarp) after the stores and their proxy fence, before one lane issues the copy",
    ),
    X.LANES_AFTER: (
        "race", Verdict.REVIEW,
        "{here} by lane {b} writes what {other} by lane {a} of the same warp reads before: no bar.warp.sync comes "
        "between, only that the lanes run together",
        "bar.warp.sync (__syncwarp) between the two",
    ),
    X.LANES_STORE: (
        "race", None,
        "{here} stores different values of lanes {a} and {b} to the same bytes: which one stays is undefined",
        "let one lane store, or give each its own bytes",
    ),
    X.PROXY_GLOBAL: (
        "missing-proxy-fence", None,
        "{here} reads through the async proxy what {other} wrote to global memory through the generic proxy in this "
        "launch: no fence.proxy.async (of global memory) comes between",
        "fence.proxy.async.global, or fence.proxy.async, by every thread that wrote, after its writes and before what "
        "hands them on",
    ),
    X.MAP_NOT_RELEASED: (
        "missing-proxy-fence", None,
        "{here} uses a tensor map that {other} has changed: no fence.proxy.tensormap::generic.release comes between",
        "tensormap.cp_fenceproxy from shared to global memory, or fence.proxy.tensormap::generic.release.gpu after the "
        "changes",
    ),
    X.MAP_NOT_ACQUIRED: (
        "missing-proxy-fence", None,
        "{here} uses a tensor map that {other} has changed: no fence.proxy.tensormap::generic.acquire of its address "
        "comes between",
        "fence.proxy.tensormap::generic.acquire.gpu [map], 128 before the copy, in the thread that issues it",
    ),
    X.WAIT_NARROW: (
        "scope", Verdict.REVIEW,
        "{here} reads what {other} of {who} wrote, of which its warp knows by {wait} alone: the acquire of that wait "
        "leaves out the other CTA's threads (a wait that names no scope has the CTA's)",
        "mbarrier.try_wait with .acquire.cluster, or fence.acq_rel.cluster after the wait",
    ),
    X.ST_NOT_FENCED: (
        "tcgen05-order", Verdict.REVIEW,
        "{here} follows {other} of another warp, which executed no tcgen05.fence::before_thread_sync before what hands "
        "it on",
        "tcgen05.wait::st, then tcgen05.fence::before_thread_sync, before the barrier or the arrival",
    ),
    X.UNINITIALISED: (
        "uninitialised", None, "{here} reads {space} memory that nothing has written", _WRITE_FIRST,
    ),
    X.UNDEFINED_STORED: (
        "uninitialised", Verdict.ERROR, "{here} stores to global memory a value that depends on {source}", _WRITE_FIRST,
    ),
    X.UNDEFINED_ADDRESS: (
        "uninitialised", Verdict.ERROR, "the address of {here} depends on {source}", _WRITE_FIRST,
    ),
    X.UNDEFINED_BRANCH: (
        "uninitialised", Verdict.ERROR, "the predicate of {here} depends on {source}", _WRITE_FIRST,
    ),
    X.UNDEFINED_OPERAND: (
        "uninitialised", Verdict.ERROR, "an operand of {here} depends on {source}", _WRITE_FIRST,
    ),
    X.UNDEFINED_COPIED: (
        "uninitialised", Verdict.ERROR,
        "{here} copies shared memory to global memory that nothing has written, or of values that nobody wrote",
        _WRITE_FIRST,
    ),
    X.BARRIER_NOT_VISIBLE: (
        "barrier-init", None,
        "{here} uses {barrier}, whose mbarrier.init nothing orders before it",
        "after mbarrier.init: fence.mbarrier_init, then bar.sync; where other CTAs of the cluster use it, "
        "barrier.cluster.arrive and .wait",
    ),
    X.BARRIER_NOT_FENCED: (
        "barrier-init", Verdict.REVIEW,
        "{here} lets an asynchronous operation use {barrier} of another CTA: its initialising thread executed no "
        "fence.mbarrier_init and no fence.proxy.async after mbarrier.init",
        "fence.mbarrier_init.release.cluster after mbarrier.init, before the barrier of the cluster that follows",
    ),
    X.BARRIER_TWICE: (
        "barrier-init", None, "{here} initialises {barrier}, which is initialised already and was not invalidated",
        "initialise each mbarrier once, by one thread",
    ),
    X.BARRIER_TOGETHER: (
        "barrier-init", Verdict.REVIEW,
        "{here} initialises {barrier} by several lanes of the warp, with the same count (by the ISA the second one "
        "finds a valid mbarrier there, which is undefined; kernels that leave out the election run)",
        "initialise each mbarrier once, by one thread",
    ),
    X.PHASE_ALIAS: (
        "barrier-phase", Verdict.REVIEW,
        "a warp waits on {barrier} (phase {a}) and nothing keeps the next phase from completing before it looks: if "
        "it is late it misses two flips and waits for ever",
        "let every warp that waits for a phase take part in what completes the next one, or let one warp wait and "
        "hand on by a barrier",
    ),
    X.PHASE_SKIPPED: (
        "barrier-phase", None,
        "{here} waits for phase {a} of {barrier} by parity, and nothing before tells the warp that phase {b} is "
        "complete: while that one still runs, the parity of the phase before it lets the warp through",
        "wait for every phase of an mbarrier in turn; where groups take the stages of a ring in turn, give each its "
        "own mbarriers",
    ),
    X.TX_LEFT: (
        "barrier-count", Verdict.REVIEW,
        "the CTA ends while {barrier} still counts {a} bytes: what expect_tx announced and what the copies brought "
        "differ, or copies are still on their way",
        "expect_tx exactly the bytes of the copies of each phase, and wait for the last phase",
    ),
    X.ARRIVALS_LEFT: (
        "barrier-count", Verdict.REVIEW,
        "the CTA ends in the middle of a phase of {barrier}: {a} of {b} arrivals have come, the last one here",
        "initialise the mbarrier with the arrivals that each phase gets",
    ),
    X.WAIT_LD: (
        "lint", None,
        "{here} was not waited for (tcgen05.wait::ld) before {other} hands on: its registers, and that it has read, "
        "are only certain then",
        "tcgen05.wait::ld.sync.aligned after the loads",
    ),
    X.AFTER_SYNC: (
        "tcgen05-order", Verdict.REVIEW,
        "{here} follows a wait for what {other} left in tensor memory with no tcgen05.fence::after_thread_sync between",
        "tcgen05.fence::after_thread_sync after the wait",
    ),
    X.BEFORE_SYNC: (
        "tcgen05-order", Verdict.REVIEW,
        "{here} hands on tensor memory that {other} has accessed, with no tcgen05.fence::before_thread_sync between",
        "tcgen05.fence::before_thread_sync before the arrival",
    ),
    X.COMMIT_OTHER_LANE: (
        "tcgen05-order", None,
        "{here} by lane {a} tracks nothing: the operations were issued by lane {b}, and a commit is of its own "
        "thread's",
        "issue and commit under one elect.sync predicate",
    ),
    X.NOT_COMMITTED: (
        "tcgen05-order", Verdict.REVIEW,
        "the CTA ends while {here} may still run: no warp of it has waited for a tcgen05.commit that covers it",
        "tcgen05.commit after the last operation, and a wait for its mbarrier before the CTA ends",
    ),
    X.TMEM_FREED: (
        "tmem", None,
        "{here} frees tensor memory that {other} may still use: nothing orders the two",
        "a barrier (of the cluster, where a CTA pair shares products) between the last use and tcgen05.dealloc",
    ),
    X.TWICE_FREED: (
        "lint", None, "{here} frees {a} columns that the CTA has freed already",
        "let one warp deallocate, the one that allocated",
    ),
    X.REGISTERS_IN_FLIGHT: (
        "missing-wait", None,
        "{here} reads accumulators that {other} may still be writing: no wgmma.wait_group for it comes before",
        "wgmma.commit_group and wgmma.wait_group before the accumulators are read",
    ),
    X.REGISTERS_WRITTEN: (
        "slot-reuse", None,
        "{here} writes registers that {other} may still read as its operand A: no wgmma.wait_group for it comes before",
        "wgmma.wait_group before the fragment's registers are written again",
    ),
    X.WGMMA_NO_FENCE: (
        "missing-wait", None,
        "{here} uses registers with no wgmma.fence since they were written",
        "wgmma.fence.sync.aligned after registers of the operation were written, and before the first operation",
    ),
    X.LATE_ARRIVAL: (
        "barrier-count", None,
        "{here} counts for the phase of {barrier} that follows the one which {other} completed, and nothing orders it "
        "after that arrival: it may as well come first and count for that phase. More arrivals come each round than "
        "the {a} that the mbarrier was initialised with, or a warp arrives again before it has waited",
        "initialise the mbarrier with the arrivals that each phase gets, and let who arrives for the next phase wait "
        "for this one first",
    ),
    X.SPLIT_ARRIVAL: (
        "barrier-count", None,
        "{here} completes a phase of {barrier} with a part of its lanes, the others count for the next phase: more "
        "arrivals come each round than the {a} that the mbarrier was initialised with",
        "initialise the mbarrier with the arrivals that each phase gets, or let one elected lane arrive",
    ),
    X.LANES_ABSENT: (
        "collective", None,
        "{here} waits for lanes {a:#x} of its warp, which go past it, on to {other}, and end: they "
        "never take part",
        "name only the lanes that execute it in the member mask (__ballot_sync before the branch gives them), or let "
        "all lanes of the warp execute it",
    ),
    X.LANES_ELSEWHERE: (
        "collective", None,
        "{here} waits for lanes {a:#x} of its warp, which wait at {other}: neither goes on",
        "name only the lanes that execute it in the member mask, or let all lanes of the warp execute it",
    ),
    X.MASKS_DIFFER: (
        "collective", None,
        "{here} is executed with different member masks, {a:#x} and {b:#x}, by lanes that name each other",
        "give all lanes that execute it together the same mask",
    ),
    X.BARRIER_APART: (
        "collective", None,
        "{here}, which is .aligned, is executed by a part of its warp, while lanes {a:#x} are at {other} for the same "
        "barrier",
        "let the whole warp execute one barrier instruction: outside of the branch; or barrier.sync without .aligned",
    ),
    X.SETMAXNREG_PART: (
        "collective", None,
        "{here} is executed by warp {a} and not by warp {b} of its warpgroup",
        "let all four warps of a warpgroup execute the same setmaxnreg",
    ),
    X.REMOTE_AFTER_EXIT: (
        "race", None,
        "{here} may come after the CTA whose shared memory it accesses has exited: nothing that this CTA waits for "
        "comes after it",
        "let a CTA wait for its peers' last accesses before it exits: barrier.cluster.arrive and .wait, or a wait for "
        "the phase that their last arrivals complete",
    ),
    X.SENT_AT_EXIT: (
        "missing-wait", Verdict.REVIEW,
        "the CTA ends while {here} may still read its shared memory: none of its warps comes after a wait for the "
        "phase that the copy completes (the ISA does not say that the memory stays until then)",
        "let a CTA wait until its peers have what it has sent before it exits: barrier.cluster.arrive and .wait after "
        "the receivers' wait, or an arrival of theirs",
    ),
    X.STORE_AT_EXIT: (
        "missing-wait", Verdict.REVIEW,
        "the CTA ends while {here} may still read its shared memory: no cp.async.bulk.wait_group.read by its thread "
        "(the ISA does not say that the memory stays until the store has read it; no H200 was seen to reuse it before)",
        "cp.async.bulk.commit_group and wait_group.read 0 in the thread that issued the store before it exits",
    ),
}  # fmt: skip
