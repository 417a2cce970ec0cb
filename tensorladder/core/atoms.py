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


def wgmma_a(bits: int = 16) -> Layout:
    """A of wgmma.m64nNkK in registers, 8, 16 or 32 bits (K = 256 / bits): (thread, value) to m + 64 * k."""
    if bits not in (8, 16, 32):
        raise UsageError(f"wgmma takes A of 8, 16 or 32 bits from registers, not {bits}")
    each = 32 // bits  # elements of a register
    return Layout(((4, 8, 4), (each, 2, 2)), ((64 * each, 1, 16), (64, 8, 256 * each)))


# tcgen05.ld and .st: (thread, register) to lane + LANES * column of tensor memory, from the address of the instruction
# on, LANES being 32 (32x32b) or 16. Source: PTX ISA, "Data Movement Shape"; CUTLASS, copy_traits_sm100.hpp.
_TMEM_SHAPES: dict[str, tuple[int, str]] = {
    "32x32b": (1, "(32,{n}):(1,32)"),
    "16x64b": (1, "((2,2,8),{n}):((8,16,1),32)"),
    "16x128b": (2, "((4,8),(2,{n})):((16,1),(8,64))"),
    "16x256b": (4, "((4,8),(2,2,{n})):((32,1),(16,8,128))"),
    "16x32bx2": (1, "((16,2),{n}):((1,{half}),16)"),
}
TMEM_SHAPES = tuple(_TMEM_SHAPES)


@dataclass(frozen=True)
class TmemAtom:
    """tcgen05.ld or .st of `registers` a thread: tv maps (thread, register) to lane + lanes * column."""

    name: str
    lanes: int
    columns: int
    registers: int
    tv: Layout


def tmem_atom(shape: str, count: int, half: int | None = None) -> TmemAtom:
    """The map of `shape` with .x`count`. half: of 16x32bx2, columns from the half of threads 0-15 to the other's."""
    if shape not in _TMEM_SHAPES:
        raise UsageError(f"no tcgen05.ld shape {shape!r}; one of {', '.join(TMEM_SHAPES)}")
    each, notation = _TMEM_SHAPES[shape]
    if count & (count - 1) or not 1 <= count * each <= 128:
        raise UsageError(f"tcgen05.ld.{shape}.x{count}: the count is a power of two up to {128 // each}")
    lanes = 32 if shape == "32x32b" else 16
    apart = count if half is None else half
    if apart < 0:
        raise UsageError(f"tcgen05.ld.{shape}: half={apart} must not be negative")
    tv = parse(notation.format(n=count, half=16 * apart))
    return TmemAtom(f"{shape}.x{count}", lanes, 1 + (tv.cosize - 1) // lanes, count * each, tv)


@dataclass(frozen=True)
class Accumulator:
    """Where tcgen05.mma puts D in the tensor memory of each of `ctas` CTAs, that have `rows` rows of it each.

    halves: the second half of the `columns` lies in lanes 64 to 127. spread: 16 rows in each quarter of the lanes.
    """

    ctas: int
    rows: int
    columns: int
    halves: bool
    spread: bool

    def lane(self, row: int, column: int) -> int:
        """The lane of an element of the CTA's rows."""
        if self.spread:
            return 32 * (row // 16) + row % 16
        return row + (64 * (column // (self.columns // 2)) if self.halves else 0)

    def column(self, column: int) -> int:
        """The column, from D's first on."""
        return column % (self.columns // 2) if self.halves else column


def accumulator(m: int, n: int, ctas: int = 1) -> Accumulator:
    """D of tcgen05.mma (not .ws) of M x N with cta_group::1 or ::2, 32-bit elements.

    Source: PTX ISA, "Data Path Layout Organization": M = 256 layout A, M = 128 of a pair layout B, M = 128 layout D,
    M = 64 layout F.
    """
    known = {1: (64, 128), 2: (128, 256)}
    if ctas not in known:
        raise UsageError(f"cta_group::{ctas}: a tcgen05.mma is one CTA's (1) or a pair's (2)")
    if m not in known[ctas]:
        raise UsageError(f"M={m}: with cta_group::{ctas} M is {known[ctas][0]} or {known[ctas][1]}")
    step = 16 if ctas == 2 or m == 128 else 8
    if n % step or not step <= n <= 256:
        raise UsageError(f"N={n}: with cta_group::{ctas} and M={m} N is a multiple of {step} up to 256")
    return Accumulator(ctas, m // ctas, n, ctas == 2 and m == 128, ctas == 1 and m == 64)
