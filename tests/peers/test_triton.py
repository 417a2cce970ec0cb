"""Kernels of Triton's tutorials: Triton compiles them to PTX with no GPU, the virtual GPU runs that.

Needs the triton package (`pip install triton`), here or in the Python that TENSORLADDER_TRITON_PYTHON names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorladder.vgpu import launch

pytestmark = pytest.mark.peers
CAPABILITIES = [80, 90]
PYTHON = os.environ.get("TENSORLADDER_TRITON_PYTHON", sys.executable)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


class Compiled:
    """One compiled kernel. types and constants: see `triton_compile.compile_kernel`."""

    def __init__(self, file: Path, kernel: str, types: dict[str, str], constants: dict[str, Any], capability: int,
                 **options: int):  # fmt: skip
        job = {"file": str(file), "kernel": kernel, "types": types, "constants": constants, "capability": capability}
        program = Path(__file__).with_name("triton_compile.py")
        done = subprocess.run(
            [PYTHON, str(program)], input=json.dumps(job | {"options": options}), capture_output=True, text=True
        )
        if "No module named 'triton'" in done.stderr:
            pytest.skip(f"{PYTHON} has no triton: pip install triton, or TENSORLADDER_TRITON_PYTHON names one that has")
        assert done.returncode == 0, done.stderr[-2000:]
        result = json.loads(done.stdout)
        self.ptx, self.name, self.smem = result["ptx"], result["name"], result["smem"]
        self.scratch = result["scratch"]  # bytes of global memory a CTA
        self.arch = f"sm_{capability}{'a' * (capability >= 90)}"
        self.block = (32 * result["warps"], 1, 1)

    def run(self, grid: tuple[int, int, int], *args: Any, policy: str = "eager") -> None:
        """Launch, with Triton's two scratch pointers behind the arguments: for tensor maps, for a profile."""
        raw = np.zeros(self.scratch * grid[0] * grid[1] * grid[2] + 128, np.uint8)
        maps = raw[-raw.ctypes.data % 128 :]
        scratch = [maps if self.scratch else np.uint64(0), np.uint64(0)]
        launch(self.ptx, self.name, grid, self.block, [*args, *scratch], smem=self.smem, arch=self.arch, policy=policy)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_vector_add(checkout, rng, capability) -> None:
    file = checkout("triton", "python/tutorials/01-vector-add.py")
    types = {"x_ptr": "*fp32", "y_ptr": "*fp32", "output_ptr": "*fp32", "n_elements": "i32"}
    kernel = Compiled(file, "add_kernel", types, {"BLOCK_SIZE": 1024}, capability)
    n = 98_432
    x, y, out = rng.random(n, np.float32), rng.random(n, np.float32), np.zeros(n, np.float32)
    kernel.run((-(-n // 1024), 1, 1), x, y, out, np.int32(n))
    np.testing.assert_array_equal(out, x + y)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_softmax(checkout, rng, capability) -> None:
    file = checkout("triton", "python/tutorials/02-fused-softmax.py")
    types = {"output_ptr": "*fp32", "input_ptr": "*fp32", "input_row_stride": "i32", "output_row_stride": "i32",
             "n_rows": "i32", "n_cols": "i32"}  # fmt: skip
    kernel = Compiled(file, "softmax_kernel", types, {"BLOCK_SIZE": 1024, "num_stages": 4}, capability, num_warps=8)
    rows, cols = 37, 781
    x, out = rng.standard_normal((rows, cols)).astype(np.float32), np.zeros((rows, cols), np.float32)
    stride = np.int32(cols)
    kernel.run((8, 1, 1), out, x, stride, stride, np.int32(rows), np.int32(cols))
    weights = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, weights / weights.sum(1, keepdims=True), rtol=2e-5, atol=1e-8)


MATMUL = [
    ("fp16", np.float16, 80, ""), ("fp16", np.float16, 80, "leaky_relu"), ("bf16", ml_dtypes.bfloat16, 80, ""),
    ("fp32", np.float32, 80, ""), ("fp8e5", ml_dtypes.float8_e5m2, 80, ""),
    # on sm_90a it is wgmma
    ("fp16", np.float16, 90, "leaky_relu"), ("bf16", ml_dtypes.bfloat16, 90, ""), ("fp32", np.float32, 90, ""),
    ("fp8e5", ml_dtypes.float8_e5m2, 90, ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "capability", "activation"), MATMUL)
@pytest.mark.parametrize("policy", ["eager", "lazy"])
def test_matmul(checkout, rng, name, dtype, capability, activation, policy) -> None:
    """Grouped ordering, a software pipeline of cp.async, mma.sync (sm_80) or wgmma (sm_90a), ragged edges."""
    file = checkout("triton", "python/tutorials/03-matrix-multiplication.py")
    ints = ("M", "N", "K", "stride_am", "stride_bk", "stride_cm")
    types = {"a_ptr": f"*{name}", "b_ptr": f"*{name}", "c_ptr": "*fp16"} | dict.fromkeys(ints, "i32/16")
    sizes = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}
    constants = sizes | {"ACTIVATION": activation, "stride_ak": 1, "stride_bn": 1, "stride_cn": 1}
    compiled = Compiled(file, "matmul_kernel", types, constants, capability, num_warps=4, num_stages=3)
    m, n, k = 208, 176, 160
    a = rng.standard_normal((m, k)).astype(dtype)
    b = rng.standard_normal((k, n)).astype(dtype)
    c = np.zeros((m, n), np.float16)
    extents = [np.int32(value) for value in (m, n, k, k, n, n)]
    compiled.run((-(-m // 64) * -(-n // 64), 1, 1), a, b, c, *extents, policy=policy)
    want = a.astype(np.float64) @ b.astype(np.float64)
    if activation:
        want = np.where(want >= 0, want, 0.01 * want)
    np.testing.assert_allclose(c.astype(np.float64), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_layer_norm(checkout, rng, capability) -> None:
    file = checkout("triton", "python/tutorials/05-layer-norm.py")
    types = dict.fromkeys(("X", "Y", "W", "B"), "*fp16") | {"Mean": "*fp32", "Rstd": "*fp32", "stride": "i32/16"}
    types |= {"N": "i32/16", "eps": "fp32"}
    compiled = Compiled(file, "_layer_norm_fwd_fused", types, {"BLOCK_SIZE": 1024}, capability)
    rows, n, eps = 21, 1136, 1e-5
    x = rng.standard_normal((rows, n)).astype(np.float16)
    y = np.zeros_like(x)
    w, bias = rng.random(n).astype(np.float16), rng.random(n).astype(np.float16)
    mean, rstd = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
    args = [x, y, w, bias, mean, rstd, np.int32(n), np.int32(n), np.float32(eps)]
    compiled.run((rows, 1, 1), *args)
    wide = x.astype(np.float64)
    scale = 1 / np.sqrt(wide.var(1) + eps)
    np.testing.assert_allclose(mean, wide.mean(1), atol=1e-5)
    np.testing.assert_allclose(rstd, scale, rtol=1e-4)
    want = (wide - wide.mean(1, keepdims=True)) * scale[:, None] * w.astype(np.float64) + bias.astype(np.float64)
    np.testing.assert_allclose(y.astype(np.float64), want, atol=4e-3)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_seeded_dropout(checkout, rng, capability) -> None:
    """Philox random numbers in the kernel: half the elements stay, scaled; the same seed gives the same mask."""
    file = checkout("triton", "python/tutorials/04-low-memory-dropout.py")
    types = {"x_ptr": "*fp32", "output_ptr": "*fp32", "n_elements": "i32", "p": "fp32", "seed": "i32"}
    compiled = Compiled(file, "_seeded_dropout", types, {"BLOCK_SIZE": 1024}, capability)
    n = 10_000
    x = rng.random(n, np.float32) + np.float32(1)
    outs = []
    for seed in (123, 123, 512):
        out = np.zeros(n, np.float32)
        compiled.run((-(-n // 1024), 1, 1), x, out, np.int32(n), np.float32(0.5), np.int32(seed))
        outs.append(out)
    kept = outs[0] != 0
    np.testing.assert_allclose(outs[0][kept], 2 * x[kept], rtol=1e-6)
    assert 0.47 < kept.mean() < 0.53
    np.testing.assert_array_equal(outs[0], outs[1])
    assert (outs[0] != outs[2]).any()


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_libdevice_asin(checkout, rng, capability) -> None:
    file = checkout("triton", "python/tutorials/07-extern-functions.py")
    types = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n_elements": "i32"}
    compiled = Compiled(file, "asin_kernel", types, {"BLOCK_SIZE": 1024}, capability)
    n = 4000
    x, y = rng.uniform(-1, 1, n).astype(np.float32), np.zeros(n, np.float32)
    compiled.run((4, 1, 1), x, y, np.int32(n))
    np.testing.assert_allclose(y, np.arcsin(x.astype(np.float64)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", ["eager", "lazy", "random:3"])
def test_layer_norm_backward(checkout, rng, policy) -> None:
    """Rows add their share of the weights' gradient under a spin lock that CTAs share; a second kernel adds it up."""
    file = checkout("triton", "python/tutorials/05-layer-norm.py")
    group, rows, n, eps = 4, 23, 784, 1e-5
    types = dict.fromkeys(("DX", "DY", "DW", "DB", "X", "W"), "*fp16") | {"Mean": "*fp32", "Rstd": "*fp32"}
    types |= {"Lock": "*i32", "stride": "i32/16", "N": "i32/16"}
    dx_kernel = Compiled(
        file, "_layer_norm_bwd_dx_fused", types, {"GROUP_SIZE_M": group, "BLOCK_SIZE_N": 1024}, 80, num_warps=4
    )
    types = dict.fromkeys(("DW", "DB", "FINAL_DW", "FINAL_DB"), "*fp16") | {"M": "i32", "N": "i32/16"}
    sum_kernel = Compiled(file, "_layer_norm_bwd_dwdb", types, {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 128}, 80)

    x, dy = (rng.standard_normal((rows, n)).astype(np.float16) for _ in range(2))
    w = rng.random(n).astype(np.float16)
    wide = x.astype(np.float64)
    mean = wide.mean(1).astype(np.float32)
    rstd = (1 / np.sqrt(wide.var(1) + eps)).astype(np.float32)
    dx, lock = np.zeros_like(x), np.zeros(2 * group, np.int32)
    part_w, part_b = (np.zeros((group, n), np.float16) for _ in range(2))
    args = [dx, dy, part_w, part_b, x, w, mean, rstd, lock, np.int32(n), np.int32(n)]
    dx_kernel.run((rows, 1, 1), *args, policy=policy)
    dw, db = np.zeros(n, np.float16), np.zeros(n, np.float16)
    sum_kernel.run((-(-n // 128), 1, 1), part_w, part_b, dw, db, np.int32(group), np.int32(n), policy=policy)

    xhat, grad = (wide - mean[:, None]) * rstd[:, None], dy.astype(np.float64)
    wdy = w.astype(np.float64) * grad
    c1, c2 = (xhat * wdy).mean(1, keepdims=True), wdy.mean(1, keepdims=True)
    np.testing.assert_allclose(dx.astype(np.float64), (wdy - xhat * c1 - c2) * rstd[:, None], atol=4e-3)
    np.testing.assert_allclose(dw.astype(np.float64), (grad * xhat).sum(0), atol=5e-2)
    np.testing.assert_allclose(db.astype(np.float64), grad.sum(0), atol=5e-2)
    np.testing.assert_array_equal(lock, [0] * group + [1] * group)


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("stage", [1, 3], ids=["full", "causal"])
def test_flash_attention(checkout, rng, stage, capability) -> None:
    """On sm_90a the probabilities go from registers into wgmma."""
    file = checkout("triton", "python/tutorials/06-fused-attention.py")
    types = {"sm_scale": "fp32", "M": "*fp32", "Z": "i32", "H": "i32", "N_CTX": "i32/16"}
    types |= dict.fromkeys(("desc_q", "desc_k", "desc_v", "desc_o"), "*fp16")
    constants = {"HEAD_DIM": 64, "BLOCK_M": 64, "BLOCK_N": 64, "FP8_OUTPUT": False, "STAGE": stage}
    constants |= {"warp_specialize": False, "IS_HOPPER": False}
    compiled = Compiled(file, "_attn_fwd", types, constants, capability, num_warps=4, num_stages=2)
    batch, heads, length, scale = 1, 2, 256, 0.5
    shape = (batch, heads, length, 64)
    q, k, v = (0.5 * rng.standard_normal(shape) for _ in range(3))
    q, k, v = (array.astype(np.float16) for array in (q, k, v))
    out, m = np.zeros(shape, np.float16), np.zeros(shape[:3], np.float32)
    args = [np.float32(scale), m, np.int32(batch), np.int32(heads), q, k, v, out, np.int32(length)]
    compiled.run((length // 64, batch * heads, 1), *args)
    scores = scale * (q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2))
    if stage == 3:
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(out.astype(np.float64), weights @ v.astype(np.float64), atol=5e-3)
