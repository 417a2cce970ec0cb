"""Which thread holds what: TV layouts of the tensor-core instructions, as data.

Each layout maps (thread, value) to an index in the operand's tile, first axis fastest: A is (m, k), B is (n, k), C and
D are (m, n). A thread's values are in register order, packed elements in order within a register. Source: PTX ISA,
"Matrix Fragments for mma" of each shape and type, "ldmatrix" and "Register Fragments and Shared Memory Matrix Layouts"
of wgmma; the tests recompute each from the row and column formulas printed there.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorladder.core.errors import UsageError
from tensorladder.core.layout import Layout, parse


@dataclass(frozen=True)
class MmaAtom:
    """One warp-wide mma.sync shape for operands of `bits` bits. a, b, c: TV layouts; source: the PTX ISA's heading."""

    name: str
    shape: tuple[int, int, int]
    bits: int
    a: Layout
    b: Layout
    c: Layout
    source: str

    @property
    def a_tile(self) -> tuple[int, int]:
        return self.shape[0], self.shape[2]

    @property
    def b_tile(self) -> tuple[int, int]:
        return self.shape[1], self.shape[2]

    @property
    def c_tile(self) -> tuple[int, int]:
        return self.shape[0], self.shape[1]


_C16X8 = "((4,8),(2,2)):((32,1),(16,8))"
_C8X8 = "((4,8),2):((16,1),8)"

_ROWS = (
    # (m, n, k), operand bits, A, B, C, types
    ((16, 8, 8), 16, "((4,8),(2,2)):((32,1),(16,8))", "((4,8),2):((16,1),8)", _C16X8, ".f16/.bf16"),
    ((16, 8, 16), 16, "((4,8),(2,2,2)):((32,1),(16,8,128))", "((4,8),(2,2)):((16,1),(8,64))", _C16X8, ".f16/.bf16"),
    ((16, 8, 4), 32, "((4,8),2):((16,1),8)", "((4,8),1):((8,1),0)", _C16X8, ".tf32"),
    ((16, 8, 8), 32, "((4,8),(2,2)):((16,1),(8,64))", "((4,8),2):((8,1),32)", _C16X8, ".tf32"),
    ((16, 8, 16), 8, "((4,8),(4,2)):((64,1),(16,8))", "((4,8),4):((32,1),8)", _C16X8, ".u8/.s8/.e4m3/.e5m2"),
    ((16, 8, 32), 8, "((4,8),(4,2,2)):((64,1),(16,8,256))", "((4,8),(4,2)):((32,1),(8,128))", _C16X8,
     ".u8/.s8/.e4m3/.e5m2"),
    ((8, 8, 16), 8, "((4,8),4):((32,1),8)", "((4,8),4):((32,1),8)", _C8X8, ".u8/.s8"),
    ((16, 8, 32), 4, "((4,8),(8,2)):((128,1),(16,8))", "((4,8),8):((64,1),8)", _C16X8, ".u4/.s4"),
    ((16, 8, 64), 4, "((4,8),(8,2,2)):((128,1),(16,8,512))", "((4,8),(8,2)):((64,1),(8,256))", _C16X8, ".u4/.s4"),
    ((8, 8, 4), 64, "((4,8),1):((8,1),0)", "((4,8),1):((8,1),0)", _C8X8, ".f64"),
    ((16, 8, 4), 64, "((4,8),2):((16,1),8)", "((4,8),1):((8,1),0)", _C16X8, ".f64"),
    ((16, 8, 8), 64, "((4,8),(2,2)):((16,1),(8,64))", "((4,8),2):((8,1),32)", _C16X8, ".f64"),
    ((16, 8, 16), 64, "((4,8),(2,4)):((16,1),(8,64))", "((4,8),4):((8,1),32)", _C16X8, ".f64"),
)  # fmt: skip


def _atom(shape: tuple[int, int, int], bits: int, a: str, b: str, c: str, types: str) -> MmaAtom:
    m, n, k = shape
    name = f"m{m}n{n}k{k}"
    source = f"PTX ISA, Matrix Fragments for mma.{name} with {types} type"
    return MmaAtom(name, shape, bits, parse(a), parse(b), parse(c), source)


MMA_ATOMS: dict[tuple[str, int], MmaAtom] = {(a.name, a.bits): a for a in (_atom(*row) for row in _ROWS)}


def mma_atom(name: str, bits: int) -> MmaAtom:
    """The fragments of mma.sync's shape `name` ("m16n8k16") for operands of `bits` bits (tf32 counts 32)."""
    if (name, bits) not in MMA_ATOMS:
        known = ", ".join(f"{n} ({b}-bit)" for n, b in MMA_ATOMS)
        raise UsageError(f"no mma atom {name} for {bits}-bit operands; one of {known}")
    return MMA_ATOMS[name, bits]


# ldmatrix and stmatrix move 8x8 matrices of 16-bit elements. Thread t of matrix i's eight (8i..8i+7) gives the address
# of its row t % 8; afterwards every thread holds two elements of each matrix. (thread, value) -> row + 8 * column.
LDMATRIX = parse("((4,8),2):((16,1),8)")
LDMATRIX_TRANS = parse("((4,8),2):((2,8),1)")


def ldmatrix(count: int, trans: bool = False) -> Layout:
    """(thread, (element, matrix)) to row + 8 * column + 64 * matrix, for .x1, .x2 and .x4."""
    if count not in (1, 2, 4):
        raise UsageError(f"ldmatrix moves 1, 2 or 4 matrices, not {count}")
    one = LDMATRIX_TRANS if trans else LDMATRIX
    value = one[1]
    return Layout((one.shape[0], (value.shape, count)), (one.stride[0], (value.stride, 64)))  # type: ignore[index]


def wgmma_d(n: int) -> Layout:
    """D of wgmma.m64nNkK: (thread of the warpgroup, value) to m + 64 * n."""
    if n % 8 or not 8 <= n <= 256:
        raise UsageError(f"wgmma's N is a multiple of 8 from 8 to 256, not {n}")
    return Layout(((4, 8, 4), (2, 2, n // 8)), ((128, 1, 16), (64, 8, 512)))


def wgmma_a() -> Layout:
    """A of wgmma.m64nNk16 in registers, 16-bit: (thread of the warpgroup, value) to m + 64 * k."""
    return Layout(((4, 8, 4), (2, 2, 2)), ((128, 1, 16), (64, 8, 512)))
