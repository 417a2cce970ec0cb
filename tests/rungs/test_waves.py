"""Which knobs a rung takes for a shape where none are given."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tensorladder.rungs import rung as rungs
from tensorladder.rungs.parts import waves

FOLLOW = ("c2-warp-specialized", "c3-persistent", "c4-multicast", "c5-ping-pong")
USUAL, WIDE = (SimpleNamespace(tile=(128, n, 64), sm_count=132) for n in (256, 192))


def test_the_sm_with_most_tiles_counts():
    assert waves.tiles((4096, 4096, 64), WIDE.tile) == 32 * 22
    assert waves.most_work((4096, 4096, 64), USUAL) == 4 * 128 * 256  # 3.9 waves
    assert waves.most_work((4096, 4096, 64), WIDE) == 6 * 128 * 192  # 5.3


@pytest.mark.parametrize(("side", "best"), [(256, USUAL), (1024, USUAL), (4096, USUAL), (8192, WIDE)])
def test_the_last_wave_decides_and_less_than_one_does_not(side, best):
    assert waves.fitting((side, side, 64), USUAL, WIDE) is best


def test_equals_leave_the_usual_one():
    assert waves.most_work((6144, 6144, 64), USUAL) == waves.most_work((6144, 6144, 64), WIDE)
    assert waves.fitting((6144, 6144, 64), USUAL, WIDE) is USUAL


@pytest.mark.parametrize("name", FOLLOW)
@pytest.mark.parametrize("shape", [(64, 64, 64), (2056, 2120, 72), (4096, 4096, 4096), (8192, 8192, 8192)], ids=str)
def test_what_a_rung_takes_it_compiles(name, shape):
    pytest.importorskip("cutlass")
    info = rungs.find(name)
    module = rungs.load(info)
    config = rungs.default_config(info, shape)
    module.check_config(config, "sm_90a")
    if waves.tiles(shape, module.RUNG.config().tile) <= 132:
        assert config == module.RUNG.config()
    assert waves.most_work(shape, config) <= waves.most_work(shape, module.RUNG.config())


def test_two_ctas_an_sm_only_where_the_l2_holds_what_they_read():
    pytest.importorskip("cutlass")
    info = rungs.find("c2")
    taken = [rungs.default_config(info, (4096, 4096, k)) for k in (4096, 8192)]
    assert [config.ctas_per_sm for config in taken] == [2, 1]


def test_a_rung_that_does_not_look_at_the_shape_takes_its_defaults():
    pytest.importorskip("cutlass")
    info = rungs.find("c1")
    assert rungs.default_config(info, (8192, 8192, 8192)) == rungs.load(info).RUNG.config()
