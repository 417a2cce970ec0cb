"""Errors and hangs of a launch in a person's words: what, which array and index, which lane, PTX line, source line."""

from __future__ import annotations

import ctypes
import os

import numpy as np

from tensorladder.core.errors import KernelError, TensorladderError, Unsupported
from tensorladder.core.findings import Where
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine import mma_rules
from tensorladder.vgpu.machine.arena import Memory

_SPACES = {0: "global", 1: "shared", 2: "local", 3: "generic"}


def source(compiled, iid: int) -> str:
    """`opcode (PTX line N, file.py:line)` of an instruction."""
    text, line, file, row, _ = compiled.low.lines[iid] if 0 <= iid < len(compiled.low.lines) else ("", 0, 0, 0, 0)
    if not line:
        return "an instruction"
    name = compiled.files.get(file)
    where = f", {os.path.basename(name)}:{row}" if name else ""
    return f"{text} (PTX line {line}{where})"


def place(compiled, iid: int, cta: tuple[int, int, int], warp: int, lane: int) -> Where:
    """An instruction of one lane, for a finding."""
    text, line, file, row, _ = compiled.low.lines[iid] if 0 <= iid < len(compiled.low.lines) else ("", 0, 0, 0, 0)
    name = compiled.files.get(file)
    row = row if name else None
    return Where(text, name, row or None, line or None, compiled.low.name, cta, warp, 1 << lane)


def error(compiled, words, memory: Memory, units: list, beside: str = "") -> TensorladderError:
    """The error that a launch stopped with; beside: what launches that ran with it wait for.

    A KernelError's `finding` is (error code, Where).
    """
    code = words[L.L_ERROR]
    iid, lane, warp = words[L.L_ERROR_IID], words[L.L_ERROR_LANE], words[L.L_ERROR_WARP]
    address, a, b = words[L.L_ERROR_ADDR], words[L.L_ERROR_A], words[L.L_ERROR_B]
    cta = tuple(words[L.L_ERROR_CTA + 8 * k] for k in range(3))
    at = source(compiled, iid)
    who = f"kernel {compiled.low.name}, CTA {cta}, warp {warp}, lane {lane}"
    known = (code, place(compiled, iid, cta, warp, lane) if code != L.ERR_DEADLOCK else Where(kernel=compiled.low.name))
    if code == L.ERR_UNSUPPORTED:
        what = next((t for n, t in compiled.low.unsupported if n == iid), at)
        line = at[at.index("(") :] if "(" in at else ""
        return Unsupported(f"not modelled: {what} {line}")
    if code == L.ERR_DEADLOCK:
        return KernelError(f"kernel {compiled.low.name} hangs: {hang(compiled, units, memory)}{beside}", known)
    if code == L.ERR_OUT_OF_BOUNDS:
        where = memory.describe(address, a) if b == 0 else f"{_SPACES.get(b, '')} address {address:#x}"
        text = f"out of bounds: {a} bytes at {where}"
    elif code == L.ERR_MISALIGNED:
        where = memory.describe(address, a) if b in (0, 3) else f"{_SPACES.get(b, '')} address {address:#x}"
        text = f"misaligned: {a} bytes at {where} (address {address:#x} is not a multiple of {a})"
    elif code == L.ERR_ASSERT:
        what, file = (ctypes.string_at(p).decode("utf-8", "replace") for p in (address, a))
        text = f"assertion `{what}` failed ({os.path.basename(file)}:{b})"
    elif code == L.ERR_WGMMA_DIFFER:
        text = f"the {'warps of a warpgroup' if b else 'lanes of a warp'} differ in {_DIFFER[a]}"
    elif code == L.ERR_READ_ONLY:
        text = f"write to read-only memory: {memory.describe(address, a)}"
    elif code in mma_rules.CODES:
        text = mma_rules.describe(code, address, a, b)
    else:
        text = _TEXT.get(code, f"error {code}").format(address=address, a=a, b=b, rule=_map_rule(code, a, b))
    return KernelError(f"{text}; {at}; {who}", known)


_TEXT = {
    L.ERR_TRAP: "trap executed",
    L.ERR_MBAR_UNINIT: "mbarrier at shared address {address:#x} is used before mbarrier.init",
    L.ERR_MBAR_COUNT: "mbarrier at shared address {address:#x}: {a} arrivals where this phase still expects {b}",
    L.ERR_MBAR_INIT: "mbarrier.init at shared address {address:#x}: count {a} must be 1 to 2**20 - 1",
    L.ERR_MBAR_NO_COMPLETE: "mbarrier at shared address {address:#x}: arrive.noComplete of {a} completes the phase "
    "(pending {b})",
    L.ERR_MBAR_TX: "mbarrier at shared address {address:#x}: a change by {b} bytes takes the transaction count to {a}, "
    "outside of +-(2**20 - 1)",
    L.ERR_BARRIER_ID: "barrier {a} does not exist (0 to 15)",
    L.ERR_BARRIER_COUNT: "barrier {a}: thread count {b} is no positive multiple of 32 up to the CTA's threads, or "
    "differs from the count {address} of the warps that are there",
    L.ERR_BARRIER_SPLIT: "lanes of one warp name different barriers or thread counts ({a} and {b})",
    L.ERR_CLUSTER_ARRIVE: "barrier.cluster.arrive twice without barrier.cluster.wait between",
    L.ERR_CLUSTER_WAIT: "barrier.cluster.wait without barrier.cluster.arrive before",
    L.ERR_BREAKPOINT: "breakpoint",
    L.ERR_STACK: "alloca of {a} bytes does not fit on the thread's stack of {b} bytes",
    L.ERR_TENSOR_MAP: "the tensor map at {address:#x} is not valid here: {rule}",
    L.ERR_CP_SIZE: "cp.async with source size {a}, which is more than its copy size {b}",
    L.ERR_MULTICAST: "multicast mask {a:#x} names CTA {b}, which is not in this cluster",
    L.ERR_TMA_ALIGN: "shared address {address:#x} of a bulk copy is not aligned to {a} bytes",
    L.ERR_BULK_SIZE: "bulk copy of {a} bytes: the size must be a multiple of 16",
    L.ERR_ASYNC_FULL: "too many asynchronous operations in flight in one CTA",
    L.ERR_COLLECTIVE_MASK: "a lane executes a collective whose member mask does not name it",
    L.ERR_REMOTE: "shared address {address:#x} belongs to no CTA of this cluster",
    L.ERR_MBAR_REMOTE: "mbarrier at shared address {address:#x} is another CTA's: this works on the own ones alone",
    L.ERR_REMOTE_EXITED: "shared address {address:#x} belongs to CTA {a} of this cluster, which has exited",
    L.ERR_OWN: "shared address {address:#x} is another CTA's (rank {a} of the cluster, this one's is {b}): .shared is "
    ".shared::cta, the own CTA's alone; .shared::cluster reaches the others",
    L.ERR_SETMAXNREG: "setmaxnreg to {a} registers a thread where it has {b}: .dec may not add registers, nor .inc "
    "take any away",
    L.ERR_CLC_SPACE: "address {address:#x} is not in the shared memory of the CTA that asks (.shared::cta)",
    L.ERR_CLC_AFTER: "clusterlaunchcontrol.try_cancel after this CTA has seen one that failed",
    L.ERR_WRONG_SPACE: "address {address:#x} is not in the state space of the instruction",
    L.ERR_TMEM_NONE: "this architecture has no tensor memory",
    L.ERR_TMEM_COUNT: "tensor memory of {a} columns: a power of two from 32 to 512 is wanted",
    L.ERR_TMEM_GROWS: "tcgen05.alloc of {a} columns after one of {b}: a CTA's allocations must not grow",
    L.ERR_TMEM_PERMIT: "tcgen05.alloc after tcgen05.relinquish_alloc_permit in the same CTA",
    L.ERR_TMEM_DEALLOC: "tcgen05.dealloc of {a} columns at tensor memory address {address:#010x}, where this CTA has "
    "an allocation of {b} columns",
    L.ERR_TMEM_SOURCE: "tcgen05.cp reads 16 bytes at shared address {address:#x}, outside of the CTA's shared memory",
    L.ERR_TMEM_DESCRIPTOR: "matrix descriptor with layout type {a}, which does not exist",
    L.ERR_TMEM_LEAK: "the CTA ended with {a} columns of tensor memory (at {address:#010x}) that were not deallocated",
    L.ERR_TMEM_UNIFORM: "lanes of the warp name different operands of one collective ({a:#x} and {b:#x})",
    L.ERR_TMEM_LANES: "tensor memory address {address:#010x} names lane {b}; this warp reaches lanes {a} to "
    "{a} + 31 only",
    L.ERR_TMEM_ROW: "tensor memory address {address:#010x}: its lane must be a multiple of {a} here",
    L.ERR_TMEM_COLUMNS: "tensor memory columns {a} to {b} at address {address:#010x} are not all allocated to this CTA",
    L.ERR_TMEM_PAIR: "cta_group::2 in a cluster where CTA {a} has no peer",
    L.ERR_TMEM_PAIR_COUNT: "tcgen05.alloc of {a} columns where the CTA pair's other half asks for {b}",
    L.ERR_WGMMA_LANES: "wgmma is executed by lanes {a:#x} of the warp only: all 128 threads of a warpgroup must",
    L.ERR_WGMMA_WARPS: "wgmma by warp {a} of a warpgroup whose other warps the CTA of {b} warps does not have: a "
    "warpgroup is four warps, the first a multiple of four",
    L.ERR_WGMMA_DESC: "the matrix descriptor {address:#x} has bits that no descriptor has ({b:#x})",
    L.ERR_WGMMA_BOUNDS: "the matrix descriptor's tile of {b} rows at shared address {address:#x} leaves the CTA's "
    "shared memory ({a} bytes)",
    L.ERR_TIMEOUT: "stopped",
}

#: rules of machine.tma.RULE_*, in order; {b} are the dimensions of the instruction
TENSOR_MAP_RULES = (
    "",
    "its address is not a multiple of 64",
    "its rank is not 1 to 5 (was the right parameter's address taken?)",
    "its rank is not the instruction's, {b}",
    "it is an im2col map, which is not modelled",
    "its element type is unknown or not modelled",
    "interleaved layouts are not modelled",
    "it has bits that no tiled map has (was the right parameter's address taken?)",
    "its swizzle mode is not modelled",
    "the inner box exceeds the swizzle span",
    "the inner box is not a multiple of 16 bytes",
    "its global address is not a multiple of 16",
    "its element type has no such reduction",
    "NaN fill needs a floating-point element type",
    "the innermost coordinate is not at a multiple of 16 bytes (of 128 elements for packed types with gaps)",
    "a store or reduction may not start at a negative coordinate",
    "a packed type with gaps needs an address at a multiple of 32, extent and box of whole 128 elements",
    "stores of packed types with gaps are not modelled",
)


#: what the threads of a warpgroup may not differ in (wgmma_issue.DIFFER_*)
_DIFFER = ("the descriptor of A", "the descriptor of B", "scale-d", "the instruction")


def _map_rule(code: int, rule: int, b: int) -> str:
    return TENSOR_MAP_RULES[rule].format(b=b) if code == L.ERR_TENSOR_MAP else ""


def hang(compiled, units: list, memory: Memory, most: int = 8) -> str:
    """Who waits on what, a few groups of lanes."""
    waits: dict[tuple, list] = {}
    for unit in units:
        for slot in range(unit.slots):
            if unit.ctas[slot * L.C_BYTES + L.C_DONE]:
                continue
            cta = tuple(unit.ctas[slot * L.C_BYTES + L.C_CTAID + 8 * k] for k in range(3))
            for n in range(unit.warps):
                for what in _warp_waits(compiled, unit, slot, n):
                    waits.setdefault(what, []).append((cta, n))
    parts = []
    for what, who in list(waits.items())[:most]:
        cta, n = who[0]
        warps = sorted({w for c, w in who if c == cta})
        names = f"warp{'s' if len(warps) > 1 else ''} {', '.join(map(str, warps))} of CTA {cta}"
        others = len({c for c, _ in who}) - 1
        more = f" (and in {others} other CTA{'s' if others > 1 else ''})" if others else ""
        parts.append(f"{names}{more} {what[0]}")
    return "; ".join(parts) or "no warp can move"


def _warp_waits(compiled, unit, slot: int, n: int):
    raw = unit.warp_words(slot, n)
    q = raw.view(np.int64)
    live, ready = int(q[L.W_LIVE // 8]), int(q[L.W_READY // 8])
    pcs = raw[L.W_PC : L.W_PC + 128].view(np.int32)
    kinds = raw[L.W_WAIT : L.W_WAIT + 128].view(np.int32)
    a = raw[L.W_WAIT_A : L.W_WAIT_A + 256].view(np.int64)
    b = raw[L.W_WAIT_B : L.W_WAIT_B + 256].view(np.int64)
    seen: dict[tuple, int] = {}
    for lane in range(L.LANES):
        if (live >> lane) & 1:
            # what a running lane waited for before says nothing
            waits = (0, 0, 0) if (ready >> lane) & 1 else (int(kinds[lane]), int(a[lane]), int(b[lane]))
            key = (int(pcs[lane]), *waits)
            seen[key] = seen.get(key, 0) | 1 << lane
    iid = int(q[L.W_IID // 8])
    for (pc, kind, x, y), lanes in seen.items():
        where = source(compiled, compiled.low.block_iids[pc]) if pc < len(compiled.low.block_iids) else ""
        blocked = source(compiled, iid)
        who = "" if lanes == live else f" (lanes {lanes:#x})"
        if kind in (L.WAIT_MBAR, L.WAIT_MBAR_STATE):
            where += last_arrival(compiled, x - unit.ctas[slot * L.C_BYTES + L.C_SHARED], unit, slot)
        yield (describe_wait(kind, x, y, unit, slot, where, blocked) + who,)


def last_arrival(compiled, place: int, unit, slot: int) -> str:
    """Who changed the mbarrier at `place` of the window last (machine.mbarrier.note)."""
    ring = np.ctypeslib.as_array((ctypes.c_int64 * (L.SHARED_RESERVED // 8)).from_address(
        unit.ctas[slot * L.C_BYTES + L.C_SHARED]
    ))  # fmt: skip
    entries = ring[2:].reshape(-1, 2)
    newest = int(ring[0])
    for n in range(newest, max(newest - len(entries), -1), -1):
        what, who = (int(x) for x in entries[n % len(entries)])
        if what >> 32 == place:
            far = "" if who >> 32 == unit.ctas[slot * L.C_BYTES + L.C_RANK] else f" of the cluster's CTA {who >> 32}"
            return f"; last arrival there: warp {who >> 8 & 0xFFFFFF}{far}, {source(compiled, what & 0xFFFFFFFF)}"
    return "; nobody has arrived there" if newest < len(entries) else ""


def describe_wait(kind: int, a: int, b: int, unit, slot: int, where: str, blocked: str) -> str:
    if kind in (L.WAIT_BAR, L.WAIT_BAR_RED):
        bar = slot * L.C_BYTES + L.C_BAR + a * L.C_BAR_STRIDE
        arrived, expected = unit.ctas[bar], unit.ctas[bar + 8]
        want = expected or unit.ctas[slot * L.C_BYTES + L.C_LIVE_WARPS] * L.LANES
        return f"wait at barrier {a} ({arrived} of {want} threads are there), {blocked}"
    if kind in (L.WAIT_MBAR, L.WAIT_MBAR_STATE):
        word = ctypes.c_uint64.from_address(a).value
        base = unit.ctas[slot * L.C_BYTES + L.C_SHARED]
        phase, pending, _, tx = mbarrier_fields(word)
        return (
            f"wait on the mbarrier at shared+{a - base:#x} for phase parity {b} (it is in phase {phase}; still owed: "
            f"{pending} arrivals, {tx} bytes), {where}"
        )
    if kind == L.WAIT_MEET:
        return f"wait for lanes {a:#x} to come to {where}"
    if kind == L.WAIT_WARP:
        return f"wait for lanes {a:#x} to come to a bar.warp.sync with this mask, {blocked}"
    if kind == L.WAIT_BAR_WARP:
        return f"wait at barrier {a & 0xFF} for the other lanes of the warp, {blocked}"
    if kind == L.WAIT_TIME:
        return f"spin with {blocked}, where nothing changes"
    if kind == L.WAIT_CLUSTER:
        return f"wait for the cluster's other threads to arrive at barrier.cluster, {where}"
    if kind == L.WAIT_GRID:
        return f"wait for the launches before to end, {blocked}"
    if kind in (L.WAIT_CP, L.WAIT_BULK, L.WAIT_BULK_READ):
        return f"wait for asynchronous copies, {blocked}"
    if kind == L.WAIT_TMEM_ALLOC:
        return _describe_alloc(a, b, unit, slot, blocked)
    if kind == L.WAIT_REGISTERS:
        return _describe_registers(a, unit, slot, blocked)
    if kind == L.WAIT_TMEM_STORE:
        return f"wait for the warp's tcgen05.st, {blocked}"
    if kind == L.WAIT_WGMMA:
        return f"wait for wgmma groups{_half_issued(unit, slot)}, {blocked}"
    if kind == 0:
        return f"spin at {where}, where nothing changes"
    return f"wait, {where}"


def _describe_registers(wanted: int, unit, slot: int, blocked: str) -> str:
    """A waiting setmaxnreg.inc: what the CTA was launched with, and what its warps hold."""
    warps = [unit.warp_words(slot, n).view(np.int64) for n in range(unit.warps)]
    held = sum(int(w[L.W_MAXNREG // 8]) for w in warps if w[L.W_LIVE // 8])
    start = ctypes.c_int64.from_address(int(warps[0][L.W_LAUNCH // 8]) + L.L_REGISTERS).value
    return (
        f"wait for {wanted} registers a thread: the CTA's pool is {L.LANES * start * len(warps)} ({start} a thread at "
        f"its launch), of which its warps hold {L.LANES * held}, {blocked}"
    )


def _describe_alloc(columns: int, pair: int, unit, slot: int, blocked: str) -> str:
    """A waiting tcgen05.alloc: what of the SM's tensor memory is free, and who may not be asked for more."""
    t = unit.ctas[slot * L.C_BYTES + L.C_TMEM]
    granules = np.ctypeslib.as_array((ctypes.c_int64 * (L.T_LOCK // 8 + 1)).from_address(t))
    free = L.TMEM_GRANULE * int((granules[: L.TMEM_COLUMNS // L.TMEM_GRANULE] == 0).sum())
    holder = int(granules[L.T_LOCK // 8])
    other = holder not in (0, unit.ctas.address + slot * L.C_BYTES)
    who = "; another CTA of its SM has the permit to allocate" if other else ""
    peer = " with its peer CTA" if pair else ""
    return f"wait for {columns} columns of tensor memory{peer} ({free} are free on its SM{who}), {blocked}"


def _half_issued(unit, slot: int) -> str:
    """Which warps have issued a wgmma of this CTA that the others of their warpgroup have not."""
    u = unit.words
    order = (ctypes.c_int64 * u[L.U_COUNT]).from_address(u[L.U_ORDER])
    for index in order:
        op = (ctypes.c_int64 * (L.A_BYTES // 8)).from_address(u[L.U_OPS] + index * L.A_BYTES)
        mine = op[L.A_CTA // 8] == unit.ctas.address + slot * L.C_BYTES
        if mine and op[L.A_KIND // 8] == L.OP_WGMMA and op[L.A_HELD // 8]:
            first = (op[L.A_QUEUE // 8] - unit.ctas[slot * L.C_BYTES + L.C_WARPS]) // L.W_BYTES
            names = [str(first + k) for k in range(4) if (op[L.A_SIZE // 8] >> k) & 1]
            return f" (of warps {first} to {first + 3}, only {', '.join(names)} issued an operation)"
    return ""


def mbarrier_fields(word: int) -> tuple[int, int, int, int]:
    """(phase, pending, expected, tx) of an mbarrier word."""
    tx = (word >> 41) & 0x1FFFFF
    if tx & 0x100000:
        tx -= 0x200000
    return word & 1, (word >> 1) & 0xFFFFF, (word >> 21) & 0xFFFFF, tx
