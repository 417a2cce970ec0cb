"""What calls of the op are measured against: cuBLAS and its epilogues, QuACK, `torch.compile`, torch as it is.

A rival gets the sets of operands of a `calls.Work` and gives a call for each of them. One that has configurations or
modes to choose from times them on the spot and brings the fastest: the baseline is the best that it can do.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorladder.core.errors import UsageError
from tensorladder.measure.bench import Rival
from tensorladder.ops.calls import ACTIVATIONS, PITCH, Call, Work
from tensorladder.silicon.nvml import Meter
from tensorladder.silicon.timing import Options, compare, quick

Run = Callable[[], Any]
Tensors = Mapping[str, Any]

QUICK_ROUNDS, QUICK_US = 3, 1000.0  # how configurations are compared: so many batches of about so long
FINALISTS = 4
MODES = ("default", "max-autotune-no-cudagraphs")
SAME = 0.02  # relative norm by which a rival's result may differ from ours, which has been checked: a tanh for an erf


def rivals(work: Work, quack: Quack | None, refused: list[str]) -> Iterator[tuple[str, Rival]]:
    """Those that do this call and get it right. refused: gets a line for each that could not be run or was wrong."""
    shape = "x".join(map(str, work.shape))
    expected = work.sets[0]["C"].float()
    made: dict[str, Callable[[], Rival | None]] = {
        "cublas": lambda: _cublas_best(work),
        "quack": lambda: _quack(work, quack),
        "cublaslt": lambda: _each(work, _cublaslt),
        "torch.compile": lambda: _compiled(work),
        "torch": lambda: _each(work, _eager),
    }
    for name, make in made.items():
        try:
            rival = make()
            if rival is None:
                continue
            off = _difference(work, rival.runs[0], expected)
        except Exception as problem:  # another project's code: say what it said, and go on without it
            why = " ".join(str(problem).split())[:200] or type(problem).__name__
            refused.append(f"{name} on {work.call.label} {shape} {work.dtype}: {why}")
            continue
        if off <= SAME:
            yield name, rival
        else:
            refused.append(f"{name} on {work.call.label} {shape} {work.dtype}: is off by {off:.2g}")


def _difference(work: Work, run: Run, expected: Any) -> float:
    """Relative norm of the difference between a rival's result (given back, or in C) and ours."""
    result = work.sets[0]["C"]
    result.zero_()
    given = run()
    found = (given if isinstance(given, work.torch.Tensor) else result).float()
    return float((found - expected).norm() / expected.norm())


def _each(work: Work, make: Callable[[Any, Call, Tensors], Run | None]) -> Rival | None:
    runs = [run for tensors in work.sets if (run := make(work.torch, work.call, tensors)) is not None]
    return Rival(runs) if runs else None


def _cublas(torch: Any, call: Call, t: Tensors) -> Run | None:
    if call.groups:
        return None
    a, b, c = t["A"], t["B"].t(), t["C"]
    if call.name == "matmul":
        return lambda: torch.mm(a, b, out=c)
    if call.scales:
        return lambda: torch._scaled_mm(a, b, t["p"], t["q"], out_dtype=c.dtype, use_fast_accum=True, out=c)
    return None


def _cublas_best(work: Work) -> Rival | None:
    """cuBLAS, and where rows of C are padded, without that if it is faster so."""
    rival = _each(work, _cublas)
    if rival is None or work.call.scales or work.shape[1] % PITCH == 0:
        return rival

    dense = [functools.partial(work.torch.mm, t["A"], t["B"].t()) for t in work.sets]
    candidates: dict[str, Sequence[Run]] = {"rows padded": rival.runs, "rows dense": dense}
    choice = fastest(work.torch, candidates)
    return Rival(candidates[choice], choice)


def _cublaslt(torch: Any, call: Call, t: Tensors) -> Run | None:
    """cuBLASLt's own epilogues. Its gelu is the one by tanh, which is less work than ours by erf."""
    if call.groups:
        return None
    a, b, c = t["A"], t["B"].t(), t["C"]
    if call.bias and call.activation in ("gelu", "relu"):
        gelu = call.activation == "gelu"
        return lambda: torch._addmm_activation(t["bias"], a, b, use_gelu=gelu, out=c)
    return None


def _eager(torch: Any, call: Call, t: Tensors) -> Run | None:
    """torch, operation by operation: only where there is an epilogue, else it is cuBLAS; or its grouped product."""
    if call.groups:
        right = t["B"].mT
        return lambda: torch._grouped_mm(t["A"], right, offs=t["ends"])
    if call.name == "matmul" or call.scales:
        return None
    function, arguments = plain(torch, call), _arguments(t)
    return lambda: function(*arguments)


def _arguments(t: Tensors) -> tuple[Any, ...]:
    return t["A"], t["B"], t.get("bias"), t.get("R")


def plain(torch: Any, call: Call) -> Callable[..., Any]:
    """The call in torch's own operations, as a model would write it: f(a, weight, bias, residual)."""
    activate = functools.partial(ACTIVATIONS[call.activation], torch)

    def gated(a: Any, weight: Any, bias: Any, residual: Any) -> Any:
        gate, up = torch.nn.functional.linear(a, weight).chunk(2, -1)
        return activate(gate) * up

    def linear(a: Any, weight: Any, bias: Any, residual: Any) -> Any:
        return activate(torch.nn.functional.linear(a, weight, bias))

    def added(a: Any, weight: Any, bias: Any, residual: Any) -> Any:
        return activate(torch.nn.functional.linear(a, weight, bias) + residual)

    return gated if call.gated else added if call.residual else linear


def _compiled(work: Work) -> Rival | None:
    """`torch.compile` for this one shape, in the better of its modes; with an epilogue only, which it can fuse."""
    torch, call = work.torch, work.call
    if call.name == "matmul" or call.scales or call.groups:
        return None
    torch._dynamo.reset()  # a function is compiled for so many shapes only, then no more
    candidates = {}
    for mode in MODES:
        function = torch.compile(plain(torch, call), mode=mode, dynamic=False, fullgraph=True)
        candidates[mode] = [functools.partial(function, *_arguments(tensors)) for tensors in work.sets]
    mode = fastest(torch, candidates)
    return Rival(candidates[mode], mode)


def fastest(torch: Any, candidates: Mapping[str, Sequence[Run]]) -> str:
    """The name of the candidate with the least time a launch: a few batches of each, then the first few in turns, since
    clocks fall while many are looked at."""
    options = Options(batch_us=QUICK_US, settle=0.0, seconds=0.0, rounds=QUICK_ROUNDS)
    alone = {name: quick(torch, runs, options) for name, runs in candidates.items()}
    first = sorted(alone, key=lambda name: alone[name])[:FINALISTS]
    times = compare(torch, {name: candidates[name] for name in first}, Meter(), options).times
    return min(first, key=lambda name: times[name].median)


def _quack(work: Work, quack: Quack | None) -> Rival | None:
    if work.call.name != "matmul":
        return None
    if quack is not None:
        return quack.rival(work)
    if importlib.util.find_spec("quack") is None:
        return None
    from quack.gemm_interface import gemm

    def make(torch: Any, call: Call, t: Tensors) -> Run:
        b = t["B"].t()
        return lambda: gemm(t["A"], b, out=t["C"], tuned=True)

    return _each(work, make)


class Quack:
    """QuACK's kernels compiled ahead of time by `python -m benchmarks.quack`: one for each of its configurations.

    UsageError where the folder is none, or the package that loads it is missing.
    """

    def __init__(self, folder: str | Path, clusters: int) -> None:
        """clusters: of two CTAs, that the GPU holds at a time."""
        try:
            import tvm_ffi
        except ModuleNotFoundError as error:
            raise UsageError("--quack: these kernels are loaded by a package: pip install apache-tvm-ffi") from error
        place = Path(folder)
        try:
            self.listed = json.loads((place / "quack.json").read_text(encoding="utf-8"))
            library = tvm_ffi.load_module(str(place / "quack.so"))
            self.functions = {one["function"]: getattr(library, one["function"]) for one in self.listed["kernels"]}
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise UsageError(f"--quack {folder}: not what `python -m benchmarks.quack` makes: {error}") from error
        self.clusters = clusters

    @property
    def version(self) -> str:
        """QuACK's."""
        return str(self.listed["quack-kernels"])

    def rival(self, work: Work) -> Rival | None:
        """The fastest of its configurations for this product."""
        if work.dtype != self.listed["dtype"]:
            return None
        candidates = {self._name(one): [self._run(one, t) for t in work.sets] for one in self.listed["kernels"]}
        usable, problem = {}, ""
        for name, runs in candidates.items():
            try:
                runs[0]()
            except Exception as error:  # a configuration that does not take this shape
                problem = str(error)
            else:
                usable[name] = runs
        if not usable:
            raise RuntimeError(problem)
        name = fastest(work.torch, usable)
        return Rival(usable[name], name)

    @staticmethod
    def _name(one: Mapping[str, Any]) -> str:
        (rows, cols), (down, across) = one["tile"], one["cluster"]
        kind = "pingpong" if one["pingpong"] else "cooperative"
        return f"{rows}x{cols} {kind} cluster {down}x{across}{' swapped' if one['swap'] else ''}"

    def _run(self, one: Mapping[str, Any], t: Tensors) -> Run:
        function = self.functions[one["function"]]
        a, b, c = (t["B"], t["A"], t["C"].t()) if one["swap"] else (t["A"], t["B"], t["C"])
        # Its NamedTuples as they come through the call: an epilogue without operands; the scheduler's clusters that
        # run at a time, raster order (by heuristic), swizzle, semaphore, batch order, all-gather.
        epilogue, scheduler = (None,) * 12, (self.clusters, None, one["swizzle"], None, None, None)
        return lambda: function(a, b, c, None, epilogue, scheduler, None, None, None)
