"""What stands in the cells, against formulas written out here: layouts, banks, fragments, tensor memory, rasters."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tensorladder.core import atoms
from tensorladder.core.layout import parse, tv_to_mn
from tensorladder.core.matrixdesc import MatrixDescriptor, decode, packed
from tensorladder.core.swizzle import mode
from tensorladder.draw.grid import record
from tensorladder.draw.what import draw


def cells(what: str, panel: int = 0) -> dict[tuple[int, int], dict]:
    """(row, column) to the record of the cell."""
    return {(cell["row"], cell["column"]): cell for cell in record(draw(what))["panels"][panel]["cells"]}


def grid(what: str, name: str, panel: int = 0) -> np.ndarray:
    found = cells(what, panel)
    rows, columns = (1 + max(at[i] for at in found) for i in (0, 1))
    return np.array([[found[i, j][name] for j in range(columns)] for i in range(rows)])


# ---------------------------------------------------------------- layouts
def test_a_layout_by_hand():
    i, j = np.indices((4, 8))
    np.testing.assert_array_equal(grid("(4,(2,4)):(2,(1,8))", "index"), 2 * i + j % 2 + 8 * (j // 2))
    assert cells("(4,(2,4)):(2,(1,8))")[3, 5]["text"] == "23"


def test_a_swizzled_layout_by_hand():
    i, j = np.indices((8, 32))
    plain = 32 * i + j
    np.testing.assert_array_equal(grid("S<2,3,3> o 0 o (8,32):(32,1)", "index"), plain ^ ((plain >> 6 & 3) << 3))


def test_one_mode_is_a_row_and_a_third_mode_is_a_panel_each():
    np.testing.assert_array_equal(grid("6:3", "index"), [[0, 3, 6, 9, 12, 15]])
    panels = record(draw("(2,3,(2,2)):(1,2,(6,100))"))["panels"]
    assert [panel["title"].split()[-1] for panel in panels] == ["(0,0)", "(1,0)", "(0,1)", "(1,1)"]
    np.testing.assert_array_equal(grid("(2,3,(2,2)):(1,2,(6,100))", "index", 3), [[106, 108, 110], [107, 109, 111]])


def test_shared_indices_are_said():
    assert "share" in draw("(4,4):(1,0)").notes[0] and draw("(4,4):(1,0)").facts["distinct"] == 4
    assert "share" not in draw("(4,4):(1,4)").notes[0]


# ---------------------------------------------------------------- swizzles
def banks_by_hand(rows: int, words: int, bits: int, pitch: int) -> np.ndarray:
    """Hardware swizzles: chunk number XOR the number of the 128-byte row, `bits` bits of it."""
    i, j = np.indices((rows, words))
    at = i * pitch + 4 * j
    return (at ^ ((at >> 7 & ((1 << bits) - 1)) << 4)) >> 2 & 31


@pytest.mark.parametrize(("name", "bits"), [("none", 0), ("32B", 1), ("64B", 2), ("128B", 3)])
@pytest.mark.parametrize("columns", [32, 64])
def test_banks(name, bits, columns):
    got = grid(f"swizzle:{name},tile=16x{columns},access=none", "bank")
    np.testing.assert_array_equal(got, banks_by_hand(16, columns // 2, bits, 2 * columns))


#: access -> (words of 4 bytes that lane l reads of a tile with 32-word rows, lanes served together)
READS = {
    "column": (lambda lane, at: [(lane, at // 2)], 32),
    "fragment": (lambda lane, at: [(lane // 4, at // 2 + lane % 4)], 32),
    "row": (lambda lane, at: [(at, lane)], 32),
    "ldmatrix": (lambda lane, at: [(lane, at // 2 + word) for word in range(4)], 8),
}


@pytest.mark.parametrize("access", READS)
@pytest.mark.parametrize("name", ["none", "64B", "128B"])
@pytest.mark.parametrize("at", [0, 24])
def test_conflicts_counted_word_by_word(access, name, at):
    what = f"swizzle:{name},tile=32x64,access={access},at={at}"
    read, together = READS[access]
    bank = grid(what, "bank")
    wavefronts = 0
    for first in range(0, 32, together):
        words = {word for lane in range(first, first + together) for word in read(lane, at)}
        wavefronts += max(Counter(bank[word] for word in words).values())
    assert draw(what).facts["wavefronts"] == wavefronts
    marked = {place for place, cell in cells(what).items() if cell["marked"]}
    assert marked == {word for lane in range(32) for word in read(lane, at)}
    asked = grid(what, "words", 1)
    assert asked.max(axis=1).sum() == wavefronts and asked.sum() == len(marked)


def test_what_a_swizzle_is_for():
    assert draw("swizzle:none,tile=32x64").facts["wavefronts"] == 32
    assert draw("swizzle:128B,tile=32x64").facts == {
        "wavefronts": 4, "ideal": 4, "plain_wavefronts": 32, "lanes": 32, "width": 16,
    }  # fmt: skip
    assert draw("swizzle:none,tile=32x64,pad=16").facts["wavefronts"] == 4


# ---------------------------------------------------------------- fragments
def test_mma_in_the_words_of_the_isa():
    """m16n8k16: groupID = lane / 4; a0 a1 in row groupID, a2 a3 in row groupID + 8, a4 to a7 eight columns on."""
    what = "mma:m16n8k16"
    (m, k) = np.indices((16, 16))
    np.testing.assert_array_equal(grid(what, "thread", 0), 4 * (m % 8) + k % 8 // 2)
    np.testing.assert_array_equal(grid(what, "value", 0), k % 2 + 2 * (m // 8) + 4 * (k // 8))
    (k, n) = np.indices((16, 8))
    np.testing.assert_array_equal(grid(what, "thread", 1), 4 * n + k % 8 // 2)
    np.testing.assert_array_equal(grid(what, "value", 1), k % 2 + 2 * (k // 8))
    (m, n) = np.indices((16, 8))
    np.testing.assert_array_equal(grid(what, "thread", 2), 4 * (m % 8) + n // 2)
    np.testing.assert_array_equal(grid(what, "value", 2), n % 2 + 2 * (m // 8))
    assert cells(what, 2)[9, 3]["text"] == "T5 V3"


@pytest.mark.parametrize(("name", "bits"), atoms.MMA_ATOMS)
def test_every_atom_is_drawn_and_each_thread_holds_as_much(name, bits):
    for panel in record(draw(f"mma:{name},bits={bits}"))["panels"]:
        held = Counter(cell["thread"] for cell in panel["cells"])
        assert set(held) == set(range(32)) and len(set(held.values())) == 1
        assert all(cell["holders"] == 1 for cell in panel["cells"])


@pytest.mark.parametrize("n", [8, 136])
def test_wgmma_accumulators(n):
    m, j = np.indices((64, n))
    np.testing.assert_array_equal(grid(f"wgmma:{n}", "thread"), 32 * (m // 16) + 4 * (m % 8) + j % 8 // 2)
    np.testing.assert_array_equal(grid(f"wgmma:{n}", "value"), j % 2 + 2 * (m % 16 // 8) + 4 * (j // 8))


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_wgmma_with_a_in_registers(bits):
    """PTX ISA: a register holds 32 / bits neighbours along K; then row + 8, then the other half of K."""
    each = 32 // bits
    m, k = np.indices((64, 8 * each))
    what = f"wgmma:operand=a,bits={bits}"
    np.testing.assert_array_equal(grid(what, "thread"), 32 * (m // 16) + 4 * (m % 8) + k % (4 * each) // each)
    value = k % each + each * (m % 16 // 8) + 2 * each * (k // (4 * each))
    np.testing.assert_array_equal(grid(what, "value"), value)


@pytest.mark.parametrize("kind", ["ldmatrix", "stmatrix"])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix_and_stmatrix(kind, count, trans):
    what = f"{kind}:x{count}{',trans' if trans else ''}"
    panels = record(draw(what))["panels"]
    i, j = np.indices((8, 8))
    row, column = (j, i) if trans else (i, j)
    assert [panel["row_heads"] for panel in panels] == [[f"T{8 * p + r}" for r in range(8)] for p in range(count)]
    for panel in range(count):
        np.testing.assert_array_equal(grid(what, "thread", panel), 4 * row + column // 2)
        np.testing.assert_array_equal(grid(what, "value", panel), column % 2)


def test_a_copy_and_a_tv_layout():
    i, j = np.indices((16, 64))
    what = "copy:(16,8):(8,1),values=(1,8):(8,1)"
    np.testing.assert_array_equal(grid(what, "thread"), 8 * i + j // 8)
    np.testing.assert_array_equal(grid(what, "value"), j % 8)
    np.testing.assert_array_equal(grid("copy:8:1,values=4:1", "thread"), np.arange(32)[:, None] // 4)
    assert cells("tv:(2,2):(1,2),tile=2x3")[1, 2]["thread"] is None  # nobody's
    assert cells("tv:(4,2):(0,1),tile=2x1")[0, 0]["text"] == "T0 V0+3"  # broadcast


# ---------------------------------------------------------------- tensor memory
def places(shape: str, count: int, half: int) -> np.ndarray:
    """(lane, column) of [thread, register] (PTX ISA, "Data Movement Shape": the figures, in 32-bit columns)."""
    t, r = np.meshgrid(np.arange(32), np.arange({"16x128b": 2, "16x256b": 4}.get(shape, 1) * count), indexing="ij")
    return np.stack({
        "32x32b": (t, r),
        "16x64b": (t // 4 + 8 * (t & 1), 2 * r + (t >> 1 & 1)),
        "16x128b": (t // 4 + 8 * (r & 1), 4 * (r // 2) + t % 4),
        "16x256b": (t // 4 + 8 * (r >> 1 & 1), 8 * (r // 4) + 2 * (t % 4) + (r & 1)),
        "16x32bx2": (t % 16, r + half * (t // 16)),
    }[shape], -1)  # fmt: skip


@pytest.mark.parametrize("shape", atoms.TMEM_SHAPES)
@pytest.mark.parametrize("count", [1, 2, 8, 32])
def test_loads_of_tensor_memory(shape, count):
    atom = atoms.tmem_atom(shape, count)
    want = places(shape, count, count)
    np.testing.assert_array_equal(tv_to_mn(atom.tv, (atom.lanes, atom.columns)), want)
    found = cells(f"tmem:{shape}.x{count}")
    assert len(found) == atom.lanes * atom.columns == 32 * atom.registers
    for t, r in ((0, 0), (5, 0), (31, atom.registers - 1)):
        assert found[tuple(want[t, r])]["text"] == f"T{t} R{r}"


def test_the_second_half_of_16x32bx2_lies_where_it_is_told():
    found = cells("tmem:16x32bx2.x2,half=6")
    assert found[3, 7]["text"] == "T19 R1" and found[3, 2]["thread"] is None


@pytest.mark.parametrize(
    ("m", "n", "ctas", "place"),
    [(64, 24, 1, lambda r, c, n: (0, r // 16 * 32 + r % 16, c)),
     (128, 48, 1, lambda r, c, n: (0, r, c)),
     (128, 192, 2, lambda r, c, n: (r // 64, r % 64 + 64 * (c // (n // 2)), c % (n // 2))),
     (256, 240, 2, lambda r, c, n: (r // 128, r % 128, c))],
)  # fmt: skip
def test_accumulators_element_by_element(m, n, ctas, place):
    """The cell that an element's lane and column fall into names the element's row and column."""
    panels = [cells(f"accumulator:{m}x{n},cta_group={ctas}", cta) for cta in range(ctas)]
    width = draw(f"accumulator:{m}x{n},cta_group={ctas}").facts["tmem_columns"] // (1 + max(j for _, j in panels[0]))
    used = set()
    for row in range(m):
        for column in range(n):
            cta, lane, tmem_column = place(row, column, n)
            at = (lane // 16, tmem_column // width)
            cell = panels[cta][at]
            assert (cell["m"] + lane % 16, cell["n"] + tmem_column % width) == (row, column)
            used.add((cta, *at))
    named = {(cta, *at) for cta, panel in enumerate(panels) for at, cell in panel.items() if "m" in cell}
    assert named == used


# ---------------------------------------------------------------- matrix descriptors
#: (swizzle, major, bits) -> the canonical layout of 64 x 32 bytes in CuTe's notation, in elements (CUTLASS,
#: mma_sm90_desc.hpp, "canonical layouts"), for these LBO and SBO in bytes
CANONICAL = {
    ("none", "k", 16): ("((8,8),(8,2)):((8,64),(1,512))", 1024, 128),
    ("32B", "k", 16): ("((8,8),(8,2)):((16,128),(1,8))", 0, 256),
    ("64B", "k", 8): ("((8,8),(16,2)):((64,512),(1,16))", 0, 512),
    ("128B", "k", 16): ("((8,8),(8,2)):((64,512),(1,8))", 0, 1024),
    ("128B", "k", 32): ("((8,8),(4,2)):((32,256),(1,4))", 0, 1024),
    ("none", "mn", 16): ("((8,8),(8,2)):((1,128),(8,64))", 128, 256),
    ("32B", "mn", 16): ("((16,4),(8,2)):((1,256),(16,128))", 512, 256),
    ("64B", "mn", 16): ("((32,2),(8,2)):((1,512),(32,256))", 1024, 512),
    ("128B", "mn", 16): ("((64,1),(8,2)):((1,0),(64,512))", 0, 1024),
    ("128B_atom_32B", "mn", 32): ("((32,2),(4,2)):((1,256),(32,128))", 1024, 512),
}


@pytest.mark.parametrize("key", CANONICAL, ids=lambda key: "-".join(map(str, key)))
def test_descriptors_name_the_canonical_layouts(key):
    (name, major, bits), (notation, lbo, sbo) = key, CANONICAL[key]
    start, size, depth = 2048, bits // 8, 256 // bits
    where = mode(name)(start + size * parse(notation).indices())  # the byte of each element (extent, k)
    what = f"descriptor:{name},major={major},bits={bits},tile=64x{depth},start={start},lbo={lbo},sbo={sbo}"
    found = {cell["address"]: tuple(cell["elements"]) for cell in cells(what).values()}
    each = 16 // size
    assert sum(bool(elements) for elements in found.values()) == 64 * depth // each
    for row, k in np.ndindex(64, depth):
        first, second = found[int(where[row, k]) // 16 * 16]
        want = (row // each * each, k) if major == "mn" else (row, k // each * each)
        assert (first, second) == want, (row, k)


@pytest.mark.parametrize("unit", ["wgmma", "tcgen05"])
def test_descriptors_are_encoded_field_by_field(unit):
    named = MatrixDescriptor(0x4400, 16, 1024, "128B", 3)
    swizzle = {"wgmma": 1 << 62, "tcgen05": 2 << 61 | 1 << 46}[unit]
    assert named.encode(unit) == 0x440 | 1 << 16 | 64 << 32 | 3 << 49 | swizzle
    assert decode(named.encode(unit)) == (unit, named)
    drawn = draw(f"descriptor:raw={named.encode(unit):#x}")
    assert drawn.facts["start"] == 0x4400 and drawn.facts["encoded"][unit] == f"{named.encode(unit):#018x}"
    assert drawn.facts["base"] == 3


@pytest.mark.parametrize("major", ["k", "mn"])
@pytest.mark.parametrize("name", ["none", "32B", "64B", "128B"])
def test_a_dense_tile_has_no_gaps_along_what_the_swizzle_spans(name, major):
    depth = {"none": 16, "32B": 16, "64B": 32, "128B": 64}[name] if major == "k" else 16
    tile = packed(name, 64, depth, 16, major == "mn")
    at = np.sort(tile.chunks(64, depth, 16, major == "mn").ravel())
    np.testing.assert_array_equal(at, 16 * np.arange(at.size))


def test_a_tile_that_overlaps_itself_is_said():
    drawn = draw("descriptor:none,lbo=64,sbo=128")
    assert drawn.facts["overlaps"] > 0 and "too small" in drawn.notes[-1]


# ---------------------------------------------------------------- rasters
@pytest.mark.parametrize(
    ("tiles", "raster", "cluster", "ctas"),
    [((7, 5), 3, (1, 1), 8), ((8, 6), 8, (2, 1), 12), ((4, 12), 1, (2, 2), 16), ((9, 4), 20, (1, 2), 6)],
)
def test_rasters_walked_tile_by_tile(tiles, raster, cluster, ctas):
    what = f"raster:{tiles[0]}x{tiles[1]},raster={raster},ctas={ctas},cluster={cluster[0]}x{cluster[1]}"
    down, across = tiles[0] // cluster[0], tiles[1] // cluster[1]
    walked = [
        (m, n) for band in range(0, down, raster) for n in range(across) for m in range(band, min(band + raster, down))
    ]
    found = cells(what)
    clusters = ctas // (cluster[0] * cluster[1])
    for number, (m, n) in enumerate(walked):
        ranks = set()
        for i, j in np.ndindex(cluster):
            cell = found[m * cluster[0] + i, n * cluster[1] + j]
            assert (cell["number"], cell["wave"], cell["text"]) == (number, number // clusters, str(number))
            ranks.add(cell["cta"])
        first = number % clusters * cluster[0] * cluster[1]
        assert ranks == set(range(first, first + cluster[0] * cluster[1]))
    waves = draw(what).facts["waves"]
    assert sum(wave["tiles"] for wave in waves) == tiles[0] * tiles[1]
    for number, wave in enumerate(waves):
        mine = [at for at, cell in found.items() if cell["wave"] == number]
        assert (wave["a"], wave["b"]) == (len({m for m, _ in mine}), len({n for _, n in mine}))
