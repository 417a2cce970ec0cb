"""The table of rungs in TIRx beside CuTe DSL: each with its twin, figures that are counted right."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm")
pytest.importorskip("llvmlite")

from benchmarks import twins_tirx
from tensorladder.measure.run import run_rung
from tensorladder.rungs.rung import load
from tensorladder.silicon.disassemble import find_nvdisasm


def test_each_rung_has_its_twin():
    pairs = twins_tirx.twins()
    assert [theirs.name for theirs, _ in pairs] == [ours.name.removeprefix("tirx-") for _, ours in pairs]
    assert len(pairs) == 9
    for theirs, ours in pairs:
        assert theirs.problem is ours.problem and theirs.default_shape == ours.default_shape
        assert theirs.series == "v" and theirs.adds
        knobs = load(theirs).RUNG.config(), load(ours).RUNG.config()
        assert vars(knobs[0]) == vars(knobs[1])


@pytest.mark.parametrize("ours", ["tirx-v1-one-tile", "tirx-v4-tma", "tirx-v9-two-consumers"])
def test_twins_give_the_same_bits(ours):
    pytest.importorskip("cutlass")
    digests = {run_rung(twins_tirx.find(name)).digest for name in (ours, ours.removeprefix("tirx-"))}
    assert len(digests) == 1


def test_machine_code_is_counted_without_padding():
    text = "        /*0000*/         LDC R1, c[0x0][0x37c] ;\n.L_x_1:\n        /*0010*/    @!P1 BRA `(.L_x_1) ;\n"
    assert len(twins_tirx._SASS.findall(text + "        /*0020*/                   NOP;\n")) == 2


@pytest.mark.skipif(find_nvdisasm() is None, reason="no nvdisasm here")
def test_figures():
    made = twins_tirx.figures(twins_tirx.find("tirx-v1-one-tile"))
    assert made.registers >= 128 and 32 * 1024 <= made.smem < 33 * 1024
    assert 50 < made.lines < 150 and made.ptx > 100 and made.sass > 100 and made.cycles > 100
