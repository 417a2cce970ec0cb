"""The disk cache of compiled functions: what is the same key, what is another, and what is not cached at all."""

import importlib
import sys
import warnings

import numpy as np
import pytest

pytest.importorskip("cutlass")

import cutedsl_kernels as kernels
import cutlass
import cutlass.cute as cute

from tensorladder.core import cache
from tensorladder.frontends import cutedsl_cache
from tensorladder.frontends import cutedsl_inner as inner
from tensorladder.frontends.cutedsl import compile_program


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORLADDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cutedsl"


def fakes(n=None, dtype=cutlass.Float32):
    n = cute.sym_int() if n is None else n
    return [cute.runtime.make_fake_compact_tensor(dtype, (n,), assumed_align=16) for _ in range(3)]


@pytest.fixture
def compilations(monkeypatch):
    """Counts how often the DSL is really asked."""
    count = []
    real = inner.compile_function

    def counted(*args):
        count.append(args)
        return real(*args)

    monkeypatch.setattr(inner, "compile_function", counted)
    return count


@pytest.mark.parametrize("options", ["", "--enable-tvm-ffi"])
def test_the_second_time_the_dsl_is_not_asked(compilations, options):
    arrays = [np.zeros(64, np.float32)[i % 1 :] for i in range(3)]
    args = [np.zeros(64, np.float32)] * 3
    first = compile_program(kernels.add, *args, arch="sm_90a", options=options)
    second = compile_program(kernels.add, *args, arch="sm_90a", options=options)
    assert len(compilations) == 1
    assert (first.modules, first.name) == (second.modules, second.name)
    one, other = first.launches(*arrays)[0], second.launches(*arrays)[0]
    assert (one.kernel, one.grid, one.block, len(one.params)) == (
        other.kernel,
        other.grid,
        other.block,
        len(other.params),
    )
    with pytest.raises(Exception, match="a: dtype float16"):
        second.launches(*[np.zeros(64, np.float16)] * 3)


def test_scalars_and_streams_are_packed_the_same_from_the_cache(compilations):
    from cuda.bindings.driver import CUstream

    x = cute.runtime.make_fake_compact_tensor(cutlass.Float32, (64, 4), stride_order=(1, 0), assumed_align=4)
    array = np.zeros((64, 4), np.float32)
    programs = [compile_program(kernels.scale, x, 1.0, CUstream(0), 7, arch="sm_90a") for _ in range(2)]
    params = [program.launches(array, 2.5)[0].params for program in programs]
    assert len(compilations) == 1 and params[0] == params[1]


def key(*args, **kwargs):
    return cutedsl_cache.key(kernels.add, args, kwargs, "sm_90a")


def test_keys_of_arguments():
    assert key(*fakes()) == key(*fakes()), "fresh symbols, the same demand"
    same, apart = fakes(), [f for _ in range(3) for f in fakes()[:1]]
    assert key(*same) != key(*apart), "one extent or three"
    assert (
        len({key(*fakes()), key(*fakes(64)), key(*fakes(128)), key(*fakes(dtype=cutlass.Float16)), key(1), key(1.0)})
        == 6
    )
    assert key(object()) is None and key(np.zeros(3)) is None


def test_keys_of_objects():
    def of(*args):
        return cutedsl_cache.key(kernels.Scale(*args), (), {}, "sm_90a")

    assert of(kernels.Config()) == of(kernels.Config()) is not None
    assert (
        len({of(kernels.Config()), of(kernels.Config(stages=4)), of(3), of(cutlass.Float16), of(cutlass.Float32)}) == 5
    )
    assert of(object()) is None
    assert cutedsl_cache.key(kernels.Scale(1), (), {}, "sm_80") != of(1)


MODULE = """
import helper_of_cache_test
SIZE = 3
TABLE = {"a": [1, 2]}
def closed(value):
    def f(x):
        return x + value + SIZE + TABLE["a"][0] + helper_of_cache_test.one()
    return f
f = closed(1)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "helper_of_cache_test.py").write_text("def one():\n    return 1\n")
    (tmp_path / "module_of_cache_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("module_of_cache_test")
    for name in ("module_of_cache_test", "helper_of_cache_test"):
        sys.modules.pop(name, None)


def test_keys_of_sources_and_globals(module, tmp_path):
    def of(fn=module.f):
        return cutedsl_cache.key(fn, (), {}, "sm_90a")

    first = of()
    assert first == of() == of(module.closed(1)) is not None
    assert of(module.closed(2)) != first
    module.SIZE = 4
    assert of() != first
    module.SIZE, module.counter = 3, 17
    assert of() == first, "a global that no function reads"
    module.TABLE["a"][0] = 5
    assert of() != first
    module.TABLE["a"][0] = 1
    (tmp_path / "helper_of_cache_test.py").write_text("def one():\n    return 2\n")
    assert of() != first, "the source of a module that it uses"
    module.TABLE = object()
    assert of() is None


def test_what_happens_to_be_loaded_is_no_part_of_the_key(module, tmp_path, monkeypatch):
    """A module that is spelt like an attribute in the function, such as one(), is not what the function uses."""
    (tmp_path / "one.py").write_text("")
    first = cutedsl_cache.key(module.f, (), {}, "sm_90a")
    other = type(module)("one")
    other.__file__ = str(tmp_path / "one.py")
    monkeypatch.setitem(sys.modules, "one", other)
    assert cutedsl_cache.key(module.f, (), {}, "sm_90a") == first is not None


def test_modules_imported_inside_a_function_are_part_of_the_key(module, tmp_path):
    source = "def f(x):\n    import helper_of_cache_test as helper\n    return helper.one()\n"
    (tmp_path / "module_of_cache_test.py").write_text(source)
    fn = importlib.reload(module).f
    first = cutedsl_cache.key(fn, (), {}, "sm_90a")
    (tmp_path / "helper_of_cache_test.py").write_text("def one():\n    return 2\n")
    assert cutedsl_cache.key(fn, (), {}, "sm_90a") not in (first, None)


def test_variables_of_the_dsl_are_part_of_the_key(monkeypatch):
    first = key(1)
    monkeypatch.setenv("CUTE_DSL_SOMETHING", "1")
    assert key(1) != first


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-7], lambda b: b"{}\n", lambda b: b"\xff" * 100])
def test_damaged_files_are_compiled_again(compilations, folder, damage):
    args = [np.zeros(64, np.float32)] * 3
    compile_program(kernels.add, *args, arch="sm_90a")
    (file,) = folder.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    compile_program(kernels.add, *args, arch="sm_90a")
    assert len(compilations) == 2


def test_a_cache_that_cannot_be_written_is_one_warning(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TENSORLADDER_CACHE", str(tmp_path / "file" / "below"))
    cache._warn_once.cache_clear()
    args = [np.zeros(64, np.float32)] * 3
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for arch in ("sm_90a", "sm_80"):
            compile_program(kernels.add, *args, arch=arch)
    assert sum("cannot be written" in str(w.message) for w in seen) == 1
