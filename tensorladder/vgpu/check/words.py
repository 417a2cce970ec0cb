"""Findings in a person's words: both accesses, the order that is missing, the usual fix."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tensorladder.core.arch import REGISTERS_PER_SM
from tensorladder.core.findings import Finding, Verdict, Where
from tensorladder.vgpu.check import layout as X
from tensorladder.vgpu.check.texts import TEXTS
from tensorladder.vgpu.machine import layout as L

if TYPE_CHECKING:
    from tensorladder.vgpu.check.across import Conflict
    from tensorladder.vgpu.check.engine import Watch

_SPACES = {X.SPACE_GLOBAL: "global", X.SPACE_SHARED: "shared", X.SPACE_TMEM: "tensor memory"}
#: components whose accesses are asynchronous
_ASYNC = {X.K_IS_MBARRIER, X.K_IS_CP, X.K_IS_BULK_READ, X.K_IS_BULK, X.K_IS_WGMMA, X.K_IS_TC, X.K_IS_ST}
#: what was not waited for, and what does so, by component of the earlier access
_EDGES = {
    X.K_IS_WARP: (
        "no barrier orders it before",
        "put a barrier between them: bar.sync (__syncthreads), or an mbarrier that one arrives at and the other "
        "waits for",
    ),
    X.K_IS_CP: (
        "no cp.async.wait_group by its warp, handed on by a barrier, comes before",
        "cp.async.wait_group in every warp that copies, then bar.sync, before the data is used",
    ),
    X.K_IS_BULK_READ: (
        "its source may not have been read: no cp.async.bulk.wait_group.read by the thread that issued it, handed on "
        "by a barrier, comes before",
        "cp.async.bulk.commit_group and wait_group.read in the thread that issues the store, then a barrier, before "
        "the buffer is used again",
    ),
    X.K_IS_BULK: (
        "it may not be complete: no cp.async.bulk.wait_group (without .read) by the thread that issued it comes before",
        "cp.async.bulk.wait_group 0 in the thread that issues the store before what it wrote is used",
    ),
    X.K_IS_WGMMA: (
        "it may still read its operands: no wgmma.wait_group for it, handed on by an arrival or a barrier, comes "
        "before",
        "wgmma.commit_group and wgmma.wait_group in the warpgroup, then its arrival at the slot's barrier, before the "
        "slot is filled again; every warpgroup that reads a slot has to arrive",
    ),
    X.K_IS_TC: (
        "it may still be running: no tcgen05.commit of its thread to an mbarrier that was waited for comes before",
        "tcgen05.commit by the thread that issued the operation, and a wait for that mbarrier's phase",
    ),
    X.K_IS_ST: (
        "it may still be on its way: no tcgen05.wait::st by its warp comes before",
        "tcgen05.wait::st.sync.aligned after the stores",
    ),
}  # fmt: skip


#: parts of an opcode that say nothing about a hazard
_DULL = {"sync", "aligned", "tile", "bulk_group", "arrive::one", "mbarrier::arrive::one"}
_DULL_STARTS = ("L1::", "L2::", "collector::", "mbarrier::")


def short(opcode: str) -> str:
    """An opcode without what its hazards do not hang on, for a sentence."""
    return ".".join(p for p in opcode.split(".") if p not in _DULL and not p.startswith(_DULL_STARTS))


@dataclass(frozen=True)
class Access:
    """One of a finding's two accesses: where, and what component shows when it is over."""

    where: Where
    kind: int
    number: int  # of the mbarrier
    clock: int


class Reader:
    """Reads the records of one unit's findings."""

    def __init__(self, watch: Watch):
        self.watch = watch
        self.low, self.compiled = watch.run.compiled.low, watch.run.compiled
        self.starts = self._starts()

    def _starts(self) -> dict[int, list[tuple[int, int]]]:
        """(clock, CTA) of the CTAs that ran in each slot, in order."""
        import numpy as np

        words = self.watch.words
        count = words[X.X_NSTARTED]
        log = self.watch._view(words[X.X_STARTED], 3 * max(count, 1)).reshape(-1, 3)[:count]
        found: dict[int, list[tuple[int, int]]] = {}
        for slot, clock, linear in np.asarray(log).tolist():
            found.setdefault(slot, []).append((clock, linear))
        return found

    def line(self, iid: int) -> tuple[str, int | None, str | None, int | None]:
        """(instruction, PTX line, file, line) by number."""
        text, ptx, file, row, _ = self.low.lines[iid] if 0 <= iid < len(self.low.lines) else ("", 0, 0, 0, 0)
        name = self.compiled.files.get(file)
        return text, ptx or None, name or None, (row or None) if name else None

    def named(self, iid: int) -> str:
        """An instruction and its line, for a sentence."""
        text, ptx, file, row = self.line(iid)
        return f"{text} ({file}:{row})" if file and row else f"{text} (PTX line {ptx})"

    def coordinates(self, linear: int) -> tuple[int, int, int]:
        """Coordinates of a CTA."""
        gx, gy, _ = self.watch.run.launch.grid
        return linear % gx, linear // gx % gy, linear // (gx * gy)

    def where(self, site: int, linear: int, lanes: int | None, space: str | None, place) -> Where:
        text, ptx, file, row = self.line(site & 0xFFFFF)
        warp = (site >> 20) % self.watch.warps
        return Where(text, file, row, ptx, self.low.name, self.coordinates(linear), warp, lanes, space, place)

    def access(self, epoch: int, where: Where) -> Access:
        k = (epoch >> 48) - 1
        kind, _, number, _ = self.watch.component(k) if k >= 0 else (X.K_IS_WARP, 0, 0, 0)
        clock = epoch >> 16 & 0xFFFFFFFF
        return Access(where, kind, number, clock)

    def earlier_cta(self, epoch: int, linear: int) -> int:
        """CTA of an access in global memory, perhaps one that has ended since."""
        k = (epoch >> 48) - 1
        kind, slot, _, _ = self.watch.component(k) if k >= 0 else (0, 0, 0, 0)
        log = self.starts.get(slot, [])
        if kind != X.K_IS_WARP or not log:
            return linear
        at = bisect.bisect_right([clock for clock, _ in log], epoch >> 16 & 0xFFFFFFFF) - 1
        return log[max(at, 0)][1]

    def barrier(self, number: int) -> str:
        """An mbarrier's name."""
        return f"the mbarrier at shared+{self.watch.barrier_offset(number):#x}"

    def phase(self, access: Access) -> str:
        """The phase of an mbarrier that an asynchronous operation completes with."""
        phase = access.clock - 1 - self.watch.barrier_base(access.number)
        if phase < 0:  # another CTA's barrier is there by now
            return f"a phase of {self.barrier(access.number)}"
        return f"phase {phase} (parity {phase & 1}) of {self.barrier(access.number)}"


def findings_of(watch: Watch) -> Iterator[Finding]:
    """The findings of one unit."""
    reader = Reader(watch)
    for row in watch.records().tolist():
        yield replace(_finding(reader, row), rule=X.RULES[row[X.F_CODE // 8]])
    if watch.words[X.X_ADVICE]:
        yield from _advice(reader)
    if watch.run.low.moves_registers and not watch.run.words[L.L_REGISTERS]:
        yield Finding("launch", "setmaxnreg in a kernel without a register limit: it may have no effect (ptxas cannot "
                      "tell how many registers a warp starts with)", Where(kernel=reader.low.name),
                      fix="give .maxnreg, or .maxntid and .minnctapersm (both numbers of __launch_bounds__)",
                      verdict=Verdict.REVIEW)  # fmt: skip
    asked, have = watch.asked_registers(), REGISTERS_PER_SM
    if asked > have:
        yield Finding("launch", f"the warps of a CTA ask for {asked} registers with setmaxnreg, an SM has {have}: on a "
                      "chip some would wait for ever", Where(kernel=reader.low.name),
                      fix="give the roles fewer registers: the sum over all warps, times 32, has to fit")  # fmt: skip
    if watch.words[X.X_OVERFLOW]:
        yield Finding("unsupported", "the checker's tables were full: findings may be missing",
                      Where(kernel=reader.low.name))  # fmt: skip


#: how much more than the least an instruction takes before it is worth a line
_WORTH = 1.5


def lanes_missing(where: Where, other: Where, lanes: int) -> Finding:
    """A collective at which lanes wait for others of their warp that wait elsewhere."""
    kind, _, message, fix = TEXTS[X.LANES_ELSEWHERE]
    return Finding(kind, message.format(here=short(where.what), other=short(other.what), a=lanes), where, other, fix)


def _advice(reader: Reader) -> Iterator[Finding]:
    """Instructions that take more wavefronts or sectors than their bytes need."""
    for iid, (count, taken, least) in enumerate(reader.watch.costs().tolist()):
        if taken < _WORTH * least or not count:
            continue
        text, ptx, file, row = reader.line(iid)
        where = Where(text, file, row, ptx, reader.low.name)
        each = f"{taken / count:.3g} in place of {least / count:.3g} an access, {count} accesses"
        if "shared" in text or "matrix" in text:
            yield Finding("bank-conflict", f"{short(text)} takes {each}: bank conflicts, in wavefronts", where,
                          fix="pad the rows, or swizzle them")  # fmt: skip
        else:
            message = f"{short(text)} takes {each}: not coalesced, in sectors of 32 bytes"
            fix = "let neighbouring lanes access neighbouring addresses, or go through shared memory"
            yield Finding("lint", message, where, fix=fix)


def _finding(reader: Reader, row: list[int]) -> Finding:
    field = {name: row[at // 8] for name, at in _FIELDS.items()}
    code = field["code"]
    lanes = field["site"] >> 32 & 0xFFFFFFFF
    space = _SPACES.get(field["space"])
    place = (field["lo"], field["hi"]) if field["hi"] > field["lo"] else None
    here = reader.where(field["site"] & 0xFFFFFFFF, field["linear"], lanes, space, place)
    other = None
    if field["other_epoch"] or field["other_site"]:
        linear = field["other_linear"]
        if field["space"] == X.SPACE_GLOBAL:
            linear = reader.earlier_cta(field["other_epoch"], linear)
        other = reader.where(field["other_site"] & 0xFFFFFFFF, linear, None, space, None)
    if code in (X.RACE_WW, X.RACE_WR, X.RACE_RW, X.RACE_SAME):
        assert other is not None
        return _race(reader, code, field, here, other)
    kind, verdict, message, fix = TEXTS[code]
    a, b = field["a"], field["b"]
    if code in (X.LANES_HANDED, X.LANES_FREED):
        assert other is not None
        message = message.format(release=reader.named(a), who=_who(other, here), here="{here}", other="{other}")
    if code == X.WAIT_NARROW:
        assert other is not None
        message = message.format(wait=reader.named(a), who=_who(other, here), here="{here}", other="{other}")
    if code == X.CANCEL_NOT_FENCED:
        assert other is not None
        message = message.format(who=_who(other, here), here="{here}", other="{other}")
    if code == X.TX_LEFT and a < 0:
        verdict = Verdict.ERROR
    barrier = f"the mbarrier at shared+{field['lo']:#x}"
    text = message.format(
        a=a, b=b, barrier=barrier, space=(space or "").removesuffix(" memory"), here=short(here.what),
        other=short(other.what) if other else "", source=_source(other),
    )  # fmt: skip
    if code in _BY_ABSENT and other is not None and other.what.startswith("shfl"):
        kind, fix = "collective", "shuffle among lanes that take part alone, or use what comes of present lanes only"
    return Finding(kind, text, here, other, fix, verdict)


def _source(other: Where | None) -> str:
    """Where an undefined value comes from."""
    if other is None:
        return "a register that nothing has written"
    if other.what.startswith("shfl"):
        return f"what {short(other.what)} takes from a lane that does not take part"
    return f"memory that {short(other.what)} reads and nothing has written"


_BY_ABSENT = (X.UNDEFINED_STORED, X.UNDEFINED_ADDRESS, X.UNDEFINED_BRANCH, X.UNDEFINED_OPERAND)


def finding_across(conflict: Conflict) -> Finding:
    """Two accesses in global memory of CTAs that different workers ran."""
    sides: list[Access] = []
    for watch, epoch, site in (conflict.now, conflict.other):
        reader = Reader(watch)
        place = (conflict.lo, conflict.hi) if not sides else None
        where = reader.where(site, reader.earlier_cta(epoch, 0), None, "global", place)
        sides.append(reader.access(epoch, where))
    now, earlier = sides
    narrow = _both_strong(conflict.now[1], conflict.other[1])
    together = conflict.now[0].run is conflict.other[0].run
    edge, fix = _SCOPES if narrow else _CTAS if together else _LAUNCHES
    found = _unordered(conflict.code, "global memory", now, earlier, edge, fix, scope=narrow)
    return replace(found, rule=X.RULES[conflict.code])


#: what is missing between CTAs
_CTAS = (
    "nothing orders the two CTAs: no release and acquire through global memory comes before",
    "give each CTA its own bytes, use atomics, or order them with fence.acq_rel.gpu and an atomic flag",
)


#: what is missing between launches
_LAUNCHES = (
    "the two launches overlap, and nothing makes the later one wait for the one before: no griddepcontrol.wait orders",
    "griddepcontrol.wait (cudaGridDependencySynchronize) before anything is read or written that the launch before "
    "uses; griddepcontrol.launch_dependents only lets the next launch start",
)
#: two strong accesses of which one's scope leaves out the other thread
_SCOPES = (
    "both are strong, but not morally strong: the scope of one leaves out the other's thread, so nothing orders it "
    "before",
    "give both the scope that holds all threads that use the address: .gpu among CTAs, .cluster within a cluster",
)


def _both_strong(a: int, b: int) -> bool:
    return bool(a & b & X.EPOCH_STRONG)


def _too_narrow(reader: Reader, iid: int) -> tuple[str, str]:
    """What is missing where an instruction would have ordered two CTAs, had its scope been wider."""
    return (
        f"{reader.named(iid)} would order the two CTAs, but its scope leaves out the other one's threads: nothing "
        "orders it before",
        "give the fence, the release and the acquire the scope of all threads that look: .gpu, or .cluster within one",
    )


def _race(reader: Reader, code: int, field: dict[str, int], here: Where, other: Where) -> Finding:
    """Two accesses with no order between them."""
    earlier = reader.access(field["other_epoch"], other)
    now = reader.access(field["epoch"], here)
    narrow = field["a"] and here.cta != other.cta
    if strong := _both_strong(field["epoch"], field["other_epoch"]):
        edge, fix = _SCOPES
    elif narrow:
        edge, fix = _too_narrow(reader, field["a"] - 1)
    elif field["space"] == X.SPACE_GLOBAL and here.cta != other.cta:
        edge, fix = _CTAS
    elif earlier.kind == X.K_IS_MBARRIER:
        edge = f"it is complete with {reader.phase(earlier)}, which nothing waited for before"
        fix = "wait for that phase of the mbarrier (mbarrier.try_wait.parity) before the data is used"
    else:
        edge, fix = _EDGES[earlier.kind]
    what = {X.SPACE_GLOBAL: "global memory", X.SPACE_SHARED: "shared memory"}.get(field["space"], "tensor memory")
    return _unordered(code, what, now, earlier, edge, fix, scope=bool(strong or narrow))


def _unordered(code: int, what: str, now: Access, earlier: Access, edge: str, fix: str, scope: bool = False) -> Finding:
    here, other = now.where, earlier.where
    did = "reads" if code == X.RACE_RW else "writes"
    does = "reads" if code == X.RACE_WR else "writes"
    who = f"{short(other.what) or 'an access'} of {_who(other, here)}"
    message = f"{short(here.what)} {does} {what} that {who} {did}: {edge} this access"
    verdict = None
    if code == X.RACE_SAME:
        verdict, message = Verdict.REVIEW, f"{message}; both write the same value"
    return Finding("scope" if scope else _race_kind(code, earlier, now), message, here, other, fix, verdict)


def _race_kind(code: int, earlier: Access, now: Access) -> str:
    if code == X.RACE_WR:
        return "missing-wait" if earlier.kind in _ASYNC else "race"
    if earlier.kind in _ASYNC or now.kind in _ASYNC:
        return "slot-reuse"
    return "race"


def _who(other: Where, here: Where) -> str:
    """The other access's warp, and its CTA and kernel where that is another one."""
    kernel = f" of kernel {other.kernel}" if other.kernel != here.kernel else ""
    return f"warp {other.warp}" + (f" of CTA {other.cta}" if kernel or other.cta != here.cta else "") + kernel


_FIELDS = {
    "code": X.F_CODE, "iid": X.F_IID, "site": X.F_SITE, "epoch": X.F_EPOCH, "other_site": X.F_OTHER_SITE,
    "other_epoch": X.F_OTHER_EPOCH, "space": X.F_SPACE, "place": X.F_PLACE, "lo": X.F_LO, "hi": X.F_HI,
    "a": X.F_A, "b": X.F_B, "count": X.F_COUNT, "linear": X.F_LINEAR, "other_linear": X.F_OTHER_LINEAR,
}  # fmt: skip
