"""What stops a run as a finding: faults, hangs, time-outs, what is not modelled."""

from __future__ import annotations

from tensorladder.core.errors import KernelError, TensorladderError, Unsupported
from tensorladder.core.findings import Finding, Where
from tensorladder.vgpu.machine import layout as L

#: kind of finding by error code of the machine
_KINDS = {
    "out-of-bounds": (L.ERR_OUT_OF_BOUNDS, L.ERR_READ_ONLY, L.ERR_REMOTE, L.ERR_REMOTE_EXITED, L.ERR_WGMMA_BOUNDS,
                      L.ERR_TMEM_SOURCE, L.ERR_MMA_TILE, L.ERR_OWN, L.ERR_WRONG_SPACE, L.ERR_STACK),
    "alignment": (L.ERR_MISALIGNED, L.ERR_TMA_ALIGN, L.ERR_BULK_SIZE, L.ERR_CP_SIZE),
    "descriptor": (L.ERR_TENSOR_MAP, L.ERR_WGMMA_DESC, L.ERR_TMEM_DESCRIPTOR, L.ERR_MMA_IDESC, L.ERR_MMA_DESC,
                   L.ERR_MMA_LANE, L.ERR_MMA_LANES_DIFFER, L.ERR_MMA_SCALES),
    "barrier-init": (L.ERR_MBAR_UNINIT, L.ERR_MBAR_INIT, L.ERR_MBAR_REMOTE),
    "barrier-count": (L.ERR_MBAR_COUNT, L.ERR_MBAR_TX, L.ERR_MBAR_NO_COMPLETE),
    "collective": (L.ERR_COLLECTIVE_MASK, L.ERR_BARRIER_ID, L.ERR_BARRIER_COUNT, L.ERR_BARRIER_SPLIT,
                   L.ERR_CLUSTER_ARRIVE, L.ERR_CLUSTER_WAIT, L.ERR_WGMMA_LANES, L.ERR_WGMMA_WARPS, L.ERR_WGMMA_DIFFER,
                   L.ERR_TMEM_UNIFORM, L.ERR_CLC_AFTER),
    "scope": (L.ERR_MULTICAST, L.ERR_CLC_SPACE),
    "tmem": (L.ERR_TMEM_NONE, L.ERR_TMEM_COUNT, L.ERR_TMEM_GROWS, L.ERR_TMEM_PERMIT, L.ERR_TMEM_DEALLOC,
             L.ERR_TMEM_LEAK, L.ERR_TMEM_LANES, L.ERR_TMEM_ROW, L.ERR_TMEM_COLUMNS, L.ERR_TMEM_PAIR,
             L.ERR_TMEM_PAIR_COUNT, L.ERR_MMA_COLUMNS),
    "launch": (L.ERR_SETMAXNREG,),
    "trap": (L.ERR_TRAP, L.ERR_ASSERT, L.ERR_BREAKPOINT),
    "deadlock": (L.ERR_DEADLOCK,),
    "unsupported": (L.ERR_UNSUPPORTED, L.ERR_ASYNC_FULL),
}  # fmt: skip
_KIND_OF = {code: kind for kind, codes in _KINDS.items() for code in codes}
_RULES = {code: name for name, code in vars(L).items() if name.startswith("ERR_")}
_FIXES = {
    "out-of-bounds": "predicate the access, or give the tensor map and the buffers the extents that are accessed",
    "alignment": "align the address: 128 bytes for tensor copies to shared memory, 16 for bulk copies, the own "
    "size for loads and stores",
    "descriptor": "compare the descriptor's fields with the layout of what it describes",
    "barrier-init": "one thread initialises the barrier, then fence.mbarrier_init and a barrier, before it is used",
    "barrier-count": "initialise the mbarrier with the arrivals that a phase gets, and announce the bytes that it gets",
    "collective": "let all lanes of the warp (all warps of the warpgroup) execute it, with the same operands",
    "scope": "name CTAs of this cluster alone",
    "launch": "give the roles numbers that add up: producers release what consumers take, from what the launch gives",
    "tmem": "allocate, use, deallocate: by one warp, with the same address and columns",
    "deadlock": "see what is owed to the barrier, who arrived last, and from where the rest should come",
}


def finding_of(stopped: TensorladderError, kernel: str = "") -> Finding:
    """What stopped a run, as a finding. Where it happened, a KernelError knows (its `finding`: code and place)."""
    message = " ".join(str(stopped).split())
    if isinstance(stopped, Unsupported):
        return Finding("unsupported", message, Where(kernel=kernel or None))
    if not isinstance(stopped, KernelError):
        return Finding("launch", message, Where(kernel=kernel or None))
    known = stopped.finding
    if not isinstance(known, tuple):
        # without a place nothing ran: what a launch asks for is refused
        return Finding("timeout" if "time-out" in message else "launch", message, Where(kernel=kernel or None))
    code, where = known
    kind = _KIND_OF.get(code, "trap")
    return Finding(kind, message, where, fix=_FIXES.get(kind, ""), rule=_RULES.get(code, ""))
