"""Triton inside an unmodified script: kernels that its own compiler makes launch on a session of the virtual GPU.

Triton compiles for any compute capability with no GPU at hand; what it asks a driver for is the target, the device's
limits, and to load and launch what it compiled. `triton_hook` makes a driver that answers for the session's
architecture the active one. The virtual GPU runs the kernel's PTX, registers are read from the cubin beside it.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ..core import arch as archs
from ..core import cubin, tensormap
from ..core.arch import find
from ..core.errors import Unsupported, UsageError
from ..core.program import Launch, Module
from ..vgpu.driver.session import TIMES_NOTE, Session
from . import ptxparams

_FLOATS = {"fp16": "<e", "f16": "<e", "fp32": "<f", "f32": "<f", "fp64": "<d", "f64": "<d"}
#: element types of tensor descriptors: Triton numbers them as PTX does, cuTensorMapEncodeTiled moves three
_DRIVER_TYPE = {8: 10, 9: 8, 10: 9}
_TF32 = 11
_L2_128B = 2


@contextlib.contextmanager
def triton_hook(session: Session) -> Iterator[None]:
    """While this lasts, Triton finds one device, the session's, and launches on it. Without Triton: nothing."""
    try:
        import triton.testing
        from triton.compiler.compiler import CompiledKernel
        from triton.runtime import driver
    except ImportError as error:
        session.note(f"Triton is not available here: {error}")
        yield
        return
    ours = _driver(session)
    init = CompiledKernel._init_handles
    loaded: weakref.WeakSet[Any] = weakref.WeakSet()

    def init_handles(kernel: Any) -> None:
        if kernel.module is None:
            ours.utils.loading = kernel
            loaded.add(kernel)
        init(kernel)

    bench = _benchmark(session)
    points: list[tuple[Any, str, Any]] = [
        (driver, "_active", ours),
        (driver, "_default", ours),
        (CompiledKernel, "_init_handles", init_handles),
        *((triton.testing, name, bench) for name in ("do_bench", "do_bench_cudagraph", "do_bench_cudagraph_proton")),
    ]
    with contextlib.suppress(ImportError, AttributeError):  # Triton without its back end for NVIDIA's GPUs
        from triton._C.libtriton import nvidia

        points.append((nvidia.cublas, "CublasLt", _cublas()))
    points = [point for point in points if hasattr(point[0], point[1])]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in points]
    for owner, name, new in points:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, old in before:
            setattr(owner, name, old)
        for kernel in loaded:  # their handles mean nothing to another driver
            kernel.module = kernel.function = kernel._run = None


def _driver(session: Session) -> Any:
    """An object with Triton's driver protocol (triton.backends.driver.DriverBase)."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    major, minor = session.arch.compute_capability

    class VirtualDriver(DriverBase):
        """The virtual GPU as Triton's device."""

        def __init__(self) -> None:
            self.utils = _Utils(session)
            self.get_device_capability = lambda *_: (major, minor)
            self.get_current_device = lambda: 0
            self.set_current_device = lambda _: None
            self.get_current_stream = lambda *_: session.streams.current

        @classmethod
        def is_active(cls) -> bool:
            return True

        def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
            return _launcher(session, source, metadata)

        def map_python_to_cpp_type(self, ty: str) -> str:
            raise Unsupported(f"Triton asks for the C++ type of {ty}: host code in C++ is not compiled here")

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 10 * major + minor, archs.WARP_SIZE)

        def get_active_torch_device(self) -> Any:
            import torch

            return torch.device("cuda", 0)

        def get_device_interface(self) -> Any:
            import torch

            return torch.cuda

        def get_benchmarker(self) -> Callable[..., Any]:
            return _benchmark(session)

        def get_empty_cache_for_benchmark(self) -> Any:
            import torch

            return torch.empty(1, dtype=torch.int32, device="cuda")

        def clear_cache(self, cache: Any) -> None:
            """There is no cache to be flushed."""

        def assemble_tensormap_to_arg(self, _: Any, args: Any) -> Any:
            return args

    return VirtualDriver()


@dataclass(frozen=True)
class _Function:
    """A loaded kernel."""

    module: Module
    name: str


class _Utils(threading.local):
    """What Triton calls a driver's utils: loading, and the device's limits. loading: the kernel that a thread loads."""

    def __init__(self, session: Session):
        self._session = session
        self.loading: Any = None

    def load_binary(self, name: str, binary: bytes, _shared: int, _device: int) -> tuple[Any, Any, int, int, int]:
        """(module, function, registers a thread, spilled bytes, threads a block)."""
        ptx = self.loading.asm["ptx"]
        target = find(ptx.partition(".target ")[2].split()[0].rstrip(","))
        if not archs.runs_on(target, self._session.arch):
            raise UsageError(f"Triton compiled {name} for {target.name}, the device is {self._session.arch.name}")
        module = Module(ptx, target.name, binary, name)
        registers = cubin.registers(binary, name) or 0
        return module, _Function(module, name), registers, 0, archs.MAX_BLOCK_THREADS

    def unload_module(self, _: Any) -> None:
        """Nothing is held."""

    def get_device_properties(self, _: int = 0) -> dict[str, int]:
        arch = self._session.arch
        return {
            "max_shared_mem": arch.smem_per_cta,
            "max_num_regs": archs.REGISTERS_PER_SM,
            "multiprocessor_count": arch.sm_count,
            "warpSize": archs.WARP_SIZE,
            "sm_clock_rate": 1_755_000,  # kHz, as cudaDeviceGetAttribute says here
            "mem_clock_rate": 2_619_000,
            "mem_bus_width": 5120,
        }

    def set_printf_fifo_size(self, _: int) -> None:
        """Output of kernels has no limit here."""

    def is_stream_capturing(self, _: Any = None) -> bool:
        return self._session.capturing

    def cuOccupancyMaxActiveClusters(self, _function: Any, _shared: int, cluster: int) -> int:
        return self._session.arch.sm_count // cluster


def _launcher(session: Session, source: Any, metadata: Any) -> Callable[..., None]:
    """The callable that Triton launches a compiled kernel with."""
    signature = tuple(source.signature.values())
    descriptors = list(getattr(metadata, "tensordesc_meta", None) or [])
    ctas = getattr(metadata, "num_ctas", 1)
    sizes = [getattr(metadata, f"{kind}_scratch_size", 0) for kind in ("global", "profile")]
    aligns = [getattr(metadata, f"{kind}_scratch_align", 1) for kind in ("global", "profile")]
    attributes = {
        "cooperative": bool(getattr(metadata, "launch_cooperative_grid", False)),
        "programmatic_stream_serialization": bool(getattr(metadata, "launch_pdl", False)),
    }
    attributes = {name: True for name, wanted in attributes.items() if wanted}

    def launch(x: int, y: int, z: int, stream: Any, function: _Function, _packed: Any, launch_metadata: Any,
               enter: Any, leave: Any, *args: Any) -> None:  # fmt: skip
        if not all((x, y, z)):
            return
        grid = (x * ctas, y, z)
        values = list(_flat(signature, args, iter(descriptors), session))
        scratch = [
            _scratch(kind, size * prod(grid), align, stream)
            for kind, size, align in zip(("global", "profile"), sizes, aligns)
        ]
        params = _pack(function, values, [_pointer(buffer) for buffer in scratch])
        for hook in (enter,) if enter is not None else ():
            hook(launch_metadata)
        cluster = (ctas, 1, 1)
        block = (archs.WARP_SIZE * metadata.num_warps, 1, 1)
        smem, on = metadata.shared, int(stream)
        session.launch(Launch(function.module, function.name, grid, block, params, smem, cluster, attributes, on))
        for hook in (leave,) if leave is not None else ():
            hook(launch_metadata)

    return launch


def _scratch(kind: str, size: int, align: int, stream: Any) -> Any:
    """Memory that a kernel works in: what the script's allocator gives, zeros for a profile; None for no bytes."""
    if not size:
        return None
    import torch
    from triton.runtime import _allocation

    if kind == "global":
        return _allocation._allocator.get()(size, align, stream)
    return torch.zeros(size, dtype=torch.int8, device="cuda")


def _cublas() -> type:
    """Triton's own binding of cuBLASLt, with which scripts compare: by torch, in float32 and rounded once."""

    class VirtualCublasLt:
        """A handle. Matrices are (M, K), (N, K), and (M, N) for the result."""

        def __init__(self, workspace: Any):
            self._workspace = workspace

        def matmul(self, a: Any, b: Any, c: Any) -> None:
            """C = A B^T."""
            c.copy_(a.float() @ b.float().t())

        def gemm(self, a: Any, b: Any, c: Any, d: Any, alpha: float, beta: float) -> None:
            """D = alpha A B^T + beta C."""
            d.copy_(alpha * (a.float() @ b.float().t()) + beta * c.float())

        def block_scaled_matmul_mxfp8(self, a: Any, b: Any, c: Any, scale_a: Any, scale_b: Any) -> None:
            """C = A B^T of e4m3 with scales of two's powers, a block of 32."""
            import torch

            self._scaled(a, b, c, scale_a.view(torch.float8_e8m0fnu), scale_b.view(torch.float8_e8m0fnu))

        def block_scaled_matmul_nvfp4(self, a: Any, b: Any, c: Any, scale_a: Any, scale_b: Any) -> None:
            """C = A B^T of e2m1, two a byte, with e4m3 scales, a block of 16."""
            import torch

            a, b = (x.view(torch.float4_e2m1fn_x2) for x in (a, b))
            self._scaled(a, b, c, scale_a.view(torch.float8_e4m3fn), scale_b.view(torch.float8_e4m3fn))

        def _scaled(self, a: Any, b: Any, c: Any, scale_a: Any, scale_b: Any) -> None:
            import torch

            c.copy_(torch._scaled_mm(a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=c.dtype))

    return VirtualCublasLt


Value = tuple[str, Any]
"""A kernel argument: Triton's type of it, and a number, a tensor or 128 bytes."""


def _flat(signature: Sequence[Any], args: Sequence[Any], maps: Iterator[Any], session: Session) -> Iterator[Value]:
    """The arguments that the kernel takes, in order: no constants, tuples and tensor descriptors taken apart."""
    for kind, arg in zip(signature, args):
        if isinstance(kind, tuple):
            yield from _flat(kind, arg, maps, session)
        elif kind.startswith("tensordesc"):
            yield from _descriptor(arg, next(maps, None), session)
        elif kind != "constexpr":
            yield kind, arg


def _descriptor(arg: Any, meta: Mapping[str, Any] | None, session: Session) -> Iterator[Value]:
    """A tensor descriptor made on the host: a tensor map (or, before sm_90, its parts), extents and strides."""
    shape, strides = list(arg.shape), list(arg.strides)
    if meta is None:
        yield "*i8", arg.base
        yield from (("i64", n) for n in (*shape, *strides))
        yield "i1", arg.padding == "nan"
        if hasattr(arg, "round_f32_to_tf32"):
            yield "i1", arg.round_f32_to_tf32
    else:
        yield "nvTmaDesc", _tensor_map(arg, meta, session)
    yield from (("i32", n) for n in shape)
    yield from (("i64", n) for n in strides)


def _tensor_map(arg: Any, meta: Mapping[str, Any], session: Session) -> bytes:
    if meta.get("is_im2col"):
        raise Unsupported("Triton: a tensor descriptor in im2col mode is not modelled")
    dims = [int(n) for n in reversed(arg.shape)]
    dims[0] *= 2 if meta["fp4_padded"] else 1
    kind = _TF32 if getattr(arg, "round_f32_to_tf32", False) else _DRIVER_TYPE.get(meta["elem_type"], meta["elem_type"])
    made = tensormap.from_driver_call(
        kind,
        arg.base.data_ptr(),
        dims,
        [int(n) * meta["elem_size"] for n in reversed(arg.strides[:-1])],
        [int(n) for n in reversed(meta["block_size"])],
        [1] * len(dims),
        swizzle=meta["swizzle"],
        l2_promotion=_L2_128B,
        oob_fill=int(arg.padding == "nan"),
        compute_capability=session.arch.compute_capability,
    )
    return tensormap.encode(made)


def _pack(function: _Function, values: Sequence[Value], scratch: Sequence[int]) -> bytes:
    """The parameter block. Behind the arguments a kernel takes its scratch pointers, in newer Tritons two of them."""
    head = ptxparams.entry(function.module.ptx, function.name)
    more = len(head.params) - len(values)
    if not 0 <= more <= len(scratch):
        raise Unsupported(
            f"Triton kernel {function.name}: {len(values)} arguments for {len(head.params)} parameters: "
            "this Triton passes what is not known here"
        )
    block = bytearray(head.size)
    for i, (param, (kind, value)) in enumerate(zip(head.params, [*values, *(("*i8", s) for s in scratch[:more])])):
        data = _bytes(kind, value, param.size, i)
        if len(data) != param.size:
            raise Unsupported(f"Triton kernel {function.name}: argument {i} ({kind}) for {param.size} bytes")
        block[param.offset : param.offset + param.size] = data
    return bytes(block)


def _bytes(kind: str, value: Any, size: int, place: int) -> bytes:
    if kind == "nvTmaDesc":
        return value if isinstance(value, bytes) else bytes(value)
    if kind.startswith("*"):
        if getattr(value, "is_cuda", True) is False:
            raise ValueError(f"Pointer argument (at {place}) cannot be accessed from Triton (cpu tensor?)")
        return struct.pack("<Q", _pointer(value))
    if kind == "bf16":
        return struct.pack("<H", _bf16(float(value)))
    if kind in _FLOATS:
        return np.array(float(value), _FLOATS[kind]).tobytes()
    return (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _bf16(value: float) -> int:
    """The bits of a number rounded to bfloat16, ties to even."""
    bits = int(np.array(value, np.float32).view(np.uint32))
    if value != value:
        return 0x7FFF
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _pointer(value: Any) -> int:
    if value is None:
        return 0
    return int(value) if isinstance(value, int) else value.data_ptr()


def _benchmark(session: Session) -> Callable[..., Any]:
    """Stands for triton.testing.do_bench: one call, its wall time in milliseconds for every quantile."""

    def bench(fn: Callable[[], Any], *_: Any, quantiles: Sequence[float] | None = None, return_mode: str = "mean",
              **__: Any) -> Any:  # fmt: skip
        session.note(TIMES_NOTE)
        start = time.perf_counter()
        fn()
        taken = (time.perf_counter() - start) * 1e3
        if quantiles is None:
            return [taken] if return_mode == "all" else taken
        return taken if len(quantiles) == 1 else [taken] * len(quantiles)

    return bench


__all__ = ["triton_hook"]
