"""Tensor memory: allocation and its rules, loads and stores in every shape against models of the layouts, waits."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tensorladder import vgpu
from tensorladder.core.errors import KernelError, Unsupported, UsageError
from tensorladder.core.program import Launch, Module

POLICIES = ("eager", "lazy", "timed", "random:1", "random:7")
LANES, COLUMNS, POISON = 128, 512, 0xFFFFFFFF
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)


def kernel(body: str, params: int = 2, shared: int = 1024, cluster: int = 0) -> str:
    """A kernel with parameters %p0, %p1, ...; %tid, %warp, %lane, %rank; shared memory `mem` at %smem."""
    args = ", ".join(f".param .u64 p{n}" for n in range(params))
    loads = "\n".join(f"  ld.param.u64 %p{n}, [p{n}];" for n in range(params))
    cta = f".explicitcluster .reqnctapercluster {cluster}\n" if cluster else ""
    return f""".version 8.6
.target sm_100a
.address_size 64
.visible .entry kernel({args})
{cta}{{
  .reg .b64 %p<{max(params, 1)}>, %a<8>;
  .reg .b32 %tid, %warp, %lane, %rank, %smem, %t<8>, %r<300>;
  .reg .pred %q<8>;
  .shared .align 1024 .b8 mem[{shared}];
{loads}
  mov.u32 %tid, %tid.x; shr.u32 %warp, %tid, 5; and.b32 %lane, %tid, 31; mov.u32 %rank, %cluster_ctarank;
  mov.u32 %smem, mem;
{body}
  ret;
}}
"""


def alloc(columns: int, group: int = 1, at: int = 0, into: str = "%t0") -> str:
    """Warp 0 allocates; every thread then has the address."""
    return f"""
  setp.ne.u32 %q0, %warp, 0;
  @%q0 bra SKIP_ALLOC{at};
  tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [mem+{at}], {columns};
SKIP_ALLOC{at}:
  bar.sync 0;
  ld.shared.u32 {into}, [mem+{at}];"""


def dealloc(columns: int, group: int = 1, name: str = "%t0", label: str = "") -> str:
    """Warp 0 deallocates after all have come here."""
    return f"""
  bar.sync 0;
  setp.ne.u32 %q0, %warp, 0;
  @%q0 bra SKIP_DEALLOC{label};
  tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 {name}, {columns};
SKIP_DEALLOC{label}:"""


def launch(text: str, *arrays: np.ndarray, threads: int = 128, policy: str = "eager", **options) -> None:
    vgpu.launch(text, "kernel", options.pop("grid", 1), threads, list(arrays), arch="sm_100a", policy=policy, **options)


# ---------------------------------------------------------------- layouts
def places(shape: str, count: int, half: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(row, column) of registers [lane, register] within a warp's lanes (PTX ISA, "Data Movement Shape")."""
    registers = count * {"16x128b": 2, "16x256b": 4}.get(shape, 1)
    t, r = np.meshgrid(np.arange(32), np.arange(registers), indexing="ij")
    if shape == "32x32b":
        return t, r
    if shape == "16x64b":
        return t // 4 + 8 * (t % 2), (t // 2) % 2 + 2 * r
    if shape == "16x128b":
        return t // 4 + 8 * (r % 2), t % 4 + 4 * (r // 2)
    if shape == "16x256b":
        return t // 4 + 8 * (r // 2 % 2), 2 * (t % 4) + r % 2 + 8 * (r // 4)
    return t % 16, r + np.where(t < 16, 0, half)


def forms() -> list[tuple[str, int]]:
    return [(shape, n) for shape in ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2") for n in COUNTS
            if n * {"16x128b": 2, "16x256b": 4}.get(shape, 1) <= 128]  # fmt: skip


def vector(registers: int) -> str:
    return "{" + ", ".join(f"%r{k}" for k in range(registers)) + "}"


def move(what: str, shape: str, count: int, step: int, address: str, half: int) -> tuple[str, int]:
    """tcgen05.ld or .st of registers %r0...; (text, registers)."""
    registers = count * {"16x128b": 2, "16x256b": 4}.get(shape, 1)
    packing = {1: "", 2: {"ld": ".pack::16b", "st": ".unpack::16b"}[what]}[step]
    operands = [f"[{address}]"] + ([str(half)] if shape == "16x32bx2" else [])
    operands = [vector(registers), *operands] if what == "ld" else [*operands, vector(registers)]
    return f"tcgen05.{what}.sync.aligned.{shape}.{count and f'x{count}'}{packing}.b32 {', '.join(operands)};", registers


def width(shape: str, count: int, step: int) -> int:
    """Columns that a form covers from its address on (of each half)."""
    return step * count * {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 1}[shape]


def fill() -> str:
    """All 512 columns from parameter 0, an array [128][512] of words, by 32x32b loads of one column."""
    return """
  mul.wide.u32 %a0, %tid, 2048; add.u64 %a0, %a0, %p0;
  mov.u32 %t1, 0;
FILL:
  ld.global.u32 %r0, [%a0];
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%t0], {%r0};
  add.u64 %a0, %a0, 4; add.u32 %t0, %t0, 1; add.u32 %t1, %t1, 1;
  setp.lt.u32 %q1, %t1, 512;
  @%q1 bra FILL;
  sub.u32 %t0, %t0, 512;
  tcgen05.wait::st.sync.aligned;"""


def dump() -> str:
    """The reverse: all of the tensor memory to parameter 1."""
    return """
  tcgen05.wait::st.sync.aligned;
  bar.sync 0;
  mul.wide.u32 %a0, %tid, 2048; add.u64 %a0, %a0, %p1;
  mov.u32 %t1, 0;
DUMP:
  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%t0];
  st.global.u32 [%a0], %r0;
  add.u64 %a0, %a0, 4; add.u32 %t0, %t0, 1; add.u32 %t1, %t1, 1;
  setp.lt.u32 %q1, %t1, 512;
  @%q1 bra DUMP;
  sub.u32 %t0, %t0, 512;"""


def words(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 32, shape, np.uint64).astype(np.uint32)


def addresses(shape: str, seed: int, count: int, step: int) -> tuple[int, int, int]:
    """Column, first row of the warp's 32 lanes and half offset of a random legal access."""
    rng = np.random.default_rng(seed)
    wide = width(shape, count, step)
    half = int(rng.integers(wide - COLUMNS, COLUMNS - wide + 1)) if shape == "16x32bx2" else 0
    column = int(rng.integers(max(0, -half), COLUMNS - wide - max(0, half) + 1))
    row = 0 if shape == "32x32b" else 16 * int(rng.integers(0, 2))
    return column, row, half


FORMS = [(shape, n, step) for shape, n in forms() for step in (1, 2) if width(shape, n, step) <= COLUMNS]


@pytest.mark.parametrize(("shape", "count", "step"), FORMS)
def test_load_follows_the_layout(shape: str, count: int, step: int) -> None:
    column, row, half = addresses(shape, count + step, count, step)
    text, registers = move("ld", shape, count, step, "%t2", half)
    stores = "\n".join(f"  st.global.u32 [%a1+{4 * k}], %r{k};" for k in range(registers))
    body = alloc(512) + fill() + f"""
  shl.b32 %t2, %warp, 21; add.u32 %t2, %t2, %t0; add.u32 %t2, %t2, {column + (row << 16)};
  {text}
  tcgen05.wait::ld.sync.aligned;
  mul.wide.u32 %a1, %tid, {4 * registers}; add.u64 %a1, %a1, %p1;
{stores}""" + dealloc(512)
    memory, out = words(1, LANES, COLUMNS), np.zeros((4, 32, registers), np.uint32)
    launch(kernel(body), memory, out)
    r, c = places(shape, count, half // step)
    for warp in range(4):
        quarter = memory[32 * warp : 32 * warp + 32]
        if shape == "16x32bx2":
            c = np.where(np.arange(32)[:, None] < 16, 0, half) + step * np.arange(registers)
            at = column + c
        else:
            at = column + step * c
        want = quarter[row + r, at]
        if step == 2:
            want = (want & 0xFFFF) | quarter[row + r, at + 1] << 16
        assert np.array_equal(out[warp], want)


@pytest.mark.parametrize(("shape", "count", "step"), FORMS[::3])
def test_store_follows_the_layout(shape: str, count: int, step: int) -> None:
    column, row, half = addresses(shape, 100 + count + step, count, step)
    if shape == "16x32bx2" and abs(half) < width(shape, count, step):  # halves that overlap: no order among lanes
        column, half = 0, width(shape, count, step)
    text, registers = move("st", shape, count, step, "%t2", half)
    loads = "\n".join(f"  ld.global.u32 %r{k}, [%a1+{4 * k}];" for k in range(registers))
    body = alloc(512) + f"""
  shl.b32 %t2, %warp, 21; add.u32 %t2, %t2, %t0; add.u32 %t2, %t2, {column + (row << 16)};
  mul.wide.u32 %a1, %tid, {4 * registers}; add.u64 %a1, %a1, %p0;
{loads}
  {text}""" + dump() + dealloc(512)
    values, out = words(2, 4, 32, registers), np.zeros((LANES, COLUMNS), np.uint32)
    launch(kernel(body), values, out, policy="lazy")
    want = np.full((4, 32, COLUMNS), POISON, np.uint32)
    r, c = places(shape, count, 0)
    at = column + step * c + (np.where(np.arange(32)[:, None] < 16, 0, half) if shape == "16x32bx2" else 0)
    for warp in range(4):
        want[warp][row + r, at] = values[warp] if step == 1 else values[warp] & 0xFFFF
        if step == 2:
            want[warp][row + r, at + 1] = values[warp] >> 16
    assert np.array_equal(out, want.reshape(LANES, COLUMNS))


def test_a_warp_beyond_the_first_four_reaches_the_quarter_of_its_rank() -> None:
    body = alloc(32) + """
  setp.lt.u32 %q1, %tid, 128;
  @%q1 bra FIRST;
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%t0+3], %tid;
  tcgen05.wait::st.sync.aligned;
FIRST:
  bar.sync 0;
  tcgen05.ld.sync.aligned.32x32b.x1.b32 %r0, [%t0+3];
  mul.wide.u32 %a0, %tid, 4; add.u64 %a0, %a0, %p0;
  st.global.u32 [%a0], %r0;""" + dealloc(32)
    out = np.zeros(256, np.uint32)
    launch(kernel(body, 1), out, threads=256, policy="lazy")
    assert np.array_equal(out, np.tile(np.arange(128, 256, dtype=np.uint32), 2))


# ---------------------------------------------------------------- waits
def _stored_then_loaded(wait: str) -> str:
    return alloc(32) + f"""
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%t0], %tid;
  {wait}
  bar.sync 0;
  tcgen05.ld.sync.aligned.32x32b.x1.b32 %r0, [%t0];
  tcgen05.wait::ld.sync.aligned;
  mul.wide.u32 %a0, %tid, 4; add.u64 %a0, %a0, %p0;
  st.global.u32 [%a0], %r0;""" + dealloc(32)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_store_is_there_after_its_wait(policy: str) -> None:
    out = np.zeros(128, np.uint32)
    launch(kernel(_stored_then_loaded("tcgen05.wait::st.sync.aligned;"), 1), out, policy=policy)
    assert np.array_equal(out, np.arange(128, dtype=np.uint32))


def test_a_missing_wait_shows() -> None:
    out = np.zeros(128, np.uint32)
    launch(kernel(_stored_then_loaded(""), 1), out, policy="lazy")
    assert (out == POISON).all()


def test_lanes_of_a_warp_come_apart_to_a_wait() -> None:
    body = alloc(32) + """
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%t0], %tid;
  setp.lt.u32 %q1, %lane, 7;
  @%q1 bra JOIN;
  nanosleep.u32 20;
JOIN:
  tcgen05.wait::st.sync.aligned;
  tcgen05.ld.sync.aligned.32x32b.x1.b32 %r0, [%t0];
  mul.wide.u32 %a0, %tid, 4; add.u64 %a0, %a0, %p0;
  st.global.u32 [%a0], %r0;""" + dealloc(32)
    out = np.zeros(128, np.uint32)
    launch(kernel(body, 1), out, policy="lazy")
    assert np.array_equal(out, np.arange(128, dtype=np.uint32))


# ---------------------------------------------------------------- allocation
def test_allocations_take_the_lowest_free_columns() -> None:
    body = alloc(256, 1, 0, "%t0") + alloc(128, 1, 4, "%t1") + alloc(32, 1, 8, "%t2") + alloc(32, 1, 12, "%t3")
    body += dealloc(128, 1, "%t1", "A") + alloc(32, 1, 16, "%t4")
    body += "".join(f"\n  st.global.u32 [%p0+{4 * k}], %t{k};" for k in range(5))
    for n, k in zip((256, 32, 32, 32), (0, 2, 3, 4), strict=True):
        body += dealloc(n, 1, f"%t{k}", f"B{k}")
    out = np.zeros(5, np.uint32)
    launch(kernel(body, 1), out)
    assert out.tolist() == [0, 256, 384, 416, 256]


def test_an_allocation_waits_for_room() -> None:
    """Warp 0 takes all, warp 1 waits until warp 0 gives it back."""
    body = """
  setp.ne.u32 %q0, %warp, 0;
  @%q0 bra SECOND;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [mem], 512;
  bar.sync 1;
  nanosleep.u32 200;
  ld.shared.u32 %t0, [mem];
  st.shared.u32 [mem+8], 77;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t0, 512;
  bra END;
SECOND:
  bar.sync 1;
  tcgen05.alloc.cta_group::1.sync.aligned.b32 [%a1], 64;
  ld.shared.u32 %t1, [mem+8];
  ld.shared.u32 %t0, [mem+4];
  st.global.u32 [%p0], %t1;
  st.global.u32 [%p0+4], %t0;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t0, 64;
END:"""
    body = "  cvt.u64.u32 %a1, %smem; cvta.shared.u64 %a1, %a1; add.u64 %a1, %a1, 4;" + body
    for policy in POLICIES:
        out = np.zeros(2, np.uint32)
        launch(kernel(body, 1), out, threads=64, policy=policy)
        assert out.tolist() == [77, 0]


def test_a_new_allocation_is_poisoned() -> None:
    body = alloc(32) + """
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%t0], %tid;
  tcgen05.wait::st.sync.aligned;""" + dealloc(32, label="A") + alloc(32, at=4) + """
  tcgen05.ld.sync.aligned.32x32b.x1.b32 %r0, [%t0];
  mul.wide.u32 %a0, %tid, 4; add.u64 %a0, %a0, %p0;
  st.global.u32 [%a0], %r0;""" + dealloc(32, label="B")
    out = np.zeros(128, np.uint32)
    launch(kernel(body, 1), out)
    assert (out == POISON).all()


def test_warps_may_deallocate_the_same_columns() -> None:
    launch(kernel(alloc(64) + "\n  bar.sync 0;\n  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t0, 64;", 0))


RELINQUISH = "\n  tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
WRONG = {
    "count": (alloc(48), "a power of two from 32 to 512"),
    "small": (alloc(16), "a power of two from 32 to 512"),
    "large": (alloc(1024), "a power of two from 32 to 512"),
    "grows": (alloc(32) + alloc(64, 1, 4, "%t1"), "64 columns after one of 32"),
    "permit": (alloc(32) + RELINQUISH + alloc(32, 1, 4, "%t1"), "after tcgen05.relinquish_alloc_permit"),
    "leak": (alloc(64), "64 columns of tensor memory .* not deallocated.*tcgen05.alloc.*PTX line"),
    "dealloc count": (alloc(64) + dealloc(32), "dealloc of 32 columns .* has an allocation of 64"),
    "dealloc place": (alloc(64) + "\n  add.u32 %t0, %t0, 32;" + dealloc(32), "dealloc of 32 columns"),
    "dealloc nothing": ("  mov.u32 %t0, 0;" + dealloc(32), "allocation of 0 columns"),
    "full": (alloc(512) + alloc(32, 1, 4, "%t1"), r"hangs: .*32 columns of tensor memory \(0 are free"),
    "columns": (alloc(32) + "\n  tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r0, %r1}, [%t0+31];",
                "columns 31 to 32 .* not all allocated"),
    "half": (alloc(32) + "\n  tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {%r0}, [%t0], 32;", "columns 0 to 32"),
    "lanes": (alloc(32) + "\n  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%t0+0x200000];",
              "names lane 32; this warp reaches lanes (0|64|96) to"),
    "row": (alloc(32) + "\n  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%t0+0x100000];", "multiple of 32"),
    "row of 16": (alloc(32) + "\n  tcgen05.st.sync.aligned.16x64b.x1.b32 [%t0+0x80000], {%r0};", "multiple of 16"),
    "uniform": (alloc(32) + "\n  add.u32 %t0, %t0, %lane;\n  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%t0];",
                "different operands"),
    "pair": (alloc(32, 2), "cta_group::2 in a cluster where CTA 0 has no peer"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str) -> None:
    body, message = WRONG[case]
    with pytest.raises(KernelError, match=message):
        launch(kernel(body, 0))


@pytest.mark.parametrize(
    "text",
    [
        "tcgen05.alloc.exclusive.cta_group::1.sync.aligned.shared::cta.b32 [mem], 32;",
        "tcgen05.ld.red.sync.aligned.32x32b.x2.min.u32 {%r0, %r1}, %r2, [%r3];",
        "tcgen05.ld.sync.aligned.16x256b.x64.b32 {%r0}, [%r3];",
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.sync_restrict::shared::read::mma::a.b64 [%a0];",
    ],
)
def test_what_is_not_modelled_is_refused(text: str) -> None:
    with pytest.raises(Unsupported, match="tcgen05"):
        launch(kernel("  " + text, 0))


def test_a_kernel_has_one_cta_group() -> None:
    with pytest.raises(UsageError, match=r"PTX line \d+: tcgen05.dealloc.* say cta_group::1"):
        launch(kernel(alloc(32) + dealloc(32, 2), 0))


def test_hopper_has_no_tensor_memory() -> None:
    with pytest.raises(UsageError, match="does not run on sm_90a"):
        vgpu.launch(kernel(alloc(32), 0), "kernel", 1, 128, [], arch="sm_90a")


# ---------------------------------------------------------------- pairs
@pytest.mark.parametrize("policy", POLICIES)
def test_a_pair_allocates_the_same_columns_together(policy: str) -> None:
    """The odd CTA comes late; both get their columns once it asks too, at one address."""
    body = """
  setp.eq.u32 %q1, %rank, 0;
  @%q1 bra EVEN;
  nanosleep.u32 300;
EVEN:""" + alloc(128, 2) + alloc(64, 2, 4, "%t1") + """
  tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
  mul.wide.u32 %a0, %rank, 8; add.u64 %a0, %a0, %p0;
  st.global.u32 [%a0], %t0; st.global.u32 [%a0+4], %t1;
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%t1], %rank;
  tcgen05.wait::st.sync.aligned;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  tcgen05.ld.sync.aligned.32x32b.x1.b32 %r0, [%t1];
  mul.wide.u32 %a1, %rank, 512; mul.wide.u32 %a2, %tid, 4; add.u64 %a1, %a1, %a2; add.u64 %a1, %a1, %p1;
  st.global.u32 [%a1], %r0;""" + dealloc(64, 2, "%t1", "A") + dealloc(128, 2, "%t0", "B")
    at, out = np.zeros((2, 2), np.uint32), np.full((2, 128), 9, np.uint32)
    launch(kernel(body, 2, cluster=2), at, out, grid=2, cluster=2, policy=policy)
    assert at.tolist() == [[0, 128], [0, 128]]
    assert np.array_equal(out, np.repeat([[0], [1]], 128, axis=1))


def test_halves_of_a_pair_must_ask_for_as_much() -> None:
    body = "  mov.u32 %t5, 32; shl.b32 %t5, %t5, %rank;" + alloc(32, 2).replace(", 32;", ", %t5;")
    with pytest.raises(KernelError, match="columns where the CTA pair's other half asks for"):
        launch(kernel(body, 0, cluster=2), grid=2, cluster=2)


# ---------------------------------------------------------------- commit
def _waits(label: str, parity: int = 0, at: str = "mem+8") -> str:
    return f"""
WAIT_{label}:
  mbarrier.try_wait.parity.shared::cta.b64 %q2, [{at}], {parity};
  @!%q2 bra WAIT_{label};"""


INIT = """
  setp.ne.u32 %q1, %tid, 0;
  @%q1 bra INITIALISED;
  mbarrier.init.shared::cta.b64 [mem+8], {count};
INITIALISED:
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("space", ["shared::cluster", "generic"])
def test_commit_arrives_once_a_thread(policy: str, space: str) -> None:
    to = "shared::cluster.b64 [%smem+8]" if space == "shared::cluster" else "b64 [%a1]"
    body = INIT.format(count=3) + f"""
  cvt.u64.u32 %a1, %smem; cvta.shared.u64 %a1, %a1; add.u64 %a1, %a1, 8;
  setp.ge.u32 %q3, %tid, 3;
  @%q3 bra ISSUED;
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.{to};
ISSUED:""" + _waits("A") + """
  tcgen05.fence::after_thread_sync;
  mul.wide.u32 %a0, %tid, 4; add.u64 %a0, %a0, %p0;
  st.global.u32 [%a0], 1;"""
    out = np.zeros(64, np.uint32)
    launch(kernel(body, 1), out, threads=64, policy=policy)
    assert (out == 1).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_commit_reaches_the_cluster(policy: str) -> None:
    """CTA 0 commits once to CTAs 1 and 2 by multicast, CTA 3 to CTA 0 by a mapped address."""
    body = INIT.format(count=1) + """
  setp.ne.u32 %q3, %tid, 0;
  @%q3 bra ISSUED;
  setp.ne.u32 %q4, %rank, 0;
  @%q4 bra NOT_FIRST;
  mov.b16 %h, 6;
  tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%smem+8], %h;
NOT_FIRST:
  setp.ne.u32 %q4, %rank, 3;
  @%q4 bra ISSUED;
  mapa.shared::cluster.u32 %t4, %smem, 0;
  tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64 [%t4+8];
ISSUED:
  setp.eq.u32 %q4, %rank, 3;
  @%q4 bra DONE;""" + _waits("A") + """
DONE:
  mad.lo.u32 %t5, %rank, 32, %tid;
  mul.wide.u32 %a0, %t5, 4; add.u64 %a0, %a0, %p0;
  st.global.u32 [%a0], 1;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"""
    out = np.zeros((4, 32), np.uint32)
    launch(kernel("  .reg .b16 %h;" + body, 1, cluster=4), out, threads=32, grid=4, cluster=4, policy=policy)
    assert (out == 1).all()


def test_commit_to_a_cta_outside_of_the_cluster() -> None:
    body = INIT.format(count=1) + """
  mov.b16 %h, 5;
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%smem+8], %h;"""
    with pytest.raises(KernelError, match="multicast mask 0x5 names CTA 2"):
        launch(kernel("  .reg .b16 %h;" + body, 0, cluster=2), grid=2, cluster=2)


def test_a_half_of_a_pair_that_asks_alone_hangs() -> None:
    body = "  setp.ne.u32 %q6, %rank, 0;\n  @%q6 bra END;" + alloc(32, 2) + "\nEND:"
    with pytest.raises(KernelError, match="32 columns of tensor memory with its peer CTA"):
        launch(kernel(body, 0, cluster=2), grid=2, cluster=2)


# ---------------------------------------------------------------- CTAs of one SM
def _competing(columns: int, early: str) -> str:
    """Each CTA stores its number in its columns, waits a while, and sees that nobody has touched them."""
    return alloc(columns) + f"""
  {early}
  mov.u32 %t4, %ctaid.x;
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%t0], %t4;
  tcgen05.wait::st.sync.aligned;
  nanosleep.u32 400;
  tcgen05.ld.sync.aligned.32x32b.x1.b32 %r0, [%t0];
  mad.lo.u32 %t5, %t4, 128, %tid;
  mul.wide.u32 %a0, %t5, 4; add.u64 %a0, %a0, %p0;
  st.global.u32 [%a0], %r0;
  mul.wide.u32 %a1, %t4, 4; add.u64 %a1, %a1, %p1;
  st.global.u32 [%a1], %t0;""" + dealloc(columns)


RELEASE = """setp.ne.u32 %q5, %warp, 0;
  @%q5 bra RELEASED;
  tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
RELEASED:"""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("columns", "early", "shared"), [(256, RELEASE, True), (512, RELEASE, False), (128, "", False)]
)
def test_ctas_of_an_sm_share_its_columns(columns: int, early: str, shared: bool, policy: str) -> None:
    """They lie side by side where there is room and the permit is given back; else one waits for the other's end."""
    out, at = np.zeros((4, 128), np.uint32), np.zeros(4, np.uint32)
    device = vgpu.Device("sm_100a", policy, sm_count=1, timeout=20)
    for name, array in (("out", out), ("at", at)):
        device.memory.attach(name, array)
    stream = device.stream()
    params = struct.pack("<QQ", out.ctypes.data, at.ctypes.data)
    text = kernel(_competing(columns, early))
    stream.enqueue(Launch(Module(text, "sm_100a"), "kernel", (4, 1, 1), (128, 1, 1), params, 0, (1, 1, 1)))
    stream.synchronize()
    assert np.array_equal(out, np.repeat(np.arange(4, dtype=np.uint32)[:, None], 128, axis=1))
    assert set(at.tolist()) == ({0, 256} if shared else {0})
