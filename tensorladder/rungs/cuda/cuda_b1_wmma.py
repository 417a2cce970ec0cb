"""WMMA in CUDA C++: a warp multiplies 16 x 16 x 16 in one instruction, straight from global memory.

Adds:
    Tensor cores, in the form that CUDA C++ shows first (nvcuda::wmma). A warp as a whole loads a tile of A and one of
    B into fragments, and one instruction adds their product to 256 sums: 4096 multiply-adds where a warp of FFMAs does
    32. Fragments are opaque, so there is no element to mask or convert: tiles at an edge are made whole with zeros in a
    patch of shared memory, and the sums leave through the same patch. Nothing is shared between warps yet: each tile of
    A is fetched by every warp in its row of C, and the tensor cores wait for the caches most of the time.

Warp roles:
    | warps | role                                                      |
    |-------|-----------------------------------------------------------|
    | all 4 | 16 x 16 of C each, 2 x 2 warps; no warp waits for another |

Budget:
    SMEM: a patch of 1 KB a warp, 4 KB. Registers: 8 sums, 16 of operands (fp16 is held twice), 72 a thread.
    Traffic: two tiles of 512 B for 4096 multiply-adds, 4 a byte.

Run:
    tensorladder run cuda-b1-wmma --shape 256,256,256
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorladder.core.program import Program
from tensorladder.rungs.cuda.gemm import Geometry, compile_gemm
from tensorladder.rungs.rung import Rung


@dataclass(frozen=True)
class WmmaCudaConfig:
    """warps_m, warps_n: how a CTA's warps lie on its tile of C, 16 x 16 each."""

    warps_m: int = 2
    warps_n: int = 2


RUNG = Rung(
    name="cuda-b1-wmma",
    parent="cuda-a3-register-tile",
    adds="tensor cores by WMMA: 16 x 16 x 16 a warp, fragments loaded from global memory, edges through a patch",
    archs=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    problem="gemm",
    dtypes=("fp16", "bf16"),
    config=WmmaCudaConfig,
)


def compile(arch: str, shape: tuple[int, ...], dtype: str, config: WmmaCudaConfig | None = None) -> Program:
    """The rung for one architecture and element type, any shape (M, N, K)."""
    _, dtype = RUNG.check(arch, shape, dtype)
    config = config or WmmaCudaConfig()
    check_config(config, arch)
    return compile_gemm(RUNG, __file__, arch, dtype, config, geometry(config))


def check_config(config: WmmaCudaConfig, arch: str) -> None:
    """UsageError for knobs that the kernel cannot be made with."""
    warps = config.warps_m * config.warps_n
    RUNG.require(0 < warps <= 32, f"warps_m * warps_n = {warps}: a CTA has 1 to 32 warps")


def geometry(config: WmmaCudaConfig) -> Geometry:
    """How the kernel is launched."""
    warps_m, warps_n = config.warps_m, config.warps_n
    return Geometry(tile=(16 * warps_m, 16 * warps_n), block=(32 * warps_m * warps_n, 1, 1), align=32)
