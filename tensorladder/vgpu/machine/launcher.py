"""`launch`: your own PTX with numpy arrays, in one call."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from tensorladder.core.errors import UsageError
from tensorladder.core.program import Launch, Module
from tensorladder.vgpu.machine.device import Device


def _dim3(value: int | Sequence[int], name: str) -> tuple[int, int, int]:
    dims = (value,) if isinstance(value, int | np.integer) else tuple(value)
    if not 1 <= len(dims) <= 3 or any(int(n) < 1 for n in dims):
        raise UsageError(f"{name}={value!r}: one to three positive numbers are wanted")
    return (*(int(n) for n in dims), *(1,) * (3 - len(dims)))  # type: ignore[return-value]


def pack_params(params: list, args: Sequence[object], kernel: str) -> bytes:
    """A kernel's parameter block from arrays (their addresses), numbers, or bytes."""
    if len(args) != len(params):
        raise UsageError(f"kernel {kernel} takes {len(params)} arguments, {len(args)} given")
    block = bytearray(max((p.offset + p.size for p in params), default=0))
    for p, arg in zip(params, args, strict=True):
        block[p.offset : p.offset + p.size] = _param_bytes(p, arg, kernel)
    return bytes(block)


def _param_bytes(p, arg: object, kernel: str) -> bytes:
    if isinstance(arg, np.ndarray):
        if p.size != 8:
            raise UsageError(f"kernel {kernel}: parameter {p.name} has {p.size} bytes, an array's address takes 8")
        return struct.pack("<Q", arg.ctypes.data)
    if isinstance(arg, bytes | bytearray):
        data = bytes(arg)
    elif isinstance(arg, np.generic):
        data = arg.tobytes()
    elif isinstance(arg, float):
        if p.size not in (2, 4, 8):
            raise UsageError(f"kernel {kernel}: parameter {p.name} of {p.size} bytes cannot take a float")
        data = np.array(arg, {2: np.float16, 4: np.float32, 8: np.float64}[p.size]).tobytes()
    elif isinstance(arg, bool | int):
        data = (int(arg) & ((1 << (8 * p.size)) - 1)).to_bytes(p.size, "little")
    else:
        given = type(arg).__name__
        raise UsageError(f"kernel {kernel}: argument {p.name} is a {given}; give numpy arrays, numbers or bytes")
    if len(data) != p.size:
        raise UsageError(f"kernel {kernel}: parameter {p.name} has {p.size} bytes, the argument {len(data)}")
    return data


def launch(
    ptx_text: str,
    kernel: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[object],
    *,
    smem: int = 0,
    cluster: int | Sequence[int] = 1,
    arch: str | None = None,
    policy: str = "eager",
    seed: int = 0,
    checked: bool = False,
    timeout: float | None = None,
    device: Device | None = None,
) -> Device:
    """Run a kernel of a PTX module on numpy arrays, in place; gives the device.

    args: numpy arrays (passed by address; the kernel may access just their bytes), numbers (converted to the
    parameter's size; a float for .f16, .f32 and .f64 sizes), or bytes. arch: default the module's .target. Raises
    UsageError for bad arguments, KernelError for what hardware would fault on, Unsupported for what is not modelled.
    """
    from tensorladder.vgpu.ptx import parse

    module = parse(ptx_text)
    if kernel not in module.kernels:
        names = ", ".join(sorted(module.kernels)) or "none"
        raise UsageError(f"kernel {kernel!r} is not in the PTX module (it has: {names})")
    device = device or Device(arch or module.target, policy, seed, checked, timeout)
    for n, arg in enumerate(args):
        if isinstance(arg, np.ndarray):
            device.memory.attach(f"argument {n}", arg)
    params = pack_params(module.kernels[kernel].params, args, kernel)
    stream = device.stream()
    stream.enqueue(
        Launch(
            Module(ptx_text, device.arch.name),
            kernel,
            _dim3(grid, "grid"),
            _dim3(block, "block"),
            params,
            smem,
            _dim3(cluster, "cluster"),
        )
    )
    stream.synchronize()
    return device
