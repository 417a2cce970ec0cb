"""The one harness that runs every rung: allocate, make the problem's case, compile, launch, judge, time."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tensorladder.core.errors import Stopped, TensorladderError, Unsupported, UsageError, importing_engine, memory_for
from tensorladder.core.program import Program
from tensorladder.measure import request
from tensorladder.problems import DTYPES, Case
from tensorladder.problems.problem import Empty, examine
from tensorladder.rungs import rung as rungs
from tensorladder.rungs.rung import RungInfo


@dataclass(frozen=True)
class Request:
    """One run, fully said: what, for which architecture, on which inputs, where and under which policy.

    policy: when asynchronous effects happen ("eager", "lazy", "random:N", "timed"); on a real GPU it has no meaning.
    seed: of the inputs and of the virtual GPU's own choices. timeout: seconds for a launch there, or None.
    numerics: how its tensor cores accumulate, "f32" or "f64". sm_count: SMs of the virtual GPU, and the rung's knob of
    that name where it has one; None: the reference part's.
    """

    info: RungInfo
    arch: str
    shape: tuple[int, ...]
    dtype: str
    on: str = "vgpu"
    policy: str = "eager"
    seed: int = 0
    timeout: float | None = None
    numerics: str = "f32"
    config: Any = None
    sm_count: int | None = None


@dataclass(frozen=True)
class Result:
    """What one run gave.

    error: relative Frobenius norm of the output's error (None where nothing was computed, infinite for NaN).
    seconds: the launch alone. compile_seconds: the front end and the virtual GPU's code generation.
    message: why it is not ok, one line. exit_code: what the command line returns for it. digest: of the outputs' bits,
    equal for two runs exactly when they gave the same bits (None where nothing was computed). stopped: a breakpoint
    ended the run before there was a result to judge.
    """

    request: Request
    ok: bool
    error: float | None
    tolerance: float | None
    seconds: float | None
    compile_seconds: float | None
    message: str = ""
    exit_code: int = 0
    digest: str | None = None
    stopped: bool = False

    @property
    def verdict(self) -> str:
        """ "ok", "wrong" (it computed something else), "stopped" (a fault or a hang), "incomplete" (not modelled) or
        "breakpoint" (it ended there)."""
        if self.stopped:
            return "breakpoint"
        if self.ok:
            return "ok"
        if self.exit_code == Unsupported.exit_code:
            return "incomplete"
        return "stopped" if self.error is None else "wrong"

    def record(self) -> dict[str, Any]:
        """The run as a JSON object with the keys of the contract. Numbers that JSON cannot say are null."""
        asked = self.request
        return {
            "rung": asked.info.name,
            "arch": asked.arch,
            "on": asked.on,
            "shape": list(asked.shape),
            "dtype": asked.dtype,
            "async": asked.policy if asked.on == "vgpu" else None,
            "seed": asked.seed,
            "ok": None if self.stopped else self.ok,
            "error": _finite(self.error),
            "tolerance": self.tolerance,
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
            "digest": self.digest,
            "message": self.message,
            **({"stopped": True} if self.stopped else {}),
        }


class Target(Protocol):
    """Where a program runs. `allocate` gives arrays of the machine; `run` launches and returns the seconds of the
    launches alone and those of everything around them (host code, code generation, loading)."""

    @property
    def allocate(self) -> Empty: ...

    def run(self, program: Program, case: Case) -> tuple[float, float]: ...


def plan(
    info: RungInfo,
    *,
    shape: Sequence[int] | None = None,
    dtype: str | None = None,
    arch: str | None = None,
    on: str = "vgpu",
    policy: str = "eager",
    seed: int = 0,
    timeout: float | None = None,
    numerics: str = "f32",
    config: Any = None,
    sm_count: int | None = None,
) -> Request:
    """A request with the rung's defaults filled in and everything checked that needs no compiler (UsageError)."""
    request.parse_place(on)
    if arch is None:
        arch = info.archs[0] if on == "vgpu" else _silicon().arch_for(info.archs)
    arch = request.parse_arch(arch, info)
    extents, name = info.rung.check(
        arch, info.default_shape if shape is None else tuple(shape), info.dtypes[0] if dtype is None else dtype
    )
    _require_memory(info, extents, name)
    return Request(
        info,
        arch,
        extents,
        name,
        on,
        request.parse_policy(policy),
        request.parse_seed(seed),
        request.parse_timeout(timeout),
        request.parse_numerics(numerics),
        config,
        request.parse_sm_count(sm_count),
    )


def _require_memory(info: RungInfo, shape: tuple[int, ...], dtype: str) -> None:
    """UsageError where the arrays, with their float64 copies for the reference, exceed the machine's memory."""
    needed = sum(
        math.prod(operand.shape) * (DTYPES[operand.dtype].bits // 8 + 8)
        for operand in info.problem.operands(shape, dtype)
    )
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > have:
        text = ",".join(map(str, shape))
        raise UsageError(
            f"--shape {text} needs {needed / 1e9:.1f} GB with its reference: this machine has {have / 1e9:.1f} GB"
        )


def run_rung(info: RungInfo, **asked: Any) -> Result:
    """Run one rung and judge it; keywords as `plan` takes them. Raises TensorladderError where it cannot run."""
    return execute(plan(info, **asked))


def execute(asked: Request, breakpoints: Any = None) -> Result:
    """Run what was asked. A wrong result is a Result with ok False; what stops a run raises TensorladderError.

    breakpoints: a vgpu.debug.Breakpoints for the virtual GPU; where one ends the run, the Result says `stopped`.
    """
    if breakpoints is not None and asked.on != "vgpu":
        raise UsageError("breakpoints are the virtual GPU's: leave --on gpu out")
    start = time.perf_counter()
    program = build(asked)
    compiled = time.perf_counter() - start
    target = TARGETS[asked.on](asked) if breakpoints is None else VirtualTarget(asked, breakpoints=breakpoints)
    case = asked.info.problem.make(asked.shape, asked.dtype, asked.seed, target.allocate)
    try:
        seconds, around = target.run(program, case)
    except Stopped as stop:
        return Result(asked, False, None, None, None, None, str(stop), stop.exit_code, stopped=True)
    return judge(asked, case, seconds, compiled + around)


def build(asked: Request) -> Program:
    """Compile the rung for what was asked."""
    module = rungs.load(asked.info)
    knobs = rungs.default_config(asked.info, asked.shape) if asked.config is None else asked.config
    if asked.sm_count is not None and hasattr(knobs, "sm_count"):
        knobs = replace(knobs, sm_count=asked.sm_count)
    return module.compile(asked.arch, asked.shape, asked.dtype, knobs)


def judge(asked: Request, case: Case, seconds: float, compile_seconds: float) -> Result:
    """Compare the case's outputs with the float64 reference, by norm and element by element."""
    verdict = examine(case)
    own = asked.info.rung.tolerance
    tolerance = case.tolerance if own is None else own
    # A rung whose order of summation is free states one tolerance on the norm; spoilt inputs make that infinite.
    ok = verdict.ok if own is None else verdict.error <= own
    message = "" if ok else _what_is_wrong(verdict.wrong, verdict.error, tolerance)
    code = 0 if ok else 1
    return Result(asked, ok, verdict.error, tolerance, seconds, compile_seconds, message, code, digest(case))


def digest(case: Case) -> str:
    """16 hexadecimal digits of a hash over the outputs' names and bits."""
    seen = hashlib.sha256()
    for name in case.outputs:
        seen.update(name.encode())
        seen.update(case.arrays[name].tobytes())
    return seen.hexdigest()[:16]


def requests(
    infos: Iterable[RungInfo], *, all_archs: bool = False, on: str = "vgpu", **asked: Any
) -> Iterator[Request]:
    """A request a rung at its default shape: for its first architecture, or for all it compiles for.

    On a real GPU only architectures that it runs count, and a rung with none of them is left out.
    """
    request.parse_place(on)
    for info in infos:
        archs = info.archs if on == "vgpu" else _silicon().archs_for(info.archs)
        for arch in archs if all_archs else archs[:1]:
            yield plan(info, arch=arch, on=on, **asked)


def climb(asked: Iterable[Request]) -> Iterator[Result]:
    """Run each request; one that stops becomes a Result that says why, and the climb goes on.

    A request that could never run (a missing extra, no GPU) ends the climb instead: UsageError.
    """
    for one in asked:
        try:
            yield execute(one)
        except UsageError:
            raise
        except TensorladderError as error:
            yield Result(one, False, None, None, None, None, str(error), error.exit_code)


def summary(results: Sequence[Result]) -> dict[str, int]:
    """How many runs there were, how many were right, how many not."""
    right = sum(result.ok for result in results)
    return {"rungs": len(results), "ok": right, "failed": len(results) - right}


def exit_code(results: Iterable[Result]) -> int:
    """0 when all are right; 1 when a result is wrong; 3 when the worst is something that is not modelled."""
    codes = {result.exit_code for result in results if not result.ok}
    return 1 if 1 in codes else max(codes, default=0)


class VirtualTarget:
    """The virtual GPU: arrays live in the device's arena, launches run at the synchronisation."""

    def __init__(self, asked: Request, checker: Any = None, breakpoints: Any = None) -> None:
        with importing_engine():
            from tensorladder.vgpu import Device
        self.name = asked.info.name
        self.device = Device(
            arch=asked.arch,
            policy=asked.policy,
            seed=asked.seed,
            timeout=asked.timeout,
            numerics=asked.numerics,
            sm_count=asked.sm_count,
            checker=checker,
            breakpoints=breakpoints,
        )

    @property
    def allocate(self) -> Empty:
        return self.device.memory.empty

    def run(self, program: Program, case: Case) -> tuple[float, float]:
        start = time.perf_counter()
        stream = self.device.stream()
        with memory_for(self.name):
            program(stream, *case.arrays.values())
            stream.synchronize()
        # The device counts its launches alone; the rest is host code and, at a kernel's first launch, code generation.
        return self.device.seconds, time.perf_counter() - start - self.device.seconds


def _real_target(asked: Request) -> Target:
    return _silicon().Target(asked.arch)


def _silicon() -> Any:
    """The real GPU's side, imported only when asked for."""
    from tensorladder.silicon import target

    return target


TARGETS: dict[str, Callable[[Request], Target]] = {"vgpu": VirtualTarget, "gpu": _real_target}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _what_is_wrong(wrong: Any, error: float, tolerance: float) -> str:
    if not wrong:
        return f"relative error {error:.2e} is above {tolerance:.2e}"
    places = (f"{name}: {count} elements, first at {list(index)}" for name, (count, index) in wrong.items())
    return "wrong " + "; ".join(places)
