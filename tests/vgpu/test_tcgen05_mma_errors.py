"""What tcgen05.mma refuses: descriptors of no instruction, operands out of place, forms that are not modelled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tensorladder import vgpu
from tensorladder.core.errors import KernelError, Unsupported
from tests.vgpu import mma_kernels as K
from tests.vgpu.mma_kernels import ATOM32, NONE, SW64, Job, Tile, idesc, mma, scaled_idesc

TILE = Tile()
B = Tile(start=16 * 1024)
GOOD = idesc("f16", "f16", 128, 32)


def run(line: K.Mma, ctas: int = 1, size: int = 32 * 1024, columns: int = 512) -> None:
    K.run(Job([np.zeros(size, np.uint8)] * ctas, [line], columns=columns))


def stop(line: K.Mma, message: str, **options) -> None:
    with pytest.raises(KernelError, match=message):
        run(line, **options)


def plain(descriptor, kind="f16", a=TILE.descriptor, b=B.descriptor, d=0, **options) -> K.Mma:
    """An instruction with one thing to be looked at."""
    return mma(kind, d, a, b, descriptor, **options)


def test_the_good_ones():
    run(plain(GOOD))
    version_of_sparsity = 1 << 12  # of no meaning in a dense product; CuTe DSL sets it
    dense = scaled_idesc("mxf4", "mxf4", 128, 32) | version_of_sparsity
    run(plain(dense, "mxf4", more=".block_scale", scales=(448, 464)))


@pytest.mark.parametrize("kind, descriptor, message", [
    ("f16", GOOD | 1 << 2, r"sparsity bit \(2\)"),
    ("f16", GOOD | 1 << 3, r"saturation \(bit 3\)"),
    ("f16", idesc("f16", "f16", 128, 32, "s32"), r"matrix D type 2 \(bits 4-5\)"),
    ("tf32", idesc("tf32", "tf32", 128, 32, "f16"), r"matrix D type 0 \(bits 4-5\)"),
    ("i8", idesc("s8", "s8", 128, 32, "f32"), r"matrix D type 1 \(bits 4-5\)"),
    ("f16", idesc("bf16", "bf16", 128, 32, "f16"), r"16-bit matrix D .* needs f16 matrices"),
    ("f16", GOOD | 1 << 6, r"reserved bits 0x40"),
    ("f16", GOOD | 1 << 30, r"maximum shift 1 \(bits 30-31\)"),
    ("f16", GOOD | 2 << 7, r"matrix A type 2 \(bits 7-9\)"),
    ("f8f6f4", idesc("e4m3", "e4m3", 128, 32) | 2 << 10, r"matrix B type 2 \(bits 10-12\)"),
    ("i8", idesc("s8", "s8", 128, 32, "s32", na=True), r"cannot negate"),
    ("f8f6f4", idesc("e2m1", "e4m3", 128, 32, ta=True), r"cannot be transposed \(bits 15-16\)"),
    ("f16", idesc("f16", "f16", 256, 32), r"M = 256 is not a shape"),
    ("f16", idesc("f16", "f16", 96, 32), r"M = 96 is not a shape"),
    ("f16", idesc("f16", "f16", 128, 0), r"N = 0 is not a shape"),
    ("f16", idesc("f16", "f16", 128, 264), r"N = 264 is not a shape"),
    ("i8", idesc("s8", "s8", 128, 40, "s32"), r"N = 40 is not a shape"),
    ("f8f6f4", idesc("e4m3", "e4m3", 128, 24, tb=True), r"N = 24 is not a shape"),
])  # fmt: skip
def test_instruction_descriptors(kind, descriptor, message):
    stop(plain(descriptor, kind), f"instruction descriptor {descriptor:#x}: .*{message}")


@pytest.mark.parametrize("kind, more, descriptor, message", [
    ("mxf8f6f4", "", scaled_idesc("e4m3", "e4m3", 128, 32, "ue4m3"), r"scale matrix type 0 \(bit 23\)"),
    ("mxf4", "", scaled_idesc("mxf4", "mxf4", 128, 32, ida=1), r"scale factor A ID 1 \(bits 29-30\)"),
    ("mxf4nvf4", ".block16", scaled_idesc("mxf4", "mxf4", 128, 32, "ue4m3", idb=2), r"scale factor B ID 2 \(bits 4"),
    ("mxf4nvf4", ".block32", scaled_idesc("mxf4", "mxf4", 128, 32, "ue4m3"), r"scale matrix type 0"),
    ("mxf4", "", scaled_idesc("mxf4", "mxf4", 128, 32) | 1 << 31, r"K = 96"),
    ("mxf4", "", scaled_idesc("mxf4", "mxf4", 128, 32, tb=True), r"cannot be transposed"),
    ("mxf8f6f4", "", scaled_idesc("e4m3", "e4m3", 128, 32) | 1 << 25, r"reserved bits 0x2000000"),
])  # fmt: skip
def test_scaled_descriptors(kind, more, descriptor, message):
    stop(plain(descriptor, kind, more=".block_scale" + more, scales=(448, 464)), message)


@pytest.mark.parametrize("tile, kind, descriptor, message", [
    (TILE.descriptor & ~(1 << 46), "f16", GOOD, "bits 46-48 are not 0b001"),
    (TILE.descriptor | 1 << 55, "f16", GOOD, "bits 53-60 are not 0"),
    (TILE.descriptor | 1 << 52, "f16", GOOD, r"absolute leading dimension mode \(bit 52\)"),
    (TILE.descriptor | 1 << 61, "f16", GOOD, r"swizzling mode \(bits 61-63\) is not one of"),
    (Tile(NONE, base=2).descriptor, "f16", GOOD, "base offset .* without swizzling"),
    (Tile(ATOM32, True).descriptor, "f16", idesc("f16", "f16", 128, 32, ta=True), "32-byte atoms goes with 32-bit"),
    (Tile(SW64, True).descriptor, "tf32", idesc("tf32", "tf32", 128, 32, ta=True), "transposed .* 32-byte atoms"),
])  # fmt: skip
def test_matrix_descriptors(tile, kind, descriptor, message):
    stop(plain(descriptor, kind, a=tile), f"shared-memory descriptor .* of matrix A: .*{message}")


def test_tiles_outside_shared_memory():
    stop(plain(GOOD, a=Tile(start=32 * 1024).descriptor), "tile of matrix A .* leaves the CTA's shared memory")
    stop(plain(GOOD, b=Tile(start=31 * 1024, sbo=8192).descriptor), "tile of matrix B .* leaves")


def test_places_in_tensor_memory():
    stop(plain(GOOD, d=496), "matrix D at .*: 32 columns are not all the CTA.s when the product is done")
    stop(plain(GOOD, d=48), "matrix D", columns=64)
    stop(plain(GOOD, d=16 << 16), "matrix D at .*: its lane must be 0")
    stop(plain(idesc("f16", "f16", 64, 32), d=8 << 16), "its lane must be 0 or 16")
    stop(plain(GOOD, a="tmem:510"), "matrix A at .*: 8 columns are not all")
    stop(plain(idesc("f16", "f16", 64, 32), a="tmem:64", d=16 << 16), "matrix A at .* different lanes")
    scaled = scaled_idesc("mxf4", "mxf4", 128, 256)
    stop(plain(scaled, "mxf4", more=".block_scale", scales=(448, 510)), "scale factors of B at .*: 8 columns")


def test_transposed_a_in_tensor_memory():
    stop(plain(idesc("f16", "f16", 128, 32, ta=True), a="tmem:64"), r"tensor memory cannot be transposed \(bit 15\)")


def test_forms_that_are_not_modelled():
    for line, name in (
        (replace(plain(GOOD), opcode="tcgen05.mma.ws"), r"\.ws"),
        (plain(GOOD, a="tmem:64", more=".ashift"), r"\.ashift"),
    ):
        with pytest.raises(Unsupported, match=name):
            run(line)


def test_a_pair_needs_a_peer():
    text = """.version 8.6
.target sm_100a
.address_size 64
.visible .entry kernel()
{
  .reg .b32 %d, %i; .reg .b64 %a; .reg .pred %p;
  mov.u32 %d, 0; mov.u32 %i, 0; mov.u64 %a, 0; setp.eq.u32 %p, %d, 0;
  tcgen05.mma.cta_group::2.kind::f16 [%d], %a, %a, %i, %p;
  ret;
}
"""
    with pytest.raises(KernelError, match="peer"):
        vgpu.launch(text, "kernel", 1, 32, [], arch="sm_100a")
