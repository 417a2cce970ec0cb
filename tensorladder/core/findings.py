"""Findings and verdicts: what a check reports, in words and as JSON.

A finding names both accesses, the ordering edge that is missing in plain words, and the usual fix. A verdict sums up
findings: clean < review < incomplete < error.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import total_ordering
from typing import Any


@total_ordering
class Verdict(enum.Enum):
    """What a target's findings add up to, in rising order of gravity.

    clean: nothing found. review: worth a look, not proven wrong. incomplete: something was not modelled, so nothing is
    promised. error: a hazard or a wrong result.
    """

    CLEAN = "clean"
    REVIEW = "review"
    INCOMPLETE = "incomplete"
    ERROR = "error"

    @property
    def rank(self) -> int:
        return list(Verdict).index(self)

    def __lt__(self, other: object) -> bool:
        return self.rank < other.rank if isinstance(other, Verdict) else NotImplemented

    @property
    def exit_code(self) -> int:
        """What the command line returns: 0 clean and review, 3 incomplete, 1 error."""
        return {Verdict.INCOMPLETE: 3, Verdict.ERROR: 1}.get(self, 0)

    def __str__(self) -> str:
        return self.value


# kind -> (verdict, what it means). Checks may only report kinds that are listed here.
KINDS: dict[str, tuple[Verdict, str]] = {
    "race": (Verdict.ERROR, "two accesses to the same bytes with no ordering between them"),
    "missing-proxy-fence": (Verdict.ERROR, "generic-proxy writes read by the async proxy with no fence.proxy.async"),
    "slot-reuse": (Verdict.ERROR, "an asynchronous operation overwrites or reads memory that is still in use"),
    "missing-wait": (Verdict.ERROR, "the result of an asynchronous operation used before it was waited for"),
    "barrier-count": (Verdict.ERROR, "an mbarrier gets more or fewer arrivals or bytes than it expects"),
    "barrier-init": (Verdict.ERROR, "a barrier is used before its initialisation is visible"),
    "barrier-phase": (Verdict.ERROR, "a wait on the wrong phase parity of an mbarrier"),
    "scope": (Verdict.ERROR, "an ordering of narrower scope than the accesses need, or a mask naming absent CTAs"),
    "tmem": (Verdict.ERROR, "tensor memory used outside its allocation, leaked, or freed while in use"),
    "tcgen05-order": (Verdict.ERROR, "tcgen05 operations with no fence, wait or commit where the ISA asks for one"),
    "alignment": (Verdict.ERROR, "a misaligned address, stride or descriptor"),
    "descriptor": (Verdict.ERROR, "a descriptor or swizzle that does not match what it describes"),
    "collective": (Verdict.ERROR, "an .aligned or warp-wide operation by part of the warp, or counts that differ"),
    "launch": (Verdict.ERROR, "a launch that the hardware would refuse"),
    "deadlock": (Verdict.ERROR, "nothing can move and nothing is pending"),
    "timeout": (Verdict.ERROR, "the run did not end in the time given"),
    "out-of-bounds": (Verdict.ERROR, "an access outside the memory it belongs to"),
    "uninitialised": (Verdict.REVIEW, "memory read that nobody wrote"),
    "wrong-result": (Verdict.ERROR, "the result differs from the reference by more than the tolerance"),
    "trap": (Verdict.ERROR, "the kernel executed trap or failed an assertion"),
    "unsupported": (Verdict.INCOMPLETE, "something that is not modelled"),
    "bank-conflict": (Verdict.REVIEW, "shared memory accesses that need more wavefronts than their bytes do"),
    "lint": (Verdict.REVIEW, "untidy, though not shown to be wrong"),
}


@dataclass(frozen=True)
class Where:
    """One access or instruction. Lines count from 1; None where not known. lanes: a mask; bytes: [start, end) of space.

    what: the instruction or the operation in words ("st.shared.v4", "TMA load").
    """

    what: str = ""
    file: str | None = None
    line: int | None = None
    ptx_line: int | None = None
    kernel: str | None = None
    cta: tuple[int, int, int] | None = None
    warp: int | None = None
    lanes: int | None = None
    space: str | None = None
    bytes: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields that are known."""
        raw = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in raw.items() if v is not None and v != ""}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Where:
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return cls(**fields)

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file or ""
        parts = [
            self.what,
            place and f"at {place}",
            f"PTX line {self.ptx_line}" if self.ptx_line else "",
            f"CTA {','.join(map(str, self.cta))}" if self.cta is not None else "",
            f"warp {self.warp}" if self.warp is not None else "",
            _lanes(self.lanes),
            f"{self.space or 'memory'} bytes {self.bytes[0]}..{self.bytes[1] - 1}" if self.bytes else "",
        ]
        return ", ".join(p for p in parts if p) or "somewhere"


def _lanes(mask: int | None) -> str:
    """Lanes of a mask as ranges: "lanes 0-15,20"."""
    if mask is None or mask == 0xFFFFFFFF:
        return ""
    lanes = [i for i in range(32) if mask >> i & 1]
    ranges: list[list[int]] = []
    for lane in lanes:
        if ranges and ranges[-1][-1] == lane - 1:
            ranges[-1][1:] = [lane]
        else:
            ranges.append([lane])
    shown = ",".join("-".join(map(str, r)) for r in ranges)
    return f"lane{'s' * (len(lanes) > 1)} {shown}" if lanes else "no lanes"


@dataclass(frozen=True)
class Finding:
    """One thing that a check found.

    kind: a key of KINDS. message: one line, what is missing in plain words. where, other: the access that showed it and
    the one it collides with. fix: what usually mends it. verdict: the kind's unless a check knows better (a read of
    uninitialised memory is an error once its value leaves the CTA). policy, replay: of a check under several schedules,
    the first that showed it, and the command that runs it alone; "" where there was one. more: further (where, other)
    of findings that say the same and were put together with this one (`Report.grouped`). rule: the checker's own name
    of what it found, finer than kind; "" where it has none, and never in JSON.
    """

    kind: str
    message: str
    where: Where = field(default_factory=Where)
    other: Where | None = None
    fix: str = ""
    verdict: Verdict | None = None
    policy: str = ""
    replay: str = ""
    more: tuple[tuple[Where, Where | None], ...] = ()
    rule: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no such kind of finding: {self.kind!r}; one of {', '.join(KINDS)}")
        if "\n" in self.message:
            raise ValueError("a finding's message is one line")
        if self.verdict is None:
            object.__setattr__(self, "verdict", KINDS[self.kind][0])

    @property
    def severity(self) -> Verdict:
        assert self.verdict is not None
        return self.verdict

    def key(self) -> tuple[Any, ...]:
        """What makes two findings the same one: kind and places in the source, not which CTA or bytes showed it."""
        sites = [
            (w.kernel, w.file, w.line) if w.line else (w.kernel, w.what, w.ptx_line)
            for w in (self.where, self.other or Where())
        ]
        return (self.kind, *sites)

    def to_json(self) -> dict[str, Any]:
        """The contract's object: kind, message, where, other, fix, and the verdict; policy and replay where known; more
        (objects of where and other) where there are more places."""
        again: dict[str, Any] = {"policy": self.policy, "replay": self.replay} if self.replay else {}
        if self.more:
            again["more"] = [{"where": a.to_json(), "other": b.to_json() if b else None} for a, b in self.more]
        return {
            "kind": self.kind,
            "message": self.message,
            "where": self.where.to_json(),
            "other": self.other.to_json() if self.other else None,
            "fix": self.fix,
            "verdict": str(self.severity),
            **again,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        other = data.get("other")
        return cls(
            kind=data["kind"],
            message=data["message"],
            where=Where.from_json(data.get("where") or {}),
            other=Where.from_json(other) if other else None,
            fix=data.get("fix") or "",
            verdict=Verdict(data["verdict"]) if data.get("verdict") else None,
            policy=data.get("policy") or "",
            replay=data.get("replay") or "",
            more=tuple(
                (Where.from_json(pair["where"]), Where.from_json(pair["other"]) if pair.get("other") else None)
                for pair in data.get("more") or ()
            ),
        )

    def more_places(self) -> str:
        """How many places besides, and the first of them; of a finding that has some."""
        return f"and at {len(self.more)} more places: {_places([where for where, _ in self.more])}"

    def __str__(self) -> str:
        lines = [f"{self.severity}: {self.kind}: {self.message}", f"  {self.where}"]
        if self.other:
            lines.append(f"  {self.other}")
        if self.more:
            lines.append(f"  {self.more_places()}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        if self.replay:
            lines.append(f"  replay: {self.replay}")
        return "\n".join(lines)


def _places(wheres: list[Where]) -> str:
    """The first few places, in short: lines of the source, or of the PTX."""
    named = [f"{w.file}:{w.line}" if w.file and w.line else f"PTX line {w.ptx_line}" for w in wheres]
    each = list(dict.fromkeys(named))
    return ", ".join(each[:_PLACES_SHOWN]) + (", .." if len(each) > _PLACES_SHOWN else "")


_PLACES_SHOWN = 6
#: findings for review that say the same of one kernel, beyond which they are put together
_ALIKE = 3


@dataclass(frozen=True)
class Report:
    """The findings of one target, each once, gravest first."""

    target: str
    findings: tuple[Finding, ...] = ()

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "verdict": str(self.verdict),
            "findings": [f.to_json() for f in self.grouped()],
        }

    def grouped(self) -> list[Finding]:
        """The findings to show: of those for review, more than three of one kernel that say the same (kind and fix) are
        one, with the others' places in `more`. Errors stay single."""
        alike: dict[tuple[Any, ...], list[Finding]] = {}
        for n, f in enumerate(self.findings):
            joins = f.severity is Verdict.REVIEW and f.where.cta is not None  # advice, of no CTA, has its own figures
            key = (f.kind, f.fix, f.where.kernel, f.policy) if joins else (n,)
            alike.setdefault(key, []).append(f)
        shown = []
        for group in alike.values():
            if len(group) <= _ALIKE:
                shown += group
            else:
                shown.append(replace(group[0], more=tuple((f.where, f.other) for f in group[1:])))
        return sorted(shown, key=lambda f: f.severity.rank, reverse=True)


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """The gravest of the findings' verdicts; clean where there are none."""
    return max((f.severity for f in findings), default=Verdict.CLEAN)


def summarise(target: str, findings: Iterable[Finding]) -> Report:
    """A report with one finding for each place: of those alike the gravest, then the first, is kept."""
    kept: dict[tuple[Any, ...], Finding] = {}
    for f in findings:
        known = kept.get(f.key())
        if known is None or f.severity > known.severity:
            kept[f.key()] = f
    ordered = sorted(kept.values(), key=lambda f: f.severity.rank, reverse=True)
    return Report(target, tuple(ordered))
