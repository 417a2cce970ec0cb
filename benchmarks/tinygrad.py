"""tinygrad's PTX emulator (its test/mockgpu/nv/emu.py) as a peer: nothing of it is needed or kept here."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Callable
from types import ModuleType

from tensorladder.core.errors import UsageError
from tensorladder.core.program import Launch
from tensorladder.vgpu.ptx import parse

#: debug directives have no semicolon; the peer reads statements up to a semicolon, and would drop what follows them
_DEBUG = re.compile(r"^\s*\.(?:loc|file)\b[^\n]*\n", re.M)


def load(path: str) -> ModuleType:
    """The emulator's module from its file. Raises UsageError where `path` is not that."""
    spec = importlib.util.spec_from_file_location("tinygrad_emu", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"--tinygrad {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (OSError, SyntaxError, ImportError) as e:
        raise UsageError(f"--tinygrad {path}: {e}") from None
    if not hasattr(module, "ptx_run"):
        raise UsageError(f"--tinygrad {path}: has no ptx_run; give tinygrad's test/mockgpu/nv/emu.py")
    return module


def call(emu: ModuleType, launch: Launch) -> Callable[[], None]:
    """A function that runs `launch` in the emulator: same instructions, same arrays (it takes host addresses too)."""
    params = parse(launch.module.ptx).kernels[launch.kernel].params
    values = [int.from_bytes(launch.params[p.offset : p.offset + p.size], "little") for p in params]
    source = ctypes.create_string_buffer(_DEBUG.sub("", launch.module.ptx).encode())

    def run() -> None:
        emu.ptx_run(source, len(values), values, *launch.block, *launch.grid, launch.smem)

    return run
