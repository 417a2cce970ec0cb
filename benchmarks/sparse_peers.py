"""Sparse attention by FlashMLA and FlashInfer on Hopper: their kernels, compiled here with nvcc and called as peers.

Both are CUDA C++ templates. A few lines of C++ around them, below, give each a plain C entry; nvcc makes a library of
those and a checkout's headers, which runs beside any torch. Nothing of theirs is in this repository.

- FlashMLA: its sparse prefill kernel. It takes 64 or 128 heads and a cache of 576 elements a token: 16 heads are padded
  with zeros, as its users have to, and the cache is put together beforehand. A -1 is no token for it either.
- FlashInfer: its paged MLA attention, backends fa3 (WGMMA) and fa2 (mma.sync), with pages of one token, so that a
  row's indices are its page table. It takes 16 heads. What it plans on the host, once for all layers, is not timed.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tensorladder.core.errors import MissingExtra, UsageError
from tensorladder.problems.sparse_attention import HEADS, LATENT, ROTARY, SM_SCALE

ARCH = "90a"
PADDED = 64
PLAN = 18  # numbers that FlashInfer's plan consists of
WORKSPACE = 256 << 20, 32 << 20  # bytes of FlashInfer's two

FLASHMLA = """
#include "sm90/prefill/sparse/phase1.h"
#include "sm90/prefill/sparse/phase1.cuh"

extern "C" int run(int rows, int tokens, int heads, int topk, float scale, void* q, void* kv, int* indices, void* out,
                   float* most, float* lse, int sms, void* stream) {
    SparseAttnFwdParams p{};
    p.s_q = rows, p.s_kv = tokens, p.h_q = heads, p.h_kv = 1, p.d_qk = 576, p.d_v = 512, p.topk = topk;
    p.sm_scale = scale, p.sm_scale_div_log2 = scale * 1.44269504088896340736f;
    p.q = (cutlass::bfloat16_t*)q, p.kv = (cutlass::bfloat16_t*)kv, p.indices = indices;
    p.stride_q_s_q = heads * 576, p.stride_q_h_q = 576, p.stride_kv_s_kv = 576, p.stride_kv_h_kv = 576;
    p.stride_indices_s_q = topk, p.stride_indices_h_kv = topk;
    p.out = (cutlass::bfloat16_t*)out, p.max_logits = most, p.lse = lse, p.num_sm = sms;
    p.stream = (cudaStream_t)stream;
    sm90::fwd::run_fwd_phase1_kernel<576, false>(p);
    return (int)cudaGetLastError();
}
"""

FLASHINFER = """
#include <cuda_bf16.h>
#include <sstream>
#include <vector>
#if HOPPER
#include <flashinfer/attention/mla_hopper.cuh>
#else
#include <flashinfer/attention/mla.cuh>
#endif
#include <flashinfer/attention/mla_params.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/fastdiv.cuh>
using namespace flashinfer;

extern "C" int plan(void* floats, size_t float_bytes, void* ints, void* pinned, size_t int_bytes, int* q_ends,
                    int* kv_ends, int* kv_len, int rows, int heads, void* stream, int64_t* out, size_t* staged) {
    MLAPlanInfo info;
    cudaError_t status = MLAPlan(floats, float_bytes, ints, pinned, int_bytes, info, *staged, q_ends, kv_ends, kv_len,
                                 rows, heads, 512, false, (cudaStream_t)stream);
    std::vector<int64_t> numbers = info.ToVector();
    for (size_t i = 0; i < numbers.size(); i++) out[i] = numbers[i];
    return (int)status;
}

extern "C" int run(void* floats, void* ints, int64_t* numbers, void* q, void* q_pe, void* ckv, void* kpe, int* indices,
                   void* out, float* lse, int heads, float scale, void* stream) {
    MLAPlanInfo info;
    info.FromVector(std::vector<int64_t>(numbers, numbers + PLAN));
    auto at = [&](int64_t offset) { return GetPtrFromBaseOffset<int>(ints, offset); };
    MLAParams<nv_bfloat16, nv_bfloat16, nv_bfloat16, int> p{};
    p.q_nope = (nv_bfloat16*)q, p.q_pe = (nv_bfloat16*)q_pe, p.ckv = (nv_bfloat16*)ckv, p.kpe = (nv_bfloat16*)kpe;
    p.q_indptr = at(info.q_indptr_offset), p.kv_indptr = at(info.kv_indptr_offset);
    p.partial_indptr = at(info.partial_indptr_offset), p.kv_indices = indices;
    p.q_len = at(info.q_len_offset), p.kv_len = at(info.kv_len_offset), p.q_start = at(info.q_start_offset);
    p.kv_start = at(info.kv_start_offset), p.kv_end = at(info.kv_end_offset);
    p.work_indptr = at(info.work_indptr_offset);
    p.merge_packed_offset_start = at(info.merge_packed_offset_start_offset);
    p.merge_packed_offset_end = at(info.merge_packed_offset_end_offset);
    p.merge_partial_packed_offset_start = at(info.merge_partial_packed_offset_start_offset);
    p.merge_partial_packed_offset_end = at(info.merge_partial_packed_offset_end_offset);
    p.merge_partial_stride = at(info.merge_partial_stride_offset);
    p.final_o = (nv_bfloat16*)out, p.final_lse = lse;
    p.partial_o = GetPtrFromBaseOffset<nv_bfloat16>(floats, info.partial_o_offset);
    p.partial_lse = GetPtrFromBaseOffset<float>(floats, info.partial_lse_offset);
    p.num_heads = uint_fastdiv(heads), p.block_size = uint_fastdiv(1);
    p.q_nope_stride_n = heads * 512, p.q_nope_stride_h = 512, p.q_pe_stride_n = heads * 64, p.q_pe_stride_h = 64;
    p.ckv_stride_page = 512, p.ckv_stride_n = 512, p.kpe_stride_page = 64, p.kpe_stride_n = 64;
    p.o_stride_n = heads * 512, p.o_stride_h = 512, p.sm_scale = scale, p.return_lse_base_on_e = false;
#if HOPPER
    return (int)mla::BatchMLAPageAttentionHopper<MaskMode::kNone, 512, 64>(
#else
    return (int)mla::BatchMLAPagedAttention<MaskMode::kNone, 512, 64>(
#endif
        p, info.num_blks_x, info.num_blks_y, (cudaStream_t)stream);
}
"""

SOURCES = {"flashmla": FLASHMLA, "flashinfer-fa3": FLASHINFER, "flashinfer-fa2": FLASHINFER}
FLAGS = ["--expt-relaxed-constexpr", "--expt-extended-lambda", "--use_fast_math", "-DNDEBUG"]


def build(name: str, folders: list[Path], target: Path) -> None:
    """Compile a peer of SOURCES with these include folders. MissingExtra without nvcc, UsageError if it fails."""
    if shutil.which("nvcc") is None:
        raise MissingExtra("nvcc (the CUDA toolkit)", "cuda")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "peer.cu"
        source.write_text(SOURCES[name], encoding="utf-8")
        command = [
            "nvcc", "-O3", "-std=c++20", "-shared", "-Xcompiler", "-fPIC", f"-DHOPPER={int(name != 'flashinfer-fa2')}",
            f"-DPLAN={PLAN}", f"-gencode=arch=compute_{ARCH},code=sm_{ARCH}", "-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED",
            *FLAGS, *(f"-I{one}" for one in folders), str(source), "-o", str(target),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["it failed"]
        raise UsageError(f"{name}: nvcc: {lines[0]}")


def flashmla_folders(checkout: Path, cutlass: Path) -> list[Path]:
    """Include folders of a checkout of FlashMLA and one of CUTLASS."""
    return [checkout / "csrc", checkout / "csrc/kerutils/include", cutlass / "include", cutlass / "tools/util/include"]


def flashinfer_folders(data: Path) -> list[Path]:
    """Include folders of the headers that FlashInfer's wheel brings (flashinfer/data)."""
    cccl = [data / "cccl" / one for one in ("cub", "libcudacxx/include", "thrust")]
    return [*cccl, data / "include", data / "cutlass/include", data / "spdlog/include"]


def load(path: Path) -> ctypes.CDLL:
    """A built peer."""
    return ctypes.CDLL(str(path))


def check(status: int, name: str) -> None:
    """UsageError where a peer reports a CUDA error."""
    if status:
        raise UsageError(f"{name}: CUDA error {status}")


class FlashMla:
    """Calls of FlashMLA's kernel on arrays of the problem (torch tensors by name)."""

    def __init__(self, torch: Any, path: Path, cache: Any, sms: int) -> None:
        """cache: (tokens, 576), both parts side by side."""
        self.torch, self.library, self.cache, self.sms = torch, load(path), cache, sms

    def bind(self, t: dict[str, Any], stream: int) -> Any:
        """A call without arguments; what it gives is in the first 16 heads of `t["padded out"]`."""
        torch, (rows, topk) = self.torch, t["sparse_indices"].shape
        q = torch.zeros(rows, PADDED, LATENT + ROTARY, dtype=torch.bfloat16, device="cuda")
        q[:, :HEADS] = torch.cat([t["q_nope"], t["q_pe"]], -1)
        out = t["padded out"] = torch.empty(rows, PADDED, LATENT, dtype=torch.bfloat16, device="cuda")
        sums = torch.empty(2, rows, PADDED, device="cuda")
        pointers = [x.data_ptr() for x in (q, self.cache, t["sparse_indices"], out, sums[0], sums[1])]
        arguments = [rows, len(self.cache), PADDED, topk, ctypes.c_float(SM_SCALE), *map(ctypes.c_void_p, pointers)]
        arguments += [self.sms, ctypes.c_void_p(stream)]
        kept = q, sums

        def call() -> None:
            check(self.library.run(*arguments), "flashmla")

        call.kept = kept  # type: ignore[attr-defined]
        return call


class FlashInfer:
    """Calls of FlashInfer's paged MLA attention on arrays of the problem, all of whose indices are tokens."""

    def __init__(self, torch: Any, path: Path, shape: tuple[int, ...], stream: int) -> None:
        rows, topk, _ = shape
        self.torch, self.library, self.stream = torch, load(path), ctypes.c_void_p(stream)
        self.floats, self.ints = (torch.empty(size, dtype=torch.uint8, device="cuda") for size in WORKSPACE)
        pinned = torch.empty(WORKSPACE[1], dtype=torch.uint8, pin_memory=True)
        self.numbers, staged = (ctypes.c_int64 * PLAN)(), ctypes.c_size_t()
        ends = [torch.arange(rows + 1, dtype=torch.int32) * step for step in (1, topk)]
        lengths = torch.full((rows,), topk, dtype=torch.int32)
        tables = [ctypes.c_void_p(x.data_ptr()) for x in (*ends, lengths)]
        status = self.library.plan(
            self._at(self.floats), ctypes.c_size_t(WORKSPACE[0]), self._at(self.ints), self._at(pinned),
            ctypes.c_size_t(WORKSPACE[1]), *tables, rows, HEADS, self.stream, self.numbers, ctypes.byref(staged),
        )  # fmt: skip
        check(status, "flashinfer's plan")
        # The plan is written to the pinned memory alone; to take it to the GPU is the caller's part.
        self.ints[: staged.value].copy_(pinned[: staged.value])
        torch.cuda.synchronize()

    def bind(self, t: dict[str, Any]) -> Any:
        """A call without arguments; it writes `output` and `lse`."""
        names = ("q_nope", "q_pe", "ckv_cache", "kpe_cache", "sparse_indices", "output", "lse")
        pointers = [self._at(t[name]) for name in names]
        arguments = [self._at(self.floats), self._at(self.ints), self.numbers, *pointers, HEADS]
        arguments += [ctypes.c_float(SM_SCALE), self.stream]

        def call() -> None:
            check(self.library.run(*arguments), "flashinfer")

        return call

    def _at(self, tensor: Any) -> ctypes.c_void_p:
        return ctypes.c_void_p(tensor.data_ptr())
