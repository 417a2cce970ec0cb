"""Timelines of rungs: from the virtual GPU's own record, or from probes in the kernel, on it and on silicon.

Either way the launch's result is judged as `measure.run` does: a timeline of a kernel that computes something else
would show something else.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorladder.core import probes
from tensorladder.core.errors import TensorladderError, UsageError
from tensorladder.core.probes import Plan
from tensorladder.core.timeline import WAIT, Timeline
from tensorladder.measure import pack as packs
from tensorladder.measure.bench import matches
from tensorladder.measure.run import TARGETS, Request, Result, VirtualTarget, build, judge
from tensorladder.problems import Case
from tensorladder.rungs import rung as rungs
from tensorladder.rungs.rung import RungInfo
from tensorladder.silicon.pack import Entry, Pack

#: where a timeline comes from
MACHINE, PROBES = "machine", "probes"
#: "all 8", "4", "0-3" of a table of warp roles
_WARPS = re.compile(r"all (\d+)|(\d+)(?:-(\d+))?")
#: launches on a GPU before the one that is kept: code, descriptors and operands are then in its caches
WARM = 2


@dataclass(frozen=True)
class Traced:
    """A run with its timeline. source: MACHINE or PROBES. overlap: the kinds of spans whose overlap counts here."""

    result: Result
    timeline: Timeline
    source: str
    overlap: tuple[str, str]

    def record(self) -> dict[str, Any]:
        """The run as a JSON object."""
        asked, line = self.result.request, self.timeline
        one, other = self.overlap
        share = line.overlap(one, other)
        return {
            "rung": asked.info.name, "arch": asked.arch, "on": asked.on, "shape": list(asked.shape),
            "dtype": asked.dtype, "source": self.source, "ok": self.result.ok, "error": self.result.error,
            "nanoseconds": round(line.length, 1), "ctas": len(line.groups), "tracks": len(line.tracks),
            "spans": len(line.shown), "arrows": len(line.arrows), "left_out": line.left_out,
            "overlap": None if share is None else {"of": other, "with": one, "share": round(share, 4)},
            "waits": waits(line), "message": self.result.message,
        }  # fmt: skip


def waits(timeline: Timeline) -> dict[str, dict[str, float]]:
    """For each role, the share of its time in each of its waits, over all CTAs."""
    time: dict[str, float] = {}
    waited: dict[str, dict[str, float]] = {}
    for span in timeline.spans:
        role = timeline.tracks[span.track].role
        if not role:
            continue
        time[role] = time.get(role, 0.0) + span.end - span.start
        named = waited.setdefault(role, {})
        if span.kind == WAIT:
            named[span.name] = named.get(span.name, 0.0) + span.end - span.start
    return {role: {name: round(spent / time[role], 4) for name, spent in named.items() if time[role]}
            for role, named in waited.items()}  # fmt: skip


def parse_spec(text: str) -> tuple[RungInfo, str]:
    """The rung of "c2" or "c2:stages=3", and its settings as they are spelt ("" for none)."""
    name, _, settings = text.partition(":")
    return rungs.find(name), settings


def from_machine(asked: Request) -> Traced:
    """Run on the virtual GPU under the timed policy and keep what its warps and units did.

    Of a kernel that faults or hangs the timeline goes to there, and the result says why.
    """
    from tensorladder.vgpu.trace import timeline

    target = VirtualTarget(dataclasses.replace(asked, policy="timed"))
    target.device.traced = True
    if asked.config is None:  # the one whose warps the docstring's table tells, whatever the shape
        asked = dataclasses.replace(asked, config=rungs.load(asked.info).RUNG.config())
    program = build(asked)
    case = asked.info.problem.make(asked.shape, asked.dtype, asked.seed, target.allocate)
    try:
        result = judge(asked, case, *target.run(program, case))
    except UsageError:
        raise
    except TensorladderError as error:  # it faulted or hangs: what it did until then is what a person wants to see
        if not target.device.trace:
            raise
        result = Result(asked, False, None, None, None, None, str(error), error.exit_code)
    made = timeline(target.device, roles(asked.info))
    return Traced(result, _about(made, asked, MACHINE), MACHINE, Plan(()).overlap)


def from_probes(asked: Request, pack: str | None = None, settings: str = "") -> Traced:
    """Run the probe variant and decode what it marked. UsageError for a rung that has none.

    pack: made by `tensorladder pack RUNG:probes=true`, where there is no compiler. settings: the knobs that an entry of
    it must have.
    """
    plan = plan_of(asked.info)
    asked = dataclasses.replace(asked, policy="timed")
    target: Any = TARGETS[asked.on](asked)
    case = asked.info.problem.make(asked.shape, asked.dtype, asked.seed, target.allocate)
    if pack is None:
        config = asked.config if asked.config is not None else rungs.load(asked.info).RUNG.config()
        config = dataclasses.replace(config, probes=True)
        program = build(dataclasses.replace(asked, config=config))
        shape: Any = packs.probe_buffer(asked.info, asked.shape, asked.dtype, config)
        knobs = dataclasses.asdict(config)
        run = functools.partial(target.run, program)
    else:
        opened, entry = _packed(asked, pack, settings)
        shape, knobs = entry.arrays[-1].shape, dict(entry.config)
        run = functools.partial(target.run_packed, opened.kernel(entry))
    buffer = target.allocate(probes.NAME, shape, np.dtype(np.int64))
    whole = Case(**{**vars(case), "arrays": {**case.arrays, probes.NAME: buffer}})
    for _ in range(WARM + 1 if asked.on == "gpu" else 1):
        buffer[...] = probes.POISON
        seconds, around = run(whole)
    made = probes.decode(plan, buffer, knobs, "")
    return Traced(judge(asked, case, seconds, around), _about(made, asked, PROBES), PROBES, plan.overlap)


def plan_of(info: RungInfo) -> Plan:
    """What a rung's probe variant marks; UsageError where it has none."""
    if info.rung.probes is None:
        have = ", ".join(one.name for one in rungs.catalog() if one.rung.probes is not None)
        raise UsageError(
            f"{info.name} has no probes, which --on gpu and --probes read: {have} have; --on vgpu alone needs none"
        )
    return Plan.of(info.rung.probes)


def _packed(asked: Request, folder: str, settings: str) -> tuple[Pack, Entry]:
    """The pack's entry for what was asked, with probes; UsageError where it has none."""
    opened = packs.open_current(folder)
    opened.check_gpu()
    spec = f"{asked.info.name}:{settings}"
    for entry in opened.entries:
        same = (entry.shape, entry.dtype) == (asked.shape, asked.dtype) and entry.arrays[-1].name == probes.NAME
        if same and matches(entry, spec):
            return opened, entry
    extents = ",".join(map(str, asked.shape))
    raise UsageError(
        f"--pack {folder}: no {spec.rstrip(':')} {extents} {asked.dtype} with probes there: `tensorladder pack "
        f"{asked.info.name}:probes=true --shape {extents} --dtype {asked.dtype} -o {folder}` makes one"
    )


def _about(made: Timeline, asked: Request, source: str) -> Timeline:
    made.title = f"{asked.info.name} {'x'.join(map(str, asked.shape))} {asked.dtype} for {asked.arch}"
    made.facts = {"rung": asked.info.name, "shape": list(asked.shape), "dtype": asked.dtype, "arch": asked.arch,
                  "on": asked.on, "source": source, "seed": asked.seed}  # fmt: skip
    return made


def roles(info: RungInfo) -> list[tuple[range, str]]:
    """What the table of warp roles in a rung's docstring says: warps, and what they do in a word or two.

    Tables that count warps by a knob ("4 a warpgroup") say nothing here.
    """
    found: list[tuple[range, str]] = []
    for line in info.sections().get("Warp roles", "").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 2 or cells[1].startswith("besides"):
            continue
        for part in cells[0].split(","):
            match = _WARPS.fullmatch(part.strip())
            if match:
                every, first, last = match.groups()
                begin, end = (0, int(every) - 1) if every else (int(first), int(last or first))
                found.append((range(begin, end + 1), _word(cells[1])))
    return found


def _word(text: str) -> str:
    """The role at the start of a description: up to the first colon, comma, semicolon or bracket."""
    return re.split(r"[:,;(]", text)[0].strip()


def only_first(timeline: Timeline, count: int) -> Timeline:
    """The part of the first `count` CTAs by SM."""
    return timeline.only(timeline.groups[:count])
