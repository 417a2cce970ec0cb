"""Byte permutation, moves and addresses in a cluster against Python."""

from __future__ import annotations

import numpy as np

from tensorladder.vgpu import launch
from tests.vgpu.ptx_kernels import Case, bits, cases_test

N = 512

# d's bytes from 3 to 0 by the control's low two bits (PTX ISA, table of prmt's modes)
MODES = {
    "f4e": ((3, 2, 1, 0), (4, 3, 2, 1), (5, 4, 3, 2), (6, 5, 4, 3)),
    "b4e": ((5, 6, 7, 0), (6, 7, 0, 1), (7, 0, 1, 2), (0, 1, 2, 3)),
    "rc8": ((0,) * 4, (1,) * 4, (2,) * 4, (3,) * 4),
    "ecl": ((3, 2, 1, 0), (3, 2, 1, 1), (3, 2, 2, 2), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (1, 1, 1, 0), (2, 2, 1, 0), (3, 2, 1, 0)),
    "rc16": ((1, 0, 1, 0), (3, 2, 3, 2), (1, 0, 1, 0), (3, 2, 3, 2)),
}


def words() -> dict:
    return {"a": ("b32", bits("b32", N, 1)), "b": ("b32", bits("b32", N, 2))}


def permuted(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    both = b.astype(np.uint64) << np.uint64(32) | a
    total = np.zeros(len(a), np.uint64)
    for k in range(4):
        nibble = c.astype(np.uint64) >> np.uint64(4 * k) & np.uint64(15)
        byte = both >> (nibble & np.uint64(7)) * np.uint64(8) & np.uint64(255)
        byte = np.where(nibble >= 8, (byte >> np.uint64(7)) * np.uint64(255), byte)
        total |= byte << np.uint64(8 * k)
    return total.astype(np.uint32)


def by_mode(mode: str):
    def reference(a, b, c):
        table = np.array([sum(p << 4 * (3 - k) for k, p in enumerate(row)) for row in MODES[mode]])
        return permuted(a, b, table[c & 3])

    return reference


def prmt_cases() -> list[Case]:
    control = {"c": ("b32", bits("b32", N, 3))}
    cases = [Case("prmt.b32", "prmt.b32 %d, %a, %b, %c;", words() | control, {"d": "b32"}, permuted)]
    for mode in MODES:
        op = f"prmt.b32.{mode}"
        cases.append(Case(op, f"{op} %d, %a, %b, %c;", words() | control, {"d": "b32"}, by_mode(mode)))
    selectors = (0x3210, 0x7654, 0x5410, 0x7632, 0x0123, 0xFEDC, 0x4440, 0xB3A2)
    body = "\n".join(f"prmt.b32 %d{s}, %a, %b, {s};" for s in selectors) + "\nprmt.b32.f4e %e, %a, %b, 2;"
    outs = {f"d{s}": "b32" for s in selectors} | {"e": "b32"}

    def constants(a, b):
        found = {f"d{s}": permuted(a, b, np.full(len(a), s)) for s in selectors}
        return found | {"e": permuted(a, b, np.full(len(a), 0x5432))}

    cases.append(Case("prmt by constants", body, words(), outs, constants))
    return cases


def mov_cases() -> list[Case]:
    packing = """{ .reg .b16 %x, %y, %z, %w; .reg .b32 %l, %h;
mov.b32 {%x, %y}, %a; mov.b64 {%l, %h}, %w0; mov.b64 {%z, %w, _, _}, %w0; mov.b32 %d, {%y, %x}; mov.b64 %e, {%h, %l};
mov.b64 %f, {%x, %y, %z, %w}; }"""

    def reference(a, w0):
        h, l = w0 >> np.uint64(32), w0 & np.uint64(0xFFFFFFFF)
        return {
            "d": a << np.uint32(16) | a >> np.uint32(16),
            "e": l << np.uint64(32) | h,
            "f": (w0 & np.uint64(0xFFFFFFFF)) << np.uint64(32) | a,
        }

    inputs = {"a": ("b32", bits("b32", N, 1)), "w0": ("b64", bits("b64", N, 2))}
    cases = [Case("mov with vectors", packing, inputs, {"d": "b32", "e": "b64", "f": "b64"}, reference)]
    constants = """mov.f32 %d, 0f3FC00000; mov.f64 %e, 0dBFF8000000000000; mov.b32 %f, -7; mov.u64 %g, 0xFFFFFFFFFF;
mov.pred %p, 1; mov.b16 %h, 65535;"""
    outs = {"d": "f32", "e": "f64", "f": "b32", "g": "u64", "p": "pred", "h": "b16"}

    def values(a):
        return {
            "d": np.float32(1.5),
            "e": np.float64(-1.5),
            "f": np.uint32(0xFFFFFFF9),
            "g": np.uint64(0xFFFFFFFFFF),
            "p": np.True_,
            "h": np.uint16(65535),
        }

    cases.append(Case("mov of constants", constants, {"a": ("b32", bits("b32", N))}, outs, values))
    return cases


WIDE = (
    "{ .reg .b128 %w; .reg .b64 %l, %h; mov.b128 %w, {%a, %b}; mov.b128 {%l, %h}, %w; mov.b64 %d, %h; mov.b64 %e, %l; }"
)

# vector registers: by components and as a whole; an inner scope has one of the same name
VECTORS = """{ .reg .v4 .u32 abcd; .reg .v2 .u32 %pair<2>; .local .align 16 .b8 room[16];
mov.b32 abcd.x, %a; add.u32 abcd.y, abcd.r, 1; mov.u32 abcd.b, 7; add.u32 abcd.w, abcd.y, abcd.z;
{ .reg .v2 .u32 abcd; mov.u32 abcd.r, 100; mov.u32 abcd.g, 200; }
st.local.v4.u32 [room], abcd; ld.local.v2.u32 %pair0, [room]; ld.local.v2.u32 %pair1, [room+8];
mov.u32 %d, %pair0.x; mov.u32 %e, %pair0.y; mov.u32 %f, %pair1.r; mov.u32 %g, %pair1.g; }"""

# each thread writes to the next CTA of its cluster, through a 32-bit shared address and through a generic one
MAPA = """{ .shared .align 8 .b32 slot[64]; .reg .b32 %at, %to, %rank, %n, %v; .reg .b64 %wide, %far, %window;
mov.u32 %at, slot; mov.u32 %v, %tid.x; mad.lo.u32 %at, %v, 4, %at;
mov.u32 %rank, %cluster_ctarank; mov.u32 %n, %cluster_nctarank; add.u32 %to, %rank, 1; rem.u32 %to, %to, %n;
cvt.u64.u32 %window, %at; cvta.shared.u64 %wide, %window; barrier.cluster.arrive; barrier.cluster.wait;
mapa.shared::cluster.u32 %v, %at, %to; getctarank.shared::cluster.u32 %d, %v; st.shared::cluster.u32 [%v], %a;
mapa.u64 %far, %wide, %to; getctarank.u64 %e, %far; add.u32 %v, %a, 1; st.u32 [%far+128], %v;
barrier.cluster.arrive; barrier.cluster.wait; ld.shared.u32 %f, [%at]; ld.shared.u32 %g, [%at+128]; }"""


def cluster_cases() -> list[Case]:
    def neighbours(a):
        rank = np.arange(128) // 32
        to, source = (rank + 1) % 4, np.roll(a, 32)
        return to, to, source, source + np.uint32(1)

    outs = dict.fromkeys("defg", "u32")
    inputs = {"a": ("u32", bits("u32", 128, 1))}
    wide = {"a": ("b64", bits("b64", N, 1)), "b": ("b64", bits("b64", N, 2))}
    four = dict.fromkeys("defg", "u32")

    def vectors(a):
        return a, a + np.uint32(1), np.full_like(a, 7), a + np.uint32(8)

    return [
        Case("vector registers", VECTORS, inputs, four, vectors),
        Case("mapa and getctarank", MAPA, inputs, outs, neighbours, block=32, cluster=4, draws=False),
        Case("mov.b128", WIDE, wide, {"d": "b64", "e": "b64"}, lambda a, b: (b, a)),
    ]


CASES = prmt_cases() + mov_cases() + cluster_cases()
test_cases = cases_test(CASES)


def test_a_parameters_address_in_a_32_bit_register():
    """Compilers for the tensor map's address: mov.b32, widened, cvta.param."""
    ptx = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 out, .param .align 64 .b8 block[128])
{
  .reg .b32 %r, %v; .reg .b64 %g, %p, %o;
  ld.param.u64 %o, [out]; cvta.to.global.u64 %o, %o;
  mov.b32 %r, block; cvt.u64.u32 %p, %r;
  ld.param.u32 %v, [%p+8]; st.global.u32 [%o], %v;
  ld.param.u32 %v, [%r+12]; st.global.u32 [%o+4], %v;
  cvta.param.u64 %g, %p; ld.u32 %v, [%g+16]; st.global.u32 [%o+8], %v;
  mov.b64 %p, block; cvta.param.u64 %g, %p; ld.u32 %v, [%g+20]; st.global.u32 [%o+12], %v;
  ret;
}
"""
    out, block = np.zeros(4, np.uint32), np.arange(100, 132, dtype=np.uint32)
    launch(ptx, "kernel", 1, 1, [out, block.tobytes()])
    assert out.tolist() == [102, 103, 104, 105]
