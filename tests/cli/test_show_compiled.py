"""`show` of compiled code: the front end's output at each stage, for the architecture asked for."""

from __future__ import annotations

import json

import pytest

from tensorladder.core.errors import UsageError
from tensorladder.core.program import Module, Program
from tensorladder.measure import inspect
from tensorladder.rungs.rung import catalog
from tensorladder.silicon.disassemble import find_nvdisasm

pytest.importorskip("cutlass")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_ptx_is_for_the_architecture_asked_for(ask, arch):
    said = ask("show", "a0", "--ptx", "--arch", arch)
    assert said.code == 0 and said.err == ""
    assert f".target {arch}" in said.out


def test_mlir_names_the_kernel(ask):
    said = ask("show", "a0", "--mlir")
    assert said.code == 0 and "func" in said.out


def test_json_carries_the_text_on_one_line(ask):
    said = ask("show", "a0", "--ptx", "--shape", "1000", "--dtype", "fp32", "--json")
    record = json.loads(said.out)
    assert record["rung"] == "a0-vector-add" and record["view"] == "ptx" and ".entry" in record["text"]


@pytest.mark.parametrize(("rung", "dtype"), [("a0", "fp32"), ("cuda-a1", "fp16")])
def test_cubin_is_the_machine_code_for_the_architecture_asked_for(ask, tmp_path, rung, dtype):
    file = tmp_path / "k.cubin"
    said = ask("show", rung, "--cubin", str(file), "--arch", "sm_90a", "--dtype", dtype, "--json")
    record = json.loads(said.out)
    code = file.read_bytes()
    assert said.code == 0 and record["view"] == "cubin" and record["arch"] == "sm_90a"
    assert code[:4] == b"\x7fELF" and record["bytes"] == len(code) and record["file"] == str(file)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("a0", "--cubin", "/no/such/folder/k.cubin"), "/no/such/folder/k.cubin: there is no folder"),
        (("a0", "--cubin", "k.cubin", "--ptx"), "--ptx and --cubin cannot be shown at once"),
        (("cuda-a1", "--mlir"), "its front end makes no MLIR: use --ptx"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_a_line(ask, words, complaint):
    said = ask("show", *words)
    assert said.code == 2 and complaint in said.err and said.err.count("\n") == 1


@pytest.mark.parametrize("info", {info.series: info for info in reversed(catalog())}.values(), ids=lambda i: i.series)
def test_every_series_shows_what_its_compiler_made(ask, tmp_path, info):
    ptx = ask("show", info.name, "--ptx")
    if "is not installed" in ptx.err:
        pytest.skip(ptx.err.strip())
    assert ptx.code == 0 and ".entry" in ptx.out
    file = tmp_path / "k.cubin"
    assert ask("show", info.name, "--cubin", str(file)).code == 0 and file.read_bytes()[:4] == b"\x7fELF"
    mlir = ask("show", info.name, "--mlir")
    refused = mlir.code == 2 and "makes no MLIR: use --ptx" in mlir.err and mlir.err.count("\n") == 1
    assert refused or (mlir.code == 0 and "func" in mlir.out)


def test_several_modules_are_files_of_their_own(tmp_path):
    modules = tuple(Module("", "sm_90a", code, "m") for code in (b"one", b"three"))
    program = Program("p", "sm_90a", modules, lambda *_: None, 0.0)
    written = inspect.write_cubins(program, tmp_path / "k.cubin")
    assert {path.name: size for path, size in written.items()} == {"k.cubin.0": 3, "k.cubin.1": 5}
    with pytest.raises(UsageError, match="makes no machine code"):
        inspect.cubins(Program("p", "sm_90a", (Module("", "sm_90a", None, "m"),), lambda *_: None, 0.0))


@pytest.mark.skipif(find_nvdisasm() is None, reason="no nvdisasm here")
def test_sass_ends_every_kernel_with_an_exit(ask):
    said = ask("show", "a0", "--sass")
    assert said.code == 0 and "EXIT" in said.out
