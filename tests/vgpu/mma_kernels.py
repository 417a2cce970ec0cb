"""Kernels around tcgen05.mma for tests: bytes for shared memory and words for tensor memory in, tensor memory out.

`Job` is what one or two CTAs do: fill shared memory with an image and tensor memory with words, issue matrix products,
wait for them, give tensor memory back. The rest writes operands into images in the canonical layouts (PTX ISA
9.7.16.10.6, "Shared Memory Layout and Swizzling") and encodes descriptors, independently of the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensorladder.core import smallfloat

POLICIES = ("eager", "lazy", "timed", "random:1", "random:2")
LANES, COLUMNS = 128, 512
NONE, SW32, SW64, SW128, ATOM32 = "none", "32B", "64B", "128B", "128B/32B"
SPANS = {SW32: 32, SW64: 64, SW128: 128, ATOM32: 128}
_MIX = {SW128: (7, 4), SW64: (3, 4), SW32: (1, 4), ATOM32: (3, 5)}
MODES = {NONE: 0, ATOM32: 1, SW128: 2, SW64: 4, SW32: 6}
#: bits of an element in memory; narrow floats stand 16 in 16 bytes (mxf4: two a byte)
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "e2m3": 6, "e3m2": 6, "e2m1": 4, "s8": 8, "u8": 8,
        "mxf4": 4}  # fmt: skip
DEPTH = {t: 32 * 8 // b for t, b in BITS.items()} | {"e2m3": 32, "e3m2": 32, "e2m1": 32}
#: numbers that every float type here has: sums of their products are exact
FEW = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def numbers(rng: np.random.Generator, ty: str, rows: int, k: int) -> np.ndarray:
    """Random matrix elements whose products sum up exactly in f32."""
    if ty in ("s8", "u8"):
        low, high = (-128, 128) if ty == "s8" else (0, 256)
        return rng.integers(low, high, (rows, k)).astype(np.float64)
    return rng.choice(FEW, (rows, k)) * rng.choice([-1.0, 1.0], (rows, k))


def codes(values: np.ndarray, ty: str) -> np.ndarray:
    """Numbers as bit patterns of a type."""
    if ty in ("s8", "u8"):
        return values.astype(np.int64).astype(np.uint32) & 0xFF
    return smallfloat.encode(values, "e2m1" if ty == "mxf4" else ty).astype(np.uint32)


# ---------------------------------------------------------------- layouts
@dataclass(frozen=True)
class Tile:
    """Where an operand's tile of `rows` x 32 bytes lies: start, leading and stride offsets in bytes."""

    swizzle: str = SW128
    transposed: bool = False
    start: int = 0
    lbo: int = 0
    sbo: int = 1024
    base: int = 0

    @property
    def descriptor(self) -> int:
        """The descriptor without the window's address (added by the kernel)."""
        parts = (self.start >> 4, self.lbo >> 4 << 16, self.sbo >> 4 << 32, 1 << 46, self.base << 49)
        return sum(parts) + (MODES[self.swizzle] << 61)

    def swizzled(self, at: np.ndarray) -> np.ndarray:
        """Byte offsets after the swizzle: chunk numbers in a row of the pattern are mixed with the row's number."""
        if self.swizzle == NONE:
            return at
        mask, shift = _MIX[self.swizzle]
        rows = (at >> 7) - self.base  # of 128 bytes, counted from where the pattern starts
        return at ^ ((rows & mask) << shift)

    def place(self, image: np.ndarray, values: np.ndarray, ty: str) -> None:
        """Write the bits of a matrix (rows x K codes) into an image."""
        if self.transposed:
            self._place_transposed(image, values, ty)
            return
        data = packed(values, ty)  # rows x 32 bytes
        r, b = np.indices(data.shape)
        if self.swizzle == NONE:
            at = self.start + (r // 8) * self.sbo + (r % 8) * 16 + (b // 16) * self.lbo + b % 16
        else:
            at = self.start + (r // 8) * self.sbo + (r % 8) * SPANS[self.swizzle] + b
        image[self.swizzled(at)] = data

    def _place_transposed(self, image: np.ndarray, values: np.ndarray, ty: str) -> None:
        size = BITS[ty] // 8
        mn, k = np.indices(values.shape)
        if self.swizzle == NONE:
            each = 16 // size
            at = (mn % each) * size + (mn // each) * self.sbo + (k % 8) * 16 + (k // 8) * self.lbo
        else:
            span = SPANS[self.swizzle]
            each = span // size
            group = 4 if self.swizzle == ATOM32 else 8
            at = (mn % each) * size + (mn // each) * self.lbo + (k % group) * span + (k // group) * self.sbo
        at = at + self.start
        for byte in range(size):
            image[self.swizzled(at + byte)] = (values >> (8 * byte)) & 0xFF


def packed(values: np.ndarray, ty: str) -> np.ndarray:
    """Rows of codes as 32 bytes each: whole elements, or 16 narrow ones in the low bits of each 16 bytes."""
    bits = BITS[ty]
    rows = len(values)
    if ty in ("e2m3", "e3m2", "e2m1"):
        chunks = values.reshape(rows, 2, 16)
        stream = ((chunks[..., None] >> np.arange(bits)) & 1).reshape(rows, 2, -1)
        stream = np.pad(stream, ((0, 0), (0, 0), (0, 128 - stream.shape[2])))
    else:
        stream = (values[..., None] >> np.arange(bits, dtype=np.uint32)) & 1
    return np.packbits(stream.reshape(rows, -1).astype(np.uint8), axis=1, bitorder="little")


# ---------------------------------------------------------------- instruction descriptors
_TYPE_CODES = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5, "u8": 0, "s8": 1,
               "mxf4": 1}  # fmt: skip


def idesc(
    a: str, b: str, m: int, n: int, d: str = "f32", *, ta: bool = False, tb: bool = False, na: bool = False,
    nb: bool = False, saturate: bool = False,
) -> int:  # fmt: skip
    """Instruction descriptor of the kinds without scales."""
    sums = {"f16": 0, "f32": 1, "s32": 2}
    fields = ((saturate, 3), (sums[d], 4), (_TYPE_CODES[a], 7), (_TYPE_CODES[b], 10), (na, 13), (nb, 14), (ta, 15),
              (tb, 16), (n >> 3, 17), (m >> 4, 24))  # fmt: skip
    return sum(int(value) << low for value, low in fields)


def scaled_idesc(
    a: str, b: str, m: int, n: int, scale: str = "ue8m0", *, ida: int = 0, idb: int = 0, ta: bool = False,
    tb: bool = False, na: bool = False, nb: bool = False,
) -> int:  # fmt: skip
    """Instruction descriptor of the block-scaled kinds."""
    fields = ((idb, 4), (_TYPE_CODES[a], 7), (_TYPE_CODES[b], 10), (na, 13), (nb, 14), (ta, 15), (tb, 16), (n >> 3, 17),
              (scale == "ue8m0", 23), (m >> 7, 27), (ida, 29))  # fmt: skip
    return sum(int(value) << low for value, low in fields)


# ---------------------------------------------------------------- kernels
@dataclass(frozen=True)
class Mma:
    """One instruction. Its operands come from a table in memory, so that instructions of one form share a kernel.

    d, scales: tensor memory addresses from the allocation on. a: a descriptor, or "tmem:ADDRESS". more: modifiers after
    the kind. masks: words of disable-output-lane. scale_d: scale-input-d.
    """

    kind: str
    d: int
    a: int | str
    b: int
    idesc: int
    accumulate: bool = False
    pair: bool = False
    more: str = ""
    masks: tuple[int, ...] = ()
    scales: tuple[int, int] | None = None
    scale_d: int = 0
    opcode: str = "tcgen05.mma"

    @property
    def values(self) -> list[int]:
        """The operands, as the kernel reads them."""
        a = int(self.a.removeprefix("tmem:"), 0) if isinstance(self.a, str) else self.a
        return [self.d, a, self.b, self.idesc, int(self.accumulate), *(self.scales or (0, 0)), *self.masks]

    def text(self, at: int) -> str:
        """PTX, with the operands at byte `at` of the table."""
        loads = ["ld.global.b64 %p, [%table+{}]; cvt.u32.u64 %ta, %p; add.u32 %ta, %tm, %ta;",
                 "ld.global.b64 %da, [%table+{}]; cvt.u32.u64 %tb, %da; add.u32 %tb, %tm, %tb; add.u64 %da, %wd, %da;",
                 "ld.global.b64 %db, [%table+{}]; add.u64 %db, %wd, %db;", "ld.global.b32 %id, [%table+{}];",
                 "ld.global.b32 %u, [%table+{}]; setp.ne.u32 %acc, %u, 0;",
                 "ld.global.b32 %tc, [%table+{}]; add.u32 %tc, %tm, %tc;",
                 "ld.global.b32 %td, [%table+{}]; add.u32 %td, %tm, %td;",
                 *(f"ld.global.b32 %m{k}, [%table+{{}}];" for k in range(len(self.masks)))]  # fmt: skip
        lines = [line.format(at + 8 * k) for k, line in enumerate(loads)]
        rest = "%acc"
        if self.scales:
            rest = "[%tc], [%td], %acc"
        elif self.masks:
            rest = "{" + ", ".join(f"%m{k}" for k in range(len(self.masks))) + "}, %acc"
        if self.scale_d:
            rest += f", {self.scale_d}"
        a = "[%tb]" if isinstance(self.a, str) else "%da"
        group = 2 if self.pair else 1
        lines.append(f"{self.opcode}.cta_group::{group}.kind::{self.kind}{self.more} [%ta], {a}, %db, %id, {rest};")
        return "\n  ".join(lines)


def mma(kind: str, d: int, a: int | str, b: int, idesc: int, accumulate: bool = False, **options) -> Mma:
    """An instruction (see Mma)."""
    return Mma(kind, d, a, b, idesc, accumulate, **{k: tuple(v) if k == "masks" else v for k, v in options.items()})


@dataclass
class Job:
    """What is run: `images` bytes and `words` (128 x columns, uint32) a CTA; one thread issues `lines`."""

    images: Sequence[np.ndarray]
    lines: Sequence[Mma]
    words: Sequence[np.ndarray] = ()
    columns: int = COLUMNS

    @property
    def pair(self) -> bool:
        """Whether two CTAs work together."""
        return len(self.images) == 2

    @property
    def table(self) -> np.ndarray:
        """Operands of all instructions."""
        return np.array([v for line in self.lines for v in line.values], np.uint64)


_KERNEL = """.version 8.8
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 window[];
.visible .entry kernel(.param .u64 p_image, .param .u64 p_words, .param .u64 p_out,
  .param .u64 p_table)
{{
  .reg .b32 %tid, %rank, %win, %bar, %slot, %t, %u, %x, %tm, %id, %ta, %tb, %tc, %td, %at, %warp, %m<8>, %r<32>;
  .reg .b64 %image, %words, %out, %table, %o, %p, %wd, %da, %db;
  .reg .pred %one, %q, %acc, %first;
  .shared .align 8 .b8 barrier[16];
  mov.u32 %tid, %tid.x; mov.u32 %rank, %cluster_ctarank; mov.u32 %win, window; mov.u32 %bar, barrier;
  add.u32 %slot, %bar, 8;
  shr.u32 %warp, %tid, 5;
  ld.param.u64 %image, [p_image]; ld.param.u64 %words, [p_words]; ld.param.u64 %out, [p_out];
  ld.param.u64 %table, [p_table];
  mul.wide.u32 %o, %rank, {size}; add.u64 %image, %image, %o;
  mad.lo.u32 %t, %rank, 128, %tid; mul.wide.u32 %o, %t, {row}; add.u64 %words, %words, %o; add.u64 %out, %out, %o;
  setp.eq.u32 %one, %tid, 0;
  @%one mbarrier.init.shared.b64 [%bar], 1;
  fence.mbarrier_init.release.cluster;
  setp.eq.u32 %q, %warp, 0;
  @!%q bra ALLOCATED;
  tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%slot], {columns};
  tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;
ALLOCATED:
  shl.b32 %t, %tid, 4;
COPY:
  cvt.u64.u32 %p, %t; add.u64 %p, %image, %p; add.u32 %u, %win, %t;
  ld.global.v4.b32 {{%r0, %r1, %r2, %r3}}, [%p]; st.shared.v4.b32 [%u], {{%r0, %r1, %r2, %r3}};
  add.u32 %t, %t, 2048; setp.lt.u32 %q, %t, {size};
  @%q bra COPY;
  fence.proxy.async.shared::cta;
  tcgen05.fence::before_thread_sync;
  bar.sync 0;
  tcgen05.fence::after_thread_sync;
  ld.shared.b32 %tm, [%slot];
  shl.b32 %at, %warp, 21; add.u32 %at, %at, %tm;
  mov.u32 %t, 0;
FILL:
  mul.wide.u32 %o, %t, 4; add.u64 %p, %words, %o; add.u32 %u, %at, %t;
  {fill}
  tcgen05.st.sync.aligned.32x32b.x32.b32 [%u], {{{regs}}};
  add.u32 %t, %t, 32; setp.lt.u32 %q, %t, {columns};
  @%q bra FILL;
  tcgen05.wait::st.sync.aligned;
  tcgen05.fence::before_thread_sync;
  {sync}
  tcgen05.fence::after_thread_sync;
  setp.eq.u32 %q, %rank, 0; and.pred %first, %one, %q;
  @!%first bra ISSUED;
  shr.u32 %t, %win, 4; and.b32 %t, %t, 0x3FFF; cvt.u64.u32 %wd, %t;
  {lines}
  {commit}
ISSUED:
  mov.u32 %x, 0;
WAIT:
  mbarrier.try_wait.parity.shared.b64 %q, [%bar], %x;
  @!%q bra WAIT;
  tcgen05.fence::after_thread_sync;
  mov.u32 %t, 0;
OUT:
  mul.wide.u32 %o, %t, 4; add.u64 %p, %out, %o; add.u32 %u, %at, %t;
  tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{regs}}}, [%u];
  tcgen05.wait::ld.sync.aligned;
  {drain}
  add.u32 %t, %t, 32; setp.lt.u32 %q, %t, {columns};
  @%q bra OUT;
  tcgen05.fence::before_thread_sync;
  {sync}
  setp.eq.u32 %q, %warp, 0;
  @!%q bra DONE;
  tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %tm, {columns};
DONE:
  ret;
}}
"""
_QUADS = [", ".join(f"%r{4 * k + j}" for j in range(4)) for k in range(8)]


def ptx_of(job: Job) -> str:
    """The kernel's text."""
    commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar];"
    if job.pair:
        commit = (
            "mov.b32 %x, 3; cvt.u16.u32 %h, %x; tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster"
            ".multicast::cluster.b64 [%bar], %h;"
        )
    lines, at = [], 0
    for line in job.lines:
        lines.append(line.text(at))
        at += 8 * len(line.values)
    return _KERNEL.format(
        size=len(job.images[0]), row=4 * job.columns, columns=job.columns, group=2 if job.pair else 1,
        regs=", ".join(f"%r{k}" for k in range(32)),
        fill="\n  ".join(f"ld.global.v4.b32 {{{q}}}, [%p+{16 * k}];" for k, q in enumerate(_QUADS)),
        drain="\n  ".join(f"st.global.v4.b32 [%p+{16 * k}], {{{q}}};" for k, q in enumerate(_QUADS)),
        sync="barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" if job.pair else "bar.sync 0;",
        lines="\n  ".join(lines), commit=commit,
    ).replace(".reg .pred %one", ".reg .b16 %h; .reg .pred %one")  # fmt: skip


def run(job: Job, policy: str = "eager", **options) -> np.ndarray:
    """Tensor memory afterwards: CTAs x 128 lanes x columns, uint32."""
    from tensorladder import vgpu

    ctas = len(job.images)
    images = np.ascontiguousarray(np.stack(job.images))
    words = job.words or [np.zeros((LANES, job.columns), np.uint32)] * ctas
    words = np.ascontiguousarray(np.stack(words))
    out = np.zeros_like(words)
    vgpu.launch(
        ptx_of(job), "kernel", ctas, 128, [images, words, out, job.table],
        smem=images.shape[1], cluster=ctas, policy=policy, **options,
    )  # fmt: skip
    return out
