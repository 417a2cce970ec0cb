"""DeepGEMM's scores of a paged fp8 cache (`fp8_paged_mqa_logits` for Hopper), compiled here and run as a peer.

Its kernels are CUDA C++ templates in headers. nvcc makes two of them from a checkout: the one that scores, and the one
that divides the tokens among SMs, which a model calls once a step and not once a layer. What its own host code would
hand them is written here anew, from the kernels' parameters: extents, addresses and four tensor maps. Nothing of it is
in this repository.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorladder.core import dlpack, tensormap
from tensorladder.core.errors import MissingExtra, UsageError
from tensorladder.core.program import Launch, Module, Program, Stream
from tensorladder.core.tensormap import TensorMap
from tensorladder.problems.topk_indexer import DIM, HEADS, PAGE, PAGE_BYTES, VALUES

ARCH, NAME = "sm_90a", "deepgemm"
SMS = 132
STAGES = 3
GROUPS = 4  # warpgroups that multiply, a page each
SPLIT = GROUPS * PAGE
THREADS = 128 * (GROUPS + 1)
ALIGN = 8 * DIM  # of its buffers in shared memory
SMEM = STAGES * (HEADS * DIM + ALIGN) + ALIGN + GROUPS * (STAGES * (PAGE * DIM + ALIGN) + ALIGN) + 16 * GROUPS + 4
SOURCE = """
#include <deep_gemm/impls/sm90_fp8_paged_mqa_logits.cuh>
static void instantiate() {{
    auto scores = reinterpret_cast<void*>(&deep_gemm::sm90_fp8_paged_mqa_logits<
        1, {heads}, {dim}, {page}, true, false, {stages}, {stages}, {split}, 128, {threads}, float>);
    auto plan = reinterpret_cast<void*>(&deep_gemm::sched::sm90_paged_mqa_logits_metadata<{most}, {split}, {sms}>);
}}
"""
MOST = 64
"""Queries that the plan was compiled for."""


def compile_module(checkout: Path, cutlass: Path) -> Module:
    """Both kernels, from checkouts of DeepGEMM and CUTLASS. MissingExtra without nvcc, UsageError if it refuses."""
    text = SOURCE.format(
        heads=HEADS, dim=DIM, page=PAGE, stages=STAGES, split=SPLIT, threads=THREADS - 128, most=MOST, sms=SMS
    )
    return compile_source(text, ARCH, (checkout / "deep_gemm/include", cutlass / "include"))


def compile_source(text: str, arch: str, includes: Sequence[Path]) -> Module:
    """CUDA C++ that instantiates kernels of headers. MissingExtra without nvcc, UsageError if it refuses."""
    if shutil.which("nvcc") is None:
        raise MissingExtra("nvcc (the CUDA toolkit)", "cuda")
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "peer.cu", {}
        source.write_text(text, encoding="utf-8")
        for kind in ("ptx", "cubin"):
            command = [
                "nvcc", "-std=c++20", f"-arch={arch}", f"-{kind}", "-O3", "-lineinfo", "--expt-relaxed-constexpr",
                "--expt-extended-lambda", *(f"-I{path}" for path in includes), str(source),
                "-o", f"{folder}/peer.{kind}",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
                raise UsageError(f"{includes[0]}: nvcc: {said}")
            made[kind] = Path(folder, f"peer.{kind}").read_bytes()
    return Module(made["ptx"].decode(), arch, made["cubin"], NAME)


def plan(module: Module, batch: int) -> Program:
    """The division of tokens: takes seq_lens (B, 1) and plan (SMs + 1, 2)."""
    if batch > MOST:
        raise UsageError(f"{NAME}: {batch} queries, the plan was compiled for {MOST}")

    def host(stream: Stream, *arrays: Any) -> None:
        lens, out = (dlpack.view(array).data for array in arrays)
        params = struct.pack("<IIB7xQQQ", batch, 1, 1, lens, 0, out)
        kernel = _kernel(module, "metadata")
        stream.enqueue(Launch(module, kernel, (1, 1, 1), (32, 1, 1), params, 4 * MOST))

    return Program(f"{NAME} plan", ARCH, (module,), host)


def scores(module: Module, shape: tuple[int, ...]) -> Program:
    """The scores, for the shape (B, pages, ...): takes q, cache, weights, seq_lens, block_table, plan and scores.

    UsageError where a row of scores is no multiple of 256: it writes so many at a time.
    """
    batch, pages = shape[:2]
    tokens = pages * PAGE
    if tokens % SPLIT:
        raise UsageError(f"{NAME}: {pages} pages: use a multiple of {GROUPS}, it writes {SPLIT} scores at a time")

    def host(stream: Stream, *arrays: Any) -> None:
        seen = [dlpack.view(array) for array in arrays]
        q, cache, weights, lens, table, plan, out = (one.data for one in seen)
        number = seen[1].shape[0]
        maps = (
            _map("u8", q, (DIM, batch * HEADS), (DIM,), (DIM, HEADS), 3),
            _map("u8", cache, (DIM, PAGE, number), (DIM, PAGE_BYTES), (DIM, PAGE, 1), 3),
            _map("f32", cache + VALUES, (PAGE, number), (PAGE_BYTES,), (PAGE, 1), 0),
            _map("f32", weights, (HEADS, batch), (4 * HEADS,), (HEADS, 1), 0),
        )
        head = struct.pack("<III4xQQQQQ", batch, tokens, pages, lens, out, table, 0, plan)
        params = head.ljust(128, b"\0") + b"".join(maps)
        kernel = _kernel(module, "paged_mqa_logitsI")
        stream.enqueue(Launch(module, kernel, (SMS, 1, 1), (THREADS, 1, 1), params, SMEM))

    return Program(f"{NAME} scores", ARCH, (module,), host)


def _map(kind: str, address: int, dims: tuple, strides: tuple, box: tuple, swizzle: int) -> bytes:
    return tensormap.encode(
        tensormap.validate(
            TensorMap(
                address, kind, len(dims), dims, strides, box, (1,) * len(dims), swizzle=swizzle, l2_promotion=3
            )
        )
    )  # fmt: skip


def _kernel(module: Module, word: str) -> str:
    return next(name for name in re.findall(r"\.entry (\w+)", module.ptx) if word in name)
