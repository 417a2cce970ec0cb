"""b10 beside cuDNN on the layers of ResNet-50: `python -m benchmarks.convolution make DIR`, then `run DIR` on a GPU.

`make` packs the rung for each layer, with two tiles, for sm_90a and with no GPU. `run` checks each against float64 on
the same tensors, then times it in turns with `torch.nn.functional.conv2d` in channels_last, which is cuDNN's choice
(its benchmark mode is on). Half precision. `--results FILE` keeps what it gave, `table FILE` prints it as Markdown.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorladder.core.errors import TensorladderError
from tensorladder.core.pipes import piped
from tensorladder.measure import bench
from tensorladder.measure import pack as packs
from tensorladder.measure.suites import Suite
from tensorladder.problems import DTYPES
from tensorladder.problems.convolution import CONVOLUTION, allowed
from tensorladder.silicon import driver
from tensorladder.silicon.nvml import Meter
from tensorladder.silicon.pack import Entry, Pack
from tensorladder.silicon.target import cuda_torch
from tensorladder.silicon.timing import Options

ARCH, DTYPE = "sm_90a", "fp16"
#: of He et al., "Deep Residual Learning for Image Recognition" (2016), table 1, at 32 images
LAYERS = {
    (32, 224, 224, 3, 64, 7, 7, 2, 3, 1): "the first, 3 channels",
    (32, 56, 56, 64, 64, 3, 3, 1, 1, 1): "stage 2",
    (32, 56, 56, 64, 256, 1, 1, 1, 0, 1): "stage 2, one tap",
    (32, 28, 28, 128, 128, 3, 3, 1, 1, 1): "stage 3",
    (32, 28, 28, 512, 1024, 1, 1, 2, 0, 1): "stage 3 to 4, one tap, stride 2",
    (32, 14, 14, 256, 256, 3, 3, 1, 1, 1): "stage 4",
    (32, 7, 7, 512, 512, 3, 3, 1, 1, 1): "stage 5",
}
TILES = ("tile=128x128x32", "tile=128x64x32")
SUITE = Suite("convolution", "", DTYPE, {})
WARM = 5

Tensors = dict[str, Any]


def make(folder: Path) -> str:
    """Write the pack; a line on it."""
    specs = [f"b10:{tile}" for tile in TILES]
    wanted = packs.wanted(specs, ARCH, SUITE, list(LAYERS), [DTYPE])
    entries, _, size = packs.write(folder, ARCH, list(packs.make_all(wanted, ARCH)))
    return f"{folder}: {entries} kernels, {size >> 10} KB"


def run(folder: Path, options: Options) -> Iterator[bench.Record]:
    """A record a layer and tile."""
    torch, meter, opened = cuda_torch(), Meter(), packs.open_current(folder)
    for shape in LAYERS:
        size = sum(math.prod(operand.shape) * 2 for operand in CONVOLUTION.operands(shape, DTYPE))
        sets = [_draw(torch, shape, seed) for seed in range(bench.sets_for(size, driver.facts()["l2_bytes"]))]
        expected = _expected(torch, sets[0], shape)
        for entry in (one for one in opened.entries if one.shape == shape):
            yield from _one(torch, opened, entry, sets, expected, meter, options)
        del sets, expected
        torch.cuda.empty_cache()


def _draw(torch: Any, shape: tuple[int, ...], seed: int) -> Tensors:
    generator = torch.Generator("cuda").manual_seed(seed)
    return {
        operand.name: torch.randn(operand.shape, generator=generator, device="cuda", dtype=torch.float16)
        for operand in CONVOLUTION.operands(shape, DTYPE)
    }


def _expected(torch: Any, tensors: Tensors, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Y in float64 as a matrix (pixels, filters), and what each element may be off."""
    wide = {name: tensor.double() for name, tensor in tensors.items()}
    value = _conv2d(torch, wide, shape)
    magnitudes = _conv2d(torch, {name: tensor.abs() for name, tensor in wide.items()}, shape)
    filters = value.shape[1]
    value, magnitudes = (y.permute(0, 2, 3, 1).reshape(-1, filters) for y in (value, magnitudes))
    return value, allowed(value, magnitudes, shape, DTYPES[DTYPE])


def _one(
    torch: Any, opened: Pack, entry: Entry, sets: list[Tensors], expected: tuple[Any, Any], meter: Meter,
    options: Options,
) -> Iterator[bench.Record]:  # fmt: skip
    kernel, stream = opened.kernel(entry), torch.cuda.current_stream().cuda_stream
    ours = [kernel.bind(stream, *tensors.values()) for tensors in sets]
    y = sets[0]["Y"].fill_(math.nan).view(-1, entry.shape[4])
    ours[0]()
    torch.cuda.synchronize()
    within, error = bench.judged(y, lambda rows: (expected[0][rows], expected[1][rows]))
    tolerance = CONVOLUTION.tolerance(entry.shape, DTYPES[DTYPE])
    base: bench.Record = {
        "rung": entry.rung, "shape": list(entry.shape), "layer": LAYERS[entry.shape], "dtype": entry.dtype,
        "arch": entry.arch, "on": "gpu", "config": dict(entry.config), "ok": within and error <= tolerance,
        "error": bench.error_of(error), "tolerance": tolerance, "flops": CONVOLUTION.flops(entry.shape),
    }  # fmt: skip
    if not base["ok"]:
        yield {**base, **bench.untimed("wrong, so not timed")}
        return
    rivals = {"cudnn": bench.Rival([functools.partial(_conv2d, torch, tensors, entry.shape) for tensors in sets])}
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):  # it leaves cuDNN out where not told
        for _ in range(WARM):  # its search is no part of the comparison
            rivals["cudnn"].runs[0]()
        torch.cuda.synchronize()
        yield from bench.contest(torch, base, ours, rivals, meter, options)


def _conv2d(torch: Any, tensors: Tensors, shape: tuple[int, ...]) -> Any:
    # (N, C, H, W) as torch sees it, channels last in memory: the same bytes.
    x, f = (tensors[name].permute(0, 3, 1, 2) for name in "XF")
    return torch.nn.functional.conv2d(x, f, None, *shape[-3:])


def table(file: Path) -> str:
    """Kept results as Markdown: for each layer our faster tile, and the best of cuDNN's times."""
    host, records = bench.read(file)
    heads = ("layer", "N, H, W, C", "K, R, S", "stride", "tile", "us", "TFLOPS", "cuDNN us", "over cuDNN")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for shape, layer in LAYERS.items():
        ours = [one for one in records if tuple(one["shape"]) == shape and one["ok"]]
        if not ours:
            continue
        best, theirs = min(ours, key=lambda one: one["median_us"]), min(one["baseline_us"] for one in ours)
        extents = [", ".join(map(str, part)) for part in (shape[:4], shape[4:7])]
        tile = " x ".join(map(str, best["config"]["tile"]))
        speed = f"{best['median_us']:.1f} | {best['tflops']:.0f} | {theirs:.1f} | {theirs / best['median_us']:.2f}"
        lines.append(f"| {layer} | {extents[0]} | {extents[1]} | {shape[7]} | {tile} | {speed} |")
    return "\n".join([*lines, "", f"{host['gpu']}, torch {host['torch']}, fp16, {host['when'][:10]}."])


def main() -> int:
    """The command; its exit status: 1 where a kernel was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convolution", description=__doc__)
    parser.add_argument("verb", choices=("make", "run", "table"))
    parser.add_argument("path", type=Path, help="the pack's folder; of `table`, a result file")
    parser.add_argument("--seconds", type=float, default=0.3, help="to measure each kernel for, and to warm up at most")
    parser.add_argument("--results", metavar="FILE", help="keep what `run` gave")
    asked = parser.parse_args()
    try:
        if asked.verb == "make":
            print(make(asked.path))
            return 0
        if asked.verb == "table":
            print(table(asked.path))
            return 0
        host, records = bench.machine(SUITE), []
        for record in run(asked.path, Options(seconds=asked.seconds, settle=asked.seconds)):
            records.append(record)
            print(json.dumps(record), flush=True)
            if asked.results:
                bench.keep(Path(asked.results), host, records)
    except TensorladderError as error:
        print(f"convolution: {error}", file=sys.stderr)
        return error.exit_code
    return bench.exit_code(records)


if __name__ == "__main__":
    sys.exit(piped(main))
