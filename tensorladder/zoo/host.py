"""The host part of the zoo's CuTe DSL cases: one launch of the case's kernel."""

from __future__ import annotations

import importlib
from typing import Any

import cutlass
import cutlass.cute as cute

from tensorladder.core.program import Program
from tensorladder.frontends.cutedsl import compile_program
from tensorladder.zoo.case import WORDS, CaseInfo


class Host:
    def __init__(self, kernel: Any, info: CaseInfo, broken: bool):
        case = info.case.launched(broken)
        self.kernel, self.broken = kernel, broken
        self.grid, self.block, self.cluster = case.grid, case.block, case.cluster

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor):
        self.kernel(x, out, self.broken).launch(grid=self.grid, block=self.block, cluster=self.cluster)


def compile_case(info: CaseInfo, broken: bool) -> Program:
    """One twin of a case."""
    module = importlib.import_module(f"tensorladder.zoo.{info.path.stem}")
    arrays = [cute.runtime.make_fake_compact_tensor(cutlass.Uint32, (WORDS,), assumed_align=16) for _ in range(2)]
    host = Host(getattr(module, info.kernel), info, broken)
    return compile_program(host, *arrays, arch=info.case.arch, name=info.name)
