"""The twins in CUDA C++: one compilation serves every shape, the host part refuses what the kernel was not made for."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest

pytest.importorskip("llvmlite")
pytest.importorskip("ml_dtypes")

from tensorladder.core.errors import KernelError, UsageError
from tensorladder.measure import inspect
from tensorladder.measure.run import TARGETS, judge, plan, run_rung
from tensorladder.problems.problem import numpy_empty
from tensorladder.rungs.cuda.gemm import macros
from tensorladder.rungs.rung import catalog, find, load

CUDA = [info for info in catalog() if info.series == "cuda"]
SHAPES = ((48, 96, 64), (200, 40, 136), (1, 8, 8))


@pytest.mark.parametrize("info", CUDA, ids=lambda info: info.name)
def test_one_compilation_serves_every_shape(info):
    asked = plan(info)
    program = load(info).compile(asked.arch, asked.shape, asked.dtype)
    for shape in SHAPES:
        here = dataclasses.replace(asked, shape=shape)
        target = TARGETS["vgpu"](here)
        case = info.problem.make(shape, asked.dtype, 0, target.allocate)
        result = judge(here, case, *target.run(program, case))
        assert result.ok, (shape, result.message)


@pytest.mark.parametrize("info", CUDA, ids=lambda info: info.name)
def test_sources_are_shown_whole(info):
    assert [path.suffix for path in info.files] == [".py", ".cu"]
    assert "RUNG = Rung(" in inspect.source(info) and "__global__" in inspect.source(info)
    assert len(info.files[1].read_text().splitlines()) < 400
    assert "\n+#include" in inspect.diff(info) or "\n #include" in inspect.diff(info)


# (rung, what is cut out of its .cu, what stands there instead, shape)
COMPLETE, READ = "__syncthreads();  // the tiles are complete", "__syncthreads();  // everybody has read them"
WAITS = [
    ("cuda-a2-smem", COMPLETE, "", (64, 64, 64)),
    ("cuda-a2-smem", READ, "", (64, 64, 64)),
    ("cuda-b1-wmma-smem", COMPLETE, "", (64, 64, 96)),
    ("cuda-b1-wmma-smem", READ, "", (64, 64, 96)),
    ("cuda-d1-tcgen05", "barrier_wait(full + 8 * (tile % STAGES), tile / STAGES % 2);", "", (128, 128, 256)),
    ("cuda-d1-tcgen05", "if (before >= 0) barrier_wait(empty + 8 * (before % STAGES), before / STAGES % 2);", "",
     (128, 128, 1024)),
    ("cuda-d1-tcgen05", "barrier_wait(done, 0);", "", (128, 128, 128)),
    ("cuda-d1-tcgen05", "tile + STAGES < tiles_k", "tile % 2", (128, 128, 1024)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "instead", "shape"), WAITS)
def test_a_kernel_without_it_is_found_out(name, text, instead, shape, tmp_path, monkeypatch):
    info = find(name)
    source = info.files[1].read_text()
    assert source.count(text) == 1
    for header in info.path.parent.glob("*.cuh"):
        shutil.copy(header, tmp_path)
    (tmp_path / info.files[1].name).write_text(source.replace(text, instead))
    monkeypatch.setattr(load(info), "__file__", str(tmp_path / info.path.name))
    for policy in ("lazy", "timed", "random:1", "random:2"):
        try:
            result = run_rung(info, shape=shape, policy=policy, timeout=30)
        except KernelError:
            return
        if not result.ok:
            return
    raise AssertionError(f"{text!r} seems not to be needed")


def arrays(*shapes, dtype=np.float32):
    return [np.zeros(shape, dtype) for shape in shapes]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (arrays((4, 8), (6, 8)), "takes A, B and C, 2 arrays were given"),
        (arrays((4, 8), (6, 8), (4, 6), dtype=np.float16), "A is float16: it was compiled for float32"),
        (arrays((4, 8), (6, 7), (4, 6)), "B has K=7, the arrays before it K=8"),
        (arrays((4, 8), (6, 8), (5, 6)), "C has M=5, the arrays before it M=4"),
        ([np.zeros((4, 16), np.float32)[:, :8], *arrays((6, 8), (4, 6))], "A must be .M, K., row-major and dense"),
        ([*arrays((4, 8)), np.zeros((8, 6), np.float32).T, *arrays((4, 6))], "B must be .N, K., row-major and dense"),
        (arrays((4, 8), (48,), (4, 6)), "B must be"),
    ],
)
def test_other_arrays_are_refused(given, words):
    program = load(find("cuda-a1-naive")).compile("sm_80", (4, 6, 8), "fp32")
    with pytest.raises(UsageError, match=words):
        program.launches(*given)


STARTS = [("cuda-b1-wmma", 32), ("cuda-b2-vectorized-2d", 16), ("cuda-d1-tcgen05", 16)]


def test_other_extents_are_refused_by_the_compiled_program_too():
    program = load(find("cuda-b2-vectorized-2d")).compile("sm_80", (16, 16, 16), "fp16")
    with pytest.raises(UsageError, match="K=15: pad it to a multiple of 8"):
        program.launches(*arrays((16, 15), (16, 15), (16, 16), dtype=np.float16))


@pytest.mark.parametrize(("name", "align"), STARTS)
def test_arrays_start_where_vectors_can(name, align):
    info = find(name)
    program = load(info).compile(info.archs[0], (16, 16, 16), "fp16")
    whole = numpy_empty("X", (4, 16, 16), np.float16)  # of 512 bytes each, from a multiple of 256 on
    assert program.launches(*whole[:3])
    shifted = whole.reshape(-1)[align // 4 : align // 4 + 256].reshape(16, 16)
    for at, operand in enumerate("ABC"):
        given = [shifted if i == at else whole[1 + i] for i in range(3)]
        with pytest.raises(UsageError, match=f"{operand} must start at a multiple of {align} bytes"):
            program.launches(*given)


def test_knobs_become_macros():
    assert macros(load(find("cuda-a3-register-tile")).RUNG.config()) == {"TILE_M": 128, "TILE_N": 128, "TILE_K": 16}
