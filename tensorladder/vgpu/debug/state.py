"""What the machine holds at a moment, as plain data: warps and registers, shared and tensor memory, barriers, what is
in flight. Read while the scheduler stands still: at a breakpoint, or after a hang."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorladder.vgpu.codegen.points import Point, Shown
from tensorladder.vgpu.debug.places import Region
from tensorladder.vgpu.debug.values import element, numbers, of_register
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine import messages

if TYPE_CHECKING:
    from tensorladder.vgpu.machine.execution import Run
    from tensorladder.vgpu.machine.unit import Unit

#: of a CTA: bytes of shared memory around an address in use, and columns of tensor memory, that are shown unasked
AROUND, COLUMNS = 64, 4
#: waits by what they name: an mbarrier, a named barrier
_ON_MBARRIER = (L.WAIT_MBAR, L.WAIT_MBAR_STATE)
#: lanes that wait for these stand at the first instruction of the block that they are to run
_AT_ITS_BLOCK = (L.WAIT_NONE, *_ON_MBARRIER, L.WAIT_MEET, L.WAIT_CLUSTER)
_ON_BARRIER = (L.WAIT_BAR, L.WAIT_BAR_RED, L.WAIT_BAR_WARP)
OPERATIONS = {
    L.OP_CP_ASYNC: "cp.async", L.OP_MBAR_ARRIVE: "cp.async.mbarrier.arrive", L.OP_TMA_LOAD: "TMA load",
    L.OP_TMA_STORE: "TMA store", L.OP_TMA_REDUCE: "TMA reduction", L.OP_BULK_G2S: "bulk copy to shared memory",
    L.OP_BULK_S2G: "bulk copy to global memory", L.OP_BULK_REDUCE: "bulk reduction",
    L.OP_BULK_S2S: "bulk copy between CTAs", L.OP_REMOTE: "st.async or red.async", L.OP_WGMMA: "wgmma.mma_async",
    L.OP_TC_MMA: "tcgen05.mma", L.OP_TC_COMMIT: "tcgen05.commit", L.OP_TC_CP: "tcgen05.cp",
    L.OP_TC_SHIFT: "tcgen05.shift", L.OP_TC_ST: "tcgen05.st", L.OP_CLC: "clusterlaunchcontrol.try_cancel",
}  # fmt: skip


def memory(address: int, size: int) -> np.ndarray:
    """A copy of host memory, bytes."""
    return np.frombuffer(ctypes.string_at(address, size), np.uint8)


def word(address: int) -> int:
    """A signed 64-bit word of host memory."""
    return ctypes.c_int64.from_address(address).value


class Warp:
    """A warp's fixed part, as it was when this was made."""

    def __init__(self, address: int):
        self.address = address
        self._raw = memory(address, L.W_SCRATCH)
        self._words = self._raw.view(np.int64)
        self.live, self.ready = self[L.W_LIVE] & 0xFFFFFFFF, self[L.W_READY] & 0xFFFFFFFF

    def __getitem__(self, offset: int) -> int:
        return int(self._words[offset // 8])

    def groups(self) -> dict[tuple[int, int, int, int], int]:
        """Lanes by (block, kind of wait, what is waited for, its second number); kind 0: they can run."""
        pcs, kinds = (self._raw[at : at + 128].view(np.int32) for at in (L.W_PC, L.W_WAIT))
        a, b = (self._raw[at : at + 256].view(np.int64) for at in (L.W_WAIT_A, L.W_WAIT_B))
        found: dict[tuple[int, int, int, int], int] = {}
        for lane in (lane for lane in range(L.LANES) if self.live >> lane & 1):
            runs = self.ready >> lane & 1
            wait = (0, 0, 0) if runs else (int(kinds[lane]), int(a[lane]), int(b[lane]))
            key = (int(pcs[lane]), *wait)
            found[key] = found.get(key, 0) | 1 << lane
        return found

    def registers(self, shown: Sequence[Shown], mask: int) -> list[dict[str, Any]]:
        """Registers of the frame, in the lanes of a mask."""
        made = []
        for reg in shown:
            raw = memory(self[L.W_FRAME] + reg.offset, 4 if reg.bits == 1 else 4 * reg.bits)
            made.append({
                "name": reg.name, "type": "pred" if reg.bits == 1 else _type(reg),
                **of_register(raw, reg.type, reg.bits, mask),
            })  # fmt: skip
        return made

    def lane_values(self, reg: Shown, mask: int) -> list[int]:
        """A register's values as unsigned integers, in the lanes of a mask."""
        raw = memory(self[L.W_FRAME] + reg.offset, 4 * reg.bits)
        values = raw.view({16: np.uint16, 32: np.uint32, 64: np.uint64}[reg.bits])
        return [int(values[lane]) for lane in range(L.LANES) if mask >> lane & 1]


def _type(reg: Shown) -> str:
    return reg.type if reg.bits == 128 or reg.type in ("f16x2", "bf16x2") else element(reg.type, reg.bits)


class Cta:
    """A CTA in its slot of a unit."""

    def __init__(self, run: Run, unit: Unit, slot: int):
        self.run, self.unit, self.slot = run, unit, slot
        self.address = unit.ctas.address + slot * L.C_BYTES
        self.coordinates = (self[L.C_CTAID], self[L.C_CTAID + 8], self[L.C_CTAID + 16])

    def __getitem__(self, offset: int) -> int:
        return self.unit.ctas[self.slot * L.C_BYTES + offset]

    def warps(self) -> list[Warp]:
        """Its warps, by number."""
        return [Warp(self[L.C_WARPS] + n * L.W_BYTES) for n in range(self.unit.warps)]

    def where(self, iid: int, warp: int | None = None, lanes: int | None = None) -> dict[str, Any]:
        """An instruction as findings name it."""
        made = messages.place(self.run.compiled, iid, self.coordinates, warp or 0, 0).to_json()
        kept: dict[str, Any] = {name: made[name] for name in ("what", "file", "line", "ptx_line") if name in made}
        return kept | ({} if warp is None else {"warp": warp}) | ({} if lanes is None else {"lanes": lanes})

    # ------------------------------------------------------------ warps
    def stands(self, warps: Sequence[Warp], here: int | None, registers: bool) -> list[dict[str, Any]]:
        """Where each warp stands; here: the one that is at the breakpoint. registers: those that live there, too."""
        low = self.run.compiled.low
        made = []
        for n, warp in enumerate(warps):
            if not warp.live:
                made.append({"warp": n, "state": "has exited"})
                continue
            if n == here:
                made.append({"warp": n, "state": "is at the breakpoint", "clock": warp[L.W_CLOCK]})
                continue
            for (block, kind, a, b), lanes in warp.groups().items():
                iid = low.block_iids[block]
                at = iid if kind in _AT_ITS_BLOCK else warp[L.W_IID]
                entry = {
                    "warp": n, "lanes": lanes, "clock": warp[L.W_CLOCK], "where": self.where(at),
                    "state": self._state(kind, a, b, iid, warp[L.W_IID]),
                }  # fmt: skip
                if registers and low.points is not None:
                    entry["registers"] = warp.registers(low.points.blocks[block], lanes)
                made.append(entry)
        return made

    def _state(self, kind: int, a: int, b: int, iid: int, blocked: int) -> str:
        compiled = self.run.compiled
        at = messages.source(compiled, iid)
        if kind == 0:
            return f"can run, next is {at}"
        if self.is_over(kind, a, b):
            return f"has waited long enough, next is {at}"
        return messages.describe_wait(kind, a, b, self.unit, self.slot, at, messages.source(compiled, blocked))

    def is_over(self, kind: int, a: int, b: int) -> bool:
        """Whether what a lane waits for at a barrier has come: it goes on at its next turn."""
        if kind in _ON_MBARRIER:
            return word(a) & 1 != b
        if kind in (L.WAIT_BAR, L.WAIT_BAR_RED):
            return self[L.C_BAR + a * L.C_BAR_STRIDE + 16] != (b if kind == L.WAIT_BAR else b // 8)
        return False

    def _waiting(self, warps: Sequence[Warp], kinds: Sequence[int], what: int) -> list[dict[str, Any]]:
        """Lanes that wait at a barrier: {"warp", "lanes"}, and at an mbarrier the parity of the phase."""
        made = []
        for n, warp in enumerate(warps):
            for (_, kind, a, b), lanes in warp.groups().items():
                number = a & 0xFF if kind == L.WAIT_BAR_WARP else a
                if kind in kinds and number == what and not self.is_over(kind, a, b):
                    made.append({"warp": n, "lanes": lanes, **({"parity": b & 1} if kind in _ON_MBARRIER else {})})
        return made

    # ------------------------------------------------------------ barriers
    def mbarriers(self, warps: Sequence[Warp]) -> list[dict[str, Any]]:
        """The initialised mbarriers of its shared memory: state, who waits, who came last."""
        base, size = self[L.C_SHARED], self[L.C_SHARED_SIZE]
        bits = np.unpackbits(memory(self[L.C_MBAR_MAP], -(-size // 64)), bitorder="little")
        made = []
        for at in np.flatnonzero(bits):
            offset = 8 * int(at)
            state = word(base + offset) & 0xFFFFFFFFFFFFFFFF
            phase, pending, expected, tx = messages.mbarrier_fields(state)
            last = messages.last_arrival(self.run.compiled, offset, self.unit, self.slot).removeprefix("; ")
            made.append({
                "address": self[L.C_RANK] << L.RANK_SHIFT | offset, "phase": phase, "pending": pending,
                "expected": expected, "tx": tx, "waiting": self._waiting(warps, _ON_MBARRIER, base + offset),
                "last": last,
            })  # fmt: skip
        return made

    def barriers(self, warps: Sequence[Warp]) -> list[dict[str, Any]]:
        """The named barriers that are in use, or have been."""
        made = []
        for number in range(16):
            at = L.C_BAR + number * L.C_BAR_STRIDE
            arrived, expected, generation = self[at], self[at + 8], self[at + 16]
            waiting = self._waiting(warps, _ON_BARRIER, number)
            if arrived or generation or waiting:
                made.append({
                    "barrier": number, "arrived": arrived,
                    "expected": expected or self[L.C_LIVE_WARPS] * L.LANES, "completed": generation, "waiting": waiting,
                })  # fmt: skip
        return made

    # ------------------------------------------------------------ memory
    def shared(self, accesses: Sequence[tuple[int, int, str]]) -> dict[str, Any]:
        """Its shared memory around the addresses that are in use: (first byte, bytes, what for)."""
        size = self[L.C_SHARED_SIZE]
        regions: list[dict[str, Any]] = []
        for offset, length, what in accesses:
            first = offset & ~15
            last = min(max(offset + length, first + AROUND), first + 4 * AROUND, size)
            if L.SHARED_RESERVED <= first < last and all(first != r["address"] & 0xFFFFFF for r in regions):
                regions.append(self.region(first, last - first, "u32", what))
        return {"bytes": size - L.SHARED_RESERVED, "regions": regions}

    def region(self, offset: int, size: int, kind: str, what: str) -> dict[str, Any]:
        """Bytes of its window, as elements of a type."""
        return {
            "address": self[L.C_RANK] << L.RANK_SHIFT | offset, "bytes": size, "type": kind, "what": what,
            "values": numbers(memory(self[L.C_SHARED] + offset, size), kind),
        }  # fmt: skip

    def tensor_memory(self, warp: int | None) -> list[dict[str, Any]]:
        """Its allocations: columns that hold something, and the first of them in the lanes of a warp's quarter."""
        t = self[L.C_TMEM]
        made = []
        for granule in range(L.TMEM_COLUMNS // L.TMEM_GRANULE) if t else ():
            columns = word(t + L.T_COLUMNS + 8 * granule)
            if word(t + L.T_OWNER + 8 * granule) != self.address or not columns:
                continue
            first = granule * L.TMEM_GRANULE
            written = np.flatnonzero((self._tmem(first, columns) != 0xFFFFFFFF).any(axis=0)) + first
            made.append({
                "column": first, "columns": columns, "allocated": self.where(word(t + L.T_IID + 8 * granule)),
                "written": _runs([int(column) for column in written]),
                "shown": self.columns([int(c) for c in written[:COLUMNS]], "f32", warp),
            })  # fmt: skip
        return made

    def _tmem(self, column: int, columns: int) -> np.ndarray:
        """(lanes, columns) of its SM's tensor memory, u32."""
        rows = memory(self[L.C_TMEM] + L.T_DATA, L.TMEM_LANES * L.TMEM_ROW).reshape(L.TMEM_LANES, L.TMEM_ROW)
        return np.ascontiguousarray(rows[:, 4 * column : 4 * (column + columns)]).view(np.uint32)

    def columns(self, columns: Sequence[int], kind: str, warp: int | None) -> list[dict[str, Any]]:
        """Columns of tensor memory in the 32 lanes that a warp reaches."""
        first = 32 * ((warp or 0) % 4)
        made = []
        for column in columns:
            raw = np.ascontiguousarray(self._tmem(column, 1)[first : first + 32]).view(np.uint8).reshape(-1)
            made.append({"column": column, "lane": first, "type": kind, **of_register(raw, kind, 32, 0xFFFFFFFF)})
        return made

    # ------------------------------------------------------------ what is in flight
    def in_flight(self) -> list[dict[str, Any]]:
        """Asynchronous operations that its warps issued and that have yet to take effect, oldest first."""
        u = self.unit.words
        count = u[L.U_COUNT]
        made = []
        for index in (ctypes.c_int64 * count).from_address(u[L.U_ORDER]) if count else ():
            op = u[L.U_OPS] + index * L.A_BYTES
            if word(op + L.A_CTA) != self.address:
                continue
            warp = (word(op + L.A_WARP) - self[L.C_WARPS]) // L.W_BYTES
            kind = word(op + L.A_KIND)
            made.append({
                "what": OPERATIONS.get(kind, f"operation {kind}"),
                "where": self.where(word(op + L.A_IID), warp, word(op + L.A_LANES) & 0xFFFFFFFF),
                "source_read": bool(word(op + L.A_STAGE)), "issued_in_full": not word(op + L.A_HELD),
            })  # fmt: skip
        return made

    # ------------------------------------------------------------ all of it
    def common(self, warps: Sequence[Warp], warp: int | None, accesses: Sequence[tuple[int, int, str]],
               regions: Sequence[Region], registers: dict[str, list[int]]) -> dict[str, Any]:  # fmt: skip
        """What a dump says besides the warps; registers: what regions may name, in the lanes that came."""
        shared, tensor = self.shared(accesses), self.tensor_memory(warp)
        for region in regions:
            self._asked(region, warp, registers, shared, tensor)
        return {
            "shared": shared, "tmem": tensor, "mbarriers": self.mbarriers(warps), "barriers": self.barriers(warps),
            "in_flight": self.in_flight(),
        }  # fmt: skip

    def _asked(self, region: Region, warp: int | None, registers: dict[str, list[int]], shared: dict[str, Any],
               tensor: list[dict[str, Any]]) -> None:  # fmt: skip
        """Add a region that was asked for; what is not there says so."""
        start = region.start
        if isinstance(start, str):
            if start not in registers:
                shared["regions"].append({"what": f"{region.text}: {start} holds nothing here"})
                return
            start = min(registers[start])
        if region.space == "tmem":
            if not self[L.C_TMEM] or start + region.count > L.TMEM_COLUMNS:
                tensor.append({"what": f"{region.text}: no such columns here"})
                return
            shown = self.columns(range(start, start + region.count), region.type, warp)
            tensor.append({"what": region.text, "shown": shown})
            return
        offset = start & 0xFFFFFF
        if not L.SHARED_RESERVED <= offset <= self[L.C_SHARED_SIZE] - region.count:
            end = self[L.C_SHARED_SIZE] - 1
            where = f"{L.SHARED_RESERVED:#x} to {end:#x}"
            shared["regions"].append({"what": f"{region.text}: outside of the CTA's shared memory, {where}"})
            return
        shared["regions"].append(self.region(offset, region.count, region.type, region.text))


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Ascending numbers as [first, last] of those that follow each other."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return runs


def accesses(point: Point, registers: dict[str, list[int]]) -> Iterator[tuple[int, int, str]]:
    """(offset in the window, bytes, what) of the shared memory that a breakpoint's accesses are about to touch."""
    for access in point.accesses:
        values = registers.get(access.register, []) if access.register else [0]
        found = [offset for value in values if (offset := _shared_offset(value, access.offset)) is not None]
        if found:
            first = min(found)
            name = f"[{access.register}{f'+{access.offset}' if access.offset else ''}] of {access.what}"
            yield first, max(found) - first + access.bytes, name if access.register else access.what


def _shared_offset(value: int, offset: int) -> int | None:
    """The offset in the window of a shared address, 32 bits or generic; None for any other address."""
    address = value + offset
    if address >> 32 and address & L.WINDOW_MASK != L.SHARED_WINDOW:
        return None
    return address & 0xFFFFFF if address & 0xFFFFFFFF < 16 << L.RANK_SHIFT else None
