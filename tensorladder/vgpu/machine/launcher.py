"""`launch`: your own PTX with numpy arrays, in one call."""

from __future__ import annotations

import operator
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorladder.core import arch as archs
from tensorladder.core.errors import Stopped, UsageError
from tensorladder.core.program import Launch, Module
from tensorladder.vgpu.machine.device import Device, Watcher


def _dim3(value: int | Sequence[int], name: str) -> tuple[int, int, int]:
    dims = (value,) if isinstance(value, int | np.integer) else value
    try:
        if isinstance(dims, str | bytes):
            raise TypeError
        sizes = [operator.index(n) for n in dims]
    except TypeError:
        sizes = []
    if not 1 <= len(sizes) <= 3 or any(n < 1 for n in sizes):
        raise UsageError(f"{name}={value!r}: one to three positive numbers are wanted")
    return (*sizes, *(1,) * (3 - len(sizes)))  # type: ignore[return-value]


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
        if arg.dtype.hasobject:
            raise UsageError(f"kernel {kernel}: argument {p.name} is an array of Python objects; give one of numbers")
        return struct.pack("<Q", arg.ctypes.data)
    if isinstance(arg, bytes | bytearray):
        data = bytes(arg)
    elif isinstance(arg, bool | int | float | np.generic) and not isinstance(arg, np.void):
        data = _number_bytes(p, arg, kernel)
    elif isinstance(arg, np.void):
        data = arg.tobytes()
    else:
        given = type(arg).__name__
        raise UsageError(f"kernel {kernel}: argument {p.name} is a {given}; give numpy arrays, numbers or bytes")
    if len(data) != p.size:
        raise UsageError(f"kernel {kernel}: parameter {p.name} has {p.size} bytes, the argument {len(data)}")
    return data


_FLOATS = {2: np.float16, 4: np.float32, 8: np.float64}


def _number_bytes(p, arg: Any, kernel: str) -> bytes:
    """A number as the parameter's type has it; numpy scalars keep their own bits where the type is of their kind."""
    real = isinstance(arg, float) or (isinstance(arg, np.generic) and arg.dtype.kind not in "iub")
    if p.type[0] in "us" and real:
        raise UsageError(f"kernel {kernel}: parameter {p.name} is a .{p.type}, the argument {arg!r} is no integer")
    if isinstance(arg, np.generic) and (real or p.type not in ("f16", "f32", "f64")):
        return arg.tobytes()
    if real or p.type in ("f16", "f32", "f64"):
        if p.size not in _FLOATS:
            raise UsageError(f"kernel {kernel}: parameter {p.name} of {p.size} bytes cannot take a float")
        with np.errstate(over="ignore"):
            return np.array(float(arg), _FLOATS[p.size]).tobytes()
    bits = 8 * p.size
    if not -(1 << (bits - 1)) <= int(arg) < 1 << bits:
        raise UsageError(f"kernel {kernel}: parameter {p.name} has {bits} bits, {arg} does not fit")
    return (int(arg) & ((1 << bits) - 1)).to_bytes(p.size, "little")


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
    breakpoints: Sequence[str] | Watcher | None = None,
) -> Device:
    """Run a kernel of a PTX module on numpy arrays, in place; gives the device.

    args: numpy arrays (passed by address; the kernel may access just their bytes), numbers (converted to the
    parameter's size; a float for .f16, .f32 and .f64 sizes), or bytes. arch: default the module's .target. Raises
    UsageError for bad arguments, KernelError for what hardware would fault on, Unsupported for what is not modelled.

    breakpoints: texts as `tensorladder check --break` takes them, or a debug.Breakpoints. The first hit ends the launch
    (a Breakpoints can go on); `device.breakpoints.hits` has the dumps, `.stopped` the one that ended it, or None.
    """
    from tensorladder.vgpu.ptx import parse

    module = parse(ptx_text)
    if kernel not in module.kernels:
        names = ", ".join(sorted(module.kernels)) or "none"
        raise UsageError(f"kernel {kernel!r} is not in the PTX module (it has: {names})")
    if breakpoints is not None and device is not None:
        raise UsageError("breakpoints are the device's: give Device(breakpoints=...), or no device")
    watcher = _watcher(breakpoints)
    device = device or Device(arch or module.target, policy, seed, checked, timeout, breakpoints=watcher)
    target = archs.ARCHS.get(module.target)
    if target is not None and not archs.runs_on(target, device.arch):
        raise UsageError(
            f"kernel {kernel}: the PTX module is for {module.target}, which does not run on {device.arch.name}; "
            f"give arch={module.target!r}"
        )
    if not isinstance(smem, int | np.integer):
        raise UsageError(f"smem={smem!r}: a number of bytes is wanted")
    params = pack_params(module.kernels[kernel].params, args, kernel)
    for n, arg in enumerate(args):
        if isinstance(arg, np.ndarray):
            device.memory.attach(f"argument {n}", arg)
    stream = device.stream()
    stream.enqueue(
        Launch(
            Module(ptx_text, device.arch.name),
            kernel,
            _dim3(grid, "grid"),
            _dim3(block, "block"),
            params,
            int(smem),
            _dim3(cluster, "cluster"),
        )
    )
    try:
        stream.synchronize()
    except Stopped:
        if watcher is None:  # a device of the caller's own, which asked to be told
            raise
    return device


def _watcher(breakpoints: Sequence[str] | Watcher | None) -> Watcher | None:
    from tensorladder.vgpu.debug import Breakpoints

    if isinstance(breakpoints, str):
        raise UsageError(f"breakpoints={breakpoints!r}: a list of texts is wanted")
    return Breakpoints(breakpoints, whole=True) if isinstance(breakpoints, Sequence) else breakpoints
