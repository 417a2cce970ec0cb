"""tcgen05.cp in every shape, layout and packing, and tcgen05.shift, against numpy models; their order with commit."""

from __future__ import annotations

import numpy as np
import pytest

from tensorladder import vgpu
from tensorladder.core.errors import KernelError
from tests.vgpu.test_tmem import COLUMNS, LANES, POLICIES, alloc, dealloc, dump, fill, kernel, launch, words

BYTES = 16384  # of shared memory that holds the source; it begins at window offset BASE
BASE = 2048
#: layout type of the descriptor, width of a row in bytes, bits of the address that the pattern folds in
LAYOUTS = {"none": (0, 16), "128B": (2, 128), "64B": (4, 64), "32B": (6, 32), "128B_32B": (1, 128)}
#: shape -> (rows, 16-byte chunks, lanes of a row)
SHAPES = {
    "128x256b": (128, 2, lambda lane, r: [r]),
    "128x128b": (128, 1, lambda lane, r: [r]),
    "4x256b": (4, 2, lambda lane, r: [lane + 32 * r]),
    "64x128b.warpx2::02_13": (64, 1, lambda lane, r: [r, r + 64]),
    "64x128b.warpx2::01_23": (64, 1, lambda lane, r: [r % 32 + 64 * (r // 32), r % 32 + 64 * (r // 32) + 32]),
    "32x128b.warpx4": (32, 1, lambda lane, r: [r + 32 * k for k in range(4)]),
}  # fmt: skip


def swizzle(address: int, layout: str) -> int:
    fold = {"128B": (0x70, 3), "64B": (0x30, 3), "32B": (0x10, 3), "128B_32B": (0x60, 2)}.get(layout)
    return address ^ ((address >> fold[1]) & fold[0]) if fold else address


def descriptor(start: int, leading: int, stride: int, layout: str) -> int:
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | LAYOUTS[layout][0] << 61


def source_chunk(
    shared: np.ndarray, start: int, leading: int, stride: int, layout: str, row: int, c: int
) -> np.ndarray:
    """16 bytes of a K-major tile (PTX ISA, "Canonical Layouts")."""
    if layout == "none":
        at = start + row // 8 * stride + row % 8 * 16 + c * leading
    else:
        at = swizzle(start + row // 8 * stride + row % 8 * LAYOUTS[layout][1] + 16 * c, layout)
    return shared[at - BASE : at - BASE + 16]


def unpacked(chunk: np.ndarray, packing: str) -> np.ndarray:
    if not packing:
        return chunk
    bits = np.unpackbits(chunk, bitorder="little")
    wide = 6 if "b6" in packing else 4
    values = bits[: 16 * wide].reshape(16, wide) @ (1 << np.arange(wide))
    return (values << (2 if wide == 4 else 0)).astype(np.uint8)


def program(instruction: str, group: int = 1) -> str:
    """Tensor memory from p0; shared memory from p2; the instruction by thread 0 of rank 0, commit; all back to p1."""
    multicast = ".multicast::cluster" if group == 2 else ""
    mask = ", %h" if group == 2 else ""
    return alloc(512, group) + fill() + f"""
  setp.ne.u32 %q3, %tid, 0;
  @%q3 bra LOAD;
  mbarrier.init.shared::cta.b64 [mem+8], 1;
LOAD:
  shl.b32 %t2, %rank, 14; shl.b32 %t4, %tid, 7; add.u32 %t2, %t2, %t4; cvt.u64.u32 %a2, %t2;
  add.u64 %a2, %a2, %p2;
  add.u32 %t3, %smem, {BASE - 1024}; add.u32 %t3, %t3, %t4;
  mov.u32 %t1, 0;
COPY:
  ld.global.v4.u32 {{%r0, %r1, %r2, %r3}}, [%a2]; st.shared.v4.u32 [%t3], {{%r0, %r1, %r2, %r3}};
  add.u64 %a2, %a2, 16; add.u32 %t3, %t3, 16; add.u32 %t1, %t1, 1;
  setp.lt.u32 %q1, %t1, 8;
  @%q1 bra COPY;
  fence.proxy.async;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  or.b32 %t4, %tid, %rank;
  setp.ne.u32 %q3, %t4, 0;
  @%q3 bra WAIT;
  ld.global.u64 %a3, [%p3]; mov.b16 %h, 3; ld.global.u32 %t5, [%p3+8]; add.u32 %t5, %t5, %t0;
  {instruction}
  tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster{multicast}.b64 [%smem+8]{mask};
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %q2, [mem+8], 0;
  @!%q2 bra WAIT;
  tcgen05.fence::after_thread_sync;""" + dump() + dealloc(512, group)


def run(instruction: str, desc: int, address: int, policy: str, group: int = 1) -> tuple[np.ndarray, ...]:
    """(tensor memory before, after, shared memory), the last two a CTA each."""
    memory, shared = words(3, LANES, COLUMNS), words(4, 2, BYTES // 4).view(np.uint8)
    out = np.zeros((group, LANES, COLUMNS), np.uint32)
    operands = np.array([desc, address], np.uint64)
    body = "  .reg .b16 %h;" + program(instruction, group)
    if group == 2:  # each CTA dumps to its own array
        body = body.replace("add.u64 %a0, %a0, %p1;", "add.u64 %a0, %a0, %p1; mul.wide.u32 %a4, %rank, 262144; "
                            "add.u64 %a0, %a0, %a4;")  # fmt: skip
    text = kernel(body, 4, shared=BASE - 1024 + BYTES, cluster=group if group == 2 else 0)
    launch(text, memory, out, shared, operands, policy=policy, grid=group, cluster=group)
    return memory, out, shared


def expected(memory: np.ndarray, shared: np.ndarray, shape: str, packing: str, source: tuple, at: tuple) -> np.ndarray:
    rows, chunks, lanes = SHAPES[shape]
    lane, column = at
    want = memory.copy().view(np.uint8)
    for r in range(rows):
        for c in range(chunks):
            data = unpacked(source_chunk(shared, *source, r, c), packing)
            for to in lanes(lane, r):
                want[to, 4 * column + 16 * c : 4 * column + 16 * c + 16] = data
    return want.view(np.uint32)


PACKINGS = ("", ".b8x16.b6x16_p32", ".b8x16.b4x16_p64")
FORMS = [(shape, layout, packing) for shape in SHAPES for layout in LAYOUTS
         for packing in PACKINGS[: 3 if layout in ("none", "128B") else 1]]  # fmt: skip


@pytest.mark.parametrize(("shape", "layout", "packing"), FORMS)
def test_copies_follow_shape_and_layout(shape: str, layout: str, packing: str) -> None:
    n = FORMS.index((shape, layout, packing))
    rng = np.random.default_rng(n)
    wide = LAYOUTS[layout][1]
    stride = 8 * wide * (1 if wide == 128 and SHAPES[shape][0] > 64 else int(rng.integers(1, 3)))
    start = BASE + (32 if layout in ("64B", "128B", "128B_32B") and rng.integers(0, 2) else 0)
    source = (start, 4096 if layout == "none" else 16, stride, layout)
    lane = int(rng.integers(0, 32)) if shape == "4x256b" else 0
    column = 4 * int(rng.integers(0, 126))
    memory, out, shared = run(f"tcgen05.cp.cta_group::1.{shape}{packing} [%t5], %a3;", descriptor(*source),
                              lane << 16 | column, POLICIES[n % len(POLICIES)])  # fmt: skip
    want = expected(memory, shared[0], shape, packing, source, (lane, column))
    assert not np.array_equal(want, memory)
    assert np.array_equal(out[0], want)


def test_a_pair_copies_in_both_ctas() -> None:
    source = (BASE, 16, 1024, "128B")
    memory, out, shared = run("tcgen05.cp.cta_group::2.128x256b [%t5], %a3;", descriptor(*source), 40, "lazy", 2)
    for rank in range(2):
        assert np.array_equal(out[rank], expected(memory, shared[rank], "128x256b", "", source, (0, 40)))


@pytest.mark.parametrize("group", [1, 2])
def test_shift_moves_31_rows_of_a_quarter(group: int) -> None:
    memory, out, _ = run(f"tcgen05.shift.cta_group::{group}.down [%t5];", 0, 64 << 16 | 16, "random:3", group)
    want = memory.copy()
    want[64:95, 16:24] = memory[65:96, 16:24]
    for rank in range(group):
        assert np.array_equal(out[rank], want)


@pytest.mark.parametrize("policy", POLICIES)
def test_operations_take_effect_in_order(policy: str) -> None:
    """Shift, then a copy that refreshes the last row of each quarter, then a shift: as issued."""
    source = (BASE, 16, 256, "32B")
    text = """tcgen05.shift.cta_group::1.down [%t5];
  add.u32 %t6, %t5, 0x1F0000;
  tcgen05.cp.cta_group::1.4x256b [%t6], %a3;
  tcgen05.shift.cta_group::1.down [%t5];"""
    memory, out, shared = run(text, descriptor(*source), 8, policy)
    want = memory.copy()
    want[0:31, 8:16] = want[1:32, 8:16].copy()
    want = expected(want, shared[0], "4x256b", "", source, (31, 8))
    want[0:31, 8:16] = want[1:32, 8:16].copy()
    assert np.array_equal(out[0], want)


WIDE = "tcgen05.cp.cta_group::1.128x256b"


@pytest.mark.parametrize(
    ("text", "desc", "address", "message"),
    [
        (f"{WIDE} [%t5], %a3;", descriptor(BASE + 8192, 16, 1024, "128B"), 0, "tcgen05.cp reads"),
        (f"{WIDE} [%t5], %a3;", 3 << 61, 0, "layout type 3"),
        (f"{WIDE} [%t5], %a3;", 0, 508, "columns 508 to 515"),
        ("tcgen05.cp.cta_group::1.128x128b [%t5], %a3;", 0, 1 << 16, "multiple of 128"),
        ("tcgen05.shift.cta_group::1.down [%t5];", 0, 16 << 16, "multiple of 32"),
    ],
)
def test_what_is_wrong_is_named(text: str, desc: int, address: int, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        run(text, desc, address, "eager")


def test_a_pair_needs_a_peer() -> None:
    """A kernel has one cta_group, so this one allocates nothing."""
    text = """.version 8.6
.target sm_100a
.address_size 64
.visible .entry kernel()
{
  .reg .b32 %t;
  mov.u32 %t, 0;
  tcgen05.shift.cta_group::2.down [%t];
  ret;
}
"""
    with pytest.raises(KernelError, match="no peer"):
        vgpu.launch(text, "kernel", 1, 32, [], arch="sm_100a")
