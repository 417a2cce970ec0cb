"""Host objects loaded without a linker do what LLVM's loader makes of them; what they are not is said in one line."""

from __future__ import annotations

import platform
import struct

import pytest

from tensorladder.core.elf import read_sections, undefined_symbols
from tensorladder.core.errors import TensorladderError, Unsupported, UsageError
from tensorladder.core.program import LaunchRecorder
from tensorladder.frontends import cutedsl_inner as inner
from tensorladder.frontends import ptxparams
from tensorladder.frontends.cutedsl import PackedEntry
from tensorladder.frontends.objectcode import ObjectCode
from tensorladder.measure import pack as packs
from tensorladder.rungs.rung import find, load
from tensorladder.silicon import relocate

pytest.importorskip("cutlass")
pytest.importorskip("llvmlite")

ASKED = [
    ("a1-naive-batched", "sm_80", (2, 40, 48, 16)),
    ("b5-tma", "sm_90a", (264, 136, 72)),
    ("c4-multicast", "sm_90a", (512, 384, 128)),
    ("d3-two-cta", "sm_100a", (512, 512, 128)),
]


def program(name, arch, shape):
    info = find(name)
    return load(info).compile(arch, shape, "fp16", load(info).RUNG.config())


@pytest.fixture(scope="module")
def image():
    return program("a1-naive-batched", "sm_80", (2, 40, 48, 16)).host._compiled.image


@pytest.mark.parametrize(("name", "arch", "shape"), ASKED)
def test_launches_are_those_of_llvms_loader(name, arch, shape):
    made = program(name, arch, shape)
    compiled = made.host._compiled
    arrays = [packs._array(operand) for operand in find(name).problem.operands(shape, "fp16")]
    entry = PackedEntry(compiled.name, compiled.image, made.modules[0], llvm=False)

    def ours(views):
        packed = [inner.TensorArgument(view, compiled.specs[n]) for view, n in zip(views, compiled.names)]
        recorder = LaunchRecorder()
        entry(recorder, [address for one in packed for address in one.__c_pointers__()])
        return recorder.launches

    def about(launch):
        ptx, kernel = launch.module.ptx, launch.kernel
        return ptxparams.entry(ptx, kernel).params, ptxparams.unread(ptx, kernel)

    digests = {id(made.modules[0]): "0"}
    found = relocate.templates(name, ours, arrays, about, digests)
    assert found == relocate.templates(name, lambda views: made.launches(*views), arrays, about, digests)
    assert {number for _, number, _ in found[0].addresses} == {0, 1, 2}


def test_symbols_are_resolved_by_name(image):
    asked = []
    loaded = ObjectCode(image, lambda symbol: asked.append(symbol) or 1)
    assert set(asked) == undefined_symbols(image) and loaded.address("nobody") == 0
    assert loaded.address("_mlir_cuda_init") > 0
    with pytest.raises(Unsupported, match=r"symbol _cuda\w+ is not known here"):
        ObjectCode(image, lambda symbol: None)


def test_an_unknown_relocation_is_refused_by_number(image):
    spoilt = bytearray(image)
    start = next(o for name, kind, o, *_ in read_sections(image) if name == ".rela.ltext" and kind == 4)
    struct.pack_into("<I", spoilt, start + 8, 77)
    with pytest.raises(Unsupported, match="relocation 77 of machine"):
        ObjectCode(bytes(spoilt), lambda symbol: 1)


@pytest.mark.parametrize("part", [0, 3, 40, 0.2, 0.5, 0.9, 0.999])
def test_a_truncated_object_is_one_line(image, part):
    keep = part if isinstance(part, int) else int(part * len(image))
    with pytest.raises(TensorladderError) as raised:
        ObjectCode(image[:keep], lambda symbol: 1)
    assert "\n" not in str(raised.value)


def test_another_machines_object_is_refused(image):
    other = bytearray(image)
    struct.pack_into("<H", other, 18, 183 if platform.machine() == "x86_64" else 62)
    with pytest.raises(UsageError, match="is native code for"):
        ObjectCode(bytes(other), lambda symbol: 1)
