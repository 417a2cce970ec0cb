"""Packs: what is written down launches the same kernels on the same arrays, and whatever is wrong with one is said."""

from __future__ import annotations

import ctypes
import json
import shutil
import struct
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorladder.core import tensormap
from tensorladder.core.errors import UsageError
from tensorladder.core.program import Launch
from tensorladder.frontends import objectcode
from tensorladder.measure import pack as packs
from tensorladder.measure import suites
from tensorladder.measure.dynamic import DynamicKernel
from tensorladder.rungs.rung import find, load
from tensorladder.silicon import driver, pack, target

pytest.importorskip("cutlass")
pytest.importorskip("ml_dtypes")

ASKED = [
    ("a0-vector-add", "sm_80", (4096,), "bf16"),
    ("a1-naive-tvm-ffi", "sm_80", (64, 72, 40), "fp16"),
    ("a1-dependent-launch", "sm_90a", (64, 64, 64), "fp32"),
    ("a1-grouped", "sm_80", (3, 64, 64, 64), "fp16"),
    ("b5-tma", "sm_90a", (264, 136, 72), "fp16"),
    ("c5-ping-pong", "sm_90a", (256, 256, 128), "bf16"),
    ("d4-block-scaled", "sm_100a", (512, 512, 512), "nvfp4"),
    ("fused-dsa-wgmma", "sm_90a", (5, 128, 4), "bf16"),
    ("cuda-a1-naive", "sm_80", (33, 17, 21), "fp32"),
    ("cuda-c1-wgmma", "sm_90a", (200, 133, 72), "fp16"),
]


def make(name, arch, shape, dtype):
    info = find(name)
    return packs.make(packs.Wanted(info, load(info).RUNG.config(), shape, dtype), arch)[:2]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pack") / "p"
    entry, code = make("b5-tma", "sm_90a", (264, 136, 72), "fp16")
    pack.write(folder, "sm_90a", [entry], code, packs.made_with())
    return folder


@pytest.fixture
def copied(made, tmp_path):
    return shutil.copytree(made, tmp_path / "p")


@pytest.mark.parametrize(("name", "arch", "shape", "dtype"), ASKED, ids=lambda v: v if isinstance(v, str) else None)
def test_templates_run_as_the_program_does(name, arch, shape, dtype):
    from tensorladder.vgpu import Device

    info = find(name)
    entry, code = make(name, arch, shape, dtype)
    program = load(info).compile(arch, shape, dtype, load(info).RUNG.config())
    results = []
    for packed in (False, True):
        device = Device(arch)
        case = info.problem.make(shape, dtype, 3, device.memory.empty)
        arrays = list(case.arrays.values())
        assert [a.shape for a in entry.arrays] == [a.shape for a in arrays]
        assert [tuple(s * x.itemsize for s in a.strides) for a, x in zip(entry.arrays, arrays)] == [
            x.strides for x in arrays
        ]
        assert [a.name for a in entry.arrays if a.output] == list(case.outputs)
        stream = device.stream()
        if packed:
            modules = {pack.digest(one.cubin): one for one in program.modules}
            assert modules.keys() == code.keys()
            for one in entry.launches:
                params = bytearray(one.params)
                for at, number, offset in one.addresses:
                    struct.pack_into("<Q", params, at, arrays[number].ctypes.data + offset)
                stream.enqueue(
                    Launch(modules[one.code], one.kernel, one.grid, one.block, bytes(params), one.smem, one.cluster,
                           one.attributes)
                )  # fmt: skip
        else:
            program(stream, *arrays)
        stream.synchronize()
        assert case.judge()[0]
        results.append([case.arrays[output].tobytes() for output in case.outputs])
    assert results[0] == results[1]


def test_packs_are_reproducible_and_maps_are_the_drivers():
    first, second = (make("b5-tma", "sm_90a", (264, 136, 72), "fp16")[0] for _ in range(2))
    assert first == second
    one = first.launches[0]
    for at, number, offset in one.addresses:
        assert offset == 0 and one.params[at : at + 8] == bytes(8)
        decoded = tensormap.decode(one.params[at : at + 128])
        assert decoded.dims == first.arrays[number].shape[::-1]
        assert one.params[at + 64 : at + 128] == tensormap.encode(decoded)[64:]
    assert sorted(number for _, number, _ in one.addresses) == [0, 1, 2]


def test_a_pack_reads_back_what_was_written(made):
    opened = packs.open_current(made)
    assert opened.entries == (make("b5-tma", "sm_90a", (264, 136, 72), "fp16")[0],)
    assert opened.arch == "sm_90a" and opened.facts["nvidia-cutlass-dsl"]


def change(folder, **more):
    path = folder / pack.MANIFEST
    manifest = json.loads(path.read_text())
    manifest |= more
    manifest["digest"] = pack._digest_of(manifest)
    path.write_text(json.dumps(manifest))


def cut(path, keep):
    path.write_bytes(path.read_bytes()[:keep])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def code_of(folder):
    return next((folder / pack.CODE).iterdir())


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda p: (p / pack.MANIFEST).unlink(), "no pack"),
        (lambda p: cut(p / pack.MANIFEST, 900), "cut short or damaged"),
        (lambda p: flip(p / pack.MANIFEST), "manifest.json"),
        (lambda p: cut(code_of(p), 1000), "has 1000 bytes of"),
        (lambda p: flip(code_of(p)), "is damaged"),
        (lambda p: code_of(p).unlink(), "No such file"),
        (lambda p: change(p, format=99), "stale"),
        (lambda p: change(p, tensorladder="0.0.1"), "stale"),
        (lambda p: change(p, entries=[{"rung": "b5-tma"}]), "damaged"),
        (lambda p: change(p, code={}), "damaged"),
    ],
)
def test_what_is_wrong_with_a_pack_is_one_line(copied, spoil, words):
    spoil(copied)
    with pytest.raises(UsageError, match=words) as raised:
        pack.Pack.open(copied)
    assert "\n" not in str(raised.value) and str(copied) in str(raised.value)


def test_a_rung_that_changed_makes_a_pack_stale(made, monkeypatch):
    monkeypatch.setattr(packs, "source_digest", lambda info: "other")
    with pytest.raises(UsageError, match="stale: b5-tma has changed"):
        packs.open_current(made)


class FakeDriver:
    """cuLaunchKernelEx that remembers grid, stream and the parameters' bytes."""

    def __init__(self, sizes):
        self.sizes = sizes
        self.launched = []

    def cuLaunchKernelEx(self, config, function, pointers, extra):
        config = config._obj
        params = [ctypes.string_at(pointers[i], size) for i, size in enumerate(self.sizes)]
        self.launched.append((tuple(config.grid), config.stream, params))
        return 0


class Tensor:
    """What a kernel asks of a torch tensor."""

    def __init__(self, shape, dtype="float16", device="cuda", address=0x7F00_0000_0000, stride=None):
        self.shape, self.dtype, self.address = shape, f"torch.{dtype}", address
        self.device = type("D", (), {"type": device})
        self.is_cuda = device == "cuda"
        self._stride = stride or (shape[1], 1)

    def stride(self):
        return self._stride

    def data_ptr(self):
        return self.address


@pytest.fixture
def kernel(made, monkeypatch):
    fake = FakeDriver([128, 128, 128])
    monkeypatch.setattr(driver, "library", lambda: fake)
    monkeypatch.setattr(driver, "use_context", lambda: None)
    monkeypatch.setattr(driver, "capability", lambda device=0: (9, 0))
    monkeypatch.setattr(driver, "load", lambda image, kernel: ctypes.c_void_p(1))
    monkeypatch.setattr(driver, "_set", lambda *_: None)
    monkeypatch.setattr(driver, "_get", lambda *_: 0)
    opened = packs.open_current(made)
    return opened.kernel(opened.entries[0]), fake


TENSORS = {"A": (264, 72), "B": (136, 72), "C": (264, 136)}


def tensors(**changed):
    return [changed.get(n, Tensor(s, address=0x7F00_0000_0000 + i * 4096)) for i, (n, s) in enumerate(TENSORS.items())]


def test_a_launch_carries_the_addresses_of_its_arrays(kernel):
    launch, fake = kernel
    launch(77, *tensors())
    launch.bind(78, *tensors(C=Tensor(TENSORS["C"], address=0x7F55_0000_0000)))()
    (grid, stream, params), (_, other, moved) = fake.launched
    assert grid == launch.entry.launches[0].grid and (stream, other) == (77, 78)
    found = {tensormap.decode(block).address for block in params}
    assert found == {0x7F00_0000_0000, 0x7F00_0000_1000, 0x7F00_0000_2000}
    assert tensormap.decode(moved[2]).address == 0x7F55_0000_0000


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"A": Tensor((264, 80))}, "A: shape"),
        ({"B": Tensor((136, 72), "bfloat16")}, "B: dtype"),
        ({"C": Tensor((264, 136), device="cpu")}, "C: lies on cpu"),
        ({"A": Tensor((264, 72), address=0x7F00_0000_0008)}, "A: address"),
        ({"A": Tensor((264, 72), stride=(1, 264))}, "A: strides"),
    ],
)
def test_arrays_that_were_not_packed_for_are_refused(kernel, changed, words):
    with pytest.raises(UsageError, match=words):
        kernel[0](0, *tensors(**changed))
    with pytest.raises(UsageError, match="it takes A, B, C"):
        kernel[0](0)
    assert not kernel[1].launched


# --------------------------------------------------------------------------------------------- extents named at a call


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dynamic") / "p"
    info = find("a1-naive-batched")
    asked = packs.Wanted(info, load(info).RUNG.config(), (2, 64, 64, 32), "fp16")
    assert packs.write(folder, "sm_90a", [packs.make(asked, "sm_90a")])[:2] == (1, 1)
    return folder


def extents(l, m, n, k):
    shapes = ((l, m, k), (l, n, k), (l, m, n))
    return shapes, tuple((a * b, b, 1) for _, a, b in shapes)


@given(st.tuples(*(st.integers(1, top) for top in (5, 300, 300, 200))))
@settings(max_examples=20, deadline=None)
def test_host_code_in_a_pack_launches_as_the_compilers_own(dynamic, shape):
    opened = packs.open_current(dynamic)
    made = DynamicKernel(opened, opened.dynamic[0]).instantiate(*extents(*shape))
    own = make("a1-naive-batched", "sm_90a", shape, "fp16")[0]
    assert made.launches == own.launches and made.arrays == own.arrays and made.source == own.source


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((2, 8, 8), (2, 8, 8)), "2 arrays given, it takes A, B, C"),
        (((2, 8, 8), (3, 8, 8), (2, 8, 8)), "B: shape"),
        (((2, 8, 8), (2, 8, 9), (2, 8, 8)), "B: shape"),
        (((2, 8), (2, 8, 8), (2, 8, 8)), "A: 2 dimensions"),
    ],
)
def test_extents_that_do_not_fit_are_refused(dynamic, shapes, words):
    opened = packs.open_current(dynamic)
    kernel = DynamicKernel(opened, opened.dynamic[0])
    strides = tuple((s[1] * s[-1], s[-1], 1)[-len(s) :] for s in shapes)
    with pytest.raises(UsageError, match=words):
        kernel.instantiate(shapes, strides)


def test_calls_with_known_extents_do_not_ask_the_host_code_again(dynamic, monkeypatch):
    fake = FakeDriver([])
    monkeypatch.setattr(driver, "library", lambda: fake)
    monkeypatch.setattr(driver, "use_context", lambda: None)
    monkeypatch.setattr(driver, "capability", lambda device=0: (9, 0))
    monkeypatch.setattr(driver, "_get", lambda *_: 0)
    loaded = []
    monkeypatch.setattr(driver, "load", lambda image, kernel: loaded.append(kernel) or ctypes.c_void_p(1))
    opened = packs.open_current(dynamic)
    kernel = DynamicKernel(opened, opened.dynamic[0])
    for shape in ((2, 40, 40, 8), (1, 8, 8, 8), (2, 40, 40, 8)):
        shapes, strides = extents(*shape)
        kernel(5, *(Tensor(s, stride=t) for s, t in zip(shapes, strides)))
    grids = [grid for grid, _, _ in fake.launched]
    assert grids[0] == grids[2] != grids[1] and len(kernel._kernels) == 2 and len(loaded) == 1


def test_a_missing_host_object_and_another_machine_are_one_line(dynamic, tmp_path, monkeypatch):
    copy = shutil.copytree(dynamic, tmp_path / "p")
    cut(next((copy / pack.HOST).iterdir()), 100)
    with pytest.raises(UsageError, match=r"host/\w+\.o\.gz has 100 bytes of"):
        pack.Pack.open(copy)
    monkeypatch.setattr(objectcode.platform, "machine", lambda: "riscv64")
    opened = packs.open_current(dynamic)
    with pytest.raises(UsageError, match="is native code for x86_64, this is riscv64"):
        DynamicKernel(opened, opened.dynamic[0]).instantiate(*extents(1, 8, 8, 8))


def test_another_gpu_is_one_line(made, monkeypatch):
    monkeypatch.setattr(driver, "capability", lambda device=0: (10, 0))
    opened = pack.Pack.open(made)
    with pytest.raises(UsageError, match="is for sm_90a, the GPU here is sm_100"):
        opened.kernel(opened.entries[0])


def test_opening_needs_neither_the_language_nor_the_engine(made, dynamic):
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('cutlass', 'llvmlite', 'numba', 'torch', 'tvm_ffi', 'ml_dtypes')))\n"
        "from tensorladder.measure.pack import open_current\n"
        f"print(len(open_current({str(made)!r}).entries))\n"
        "from tensorladder.measure.dynamic import DynamicKernel\n"
        f"opened = open_current({str(dynamic)!r})\n"
        "kernel = DynamicKernel(opened, opened.dynamic[0])\n"
        "shapes = ((1, 8, 8),) * 3\n"
        "print(kernel.instantiate(shapes, ((64, 8, 1),) * 3).launches[0].grid)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.splitlines() == ["1", "(1, 1, 1)"], done.stdout + done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["a0-vector-add", "a1-dependent-launch", "b5-tma", "c5-ping-pong", "d4-persistent"])
def test_a_packed_rung_is_right_on_the_gpu_here(tmp_path, name):
    torch = pytest.importorskip("torch")
    info = find(name)
    try:
        arch = target.arch_for(info.archs)
    except UsageError as error:
        pytest.skip(str(error))
    (asked,) = packs.wanted([name], arch, suites.SUITES["ladder"], [info.default_shape])
    packs.write(tmp_path, arch, [packs.make(asked, arch)])
    opened = packs.open_current(tmp_path)
    (entry,) = opened.entries
    case = info.problem.make(entry.shape, entry.dtype)
    tensors = [target.upload(torch, array) for array in case.arrays.values()]
    opened.kernel(entry)(torch.cuda.current_stream().cuda_stream, *tensors)
    torch.cuda.synchronize()
    for tensor, array in zip(tensors, case.arrays.values()):
        target.download(torch, tensor, array)
    assert case.judge()[0]


# ------------------------------------------------------------------------------------------------ the command line


def test_specs_name_rungs_and_knobs():
    info, config = packs.parse_spec("c2:stages=3,tile=128x128x64")
    assert info.name == "c2-warp-specialized" and config.stages == 3 and config.tile == (128, 128, 64)
    for text, words in (
        ("c2:steps=3", "no knob 'steps': use tile"),
        ("c2:stages=three", "stages='three' is not such a value"),
        ("c2:tile=128x128", "tile='128x128'"),
    ):
        with pytest.raises(UsageError, match=words):
            packs.parse_spec(text)


def test_knobs_follow_the_shape_unless_some_are_given():
    suite = suites.SUITES["ladder"]
    asked = packs.wanted(["c3", "c3:raster=8"], "sm_90a", suite, [(8192, 8192, 8192)])
    assert [one.config.tile for one in asked] == [(128, 192, 64), (128, 256, 64)]


def test_the_verb_writes_a_pack_and_says_so(ask, tmp_path):
    folder = str(tmp_path / "p")
    said = ask("pack", "--arch", "sm_90a", "-o", folder, "b5", "a0", "--json", "--dtype", "bf16")
    assert said.code == 0, said.err
    record = json.loads(said.out)
    assert {"file", "rungs", "arch"} <= record.keys() and record["rungs"] == ["b5-tma", "a0-vector-add"]
    shapes = {(entry.rung, entry.shape) for entry in packs.open_current(folder).entries}
    assert shapes == {("b5-tma", s) for s in suites.SUITES["ladder"].shapes} | {("a0-vector-add", (65536,))}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--arch", "sm_42"), "sm_42"),
        (("--arch", "sm_80", "c5"), "c5-ping-pong compiles for sm_90a"),
        (("c5", "--shape", "1,8,8"), "M=1"),
        (("b5", "--suite", "big"), "--suite 'big'"),
        (("b99",), "no rung"),
    ],
)
def test_a_wrong_request_is_one_line_and_writes_nothing(ask, tmp_path, arguments, words):
    folder = tmp_path / "p"
    said = ask("pack", "-o", str(folder), *arguments)
    assert said.code == 2 and words in said.err and said.err.count("\n") == 1 and not folder.exists()
