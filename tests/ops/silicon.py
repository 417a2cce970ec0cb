"""A GPU's driver whose launches the virtual GPU runs, on tensors where they lie in host memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import types

from tensorladder.core.program import Launch
from tensorladder.frontends import ptxparams
from tensorladder.ops import execute, factors, fast, kernels, launch
from tensorladder.ops.plan import operands
from tensorladder.silicon import driver

SMEM = 227 * 1024


class Gpu:
    """As much of libcuda as launches need. launched: (stream, Launch) of each; run: whether they run, too."""

    def __init__(self, policy="eager"):
        self.policy = policy
        self.modules, self.functions, self.launched, self.memory = {}, {}, [], []
        self.run, self.contexts, self.answers = True, 0, []

    def load(self, image, kernel):
        handle = 0x5000 + len(self.functions)
        self.functions[handle] = (self.modules[image], kernel)
        return ctypes.c_void_p(handle)

    def cuLaunchKernelEx(self, config, function, pointers, extra):
        if self.answers:
            return self.answers.pop()
        config, (module, kernel) = config._obj, self.functions[function.value]
        head = ptxparams.entry(module.ptx, kernel)
        params = bytearray(head.size)
        for param, address in zip(head.params, pointers):
            params[param.offset : param.offset + param.size] = ctypes.string_at(address, param.size)
        cluster, attributes = (1, 1, 1), {}
        names = {code: name for name, code in driver._FLAGS.items()}
        for i in range(config.count):
            one = config.attributes[i]
            if one.id == driver._CLUSTER:
                cluster = tuple(one.value.dims)
            else:
                attributes[names[one.id]] = True
        made = Launch(
            module, kernel, tuple(config.grid), tuple(config.block), bytes(params), config.shared, cluster, attributes
        )
        self.launched.append((config.stream or 0, made))
        if self.run:
            self.device.run(made)
        return 0

    @functools.cached_property
    def device(self):
        from tensorladder.vgpu import Device

        made = Device("sm_90a", self.policy)
        made.memory.add_range(0x1000, 1 << 47, "host memory")
        return made

    def cuMemAlloc_v2(self, out, size):
        self.memory.append(ctypes.create_string_buffer(size.value))
        out._obj.value = ctypes.addressof(self.memory[-1])
        return 0

    def cuMemcpyHtoDAsync_v2(self, to, source, size, stream):
        ctypes.memmove(to.value, source, size.value)
        return 0

    def cuStreamCreate(self, out, flags):
        out._obj.value = 0x77
        return 0

    def cuStreamSynchronize(self, stream):
        assert stream.value == 0x77
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode):
        return 0

    def cuFuncGetAttribute(self, out, attribute, function):
        out._obj.value = 48 * 1024
        return 0

    def cuFuncSetAttribute(self, function, attribute, value):
        assert value <= SMEM
        return 0


def install(monkeypatch, policy="eager"):
    """A `Gpu` in the driver's place, which CPU tensors are taken to lie on."""
    import torch

    gpu = Gpu(policy)
    build = kernels.build

    def recording(arch, form, config):
        made = build(arch, form, config)
        gpu.modules.update({one.cubin: one for one in made.modules})
        return made

    def use_context(device=0):
        gpu.contexts += 1

    monkeypatch.setattr(kernels, "build", recording)
    execute.program.cache_clear()
    monkeypatch.setattr(driver, "library", lambda: gpu)
    monkeypatch.setattr(driver, "load", gpu.load)
    monkeypatch.setattr(driver, "capability", lambda device=0: (9, 0))
    monkeypatch.setattr(driver, "use_context", use_context)
    monkeypatch.setattr(launch, "_functions", {})
    pairs = factors.Factors(0)
    monkeypatch.setattr(factors, "of", lambda device: pairs)
    monkeypatch.setattr(execute, "_properties", lambda index: ((9, 0), 132))
    monkeypatch.setattr(execute.tuning, "place", lambda torch, device, arch: execute.tuning.Place("", "", arch, 132))
    monkeypatch.setattr(execute, "_is_gpu", lambda device: True)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    gpu.handle = lambda: 7  # of the current stream
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device=None: types.SimpleNamespace(cuda_stream=gpu.handle())
    )
    monkeypatch.setattr(fast, "_stream", lambda device: gpu.handle())

    def empty(shape, strides, dtype):  # results are poisoned
        return torch.empty_strided(shape, strides, dtype=torch.float32).fill_(float("nan")).to(dtype)

    monkeypatch.setattr(fast, "_empty", empty)
    fast.forget()
    return gpu


def views(plan, tensors, factors_at):
    """The kernel's arguments where they lie: what the compiled host part takes."""
    from tensorladder.core.dlpack import View

    made = []
    for name, operand in operands(plan, flat=True).items():
        tensor = tensors.get(name)
        if operand is None or (tensor is None and name != "factors"):
            made.append(None)
        else:
            at = factors_at if tensor is None else tensor.data_ptr()
            made.append(View(at, operand.shape, operand.strides, launch._DTYPES[operand.dtype]))
    return made


def read(one):
    """The bytes of a launch's parameters that the kernel reads; of tensor maps the words that address memory."""
    ptx = one.module.ptx
    params = bytearray(one.params)
    for start, size in ptxparams.unread(ptx, one.kernel):
        params[start : start + size] = bytes(size)
    return [
        bytes(params[p.offset : p.offset + (64 if p.size == 128 else p.size)])
        for p in ptxparams.entry(ptx, one.kernel).params
    ]


def maps(one):
    """Addresses in a launch's tensor maps."""
    head = ptxparams.entry(one.module.ptx, one.kernel)
    return [int.from_bytes(one.params[p.offset : p.offset + 8], "little") for p in head.params if p.size == 128]


def words(one):
    """The 8-byte words of a launch's parameters, addresses among them."""
    return {int.from_bytes(one.params[at : at + 8], "little") for at in range(0, len(one.params) - 7, 8)}
