"""Compile one `@triton.jit` function of a file to PTX with no GPU: a program of its own, JSON in, JSON out.

A process of its own, because Triton brings an LLVM that does not get along with another one in the same process, and
so that it may be another Python than the one with the tests (TENSORLADDER_TRITON_PYTHON). The file is not executed,
because a tutorial's module level code wants a driver: its jitted functions alone are taken from it.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HEAD = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n\n"


def kernels(path: Path, folder: Path) -> ModuleType:
    """A module with the jitted functions of `path` and nothing else."""
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    for node in functions:
        node.decorator_list = [item for item in node.decorator_list if "triton.jit" in ast.unparse(item)]
    target = folder / (path.stem.replace("-", "_") + "_kernels.py")
    target.write_text(HEAD + "\n\n".join(ast.unparse(node) for node in functions if node.decorator_list))
    spec = importlib.util.spec_from_file_location(target.stem, target)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_kernel(file: str, kernel: str, types: dict, constants: dict, capability: int, options: dict) -> dict:
    """types: argument to Triton type, a trailing `/16` promises divisibility, as every pointer has it."""
    with tempfile.TemporaryDirectory() as folder:
        function = getattr(kernels(Path(file), Path(folder)), kernel)
        names = function.arg_names
        aligned = [i for i, name in enumerate(names) if types.get(name, "")[:1] == "*" or "/" in types.get(name, "")]
        source = ASTSource(
            function,
            {name: types.get(name, "constexpr").removesuffix("/16") for name in names},
            constexprs=constants,
            attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
        )
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    meta = compiled.metadata
    sizes = {"smem": meta.shared, "scratch": meta.global_scratch_size, "warps": meta.num_warps}
    return {"ptx": compiled.asm["ptx"], "name": meta.name} | sizes


if __name__ == "__main__":
    json.dump(compile_kernel(**json.load(sys.stdin)), sys.stdout)
