"""The laws of the layout algebra on random layouts, and examples with known answers.

test_same_as_cute compares with CuTe itself, traced by its DSL; it needs no GPU.
"""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tensorladder.core.errors import UsageError
from tensorladder.core.layout import (
    ComposedLayout,
    Layout,
    blocked_product,
    coalesce,
    compact_row_major,
    complement,
    composition,
    index_to_coordinate,
    left_inverse,
    logical_divide,
    logical_product,
    make_layout,
    make_tv_layout,
    mn_to_tv,
    parse,
    raked_product,
    right_inverse,
    table,
    tv_to_mn,
    zipped_divide,
)
from tensorladder.core.swizzle import mode

modes = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 12)), min_size=1, max_size=4)


@st.composite
def nested(draw, flat):
    """A random nesting of a flat list of (extent, stride)."""
    parts = [Layout(n, d) for n, d in flat]
    while len(parts) > 1 and draw(st.booleans()):
        i = draw(st.integers(0, len(parts) - 2))
        parts[i : i + 2] = [make_layout(*parts[i : i + 2])]
    return make_layout(*parts) if len(parts) > 1 else parts[0]


layouts = modes.flatmap(nested)


@st.composite
def injective(draw):
    """Modes that divide each other, in any order, with gaps."""
    flat, step = [], draw(st.integers(1, 3))
    for _ in range(draw(st.integers(1, 3))):
        n = draw(st.integers(1, 5))
        flat.append((n, step))
        step *= n * draw(st.integers(1, 3))
    return draw(nested(draw(st.permutations(flat))))


def image(layout):
    return [layout(i) for i in range(layout.size)]


@given(layouts)
def test_calls_agree(a):
    assert a.indices().ravel(order="F").tolist() == image(a)
    assert image(a) == [a(index_to_coordinate(i, a.shape)) for i in range(a.size)]
    assert a.cosize == 1 + max(image(a))
    assert parse(str(a)) == a
    assert a.size == int(np.prod([m.size for m in a]))


@given(layouts)
def test_coalesce_is_the_same_function(a):
    b = coalesce(a)
    assert image(b) == image(a)
    assert b.rank <= len(a.flat())
    assert coalesce(b) == b


@given(layouts, layouts)
def test_composition_is_composition(a, b):
    try:
        r = composition(a, b)
    except UsageError:
        return
    assert r.size == b.size
    if b.cosize <= a.size:
        assert image(r) == [a(i) for i in image(b)]


@given(injective(), injective())
def test_composition_is_defined_for_compact_left_sides(a, b):
    dense = Layout(max(b.cosize, 1), 3)
    assert image(composition(dense, b)) == [3 * i for i in image(b)]
    assert image(composition(a, Layout(a.size))) == image(a)


@given(injective(), st.integers(1, 200))
def test_complement(a, size):
    c = complement(a, size)
    both = make_layout(a, c)
    reached = image(both)
    assert len(set(reached)) == len(reached) == a.size * c.size  # disjoint
    assert image(c) == sorted(image(c))  # ordered
    assert both.cosize >= size  # complete


@given(injective(), injective())
def test_logical_divide(a, tile):
    assume(a.size % tile.size == 0 and tile.cosize <= a.size)
    try:
        d = logical_divide(a, tile)
    except UsageError:
        return
    if d.size == a.size:
        assert sorted(image(d)) == sorted(image(a))
    assert image(d[0]) == [a(i) for i in image(tile)]


@given(injective(), injective(), st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 3, 4]))
def test_zipped_divide_by_a_tuple(rows, columns, m, n):
    a = make_layout(rows, Layout(columns.shape, columns.stride))
    try:
        z = zipped_divide(a, (m, n))
    except UsageError:
        return
    assert z[0].size == m * n
    tiles = z.indices()
    full = a.indices()
    np.testing.assert_array_equal(tiles[:, 0], full[:m, :n].ravel(order="F"))
    np.testing.assert_array_equal(np.sort(tiles.ravel()), np.sort(full.ravel()))


@given(injective(), injective())
def test_logical_product(a, b):
    try:
        p = logical_product(a, b)
    except UsageError:
        return
    assert p[0] == a and p[1].size == b.size
    assert len(set(image(p))) == p.size


@given(layouts)
def test_right_inverse(a):
    r = right_inverse(a)
    assert [a(r(i)) for i in range(r.size)] == list(range(r.size))


@given(injective())
def test_left_inverse(a):
    inverse = left_inverse(a)
    assert [inverse(i) for i in image(a)] == list(range(a.size))


@given(st.permutations([2, 3, 4]), st.integers(1, 3))
def test_compact_layouts_are_bijections(shape, split):
    for a in (Layout(tuple(shape)), compact_row_major((tuple(shape[:split]), *shape[split:]))):
        assert sorted(image(a)) == list(range(24))
    assert compact_row_major((2, 3)).stride == (3, 1)


@pytest.mark.parametrize(
    ("got", "want"),
    [  # answers printed in CUTLASS's CuTe documentation
        (lambda: coalesce(parse("(2,(1,6)):(1,(6,2))")), "12:1"),
        (lambda: composition(parse("(6,2):(8,2)"), parse("(4,3):(3,1)")), "((2,2),3):((24,2),8)"),
        (lambda: composition(parse("20:2"), parse("(5,4):(4,1)")), "(5,4):(8,2)"),
        (lambda: composition(parse("(10,2):(16,4)"), parse("(5,4):(1,5)")), "(5,(2,2)):(16,(80,4))"),
        (lambda: complement(parse("4:1"), 24), "6:4"),
        (lambda: complement(parse("6:4"), 24), "4:1"),
        (lambda: complement(parse("(4,6):(1,4)"), 24), "1:0"),
        (lambda: complement(parse("4:2"), 24), "(2,3):(1,8)"),
        (lambda: complement(parse("(2,4):(1,6)"), 24), "3:2"),
        (lambda: complement(parse("(2,2):(1,6)"), 24), "(3,2):(2,12)"),
        (lambda: logical_divide(parse("(4,2,3):(2,1,8)"), parse("4:2")), "((2,2),(2,3)):((4,1),(2,8))"),
        (lambda: logical_divide(parse("(9,(4,8)):(59,(13,1))"), (parse("3:3"), parse("(2,4):(1,8)"))),
         "((3,3),((2,4),(2,2))):((177,59),((13,2),(26,1)))"),
        (lambda: zipped_divide(parse("(9,(4,8)):(59,(13,1))"), (parse("3:3"), parse("(2,4):(1,8)"))),
         "((3,(2,4)),(3,(2,2))):((177,(13,2)),(59,(26,1)))"),
        (lambda: logical_product(parse("(2,2):(4,1)"), parse("6:1")), "((2,2),(2,3)):((4,1),(2,8))"),
        (lambda: blocked_product(parse("(2,5):(5,1)"), parse("(3,4):(1,3)")), "((2,3),(5,4)):((5,10),(1,30))"),
        (lambda: raked_product(parse("(2,5):(5,1)"), parse("(3,4):(1,3)")), "((3,2),(4,5)):((10,5),(30,1))"),
    ],
)  # fmt: skip
def test_known_answers(got, want):
    assert str(got()) == want


def test_tv_maps():
    tile, tv = make_tv_layout(parse("(4,8):(8,1)"), parse("(2,2):(2,1)"))
    assert tile == (8, 16) and str(tv) == "((8,4),(2,2)):((16,2),(8,1))"
    where = tv_to_mn(tv, tile)
    assert where.shape == (32, 4, 2)
    # thread 9 is at (1, 1) of the arrangement: its 2x2 block starts at row 2, column 2, numbered row by row
    assert where[9].tolist() == [[2, 2], [2, 3], [3, 2], [3, 3]]
    owner = mn_to_tv(tv, tile)
    for t in range(32):
        for v in range(4):
            assert owner[tuple(where[t, v])].tolist() == [t, v]
    assert mn_to_tv(parse("(1,2):(0,1)"), (2, 2))[1, 1].tolist() == [-1, -1]


def test_composed_with_a_swizzle():
    tile = ComposedLayout(mode("128B").recast(1, 2), 0, parse("(8,64):(64,1)"))
    assert tile(1, 0) == 64 + 8
    assert tile.indices()[3, 0] == 3 * 64 + 3 * 8
    assert str(tile) == "S<3,3,3> o 0 o (8,64):(64,1)"


def test_printing():
    text = table(parse("(2,3):(3,1)"))
    assert text.splitlines() == ["(2,3):(3,1)", "    0  1  2", "0   0  1  2", "1   3  4  5"]
    assert str(parse("_4 : _1")) == "4:1"
    assert str(parse("((2,2),3)")) == "((2,2),3):((1,2),4)"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Layout((2, 3), (1, (2, 3))), "nested alike"),
        (lambda: Layout(0), "below 1"),
        (lambda: Layout((2, 3))((1, 2, 3)), "coordinate"),
        (lambda: composition(parse("(4,3):(1,8)"), parse("6:1")), "extents do not divide"),
        (lambda: composition(parse("(4,3):(1,8)"), parse("2:3")), "extents do not divide"),
        (lambda: composition(parse("(4,2):(0,1)"), parse("(2,2):(2,2)")), "modes overlap"),
        (lambda: complement(parse("(4,4):(1,2)"), 24), "overlap"),
        (lambda: logical_divide(parse("10:1"), 4), "does not divide"),
        (lambda: logical_divide(parse("10:1"), (2, 5)), "rank 1"),
        (lambda: tv_to_mn(parse("(32,4):(4,1)"), (8, 8)), "outside"),
        (lambda: tv_to_mn(parse("8:1"), (8, 8)), "two modes"),
        (lambda: table(parse("8:1")), "rank 2"),
        (lambda: parse("(4,8:1"), "not a layout"),
        (lambda: parse("abc"), "not a layout"),
        (lambda: parse(""), "not a layout"),
        (lambda: parse("4:1:2"), "not a layout"),
        (lambda: parse("(4,,8)"), "not a layout"),
        (lambda: parse("4)"), "not a layout"),
    ],
)
def test_bad_input_is_one_line(call, says):
    with pytest.raises(UsageError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def _for_cute(cute, layout):
    return cute.make_layout(layout.shape, stride=layout.stride)


PAIRS = [
    ("(6,2):(8,2)", "(4,3):(3,1)"), ("(4,8):(8,1)", "(2,2):(1,4)"), ("((4,2),8):((1,16),2)", "(8,2):(1,8)"),
    ("(16,(2,4)):(8,(128,1))", "(4,8):(8,1)"), ("(8,8):(8,1)", "8:2"),
]  # fmt: skip


def test_same_as_cute():
    cutlass = pytest.importorskip("cutlass")
    cute = cutlass.cute
    theirs, ours = {}, {}

    @cute.jit
    def trace():
        for left, right in PAIRS:
            a, b = parse(left), parse(right)
            x, y = _for_cute(cute, a), _for_cute(cute, b)
            theirs["composition", left, right] = cute.composition(x, y)
            theirs["divide", left, right] = cute.logical_divide(x, y)
            theirs["product", left, right] = cute.logical_product(y, x)
            theirs["right inverse", left, right] = cute.right_inverse(x)
            theirs["coalesce", left, right] = cute.coalesce(x)
            theirs["complement", right, right] = cute.complement(y, 64)
            ours["composition", left, right] = composition(a, b)
            ours["divide", left, right] = logical_divide(a, b)
            ours["product", left, right] = logical_product(b, a)
            ours["right inverse", left, right] = right_inverse(a)
            ours["coalesce", left, right] = coalesce(a)
            ours["complement", right, right] = complement(b, 64)
            for key in list(theirs):
                theirs[key] = str(theirs[key])

    cute.compile(trace, options="--gpu-arch sm_80")
    assert {k: str(v) for k, v in ours.items()} == theirs
