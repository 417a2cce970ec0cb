"""Neighbouring loads that are done together: same values, same errors, never across a write."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from tensorladder.core.errors import KernelError
from tensorladder.vgpu import launch
from tensorladder.vgpu.codegen import loads, table
from tensorladder.vgpu.ptx import parse
from tensorladder.vgpu.ptx.nodes import Instr

KERNEL = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 pin, .param .u64 pout) {{
.reg .b64 %in, %out, %t, %p; .reg .b32 %l, %v<8>; .reg .b16 %h<4>;
ld.param.u64 %in, [pin]; ld.param.u64 %out, [pout];
mov.u32 %l, %tid.x; mul.wide.u32 %t, %l, 32;
add.s64 %in, %in, %t; add.s64 %out, %out, %t;
{body}
ret; }}
"""


def runs(body: str) -> dict:
    table.load()
    fn = parse(KERNEL.format(body=body)).kernels["k"]
    return loads.find([i for i in fn.body if isinstance(i, Instr) and i.op != "ret"])


def execute(body: str, threads: int = 64) -> tuple[np.ndarray, np.ndarray]:
    source = np.arange(8 * threads, dtype=np.uint32).reshape(threads, 8) * 7 + 3
    out = np.zeros((threads, 8), np.uint32)
    launch(KERNEL.format(body=body), "k", 1, threads, [source, out])
    return source, out


STORE = "".join(f"st.global.b32 [%out+{4 * i}], %v{i};\n" for i in range(8))
SCALAR = "".join(f"ld.global.b32 %v{i}, [%in+{4 * i}];\n" for i in range(8))


def test_scalars_in_any_order() -> None:
    body = "".join(f"ld.global.b32 %v{i}, [%in+{4 * i}];\n" for i in (3, 1, 0, 2, 7, 6, 4, 5))
    (run,) = {id(r): r for r in runs(body).values()}.values()
    assert (run.count, run.bits, run.align) == (8, 32, 4)
    source, out = execute(body + STORE)
    assert np.array_equal(out, source)


def test_vectors_and_scalars() -> None:
    body = """ld.global.v4.b32 {%v0, %v1, %v2, %v3}, [%in];
ld.global.v2.b32 {%v4, %v5}, [%in+16];
add.u32 %v0, %v0, 1;
ld.global.b32 %v6, [%in+24]; ld.global.b32 %v7, [%in+28];
"""
    assert len({id(r) for r in runs(body).values()}) == 1
    source, out = execute(body + STORE)
    source[:, 0] += 1
    assert np.array_equal(out, source)


def test_a_store_between_keeps_them_apart() -> None:
    body = """ld.global.b32 %v0, [%in]; ld.global.b32 %v1, [%in+4];
st.global.b32 [%in+8], %v0;
ld.global.b32 %v2, [%in+8]; ld.global.b32 %v3, [%in+12];
"""
    assert len({id(r) for r in runs(body).values()}) == 2
    _, out = execute(body + "st.global.b32 [%out], %v2;")
    assert np.array_equal(out[:, 0], np.arange(64) * 56 + 3)


def test_a_changed_base_keeps_them_apart() -> None:
    body = """ld.global.b32 %v0, [%in]; ld.global.b32 %v1, [%in+4];
add.s64 %in, %in, 16;
ld.global.b32 %v2, [%in+8]; ld.global.b32 %v3, [%in+12];
"""
    assert len({id(r) for r in runs(body).values()}) == 2
    source, out = execute(body + "st.global.b32 [%out], %v2; st.global.b32 [%out+4], %v1;")
    assert np.array_equal(out[:, 0], source[:, 6]) and np.array_equal(out[:, 1], source[:, 1])


def test_guarded_and_volatile_loads_stay_alone() -> None:
    assert not runs("ld.volatile.global.b32 %v0, [%in]; ld.volatile.global.b32 %v1, [%in+4];")


def test_a_lane_past_the_end_is_an_error() -> None:
    source, out = np.zeros((63, 8), np.uint32), np.zeros((64, 8), np.uint32)
    with pytest.raises(KernelError, match="out of bounds"):
        launch(KERNEL.format(body=SCALAR + STORE), "k", 1, 64, [source, out])


def test_each_access_is_checked_for_its_own_alignment() -> None:
    source, out = execute(
        "add.s64 %p, %in, 4; ld.global.b32 %v0, [%p]; ld.global.b32 %v1, [%p+4]; st.global.b32 [%out], %v1;"
    )
    assert np.array_equal(out[:, 0], source[:, 2])
    with pytest.raises(KernelError, match="misaligned"):
        execute("add.s64 %p, %in, 2; ld.global.b32 %v0, [%p]; ld.global.b32 %v1, [%p+4];")
