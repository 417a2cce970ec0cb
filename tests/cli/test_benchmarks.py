"""`python -m benchmarks`: what it prints and returns, on small problems and with bad input."""

import json
import math
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import __main__

    return __main__


def test_json_lines_with_the_machine_first_and_no_claims_when_quick(benchmarks, capsys):
    pytest.importorskip("cutlass")
    pytest.importorskip("llvmlite")
    pytest.importorskip("numba")
    assert benchmarks.main(["--quick", "--json", "naive", "tinygrad"]) == 0
    machine, *rows = map(json.loads, capsys.readouterr().out.splitlines())
    assert set(machine["machine"]) == {"cpu", "cores", "python", "load"}
    assert all(r["claim"] == "" and r["ok"] is None for r in rows)
    rate, over_numba, _, _, no_peer = rows
    assert rate["unit"] == "1/s" and rate["value"] > 1e6 and rate["cpu"] > 1e6
    assert over_numba["unit"] == "x" and over_numba["value"] > 0 and len(over_numba["seconds"]) == 2
    assert no_peer["value"] is None


def test_a_failed_claim_is_said_and_returned(benchmarks, capsys, monkeypatch):
    row = benchmarks.vgpu.row

    def slow(o):
        yield row("slow", 5.0, "x", o, ("<=", 4))
        yield row("fast", 5.0, "x", o, (">=", 4))

    monkeypatch.setitem(benchmarks.vgpu.BENCHMARKS, "slow", slow)
    assert benchmarks.main(["slow"]) == 1
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert first.endswith("FAILS") and second.endswith("ok")
    assert benchmarks.main(["--quick", "slow"]) == 0


def test_an_unknown_name_is_one_line_and_status_two(benchmarks, capsys):
    assert benchmarks.main(["naive", "fast"]) == 2
    out = capsys.readouterr()
    assert out.out == "" and out.err.count("\n") == 1 and "'fast'" in out.err and "warp-mma" in out.err


@pytest.mark.parametrize(
    "name, text, said",
    [("absent.py", None, "No such file"), ("notes.py", "x = 1", "ptx_run"), ("notes", "x", "Python")],
)
def test_a_file_that_is_not_the_peer(benchmarks, capsys, tmp_path, name, text, said):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    assert benchmarks.main(["tinygrad", "--tinygrad", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "--tinygrad" in err and said in err


def test_best_is_taken_by_clock(benchmarks):
    from benchmarks.timing import Time, best

    assert best([Time(2.0, 1.0), Time(1.0, 3.0)]) == Time(1.0, 1.0)
    assert math.isinf(best([Time(math.inf, 0.0)]).wall)
