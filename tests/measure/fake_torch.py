"""As much of torch's CUDA side as benchmarks use, over numpy, with a clock that a test moves."""

from __future__ import annotations

import types

import numpy as np


class Tensor:
    def __init__(self, array):
        self.array = array

    dtype = property(lambda self: self.array.dtype)
    shape = property(lambda self: self.array.shape)

    def numel(self):
        return self.array.size

    def element_size(self):
        return self.array.itemsize

    def to(self, dtype):
        return Tensor(self.array.astype(dtype))

    def fill_(self, value):
        self.array[...] = value

    def double(self):
        return Array(self.array.astype(np.float64))

    def __getitem__(self, key):
        return Tensor(self.array[key])


class Array(np.ndarray):
    """A float64 array with torch's methods where they are not numpy's."""

    def __new__(cls, values):
        return np.asarray(values).view(cls)

    def abs(self):
        return abs(self)


class Clock:
    """Microseconds of a GPU that does one thing after another."""

    def __init__(self):
        self.now = 0.0


class Torch:
    """clock: moved by the calls that a test times."""

    float16, float32 = np.dtype(np.float16), np.dtype(np.float32)

    def __init__(self):
        self.clock = clock = Clock()

        torch = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = clock.now

            def synchronize(self):
                pass

            def query(self):
                return torch.early.pop() if torch.early else False

            def elapsed_time(self, other):
                return (other.at - self.at) / 1e3

        self.slept = []
        self.early = []  # answers to "has the GPU begun?", the last one first; after them it has not
        self.cuda = types.SimpleNamespace(
            Event=Event, _sleep=self.slept.append, synchronize=lambda: None, empty_cache=lambda: None,
            current_stream=lambda: types.SimpleNamespace(cuda_stream=0),
        )  # fmt: skip

    class Generator:
        def __init__(self, device):
            self.rng = None

        def manual_seed(self, seed):
            self.rng = np.random.default_rng(seed)
            return self

    def randn(self, shape, generator, device, dtype):
        return Tensor(generator.rng.standard_normal(shape).astype(dtype))

    def empty(self, shape, device, dtype):
        return Tensor(np.zeros(shape, dtype))
