"""Fragment layouts against the row and column formulas of the PTX ISA, element by element."""

import numpy as np
import pytest

from tensorladder.core.atoms import LDMATRIX, MMA_ATOMS, ldmatrix, mma_atom, wgmma_a, wgmma_d
from tensorladder.core.errors import UsageError
from tensorladder.core.layout import mn_to_tv, tv_to_mn

GROUPS = {16: 2, 8: 4, 4: 8, 32: 1, 64: 1}  # elements of a 32-bit register (of 64 bits for f64)


def a_formula(atom, lane, i):
    """Row and column of a_i: groupID = lane / 4; a register holds `w` neighbours in k; rows alternate first."""
    w = GROUPS[atom.bits]
    register, within = divmod(i, w)
    rows = atom.shape[0] // 8
    row = lane // 4 + 8 * (register % rows)
    return row, lane % 4 * w + within + 4 * w * (register // rows)


def b_formula(atom, lane, i):
    """Column (n) and row (k) of b_i: n = groupID, registers go along k."""
    w = GROUPS[atom.bits]
    return lane // 4, lane % 4 * w + i % w + 4 * w * (i // w)


def c_formula(atom, lane, i):
    return lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2


@pytest.mark.parametrize("key", MMA_ATOMS, ids=lambda k: f"{k[0]}-{k[1]}bit")
@pytest.mark.parametrize("operand", "abc")
def test_fragments_are_the_isas(key, operand):
    atom = MMA_ATOMS[key]
    tile = getattr(atom, f"{operand}_tile")
    formula = {"a": a_formula, "b": b_formula, "c": c_formula}[operand]
    where = tv_to_mn(getattr(atom, operand), tile)
    lanes, values = where.shape[:2]
    assert lanes == 32 and values == tile[0] * tile[1] // 32
    want = [[formula(atom, lane, i) for i in range(values)] for lane in range(lanes)]
    assert where.tolist() == [[list(p) for p in row] for row in want]
    assert mn_to_tv(getattr(atom, operand), tile).min() == 0  # every element has a holder


def test_m16n8k16_spelled_out():
    """PTX ISA, m16n8k16 with .f16: row = groupID for a0 a1 a4 a5, + 8 for a2 a3 a6 a7; column + 8 from a4 on."""
    where = tv_to_mn(mma_atom("m16n8k16", 16).a, (16, 16))
    assert where[5].tolist() == [[1, 2], [1, 3], [9, 2], [9, 3], [1, 10], [1, 11], [9, 10], [9, 11]]


def test_ldmatrix():
    """Lane t gets row t / 4, columns 2 (t % 4) and the next; .trans swaps rows and columns."""
    plain, swapped = tv_to_mn(LDMATRIX, (8, 8)), tv_to_mn(ldmatrix(1, trans=True), (8, 8))
    assert plain[6].tolist() == [[1, 4], [1, 5]]
    np.testing.assert_array_equal(swapped, plain[..., ::-1])
    four = ldmatrix(4)
    assert four(6, (1, 3)) == 1 + 8 * 5 + 64 * 3
    # ldmatrix.x4 of the four quarters of a 16x16 tile, in the order (0,0) (8,0) (0,8) (8,8), is the A fragment.
    a = tv_to_mn(mma_atom("m16n8k16", 16).a, (16, 16))
    for lane in range(32):
        for v in range(8):
            matrix, index = divmod(four(lane, (v % 2, v // 2)), 64)
            assert a[lane, v].tolist() == [index % 8 + 8 * (matrix % 2), index // 8 + 8 * (matrix // 2)]


@pytest.mark.parametrize("n", [8, 64, 256])
def test_wgmma_accumulator(n):
    """Warp w of the warpgroup holds rows 16w..16w+15; within it the fragment is that of m16n8, along n."""
    where = tv_to_mn(wgmma_d(n), (64, n))
    for t in (0, 37, 127):
        for v in range(where.shape[1]):
            j, e = divmod(v, 4)
            assert where[t, v].tolist() == [16 * (t // 32) + t % 32 // 4 + 8 * (e // 2), 8 * j + 2 * (t % 4) + e % 2]
    assert tv_to_mn(wgmma_a(), (64, 16)).shape == (128, 8, 2)


@pytest.mark.parametrize(
    "call", [lambda: mma_atom("m16n8k7", 16), lambda: ldmatrix(3), lambda: wgmma_d(12), lambda: wgmma_d(264)]
)
def test_bad_input(call):
    with pytest.raises(UsageError):
        call()


def test_same_as_cute():
    cutlass = pytest.importorskip("cutlass")
    cute = cutlass.cute
    seen = {}

    @cute.jit
    def trace():
        for shape in ((16, 8, 8), (16, 8, 16)):
            op = cute.nvgpu.warp.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, shape)
            mma = cute.make_tiled_mma(op)
            seen["m{}n{}k{}".format(*shape)] = [str(x) for x in (mma.tv_layout_A, mma.tv_layout_B, mma.tv_layout_C)]

    cute.compile(trace, options="--gpu-arch sm_80")
    for name, layouts in seen.items():
        atom = mma_atom(name, 16)
        assert layouts == [str(atom.a), str(atom.b), str(atom.c)]
    assert len(seen) == 2
