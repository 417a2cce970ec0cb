"""wgmma against numpy: shapes, types, majors, swizzles; exact sums, so silicon gives the same bits."""

from __future__ import annotations

from itertools import product

from tests.vgpu.ptx_kernels import cases_test
from tests.vgpu.wgmma_kernels import SWIZZLES, Mma

_FLOATS = [("f16", "f16"), ("bf16", "bf16"), ("tf32", "tf32"), *product(("e4m3", "e5m2"), repeat=2)]
_INTEGERS = list(product(("s8", "u8"), repeat=2))
_HALF_RESULTS = [("f16", "f16"), *product(("e4m3", "e5m2"), repeat=2)]
_MMAS = [
    # every N of the tables of shapes
    *(Mma(n) for n in range(8, 257, 8)),
    *(Mma(n, "s8", d="s32") for n in (8, 24, 80, 240, 256)),
    # every pair of types, A in shared memory and in registers
    *(Mma(40, a, b, registers=regs) for (a, b), regs in product(_FLOATS, (False, True))),
    *(Mma(40, a, b, "f16", registers=regs) for (a, b), regs in product(_HALF_RESULTS, (False, True))),
    *(Mma(48, a, b, "s32", registers=regs) for (a, b), regs in product(_INTEGERS, (False, True))),
    # saturation and wrapping of integer sums
    *(Mma(24, a, b, "s32", satfinite=sat, values="full") for (a, b), sat in product(_INTEGERS, (False, True))),
    # majors and swizzles
    *(Mma(72, ty, swizzle=sw, mn_a=a, mn_b=b)
      for ty, sw, a, b in product(("f16", "bf16"), SWIZZLES, (0, 1), (0, 1))),
    *(Mma(96, swizzle=sw, mn_b=b, registers=True) for sw, b in product(SWIZZLES, (0, 1)) if (sw, b) != ("128B", 0)),
    *(Mma(32, ty, d=d, swizzle=sw)
      for (ty, d), sw in product((("tf32", "f32"), ("e4m3", "f32"), ("s8", "s32")), SWIZZLES)),
    # tiles that start some rows into the swizzle's pattern
    *(Mma(24, swizzle=sw, base=base, mn_b=mn) for sw, base, mn in product(("128B", "64B", "32B"), (1, 4, 7), (0, 1))),
    # signs, and D that is not added to
    *(Mma(16, a, scale_a=sa, scale_b=sb, registers=regs)
      for a, sa, sb, regs in product(("f16", "tf32", "e5m2"), (1, -1), (1, -1), (False, True)) if (sa, sb) != (1, 1)),
    *(Mma(16, a, d=d, keep=0) for a, d in (("f16", "f32"), ("f16", "f16"), ("s8", "s32"))),
    # values that round
    *(Mma(64, a, b, values="normal") for a, b in _FLOATS),
    *(Mma(64, a, b, "f16", values="normal") for a, b in _HALF_RESULTS),
]  # fmt: skip
CASES = [m.case() for m in {m.name: m for m in _MMAS}.values()]
test_cases = cases_test(CASES)
