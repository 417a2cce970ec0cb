"""Bad inputs, as a table: each is refused with one line on stderr that names what is wrong, and exit code 2."""

from __future__ import annotations

import pytest

# (what is asked, a word that the refusal has to hold)
VERBS_AND_OPTIONS = [
    ("lst", "lst"),
    ("chek a0", "chek"),
    ("LIST", "LIST"),
    ("--quiet list", "--quiet"),
    ("list --jsn", "--jsn"),
    ("list a0", "argument"),
    ("doctor now", "argument"),
    ("show", "RUNG"),
    ("run", "RUNG"),
    ("run a0 a1", "argument"),
    ("run a0 --shape", "--shape"),
    ("run a0 --seed", "--seed"),
    ("run a0 --seed one", "--seed"),
    ("run a0 --seed -1", "--seed"),
    ("run a0 --seed 1.5", "--seed"),
    ("run a0 --seed 99999999999999999999999", "--seed"),
    ("run a0 --timeout soon", "--timeout"),
    ("run a0 --timeout 0", "--timeout"),
    ("run a0 --timeout -5", "--timeout"),
    ("run a0 --timeout nan", "--timeout"),
    ("run a0 --timeout inf", "--timeout"),
    ("show a0 --ptx --sass", "choose one"),
    ("show a0 --diff", "no parent"),
    ("exec", "SCRIPT"),
    ("climb a0", "argument"),
    ("climb --all", "--all"),
]

RUNGS_AND_SERIES = [
    ("show q9", "q9"),
    ("run b2-warp-mna", "did you mean"),
    ("run .", "'.'"),
    ("show ../a0", "../a0"),
    ("list --series q", "'q'"),
    ("climb --series a,q", "'q'"),
    ("climb --series ,", "series"),
    ("list --series a;b", "a;b"),
]

SHAPES = [
    ("run a0 --shape many", "many"),
    ("run a0 --shape 1,2", "N"),
    ("run a0 --shape 0", "N=0 must be a positive integer"),
    ("run a0 --shape=-8", "-8"),
    ("run a0 --shape 1.5", "1.5"),
    ("run a0 --shape 1e3", "1e3"),
    ("run a0 --shape 0x10", "0x10"),
    ("run a0 --shape 8,", "8,"),
    ("run a0 --shape 2147483648", "2147483648"),
    ("run a0 --shape ５１２", "512,512,512"),
    ("run a1 --shape 512", "M,N,K"),
    ("run a1 --shape 512,512", "M,N,K"),
    ("run a1 --shape 2,512,512,512", "M,N,K"),
    ("run a1 --shape 512x512x512", "512,512,512"),
    ("run a1 --shape 512,512,0", "K=0 must be a positive integer"),
    ("run a1 --shape 512;512;512", "512,512,512"),
    ("run a1 --shape 2147483647,2147483647,64", "GB"),
    ("show a1 --ptx --shape 1,2", "M,N,K"),
]

DTYPES_AND_ARCHS = [
    ("run a0 --dtype fp17", "fp17"),
    ("run a0 --dtype int4", "int4"),
    ("run a0 --dtype complex64", "complex64"),
    ("run b2 --dtype fp32", "fp32"),
    ("run a0 --arch sm_42", "sm_42"),
    ("run a0 --arch gfx90a", "gfx90a"),
    ("run a0 --arch 90", "'90'"),
    ("run a0 --arch sm_90b", "sm_90b"),
    ("run a0 --arch sm_100a;sm_90a", "sm_100a;sm_90a"),
    ("show a0 --ptx --arch compute_42", "compute_42"),
]

POLICIES_AND_PLACES = [
    ("run a0 --async sometimes", "sometimes"),
    ("run a0 --async random", "random:7"),
    ("run a0 --async random:", "random:7"),
    ("run a0 --async random:x", "random:7"),
    ("run a0 --async random:-1", "random:7"),
    ("run a0 --async eager:3", "eager:3"),
    ("climb --async never", "never"),
    ("run a0 --on tpu", "tpu"),
    ("run a0 --on GPU", "GPU"),
    ("climb --on cpu", "cpu"),
    ("run a0 --numerics half", "half"),
    ("run a0 --sm-count 0", "--sm-count 0"),
]

FILES = [
    ("exec nowhere.py", "nowhere.py"),
    ("exec /", "'/'"),
    ("exec --async never nowhere.py", "nowhere.py"),
    ("exec --seed -5 script.py", "--seed -5"),
    ("show b7 --cubin folder", "it is a folder"),
    ("trace c2 -o folder", "it is a folder"),
    ("trace c2 -o c2.png", "F.svg"),
    ("trace c2 -o nowhere/c2.json", "no folder nowhere"),
    ("pack a0 -o empty.ptx", "empty.ptx is a file"),
]

#: options that nothing would come of
IDLE = [
    ("run c2:stages=2", "knobs are for pack"),
    ("pack --add -o p", "add --ops"),
    ("pack c2 --ops -o p", "leave the rungs out"),
    ("pack c2:stages=0 -o p", "nothing to pack: c2"),
    ("pack --ops --sms 1025 -o p", "--sms 1025"),
    ("check a0 --arg f32[3]", "--arg is for a PTX file"),
    ("check empty.ptx --shape 3", "--shape is for a rung"),
    ("check --zoo tmem-leak --advice", "--advice is for a rung"),
    ("check --zoo tmem-leak --seeds 3", "--zoo with --seeds"),
    ("check --zoo tmem-leak --async lazy", "--zoo with --async"),
    ("show a0 --shape 1", "--shape is for what the compiler makes"),
    ("show a0 --arch sm_90a --diff", "--arch is for what the compiler makes"),
]

PTX_FILES = [
    ("check nowhere.ptx", "nowhere.ptx"),
    ("check folder.ptx", "cannot read folder.ptx"),
    ("check empty.ptx", "empty.ptx is no PTX"),
    ("check binary.ptx", "binary.ptx is no text"),
    ("check k.ptx", "0 given: --arg"),
    ("check k.ptx --arg f32[99999999999999]", "give a smaller array"),
]

ABOUT_RUNGS = VERBS_AND_OPTIONS + RUNGS_AND_SERIES + SHAPES + DTYPES_AND_ARCHS + POLICIES_AND_PLACES
TABLE = ABOUT_RUNGS + FILES + IDLE + PTX_FILES
KERNEL = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p) { ret; }\n"


@pytest.fixture
def around(tmp_path, monkeypatch) -> None:
    """The folder that a person is in, with what they may name."""
    monkeypatch.chdir(tmp_path)
    for name in ("folder", "folder.ptx"):
        (tmp_path / name).mkdir()
    for name, data in {"script.py": b"", "empty.ptx": b"", "binary.ptx": b"\xff\xfe", "k.ptx": KERNEL.encode()}.items():
        (tmp_path / name).write_bytes(data)


@pytest.mark.parametrize(("line", "word"), TABLE, ids=[line for line, _ in TABLE])
def test_refused_in_one_line(ask, around, line, word):
    said = ask(*line.split(" "))
    assert said.code == 2, said
    assert said.out == ""
    assert said.err.count("\n") == 1 and said.err.startswith("tensorladder: ")
    assert word in said.err


@pytest.mark.parametrize("option", ["--shape", "--dtype", "--arch", "--async", "--on", "--numerics"])
def test_an_empty_value_is_refused(ask, option):
    said = ask("run", "a0", option, "")
    assert said.code == 2 and said.err.count("\n") == 1, said


def test_an_empty_rung_is_refused(ask):
    said = ask("run", "")
    assert said.code == 2 and said.err.count("\n") == 1, said


def test_a_gpu_that_is_not_there(ask, monkeypatch):
    from tensorladder.silicon import driver

    def no_library(name):
        raise OSError(name)

    driver.library.cache_clear()
    monkeypatch.setattr(driver.ctypes, "CDLL", no_library)
    said = ask("run", "a0", "--on", "gpu")
    driver.library.cache_clear()
    assert said.code == 2 and said.err.count("\n") == 1 and "no NVIDIA GPU" in said.err


def test_what_is_not_modelled_is_incomplete(ask):
    said = ask("run", "a0", "--numerics", "exact", "--arch", "sm_100a")
    assert said.code == 3 and said.err.count("\n") == 1
