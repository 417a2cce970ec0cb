"""Times of the candidates that the ops choose from, and how good the choice is.

`python -m benchmarks.choice pack DIR` compiles them, with no GPU. `python -m benchmarks.choice run DIR SHAPES
--results FILE` times on a GPU, at the shapes of a text file (M N K a line), those that the model says take up to
2.5 times its first; FILE is as `ops.measured` reads it. `python -m benchmarks.choice judge` says what the choice takes
of the best time over the shapes of the package's own file: by the model alone, with all other shapes, and as it is.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorladder.core.errors import TensorladderError
from tensorladder.core.pipes import piped
from tensorladder.measure import pack as packs
from tensorladder.ops import measured
from tensorladder.ops.choose import choose, modelled
from tensorladder.ops.kernels import Choice, Product
from tensorladder.ops.measured import PLAIN, SMS, Extents, alike
from tensorladder.ops.models import MODELS

ARCH = "sm_90a"
CANDIDATES = tuple(one for name in ("c7", "c8") for one in MODELS[name].candidates)
WORTH = 2.5  # times the model's best time: what takes longer is not timed


def make(folder: Path) -> str:
    """Write the pack; a line on it."""
    from tensorladder.ops import packing

    made = [packing.make(ARCH, packing.Wanted(PLAIN, one, SMS)) for one in CANDIDATES]
    size = packing.write(folder, ARCH, made, packs.made_with())
    return f"{folder}: {len(made)} kernels, {size >> 10} KiB"


def times(torch: Any, m: int, n: int, k: int) -> dict[str, float]:
    """Microseconds of torch.mm ("cublas") and of candidates by their number."""
    from tensorladder.ops import execute, launch, tune
    from tensorladder.ops.inputs import array
    from tensorladder.ops.plan import plan
    from tensorladder.silicon.nvml import Meter
    from tensorladder.silicon.timing import Options, compare

    a, b = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    tensors = {**dict.fromkeys((*launch.NAMES, "up")), "a": a, "b": b.t(), "out": out}
    planned, product = plan(array("a", a), array("b", b.t())), Product(m, n, k, 1, PLAIN)
    sets = tune.operands(torch, tensors)
    told_us = {number: told(one, product) for number, one in enumerate(CANDIDATES)}
    calls = {"cublas": [lambda s=s: torch.mm(s["a"], s["b"], out=s["out"]) for s in sets]}
    for number, us in told_us.items():
        if us <= WORTH * min(told_us.values()):
            kernel = execute.kernel(planned, (CANDIDATES[number],), SMS, ARCH)
            launcher = launch.make(planned, kernel, sets[0], sets[0], 0)
            calls[str(number)] = [lambda s=s, launcher=launcher: launcher(s, 1.0, 0.0) for s in sets]
    options = Options(batch_us=400.0, most_launches=32, settle=0.06, seconds=0.0, rounds=7)
    return {name: found.median for name, found in compare(torch, calls, Meter(), options).times.items()}


def record(folder: Path, shapes: Sequence[tuple[int, ...]]) -> Iterator[dict[str, Any]]:
    """The lines of a recording."""
    from tensorladder.ops import packs as packed
    from tensorladder.silicon import driver
    from tensorladder.silicon.target import cuda_torch

    torch = cuda_torch()
    os.environ[packed.VARIABLE] = str(folder)
    torch.zeros(1, device="cuda")
    driver.use_context(0)
    known = torch.cuda.get_device_properties(0)
    yield {"gpu": known.name, "sms": known.multi_processor_count, "torch": torch.__version__, "dtype": PLAIN.dtype}
    for one in map(alike, CANDIDATES):
        yield {"kernel": one.kernel, "knobs": dict(one.knobs)}
    for shape in shapes:
        found = {name: float(f"{us:.4g}") for name, us in times(torch, *shape).items()}
        yield {"shape": list(shape), "cublas": found.pop("cublas"), "us": found}


def told(one: Choice, product: Product) -> float:
    """Microseconds by the model alone."""
    return modelled(one, product, SMS)


def regret(shape: Extents, chosen: Choice) -> float:
    """Times as long as the fastest, that a choice takes."""
    us = measured.times()[shape]
    return us[alike(chosen)] / min(us.values())


def by_model(shape: Extents, corrections: Mapping[Choice, float]) -> Choice:
    """Of the candidates that were timed, the model's first."""
    product = Product(*shape, 1, PLAIN)
    return min(measured.times()[shape], key=lambda one: told(one, product) * corrections.get(one, 1.0))


def by_others(shape: Extents) -> Choice:
    """As if this shape had not been measured."""
    product = Product(*shape, 1, PLAIN)
    return by_model(shape, measured.corrections(product, told, shape))


#: ways to choose
WAYS: dict[str, Callable[[Extents], Choice]] = {
    "the model alone": lambda shape: by_model(shape, {}),
    "the model and all other shapes": by_others,
    "the choice": lambda shape: choose(*shape, 1, PLAIN, SMS),
}


def judge() -> Iterator[str]:
    """A line for each way to choose."""
    for name, way in WAYS.items():
        found = {shape: regret(shape, way(shape)) for shape in measured.times()}
        mean = math.exp(sum(map(math.log, found.values())) / len(found))
        worst = max(found, key=lambda shape: found[shape])
        over = sum(one > 1.1 for one in found.values())
        yield (
            f"{name}: {mean:.4f} of the best time (geometric mean of {len(found)}), more than 1.1 at {over}, at most "
            f"{found[worst]:.3f} at {' x '.join(map(str, worst))}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.choice", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("pack").add_argument("folder", type=Path)
    run = verbs.add_parser("run")
    run.add_argument("folder", type=Path)
    run.add_argument("shapes", type=Path)
    run.add_argument("--results", type=Path, required=True)
    verbs.add_parser("judge")
    asked = parser.parse_args(argv)
    try:
        if asked.verb == "pack":
            print(make(asked.folder))
        elif asked.verb == "judge":
            for line in judge():
                print(line)
        else:
            lines = [line.split() for line in asked.shapes.read_text().splitlines() if line and line[0] != "#"]
            with asked.results.open("w") as file:
                for one in record(asked.folder, [tuple(map(int, line)) for line in lines]):
                    print(json.dumps(one), file=file, flush=True)
    except TensorladderError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(piped(main))
