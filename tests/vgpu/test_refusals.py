"""No modifier is ignored: what is not modelled stops the run, what the ISA lacks is corrupt text; both are named."""

from __future__ import annotations

import numpy as np
import pytest

from tensorladder.core.errors import Unsupported, UsageError
from tests.vgpu.ptx_kernels import Case, run

REFUSED = """
add.sat.u64 %w, %w, %w
add.sat.s16 %h, %h, %h
sub.relu.s32 %a, %a, %a
mul.s32 %a, %a, %a
mul.wide.s64 %w, %w, %w
mul.lo.s16x2 %a, %a, %a
mad.lo.sat.s32 %a, %a, %a, %a
mad24.lo.sat.s32 %a, %a, %a, %a
min.relu.u32 %a, %a, %a
abs.u32 %a, %a
neg.s16x2 %a, %a
clmad.lo.u64 %w, %w, %w, %w
addc.cc.u16 %h, %h, %h
lop3.xor.b32 %a|%p, %a, %a, %a, 1, %p
shf.l.b32 %a, %a, %a, %a
shl.u32 %a, %a, %a
popc.u32 %a, %a
bfe.b32 %a, %a, %a, %a
setp.lo.s32 %p, %a, %a
setp.lt.b32 %p, %a, %a
setp.ltu.u32 %p, %a, %a
setp.lt.ftz.f64 %p, %d, %d
setp.lt.and.or.s32 %p, %a, %a, %p
set.lt.u16.s32 %h, %a, %a
selp.f16 %h, %h, %h, %p
slct.ftz.u32.s32 %a, %a, %a, %a
prmt.b64 %w, %w, %w, %a
mapa.shared.u32 %a, %a, %a
vmad.u32.u32.u32 %a, %a, %a, %a
tex.2d.v4.f32.f32 {%a, %a, %a, %a}, [%w, {%a, %a}]
"""


@pytest.mark.parametrize("text", REFUSED.strip().splitlines())
def test_it_stops_and_says_what(text: str) -> None:
    body = f"{{ .reg .b32 %a; .reg .b64 %w; .reg .f64 %d; .reg .b16 %h; .reg .pred %p; {text}; }}"
    case = Case(text, body, {"x": ("u32", np.zeros(32, np.uint32))}, {}, block=32)
    with pytest.raises((Unsupported, UsageError)) as stop:
        run(case)
    message = str(stop.value)
    assert text.split()[0] in message
    assert "PTX line" in message
    assert "\n" not in message


def test_code_that_is_not_reached_does_not_stop() -> None:
    body = """{ .reg .pred %p; .reg .b64 %w; setp.eq.u32 %p, %x, 7; @!%p bra OVER; clmad.lo.u64 %w, %w, %w, %w;
OVER: mov.u32 %d, %x; }"""
    case = Case("unreached", body, {"x": ("u32", np.arange(64, 96, dtype=np.uint32))}, {"d": "u32"}, block=32)
    np.testing.assert_array_equal(run(case)["d"], np.arange(64, 96))
