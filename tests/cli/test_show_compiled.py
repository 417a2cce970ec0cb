"""`show` of compiled code: the front end's output at each stage, for the architecture asked for."""

from __future__ import annotations

import json

import pytest

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


@pytest.mark.skipif(find_nvdisasm() is None, reason="no nvdisasm here")
def test_sass_ends_every_kernel_with_an_exit(ask):
    said = ask("show", "a0", "--sass")
    assert said.code == 0 and "EXIT" in said.out
