"""The contract of the command line: keys, exit codes, where words go."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings

import pytest

from tensorladder import __version__
from tensorladder.cli import app
from tensorladder.core.errors import KernelError, MissingExtra, Unsupported, UsageError
from tensorladder.rungs.rung import asides, catalog, find

KEYS = {
    "doctor": {"name", "ok", "detail"},
    "list": {"rung", "series", "parent", "adds", "aside", "archs", "problem"},
}


@pytest.mark.parametrize("verb", KEYS)
def test_json_is_one_object_a_line_with_the_keys_of_the_contract(ask, verb):
    said = ask(verb, "--json")
    assert said.code == 0 and said.err == ""
    records = [json.loads(line) for line in said.out.splitlines()]
    assert records and all(KEYS[verb] <= set(record) for record in records)


def test_list_names_every_rung_once(ask):
    listed = [json.loads(line)["rung"] for line in ask("list", "--json").out.splitlines()]
    assert listed == [info.name for info in catalog()]


def test_asides_are_shown_as_such(ask):
    info = find("c4")
    assert "\n" + " " * 21 + info.remark[:60] in ask("list", "--series", "c").out
    shown, plain = (ask("show", name).out.split("\n\n")[0] for name in ("c4", "c3"))
    assert f"aside    pays {info.aside}" in shown and "aside" not in plain
    listed = {one["rung"]: one["aside"] for one in map(json.loads, ask("list", "--json").out.splitlines())}
    assert {name for name, aside in listed.items() if aside} == asides() and listed[info.name] == info.aside


def test_list_can_be_narrowed_to_series(ask):
    listed = [json.loads(line)["series"] for line in ask("list", "--series", "a", "--json").out.splitlines()]
    assert listed and set(listed) == {"a"}


def test_doctor_says_what_would_work_here(ask):
    records = {record["name"]: record for record in map(json.loads, ask("doctor", "--json").out.splitlines())}
    assert records["works: list, show"]["ok"] is True
    assert records["python"]["ok"] is True
    for name, record in records.items():
        assert isinstance(record["ok"], bool) and record["detail"], name
        assert "\n" not in record["detail"], name


def test_tables_in_a_pipe_have_no_terminal_codes_and_no_blanks_at_the_end(ask):
    said = ask("list").out + ask("doctor").out
    assert "\x1b" not in said and " \n" not in said


def test_show_prints_facts_and_lesson(ask):
    info = catalog()[0]
    said = ask("show", info.name)
    assert said.code == 0
    for word in (info.name, *info.archs, *info.problem.axes):
        assert word in said.out
    assert info.doc.splitlines()[0] in said.out


@pytest.mark.parametrize("info", [info for info in catalog() if info.parent], ids=lambda info: info.name)
def test_show_diff_turns_the_parent_into_the_rung(ask, info):
    said = ask("show", info.name, "--diff")
    assert said.code == 0
    header = said.out.splitlines()[:2]
    assert header == [f"--- {info.parent}", f"+++ {info.name}"]


def test_no_verb_prints_the_help(ask):
    said = ask()
    assert said.code == 0
    assert all(verb in said.out for verb in ("doctor", "list", "show", "run", "climb", "exec"))


def test_version(ask):
    assert ask("--version").out == f"tensorladder {__version__}\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KernelError("lane 3\nreads A[9]"), 1),
        (UsageError("--shape\tis wrong"), 2),
        (MissingExtra("a thing", "climb"), 2),
        (Unsupported("wgmma.mma_async.sp, line 3"), 3),
    ],
)
def test_every_error_of_ours_is_one_line_and_its_exit_code(ask, monkeypatch, error, code):
    def fail(*_):
        raise error

    monkeypatch.setattr("tensorladder.cli.list.parse_series", fail)
    said = ask("list")
    assert said.code == code and said.out == ""
    assert said.err == "tensorladder: " + " ".join(str(error).split()) + "\n"


def test_no_memory_is_one_line(ask, monkeypatch):
    def fail(*_):
        raise MemoryError("Unable to allocate 9.00 TiB")

    monkeypatch.setattr("tensorladder.cli.list.parse_series", fail)
    said = ask("list")
    assert said.code == 3 and said.err.count("\n") == 1 and "9.00 TiB" in said.err


def test_a_warning_is_one_line_and_no_failure(ask, monkeypatch):
    def warn(text):
        warnings.warn("the cache /nowhere cannot be written (read-only);\nnothing is kept", stacklevel=1)
        return catalog()

    monkeypatch.setattr("tensorladder.cli.list.parse_series", warn)
    said = ask("list")
    assert said.code == 0 and said.err.count("\n") == 1
    assert said.err.startswith("tensorladder: warning: the cache /nowhere")


def test_an_error_that_is_not_ours_is_not_hidden(monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("tensorladder.cli.list.parse_series", fail)
    with pytest.raises(ZeroDivisionError):
        app.main(["list"])


def test_module_and_exit_code_reach_the_shell():
    done = subprocess.run([sys.executable, "-m", "tensorladder", "show", "q9"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "q9" in done.stderr


@pytest.mark.parametrize("program", ["tensorladder list --json", "benchmarks.peers_checked --json"])
def test_a_reader_that_goes_away_is_no_error(program):
    done = subprocess.run(
        f"set -o pipefail; {sys.executable} -m {program} | head -c 10",
        shell=True, executable="/bin/bash", capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == ""


HEAVY = ("cutlass", "llvmlite", "numba", "torch", "tvm", "tvm_ffi")


@pytest.mark.parametrize(
    ("line", "module", "extra"),
    [
        ("exec script.py", "llvmlite", "climb"),
        ("check k.ptx", "numba", "climb"),
        ("report --check -o r.html", "llvmlite", "climb"),
        ("bench --on vgpu", "llvmlite", "climb"),
        ("pack --ops -o p", "torch", "torch"),
    ],
)
def test_an_extra_that_is_not_there(tmp_path, line, module, extra):
    """As after `pip install tensorladder` alone; in a process where nothing has been imported before."""
    (tmp_path / "script.py").write_text("print('ran')")
    (tmp_path / "k.ptx").write_text(".version 8.0\n.target sm_80\n.visible .entry k() { ret; }\n")
    run = f"from tensorladder.cli import app; sys.exit(app.main({line.split()}))"
    text = f"import sys; sys.modules[{module!r}] = None; {run}"
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.startswith(f"tensorladder: {module} ") and done.stderr.count("\n") == 1
    assert f"pip install 'tensorladder[{extra}]'" in done.stderr


def test_streams_that_are_closed():
    line = f"{sys.executable} -m tensorladder"
    done = subprocess.run(f"{line} list >&-", shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "tensorladder: the output cannot be written: it is closed\n")
    assert subprocess.run(f"{line} run nothing 2>&-", shell=True).returncode == 2


def test_listing_and_showing_import_nothing_heavy():
    """The base install is numpy, typer and rich: the rest may be absent."""
    code = (
        "import sys\n"
        f"for name in {HEAVY}: sys.modules[name] = None\n"
        "from tensorladder.cli.app import main\n"
        "sys.exit(main(['list']) or main(['show', 'a0']) or main(['doctor']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
