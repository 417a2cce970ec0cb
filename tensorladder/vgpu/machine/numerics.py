"""Models of how tensor cores accumulate, and where the exact one is known.

`exact` was measured on an H200 for mma.sync and wgmma (tests/data/silicon/tensor_core_h200.npz): see matmul._exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tensorladder.core.arch import Arch
from tensorladder.core.errors import Unsupported, UsageError
from tensorladder.vgpu.machine import layout as L

NUMERICS = {"f32": L.NUMERICS_F32, "f64": L.NUMERICS_F64, "exact": L.NUMERICS_EXACT}
_MEASURED = (9, 0)

#: matrix instructions whose rounding nobody has measured: 8-bit floats with f16 sums, or in mma.sync's m16n8k16
_UNMEASURED = re.compile(r"mma\.sync\S*(\.f16\.e[45]m[32]\.e[45]m[32]|m16n8k16\S*\.e[45]m[32])|wmma\.mma")


def parse_numerics(text: str, arch: Arch) -> int:
    """The code of a model (layout.NUMERICS_*). UsageError for no model, Unsupported where `exact` is not known."""
    if text not in NUMERICS:
        raise UsageError(f"numerics {text!r}: choose {', '.join(NUMERICS)}")
    if text == "exact" and tuple(arch.limits.compute_capability) != _MEASURED:
        raise Unsupported(f"numerics exact: the tensor cores' rounding was measured on sm_90 alone, not on {arch.name}")
    return NUMERICS[text]


def refuse_unmeasured(kernel: str, lines: Iterable[tuple]) -> None:
    """Unsupported for the first instruction of a kernel (texts as in Lowered.lines) that `exact` does not cover."""
    for text, line, *_ in lines:
        if _UNMEASURED.match(text):
            name = text.split(None, 1)[0]
            raise Unsupported(f"numerics exact: the rounding of {name} (kernel {kernel}, PTX line {line}) is not known")
