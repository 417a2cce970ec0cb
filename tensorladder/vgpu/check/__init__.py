"""Hazards: races, proxies, barrier protocol, tensor memory, deadlock, found by happens-before while a kernel runs.

How it works. Code of the checked variant, and the units of the machine, tell the checker of every access, fence,
barrier, arrival and wait (machine.hooks.CHECK_*). The checker is native code, a library of its own (`events.tl_check`);
a device without one runs code that has no hooks at all.

- `clocks`: vector clocks. Components are warps, and what asynchronous work is over with: an mbarrier (its clock is the
  number of complete phases), the cp.async of a warp, the bulk copies of a thread, the wgmma of a warpgroup, the tcgen05
  operations of a thread. An asynchronous access is an epoch of such a component: it happened before whoever has waited
  for that phase or group. What is found does not hang on the schedule that was run, since accesses are judged when they
  are issued, by what the issuing warp knows then.
- `shadow`: the last write and the reads since of each byte, in cells of 16 bytes that split where it is needed.
- `barriers`, `accesses`, `copies`, `matrix`, `tensor`: the events. A second clock a warp says what of the generic
  proxy's writes the async proxy sees: only fence.proxy.async by the writing threads raises it, barriers hand it on.
- `order`: order through memory itself, by fences, releases, acquires and their scopes. `widths`: waits on mbarriers
  whose scope is too narrow. `fences`, `maps`: proxy fences of global memory and of tensor maps.
- `lanes`: lanes of one warp, which only bar.warp.sync orders.
- `streams`: operations of several streams and of the host, by the events and waits of the host code. `footprints`,
  `runs`: what a launch accessed, as runs of bytes.
- `engine`: memory for all that, the findings of a run. `across`: conflicts between CTAs that different workers ran, and
  between launches that overlap.
  `words`: findings as a person reads them. `errors` and `hangs`: what stopped a run, as a finding.

    report = vgpu.check(ptx_text, "kernel", grid, block, args)     # core.findings.Report
    report.verdict                                                 # clean < review < incomplete < error
    for finding in report.findings:
        finding.kind, finding.message, finding.where.line, finding.other, finding.fix

or with a device of your own: `Device(arch, checker=Checker())`, then `checker.report(name)` after its launches
(`checker.stopped(error)` for one that raised).
`tensorladder check RUNG` does this for rungs (measure.hazards).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorladder.core.findings import Report
from tensorladder.vgpu.check.engine import Checker
from tensorladder.vgpu.check.errors import finding_of

__all__ = ["Checker", "check", "finding_of"]


def check(
    ptx_text: str,
    kernel: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[object],
    *,
    smem: int = 0,
    cluster: int | Sequence[int] = 1,
    arch: str | None = None,
    policy: str = "eager",
    seed: int = 0,
    timeout: float | None = None,
    target: str = "",
    breakpoints: Any = None,
) -> Report:
    """Run a kernel of a PTX module on numpy arrays and report its hazards; arguments as `vgpu.launch` takes them.

    What stops the run (a fault, a hang, something that is not modelled) is a finding too. breakpoints: a
    debug.Breakpoints; where one ends the run, the report has what was found until then. Raises UsageError for bad
    arguments alone.
    """
    from tensorladder.core.errors import Stopped, TensorladderError, UsageError
    from tensorladder.vgpu.machine.device import Device
    from tensorladder.vgpu.machine.launcher import launch
    from tensorladder.vgpu.ptx import parse

    checker = Checker()
    device = Device(
        arch or parse(ptx_text).target, policy, seed, timeout=timeout, checker=checker, breakpoints=breakpoints
    )
    try:
        launch(ptx_text, kernel, grid, block, args, smem=smem, cluster=cluster, arch=arch, device=device)
    except UsageError:
        raise
    except Stopped:
        pass
    except TensorladderError as error:
        checker.stopped(error, kernel)
    return checker.report(target or kernel)
