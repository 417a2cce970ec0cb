"""What can be wrong with a tcgen05.mma: numbers for the native code, words for messages.

The rules on the instruction descriptor are those of PTX ISA 9.7.16.4.2 ("Instruction descriptor") with the shapes of
9.7.16.2.1 and 9.7.16.10.1 to 10.3; those on matrix descriptors of 9.7.16.4.1 ("Shared memory descriptor").
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L

#: broken rules of an instruction descriptor (ERR_MMA_IDESC), in the order of IDESC_TEXTS
(IDESC_SPARSE, IDESC_SATURATE, IDESC_DTYPE, IDESC_RESERVED, IDESC_SHIFT, IDESC_ATYPE, IDESC_BTYPE, IDESC_NEGATE,
 IDESC_TRANSPOSE, IDESC_TRANSPOSE_A, IDESC_M, IDESC_N, IDESC_SCALE_TYPE, IDESC_SFA, IDESC_SFB, IDESC_K96,
 IDESC_BF16_SUM) = range(1, 18)  # fmt: skip

#: {b} is the offending value
IDESC_TEXTS = (
    "",
    "the sparsity bit (2) is set, and this instruction is dense",
    "saturation (bit 3) is of .kind::i8 alone",
    "matrix D type {b} (bits 4-5) is not one of this kind",
    "reserved bits {b:#x} are set",
    "the maximum shift {b} (bits 30-31) is of .ws alone",
    "matrix A type {b} (bits 7-9) is not one of this kind",
    "matrix B type {b} (bits 10-12) is not one of this kind",
    "this kind cannot negate a matrix (bits 13-14)",
    "a matrix of this type cannot be transposed (bits 15-16)",
    "matrix A in tensor memory cannot be transposed (bit 15)",
    "M = {b} is not a shape of this kind and .cta_group",
    "N = {b} is not a shape of this kind and .cta_group",
    "scale matrix type {b} (bit 23) does not go with this kind and scale vector size",
    "scale factor A ID {b} (bits 29-30) does not go with the scale vector size",
    "scale factor B ID {b} (bits 4-5) does not go with the scale vector size",
    "K = 96 (bit 31) exists on sm_103a only, which is not modelled",
    "a 16-bit matrix D (bits 4-5) needs f16 matrices A and B",
)

#: broken rules of a matrix descriptor (ERR_MMA_DESC), in the order of DESC_TEXTS
(DESC_VERSION, DESC_ZERO, DESC_MODE, DESC_LAYOUT, DESC_BASE, DESC_ATOM32, DESC_TF32) = range(1, 8)

DESC_TEXTS = (
    "",
    "bits 46-48 are not 0b001",
    "bits 53-60 are not 0",
    "the absolute leading dimension mode (bit 52) exists on sm_103a only, which is not modelled",
    "its swizzling mode (bits 61-63) is not one of 0, 1, 2, 4, 6",
    "it has a base offset (bits 49-51) without swizzling",
    "128-byte swizzling with 32-byte atoms goes with 32-bit elements only when the matrix is transposed",
    "a transposed matrix of 32-bit elements needs 128-byte swizzling with 32-byte atoms",
)

#: operands, as messages name them
OPERAND_A, OPERAND_B, OPERAND_D, OPERAND_SFA, OPERAND_SFB = range(5)
_OPERANDS = ("matrix A", "matrix B", "matrix D", "the scale factors of A", "the scale factors of B")


def describe(code: int, address: int, a: int, b: int) -> str:
    """The message of an error code ERR_MMA_*, from what was recorded with it."""
    address &= (1 << 64) - 1
    if code == L.ERR_MMA_IDESC:
        return f"instruction descriptor {address:#x}: {IDESC_TEXTS[a].format(b=b)}"
    if code == L.ERR_MMA_DESC:
        return f"shared-memory descriptor {address:#x} of {_OPERANDS[b]}: {DESC_TEXTS[a]}"
    if code == L.ERR_MMA_TILE:
        return f"the tile of {_OPERANDS[b]} that descriptor {address:#x} names leaves the CTA's shared memory"
    if code == L.ERR_MMA_COLUMNS:
        return (
            f"{_OPERANDS[b]} at tensor memory address {address:#x}: {a} columns are not all the CTA's when the product "
            "is done (deallocated before its tcgen05.commit was waited for?)"
        )
    if code == L.ERR_MMA_LANE:
        return f"{_OPERANDS[b]} at tensor memory address {address:#x}: its lane must be {'0 or 16' if a else '0'}"
    if code == L.ERR_MMA_LANES_DIFFER:
        return f"matrix A at tensor memory address {address:#x} and matrix D have different lanes (bits 16-31)"
    return (
        f"{_OPERANDS[b]} at tensor memory address {address:#x} are not the same in all lane partitions (row {a}); "
        "the ISA wants them duplicated (tcgen05.cp .warpx4)"
    )


CODES = range(L.ERR_MMA_IDESC, L.ERR_MMA_SCALES + 1)
