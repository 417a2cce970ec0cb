"""Kernels of the op from a pack: the same launches as compiled ones make, with no DSL; what is wrong is one line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

import tensorladder
from tensorladder.core.errors import UsageError
from tensorladder.core.program import Module

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")
pytest.importorskip("ml_dtypes")

from tensorladder.measure import suites  # noqa: E402
from tensorladder.ops import execute, kernels, launch, packing, packs, tune  # noqa: E402
from tensorladder.ops.plan import Array, plan  # noqa: E402
from tensorladder.rungs.parts.form import Form  # noqa: E402
from tensorladder.silicon import pack  # noqa: E402
from tests.ops import silicon  # noqa: E402

ARCH = "sm_90a"
FORMS = ("bf16", "bf16,bias=bf16,activation=gelu")
SHAPE = (200, 136, 72)  # more rows than kernels take that store C without a tensor map


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("ops") / "p"
    wanted = packing.wanted(ARCH, [packing.parse_form(text) for text in FORMS], [SHAPE])
    packing.write(place, ARCH, [packing.make(ARCH, one) for one in wanted], {})
    return place


@pytest.fixture
def gpu(monkeypatch, folder):
    """A GPU beside a pack, where nothing can be compiled."""
    made = silicon.install(monkeypatch)
    made.run = False
    opened = pack.Pack.open(folder)
    for entry in opened.dynamic:
        image = opened.code(entry.code)
        made.modules[image] = Module(entry.heads, ARCH, image)
    monkeypatch.setattr(kernels, "can_build", lambda: False)
    monkeypatch.setattr(kernels, "build", lambda *given: pytest.fail("compiled"))
    monkeypatch.setenv(packs.VARIABLE, str(folder))
    packs._find.cache_clear()
    packs._opened.cache_clear()
    return made


def normal(*shape):
    return torch.randn(*shape).bfloat16()


def test_forms_are_spelt_as_they_are_read():
    every = [one for dtype in ("bf16", "fp16", "e4m3") for one in packing.forms(dtype)]
    every += [Form("bf16", "fp32", c_tma=False, residual="fp16"), Form("e4m3", "fp16", scaled=True, a_major="mn")]
    assert [packing.parse_form(packs.spell(form)) for form in every] == every
    for text, words in (("bf16,gelu", "'gelu' is none of out"), ("bf16,gated=maybe", "gated takes true or false")):
        with pytest.raises(UsageError, match=words):
            packing.parse_form(text)


def test_what_a_packed_kernel_launches_is_what_a_compiled_one_does(folder, monkeypatch):
    """For the same tensors: machine code but for source lines, parameters, and where addresses stand in them."""
    monkeypatch.setattr(pack.driver, "capability", lambda device=0: (9, 0))
    opened = pack.Pack.open(folder)
    for m, entry in ((1, opened.dynamic[0]), (70, opened.dynamic[0]), (333, opened.dynamic[1])):
        form = Form(**entry.op["form"])
        a, b, out, bias = normal(m, 72), normal(136, 72).t(), normal(m, 136), normal(136)
        seen = [Array(tuple(x.shape), x.stride(), "bf16", x.data_ptr()) for x in (a, b, out, bias)]
        more = {"bias": seen[3], "activation": form.activation} if form.bias else {}
        planned = plan(*seen[:2], out=seen[2], **more)
        tensors = {"a": a, "b": b, "out": out} | ({"bias": bias} if form.bias else {})
        (one,) = [w for w in packing.wanted(ARCH, [form], [SHAPE]) if planned.form == form]
        own = execute.compiled(form, execute.knobs(one.choice, one.sm_count))
        packed = packs._find(str(folder), packs.key(form, one.choice, one.sm_count))
        first, second = (launch.relative(planned, kernel, tensors, tensors) for kernel in (own, packed))
        facts = ("kernel", "grid", "block", "params", "offsets", "addresses", "smem", "cluster", "attributes")
        for left, right in zip(first, second, strict=True):
            assert [getattr(left, fact) for fact in facts] == [getattr(right, fact) for fact in facts]


def test_calls_take_packed_kernels(gpu):
    a, weight, bias = normal(*SHAPE[::2]), normal(136, 72), normal(136)
    for _ in range(2):
        tensorladder.matmul(a, weight.t(), bias=bias, activation="gelu")
        out = tensorladder.matmul(a, weight.t())
    assert len(gpu.launched) == 4
    assert {x.data_ptr() for x in (a, weight, out)} <= silicon.words(gpu.launched[-1][1])
    tensorladder.matmul(normal(4000, 72), weight.t())  # the model would have another tile
    assert len(gpu.launched) == 5


def test_what_is_not_packed_is_one_line_with_the_command_that_packs_it(gpu, folder, ask, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "p")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(packs.VARIABLE, str(copy))
        with pytest.raises(UsageError) as refusal:
            tensorladder.matmul(normal(64, 64), normal(64, 64), activation="relu")
    text = str(refusal.value)
    assert "\n" not in text and "has no kernel for bf16,b_major=mn,activation=relu on 132 SMs" in text
    command = text.split("`")[1].split()
    with pytest.MonkeyPatch.context() as patch:  # with the DSL
        patch.setattr(kernels, "build", lambda arch, form, config: kernels.of(config).rung().build(arch, form, config))
        said = ask(*command[1:], "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["ops"] == 1
    opened = pack.Pack.open(copy)
    assert len(opened.dynamic) == 3 and opened.dynamic[-1].op["form"]["activation"] == "relu"
    assert len(list((copy / "code").iterdir())) == 3


def test_packs_for_another_gpu_or_of_other_sources_are_one_line(gpu, monkeypatch):
    a, b = normal(8, 72), normal(136, 72).t()
    for name, value, words in (
        ("source_digest", lambda name: "other", r"is stale: c\d has changed"),
        ("platform", type("P", (), {"machine": lambda: "riscv64"}), "was made on"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(kernels if name == "source_digest" else packs, name, value)
            packs._opened.cache_clear()
            with pytest.raises(UsageError, match=words):
                tensorladder.matmul(a, b)
    packs._opened.cache_clear()
    monkeypatch.setenv(packs.VARIABLE, "/nowhere")
    with pytest.raises(UsageError, match="/nowhere is no pack"):
        tensorladder.matmul(a, b)


def test_bad_requests(ask, folder, tmp_path):
    for arguments, words in (
        (("--form", "bf17"), "bf17"),
        (("--form", "bf16", "--shape", "8,8"), "M,N,K"),
        (("--form", "bf16", "--tune"), "--shape M,N,K"),
        (("--tune", "c5"), "--ops"),
        (("--form", "bf16", "--shape", "8,8,8", "--arch", "sm_42"), "sm_42"),
        (("--form", "bf16", "--shape", "8,8,8", "--add", "-o", str(tmp_path / "none")), "no pack"),
    ):
        said = ask("pack", "-o", str(tmp_path / "p"), *arguments)
        assert said.code == 2 and words in said.err and said.err.count("\n") == 1


def test_the_default_is_sixty_kernels_or_so():
    assert 40 <= len(packing.wanted(ARCH, [form for dtype in packing.DTYPES for form in packing.forms(dtype)])) <= 60


def test_tuning_from_a_pack_has_what_it_measures():
    form, shape = packing.parse_form("bf16"), (777, 6400, 1600)
    product = kernels.Product(*shape, 1, form)
    made = packing.wanted(ARCH, [form], [shape, shape], tune=True)
    assert [one.choice for one in made] == list(tune.contenders(product, packing.SMS, ARCH)) and len(made) >= tune.MOST


def test_a_suites_kernels_are_those_that_its_calls_take(ask):
    suite = suites.only(suites.SUITES["epilogues"], [(64, 128, 80), (4096, 4096, 4096)])
    made = packing.of_suite(suite)
    assert {one.form.gated for one in made} == {True, False} and {one.form.residual for one in made} == {"", "bf16"}
    assert len({(one.form, one.choice) for one in made}) == len(made) >= 3
    grouped = packing.of_suite(suites.SUITES["grouped"])
    assert len({(one.form, one.choice) for one in grouped}) == len(grouped) >= 3
    assert {(one.choice.kernel, one.form.ragged) for one in grouped} == {("c9", "m")}
    said = ask("pack", "--ops", "--suite", "llm", "--form", "bf16")
    assert said.code == 2 and "leave the options out" in said.err


def test_neither_a_dsl_nor_a_compiler_nor_an_engine_is_needed(folder):
    script = f"""
import os, sys
absent = ("cutlass", "llvmlite", "numba", "ml_dtypes", "tvm_ffi", "cuda")
sys.modules.update(dict.fromkeys(absent))
os.environ["TENSORLADDER_PACK"] = {str(folder)!r}
os.environ["TENSORLADDER_CACHE"] = {str(folder / "none")!r}
import pytest, torch
import tensorladder
from tests.ops import silicon
from tensorladder.core.program import Module
from tensorladder.silicon import pack
with pytest.MonkeyPatch.context() as patch:
    gpu = silicon.install(patch)
    gpu.run = False
    opened = pack.Pack.open({str(folder)!r})
    gpu.modules = {{opened.code(one.code): Module(one.heads, "sm_90a") for one in opened.dynamic}}
    a, b = torch.zeros(200, 72).bfloat16(), torch.zeros(136, 72).bfloat16().t()
    for _ in range(2):
        out = tensorladder.matmul(a, b)
    assert {{a.data_ptr(), b.data_ptr(), out.data_ptr()}} <= silicon.words(gpu.launched[-1][1])
    print(len(gpu.launched), sorted(set(sys.modules) & {{"tensorladder.vgpu.ptx", "tensorladder.rungs.hopper"}}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == "2 []\n", done.stdout + done.stderr
