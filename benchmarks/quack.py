"""`python -m benchmarks.quack DIR`: QuACK's GEMM compiled ahead of time, for `tensorladder bench --quack DIR`.

A machine with a GPU may have neither QuACK nor CuTe DSL nor a network. This compiles, with no GPU, every configuration
that QuACK's own autotuner tries on Hopper for C = A B^T (both operands K-major, no split of K, which is what its
`gemm(tuned=True)` does by default) to one library; there it needs the package apache-tvm-ffi alone. Where QuACK is
installed beside the GPU, `bench` calls its interface and needs none of this.

It wants quack-kernels, torch, triton (QuACK imports it), the extra `climb`, gcc and libcudart here.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorladder.core.pipes import piped

os.environ.setdefault("QUACK_ARCH", "90")
os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")

CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
#: What the DSL's static runtime leaves to its caller: how an error of CUDA becomes one of TVM's.
ERRORS = """
#include <stdio.h>
extern void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);
static void raise(int code) {
  char text[64];
  snprintf(text, sizeof text, "CUDA error %d", code);
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", text);
}
void CuteDSLRT_TVMFFISetRaisedCudaError(int code) { raise(code); }
void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(int code) { raise(code); }
"""


def compile_one(config: Any, dtype: str, name: str, path: Path) -> None:
    """One configuration as an object file with one function of that name.

    It takes two matrices, (M, K) and (N, K), and the result (M, N), its rows or (where operands are swapped) its
    columns contiguous.
    """
    import cutlass
    from quack import gemm

    element = {"bf16": cutlass.BFloat16, "fp16": cutlass.Float16}[dtype]
    made = gemm._compile_gemm.__wrapped__(
        element, element, element, None, "k", "k", "m" if config.swap_ab else "n", None,
        (config.tile_m, config.tile_n), (config.cluster_m, config.cluster_n, 1), config.pingpong, True, False,
        None, None, 0, 0, 0, False, (), False, False, False, False, False, (9, 0), gemm.RoundingMode.RN, 0, None,
        batched=False,
    )  # fmt: skip
    made.export_to_c(object_file_path=str(path), function_name=name)


def link(objects: Sequence[Path], library: Path, scratch: Path) -> None:
    """One shared library of the objects and the DSL's runtime."""
    import nvidia_cutlass_dsl
    import tvm_ffi

    source = scratch / "errors.c"
    source.write_text(ERRORS, encoding="utf-8")
    runtime = next(Path(next(iter(nvidia_cutlass_dsl.__path__))).glob("cu13/lib/libcuda_dialect_runtime_static.a"))
    ffi = Path(tvm_ffi.__file__).parent / "lib"
    cudart = next(folder for folder in (CUDA / "lib64", CUDA / "lib") if (folder / "libcudart.so").exists())
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, *objects, runtime, f"-L{ffi}", "-ltvm_ffi",
         f"-L{cudart}", "-lcudart"],
        check=True,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, link, and write the list of what is in the library; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quack", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", metavar="DIR", type=Path, help="where quack.so and quack.json go")
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16")
    parser.add_argument("--most", type=int, metavar="N", help="only the first N configurations (a trial)")
    args = parser.parse_args(arguments)
    try:
        from quack.gemm_config import get_all_configs
    except ModuleNotFoundError as error:
        print(f"benchmarks.quack: {error.name} is not installed: pip install quack-kernels triton", file=sys.stderr)
        return 2
    configs = [one for one in get_all_configs() if one.device_capacity == 9][: args.most]
    kernels = []
    args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        scratch, objects = Path(folder), []
        for number, config in enumerate(configs):
            name = f"quack_gemm_{number}"
            objects.append(scratch / f"{name}.o")
            compile_one(config, args.dtype, name, objects[-1])
            kernels.append(
                {
                    "function": name, "tile": [config.tile_m, config.tile_n], "pingpong": config.pingpong,
                    "cluster": [config.cluster_m, config.cluster_n], "swap": config.swap_ab,
                    "swizzle": config.max_swizzle_size,
                }
            )  # fmt: skip
            print(f"\r{number + 1} of {len(configs)}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        link(objects, args.folder / "quack.so", scratch)
    versions = {name: importlib.metadata.version(name) for name in ("quack-kernels", "nvidia-cutlass-dsl")}
    listed = {"arch": "sm_90a", "dtype": args.dtype, **versions, "kernels": kernels}
    (args.folder / "quack.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    print(f"{args.folder}: {len(kernels)} kernels of QuACK {versions['quack-kernels']} for sm_90a, {args.dtype}")
    return 0


if __name__ == "__main__":
    sys.exit(piped(main))
