"""What a file in the Trace Event Format has to keep for Perfetto to show all of it; where its trace processor is."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

#: a trace_processor_shell; else where Perfetto's own script keeps it
PLACES = (os.environ.get("TENSORLADDER_TRACE_PROCESSOR", ""), "~/.local/share/perfetto/prebuilts/trace_processor_shell")


def problems(whole: dict[str, Any]) -> list[str]:
    """Each rule that is broken, in words: named tracks, no overlap in a track, arrows inside spans and forward."""
    said = []
    named = {(e["pid"], e["tid"]) for e in whole["traceEvents"] if e["ph"] == "M" and e["name"] == "thread_name"}
    tracks = defaultdict(list)
    ends = defaultdict(dict)
    for event in whole["traceEvents"]:
        place = event["pid"], event["tid"]
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            tracks[place].append((start, start + round(event["dur"] * 1000), event["name"]))
            if event["dur"] < 0 or place not in named:
                said.append(f"{event['name']}: {event['dur']} us on track {place}")
        elif event["ph"] in "sf":
            ends[event["id"]][event["ph"]] = event
    for place, spans in tracks.items():
        spans.sort()
        for before, after in itertools.pairwise(spans):
            if after[0] < before[1]:
                said.append(f"track {place}: {before} and {after} overlap")
    for number, both in ends.items():
        if set(both) != {"s", "f"} or both["s"]["ts"] > both["f"]["ts"]:
            said.append(f"arrow {number} has no two ends in order: {both}")
            continue
        for event in both.values():
            at = round(event["ts"] * 1000)
            spans = tracks[event["pid"], event["tid"]]
            if not any(start <= at < end or start == at == end for start, end, _ in spans):
                said.append(f"arrow {number} begins or ends outside of all spans, at {event['ts']}")
    return said


def trace_processor() -> Path:
    """Perfetto's trace processor; the test is skipped where there is none (it is no part of its Python package)."""
    for place in filter(None, PLACES):
        path = Path(place).expanduser()
        if path.is_file():
            return path
    pytest.skip("no trace_processor_shell here: TENSORLADDER_TRACE_PROCESSOR=path names one")
