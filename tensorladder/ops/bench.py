"""Calls of the op on a GPU beside their rivals: `tensorladder bench --op`. Method and records are `measure.bench`'s."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tensorladder.core.errors import MissingExtra, UsageError
from tensorladder.measure.bench import Record, contest, error_of, untimed
from tensorladder.measure.suites import Suite
from tensorladder.ops.calls import Call, Work, chosen, ours
from tensorladder.ops.rivals import Quack, rivals
from tensorladder.silicon import driver
from tensorladder.silicon.nvml import Meter
from tensorladder.silicon.target import cuda_torch
from tensorladder.silicon.timing import Options


def on_gpu(
    called: Sequence[tuple[Call, str]], suite: Suite, options: Options, refused: list[str], quack: Quack | None = None
) -> Iterator[Record]:
    """A record for each call of the op (with its element type), shape of the suite and rival.

    refused: gets a line for each shape that the op does not take, and each rival that could not be run. UsageError
    where it takes none.
    """
    torch = cuda_torch()
    meter, known, nothing = Meter(), driver.facts(), True
    for call, dtype in called:
        for shape in suite.shapes:
            work = Work(torch, call, shape, dtype, known["l2_bytes"])
            try:
                for record in _called(torch, work, meter, known["sms"], options, refused, quack):
                    yield record
                    nothing = False
            except MissingExtra:
                raise
            except UsageError as error:
                refused.append(f"{call.label} {'x'.join(map(str, shape))} {dtype}: {error}")
            del work
            torch.cuda.empty_cache()
    if nothing:
        raise UsageError(f"nothing was timed: {refused[-1] if refused else 'no shapes'}")


def _called(
    torch: Any, work: Work, meter: Meter, sms: int, options: Options, refused: list[str], quack: Quack | None
) -> Iterator[Record]:
    runs = [ours(work.call, tensors) for tensors in work.sets]
    within, error = work.check(runs[0])
    ok = within and error <= work.tolerance
    kernel = chosen(work.call, work.shape, work.dtype, sms, torch if work.device == "cuda" else None)
    base: Record = {
        "rung": work.call.label, "shape": list(work.shape), "dtype": work.dtype, "on": "gpu", **kernel, "ok": ok,
        "error": error_of(error), "tolerance": float(f"{work.tolerance:.4g}"), "bytes": work.bytes, "flops": work.flops,
    }  # fmt: skip
    if not ok:
        yield {**base, **untimed("wrong, so not timed")}
        return
    contenders = dict(rivals(work, quack, refused))
    yield from contest(torch, base, runs, contenders, meter, options)
