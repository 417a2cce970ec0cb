"""Integer arithmetic against numpy."""

from __future__ import annotations

from tests.vgpu.ptx_kernels import Case, cases_test, ints

N = 1024


def binary(op, ty, fn):
    return Case(op, f"{op} %d, %a, %b;", {"a": (ty, ints(ty, N, 1)), "b": (ty, ints(ty, N, 2))}, {"d": ty}, fn)


CASES = [binary("add.s32", "s32", lambda a, b: a + b), binary("sub.u64", "u64", lambda a, b: a - b)]
test_cases = cases_test(CASES)
