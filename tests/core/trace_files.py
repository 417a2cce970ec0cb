"""What a file in the Trace Event Format has to keep for Perfetto to show all of it, and Perfetto's trace processor."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

DRIVER = Path(__file__).parent / "trace_processor.js"
#: the folder of an npm package that holds the trace processor as WebAssembly: named, or from the test set-up
FOLDERS = (os.environ.get("TENSORLADDER_TRACE_PROCESSOR", ""), f"{sys.prefix}/share/perfetto/package")


def problems(whole: dict[str, Any]) -> list[str]:
    """Each rule that is broken, in words: named tracks, no overlap in a track, arrows inside spans and forward."""
    said = []
    named = {(e["pid"], e["tid"]) for e in whole["traceEvents"] if e["ph"] == "M" and e["name"] == "thread_name"}
    tracks = defaultdict(list)
    ends = defaultdict(dict)
    for event in whole["traceEvents"]:
        place = event["pid"], event["tid"]
        if event["ph"] == "X":
            start = int(event["ts"] * 1000)
            tracks[place].append((start, start + int(event["dur"] * 1000), event["name"]))
            if event["dur"] * 1000 < 1 or place not in named:
                said.append(f"{event['name']}: {event['dur']} us on track {place}")
        elif event["ph"] in "sf":
            ends[event["id"]][event["ph"]] = event
    for place, spans in tracks.items():
        spans.sort()
        said += [f"track {place}: {a} and {b} overlap" for a, b in itertools.pairwise(spans) if b[0] < a[1]]
    for number, both in ends.items():
        if set(both) != {"s", "f"} or both["s"]["ts"] > both["f"]["ts"]:
            said.append(f"arrow {number} has no two ends in order: {both}")
            continue
        for event in both.values():
            at = int(event["ts"] * 1000)
            if not any(start <= at < end for start, end, _ in tracks[event["pid"], event["tid"]]):
                said.append(f"arrow {number} begins or ends outside of all spans, at {event['ts']}")
    return said


class TraceProcessor:
    """Perfetto's own reader, as WebAssembly under node, asked in SQL. Skips the test where it is not installed."""

    def __init__(self, scratch: Path) -> None:
        protos = pytest.importorskip("perfetto.trace_processor.protos")
        platform = pytest.importorskip("perfetto.trace_processor.platform")
        factory = pytest.importorskip("google.protobuf.message_factory")
        folders = [Path(folder) for folder in filter(None, FOLDERS) if (Path(folder) / "engine_bundle.js").is_file()]
        if not folders or shutil.which("node") is None:
            pytest.skip("Perfetto's trace processor is not here: `make test` sets it up where there is npm")
        self.folder, self.scratch = folders[0], scratch
        pool = protos.ProtoFactory(platform.PlatformDelegate()).descriptor_pool
        kinds = pool.FindMessageTypeByName("perfetto.protos.TraceProcessorRpc")
        self.methods = {v.name: v.number for v in kinds.enum_types_by_name["TraceProcessorMethod"].values}
        self.stream = factory.GetMessageClass(pool.FindMessageTypeByName("perfetto.protos.TraceProcessorRpcStream"))

    def ask(self, path: Path, *queries: str) -> list[list[dict[str, Any]]]:
        """Load a file and answer queries: rows of column to value."""
        requests = self.stream()
        requests.msg.add(request=self.methods["TPM_APPEND_TRACE_DATA"], append_trace_data=path.read_bytes())
        requests.msg.add(request=self.methods["TPM_FINALIZE_TRACE_DATA"])
        for query in queries:
            requests.msg.add(request=self.methods["TPM_QUERY_STREAMING"]).query_args.sql_query = query
        for number, message in enumerate(requests.msg):
            message.seq = number
        (self.scratch / "requests").write_bytes(requests.SerializeToString())
        files = [self.folder, self.scratch / "requests", self.scratch / "replies"]
        subprocess.run(["node", DRIVER, *files], check=True, timeout=120, capture_output=True)
        replies = self.stream()
        replies.ParseFromString((self.scratch / "replies").read_bytes())
        assert not any(message.append_result.error for message in replies.msg)
        return self._answers([message.query_result for message in replies.msg if message.HasField("query_result")])

    @staticmethod
    def _answers(results: list[Any]) -> list[list[dict[str, Any]]]:
        answers, columns, cells = [], [], []
        for result in results:
            assert not result.error, result.error
            columns = list(result.column_names) or columns
            for batch in result.batch:
                values = {
                    batch.CELL_NULL: itertools.repeat(None),
                    batch.CELL_VARINT: iter(batch.varint_cells),
                    batch.CELL_FLOAT64: iter(batch.float64_cells),
                    batch.CELL_STRING: iter(batch.string_cells.split("\0")),
                }
                cells += [next(values[kind]) for kind in batch.cells]
                if batch.is_last_batch:
                    rows = [cells[n : n + len(columns)] for n in range(0, len(cells), len(columns))]
                    answers.append([dict(zip(columns, row)) for row in rows])
                    columns, cells = [], []
        return answers
