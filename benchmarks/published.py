"""Our rungs beside the published kernels of the same step, in one process: `python -m benchmarks.published`.

`pack PEERS DIR` compiles the published scripts (a checkout of learn-cutedsl; nothing of it is in this repository) and
our rungs of the same steps for sm_90a, with no GPU. `run DIR` times them in turn with cuBLAS on a GPU, prints a table,
and keeps it with `--results FILE`. A published kernel that computes something wrong is timed all the same, and said to
be wrong: its figure is that of a kernel that does not wait.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from tensorladder.core.errors import TensorladderError
from tensorladder.core.pipes import piped
from tensorladder.measure import bench
from tensorladder.measure import pack as packs
from tensorladder.measure.baselines import BASELINES
from tensorladder.measure.dynamic import templates
from tensorladder.measure.suites import Suite
from tensorladder.problems import find as problem_named
from tensorladder.rungs import rung as rungs
from tensorladder.silicon import pack
from tensorladder.silicon.driver import facts
from tensorladder.silicon.nvml import Meter
from tensorladder.silicon.target import cuda_torch
from tensorladder.silicon.timing import Options, compare

ARCH, DTYPE = "sm_90a", "fp16"
SIDES = (4096, 8192)
PEER = "learn-cutedsl "
#: our step -> (published script, what it calls its kernel)
STEPS = {
    "a2-smem-padded": ("a2_smem_cuda_like", "naive_smem_launcher"),
    "a2-smem-pipeline": ("a2_smem_pipeline", "GemmPipeAsync"),
    "b2": ("b2_wmma_smem", "Gemm_TC"),
    "b5": ("b5_wmma_tma_load_store", "Gemm_TC"),
    "b7": ("b7_wmma_tma_specialized_pipeline", "Gemm_TC"),
    "c1": ("c1_wgmma_tma_load_store", "Gemm_TC"),
    "c2": ("c2_wgmma_tma_specialized_pipeline", "Gemm_TC"),
}


def make(peers: Path, folder: Path) -> str:
    """Write a pack of both for all steps and sides; a line on it."""
    sys.path.insert(0, str(peers / "cutedsl"))
    made = []
    for step, (script, name) in STEPS.items():
        info = rungs.find(step)
        for side in SIDES:
            shape = (side, side, side)
            (one,) = packs.wanted([info.name], ARCH, Suite("published", "", DTYPE, {shape: ""}))
            made.append(packs.make(one, ARCH))
            made.append(_published(PEER + info.name, script, name, made[-1].entry))
            print(f"{info.name} {side}: packed", file=sys.stderr)
    entries, _, size = packs.write(folder, ARCH, made)
    return f"{folder}: {entries} kernels, {size >> 20} MiB"


def _published(label: str, script: str, name: str, ours: pack.Entry) -> packs.Made:
    """The published kernel for the arrays of our entry."""
    import cutlass.cute as cute

    from tensorladder.frontends.cutedsl import compile_program
    from tensorladder.rungs.parts.tensors import ELEMENT_TYPES

    found = getattr(importlib.import_module(script), name)
    arguments = [
        cute.runtime.make_fake_tensor(ELEMENT_TYPES[DTYPE], one.shape, one.strides, assumed_align=16)
        for one in ours.arrays
    ]
    # Some ask the GPU what it is, which there need not be here.
    with mock.patch("torch.cuda.get_device_capability", return_value=(9, 0)):
        program = compile_program(found() if isinstance(found, type) else found, *arguments, arch=ARCH, name=label)
    code = {pack.digest(module.cubin): module.cubin for module in program.modules}
    launches = templates(program, ours.arrays)
    entry = pack.Entry(label, ARCH, ours.shape, DTYPE, {}, "", ours.arrays, launches)
    return packs.Made(entry, code, None, {})


def measure(folder: Path, options: Options) -> Iterator[bench.Record]:
    """A record a step and side: times of ours, the published kernel and cuBLAS, and whether the results were right."""
    torch = cuda_torch()
    opened = pack.Pack.open(folder)
    opened.check_gpu()
    by_name = {(entry.rung, entry.shape): entry for entry in opened.entries}
    meter, l2 = Meter(), facts()["l2_bytes"]
    for (name, shape), entry in by_name.items():
        if name.startswith(PEER):
            continue
        work = bench.Workload(torch, problem_named("gemm"), shape, DTYPE, entry.arrays, l2)
        stream = torch.cuda.current_stream().cuda_stream
        calls, errors = {}, {}
        for who, one in (("ours", entry), ("published", by_name[PEER + name, shape])):
            kernel = opened.kernel(one)
            calls[who] = [kernel.bind(stream, *(tensors[a.name] for a in one.arrays)) for tensors in work.sets]
            errors[who] = work.check(calls[who][0])
        calls["cublas"] = [BASELINES["cublas"]("gemm", torch, tensors) for tensors in work.sets]
        measured = compare(torch, calls, meter, options)
        flops = problem_named("gemm").flops(shape)
        ours, theirs, cublas = (measured.times[who] for who in ("ours", "published", "cublas"))
        yield {
            "rung": name, "shape": list(shape), "dtype": DTYPE, "ok": errors["ours"][0], "error": errors["ours"][1],
            **bench.timed(ours, flops), **bench.against("learn-cutedsl", ours, theirs),
            "baseline_tflops": round(flops / theirs.median / 1e6, 2), "baseline_ok": errors["published"][0],
            "baseline_error": errors["published"][1], "cublas_us": round(cublas.median, 3),
            "cublas_ratio": round(cublas.median / ours.median, 4), "clock_mhz": measured.clock_mhz,
        }  # fmt: skip


def main() -> int:
    """The command line; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack")
    packing.add_argument("peers", type=Path, help="a checkout of learn-cutedsl")
    packing.add_argument("folder", type=Path)
    running = verbs.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--seconds", type=float, default=0.5)
    running.add_argument("--results", type=Path, help="keep the figures there")
    args = parser.parse_args()
    try:
        if args.verb == "pack":
            print(make(args.peers, args.folder))
            return 0
        records = []
        for record in measure(args.folder, Options(seconds=args.seconds)):
            records.append(record)
            print(_line(record), flush=True)
        if args.results:
            bench.keep(args.results, bench.machine(Suite("published", "", DTYPE, {})), records)
        return bench.exit_code(records)
    except TensorladderError as error:
        print(f"benchmarks.published: {error}", file=sys.stderr)
        return error.exit_code


def _line(r: bench.Record) -> str:
    theirs = f"{r['baseline_tflops']:7.1f}" + (" " if r["baseline_ok"] else f" WRONG by {r['baseline_error']:.2g}")
    return (
        f"{r['rung']:<24} {r['shape'][0]:>5}  ours {r['tflops']:7.1f} TFLOPS  published {theirs}  "
        f"{r['ratio']:6.3f}x  {r['cublas_ratio']:.3f} of cuBLAS"
    )


if __name__ == "__main__":
    sys.exit(piped(main))
