"""Hazards of rungs and of PTX files: run them under the checker, gather what it found, judge the result."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorladder.core.errors import Stopped, TensorladderError, UsageError, importing_engine
from tensorladder.core.findings import Finding, Report, Where, summarise
from tensorladder.frontends.raw import load_ptx
from tensorladder.measure.replay import stamped
from tensorladder.measure.run import Request, VirtualTarget, build, judge

if TYPE_CHECKING:
    from tensorladder.core.program import Program
    from tensorladder.vgpu import Checker


def policies_of(policy: str, seeds: int) -> Iterator[str]:
    """The asked policy, and `seeds` - 1 random schedules besides: order found by polling shows under some alone."""
    yield policy
    yield from (f"random:{n}" for n in range(1, seeds))


def new_checker(advice: bool = False) -> Checker:
    """A hazard checker; MissingExtra without the virtual GPU's engine."""
    with importing_engine():
        from tensorladder.vgpu import Checker
    return Checker(advice)


def check_rung(asked: Request, seeds: int = 1, advice: bool = False, breakpoints: Any = None) -> Report:
    """Run a rung as asked under the checker, and under `seeds` - 1 random schedules; one report of all.

    What stops a run and a result that is wrong are findings too; advice: so are bank conflicts and accesses that are
    not coalesced. breakpoints: a vgpu.debug.Breakpoints; a hit that stops a run ends the check, with what was found
    until then. Raises UsageError where it cannot run at all.
    """
    program = build(asked)
    checker = new_checker(advice)
    options = {
        "shape": asked.shape, "dtype": asked.dtype, "arch": asked.arch, "seed": asked.seed or None,
        "timeout": asked.timeout, "sm-count": asked.sm_count, "advice": advice,
    }  # fmt: skip
    for policy in policies_of(asked.policy, seeds):
        before = len(checker.findings)
        _check_run(program, replace(asked, policy=policy), checker, breakpoints)
        if seeds > 1:
            new = checker.findings[before:]
            checker.findings[before:] = stamped(new, asked.info.name, policy, options)
        if breakpoints is not None and breakpoints.stopped:
            break
    return checker.report(asked.info.name)


def _check_run(program: Program, asked: Request, checker: Checker, breakpoints: Any) -> None:
    """One run: what stopped it, or a wrong result, is a finding of the checker's too."""
    target = VirtualTarget(asked, checker, breakpoints)
    case = asked.info.problem.make(asked.shape, asked.dtype, asked.seed, target.allocate)
    try:
        target.run(program, case)
        result = judge(asked, case, 0.0, 0.0)
    except UsageError:
        raise
    except Stopped:
        return
    except TensorladderError as error:
        checker.stopped(error)
        return
    if not result.ok:
        checker.findings.append(Finding("wrong-result", f"under {asked.policy}: {result.message}", Where()))


# ---------------------------------------------------------------- PTX files
_ARRAY = re.compile(r"(u8|s8|u16|s16|f16|u32|s32|f32|u64|s64|f64)\[(\d+)\]$")


def parse_argument(text: str) -> Any:
    """A kernel argument as text: an array of so many elements ("f32[1024]", small numbers), or a number."""
    import numpy as np

    array = _ARRAY.match(text)
    if array:
        name = {"u": "uint", "s": "int", "f": "float"}[array[1][0]] + array[1][1:]
        count, have = int(array[2]), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if 3 * 8 * count > have:
            raise UsageError(f"--arg {text}: this machine has {have / 1e9:.1f} GB: give a smaller array")
        return (np.arange(count) % 7).astype(name)
    try:
        return float(text) if "." in text else int(text, 0)
    except ValueError:
        raise UsageError(f"--arg {text}: an array such as f32[1024], or a number, is wanted") from None


def check_ptx(
    path: Path,
    *,
    kernel: str | None,
    grid: Sequence[int],
    block: Sequence[int],
    cluster: Sequence[int],
    smem: int,
    arguments: Sequence[str],
    arch: str | None,
    policy: str,
    seed: int,
    seeds: int,
    timeout: float | None,
    breakpoints: Any = None,
) -> Report:
    """Run a kernel of a PTX file under the checker; `kernel`: its name, where the file has several. breakpoints: as
    `check_rung` takes them."""
    from tensorladder.vgpu import check
    from tensorladder.vgpu.ptx import parse

    text = load_ptx(path, arch).ptx
    kernels = parse(text).kernels
    if kernel is None and len(kernels) != 1:
        raise UsageError(f"{path} has the kernels {', '.join(sorted(kernels))}: name one with --kernel")
    kernel = kernel or next(iter(kernels))
    takes = len(kernels[kernel].params) if kernel in kernels else len(arguments)
    if takes != len(arguments):
        given = f"{len(arguments)} given: --arg f32[1024] or --arg 7 for each"
        raise UsageError(f"{path}: kernel {kernel} takes {takes} arguments, {given}")
    options = {
        "kernel": kernel, "grid": tuple(grid), "block": tuple(block), "cluster": tuple(cluster), "smem": smem or None,
        "arg": list(arguments), "arch": arch, "seed": seed or None, "timeout": timeout,
    }  # fmt: skip
    findings: list[Finding] = []
    for one in policies_of(policy, seeds):
        report = check(
            text, kernel, tuple(grid), tuple(block), [parse_argument(a) for a in arguments], smem=smem,
            cluster=tuple(cluster), arch=arch, policy=one, seed=seed, timeout=timeout, breakpoints=breakpoints,
        )  # fmt: skip
        findings += stamped(report.findings, str(path), one, options) if seeds > 1 else report.findings
        if breakpoints is not None and breakpoints.stopped:
            break
    return summarise(str(path), findings)
