"""A harness for tests of single instructions: cases as data, run on the virtual GPU or on a real one.

A `Case` is a few lines of PTX with named inputs and outputs, an element a thread:

    Case("add.s32", "add.s32 %d, %a, %b;", {"a": ("s32", x), "b": ("s32", y)}, {"d": "s32"}, lambda a, b: a + b)

The harness declares the registers `%a`, `%b`, `%d`, loads the inputs of thread %idx, runs the body and stores the
outputs. `%idx` (.u32) is the thread's number in the grid. A test module ends with

    CASES = [...]
    test_cases = cases_test(CASES)

and each case is then compared up to three ways: numpy reference, virtual GPU, results recorded on silicon.

    pytest tests/vgpu/test_x.py                     virtual GPU, reference and recording
    pytest tests/vgpu/test_x.py --on gpu            a real GPU and the reference
    pytest tests/vgpu/test_x.py --on gpu --record   the same, and write tests/data/silicon/test_x.npz
    python -m tests.vgpu.record FOLDER [test_x]     the same without pytest (numpy and a driver are enough)

So that the last works, a module with cases imports numpy, the standard library and this file only at its top level,
and draws its inputs from fixed seeds (`ints`, `bits`, `floats`).
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parents[1] / "data" / "silicon"

# PTX type -> (numpy type of its elements in memory, register type, type of ld and st).
# bf16, fp8 and packed types are raw bits: numpy has no such types and the recording machine has no ml_dtypes.
TYPES: dict[str, tuple[Any, str, str]] = {
    "pred": (np.uint32, "pred", "u32"),
    "b8": (np.uint8, "b16", "u8"), "u8": (np.uint8, "b16", "u8"), "s8": (np.int8, "b16", "s8"),
    "b16": (np.uint16, "b16", "b16"), "u16": (np.uint16, "b16", "u16"), "s16": (np.int16, "b16", "s16"),
    "f16": (np.float16, "b16", "b16"), "bf16": (np.uint16, "b16", "b16"),
    "b32": (np.uint32, "b32", "b32"), "u32": (np.uint32, "b32", "u32"), "s32": (np.int32, "b32", "s32"),
    "f32": (np.float32, "f32", "f32"), "f16x2": (np.uint32, "b32", "b32"), "bf16x2": (np.uint32, "b32", "b32"),
    "u16x2": (np.uint32, "b32", "b32"), "s16x2": (np.uint32, "b32", "b32"), "tf32": (np.uint32, "b32", "b32"),
    "b64": (np.uint64, "b64", "b64"), "u64": (np.uint64, "b64", "u64"), "s64": (np.int64, "b64", "s64"),
    "f64": (np.float64, "f64", "f64"), "f32x2": (np.uint64, "b64", "b64"),
}  # fmt: skip

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A kernel around a few instructions.

    name: unique in its module. body: PTX with `%name` for inputs and outputs; it may declare registers and shared
    variables and hold labels. inputs: name -> (PTX type, array of n elements). outputs: name -> PTX type.
    reference(**inputs) gives one array, a tuple in the order of `outputs`, or a dict; None: only silicon can tell.
    buffers: name -> array that the kernel gets whole, `%name` being its address; what it holds afterwards is a result
    too (the reference then returns a dict). compare(name, got, want, inputs) -> boolean array, else exact (any NaN
    equals any NaN) or within `ulp` units in the last place. module: text before the kernel. smem: dynamic bytes.
    silicon: False keeps the case off real GPUs. departs: why silicon does not do what the ISA says; the virtual GPU
    follows the ISA, and what silicon gave is kept but not compared. draws: whether property tests may draw inputs.
    numerics: of the virtual GPU; "exact" agrees with silicon bit for bit, whatever `compare` lets pass.
    """

    name: str
    body: str
    inputs: Mapping[str, tuple[str, np.ndarray]]
    outputs: Mapping[str, str]
    reference: Callable[..., Any] | None = None
    buffers: Mapping[str, np.ndarray] = field(default_factory=dict)
    compare: Callable[[str, np.ndarray, np.ndarray, Arrays], np.ndarray] | None = None
    ulp: int = 0
    block: int = 128
    n: int = 0
    version: str = "8.6"
    target: str = "sm_90a"
    module: str = ""
    smem: int = 0
    cluster: int = 1
    policy: str = "eager"
    silicon: bool = True
    departs: str = ""
    draws: bool = True
    numerics: str = "f32"

    @property
    def threads(self) -> int:
        """Threads of the launch: the inputs' length, or `n`."""
        return self.n or len(next(iter(self.inputs.values()))[1])

    @property
    def digest(self) -> str:
        """Changes with the kernel's text and its inputs, so that a recording of another kernel is not believed."""
        h = hashlib.sha256(ptx_of(self).encode())
        for ty, array in self.inputs.values():
            h.update(np.ascontiguousarray(_to_memory(ty, array)).tobytes())
        for array in self.buffers.values():
            h.update(array.tobytes())
        return h.hexdigest()[:12]

    def arrays(self) -> Arrays:
        """The inputs by name, as the reference takes them."""
        inputs = {name: array for name, (_, array) in self.inputs.items()}
        return inputs | {name: array.copy() for name, array in self.buffers.items()}

    def with_inputs(self, **arrays: np.ndarray) -> Case:
        """The same kernel on other inputs."""
        return replace(self, inputs={name: (ty, arrays.get(name, old)) for name, (ty, old) in self.inputs.items()})


# ---------------------------------------------------------------- the kernel's text
def ptx_of(case: Case, diverged: bool = False) -> str:
    """PTX text of a case. diverged: only every third thread runs the body; the others' outputs stay zero."""
    params = [*case.inputs, *case.buffers, *case.outputs]
    lines = [f".version {case.version}", f".target {case.target}", ".address_size 64", case.module]
    lines.append(".visible .entry kernel(" + ", ".join(f".param .u64 p_{name}" for name in params) + ")\n{")
    lines.append("  .reg .b32 %idx, %_ctaid, %_ntid, %_tid, %_flag;\n  .reg .b64 %_a, %_o;\n  .reg .pred %_skip;")
    lines.append(
        "  mov.u32 %_ctaid, %ctaid.x; mov.u32 %_ntid, %ntid.x; mov.u32 %_tid, %tid.x;\n"
        "  mad.lo.u32 %idx, %_ctaid, %_ntid, %_tid;"
    )  # before the declarations: an input may be called `tid`
    for name, ty in [*((name, ty) for name, (ty, _) in case.inputs.items()), *case.outputs.items()]:
        lines.append(f"  .reg .{TYPES[ty][1]} %{name};")
    lines += [f"  .reg .b64 %{name};" for name in case.buffers]
    for name, (ty, _) in case.inputs.items():
        lines += [_address(name, ty), _load(name, ty)]
    lines += [f"  ld.param.u64 %{name}, [p_{name}];" for name in case.buffers]
    if diverged:
        lines += [f"  {_zero(name, ty)}" for name, ty in case.outputs.items()]
        lines.append("  rem.u32 %_flag, %idx, 3; setp.ne.u32 %_skip, %_flag, 0;\n  @%_skip bra AFTER_BODY;")
    lines.append(case.body)
    lines.append("AFTER_BODY:" if diverged else "")
    for name, ty in case.outputs.items():
        lines += [_address(name, ty), _store(name, ty)]
    return "\n".join([*lines, "  ret;\n}", ""])


def _address(name: str, ty: str) -> str:
    size = np.dtype(TYPES[ty][0]).itemsize
    return f"  ld.param.u64 %_a, [p_{name}]; mul.wide.u32 %_o, %idx, {size}; add.u64 %_a, %_a, %_o;"


def _load(name: str, ty: str) -> str:
    if ty == "pred":
        return f"  ld.global.u32 %_flag, [%_a]; setp.ne.u32 %{name}, %_flag, 0;"
    return f"  ld.global.{TYPES[ty][2]} %{name}, [%_a];"


def _store(name: str, ty: str) -> str:
    if ty == "pred":
        return f"  selp.u32 %_flag, 1, 0, %{name};\n  st.global.u32 [%_a], %_flag;"
    return f"  st.global.{TYPES[ty][2].replace('s8', 'u8')} [%_a], %{name};"


def _zero(name: str, ty: str) -> str:
    if ty == "pred":
        return f"setp.ne.u32 %{name}, 0, 0;"
    register = TYPES[ty][1]
    zero = {"f32": "0f00000000", "f64": "0d0000000000000000"}.get(register, "0")
    return f"mov.{register} %{name}, {zero};"


# ---------------------------------------------------------------- running
def _to_memory(ty: str, array: np.ndarray) -> np.ndarray:
    memory = np.dtype(TYPES[ty][0])
    if array.dtype != memory and (ty == "pred" or array.dtype.itemsize != memory.itemsize):
        array = array.astype(memory)
    return np.ascontiguousarray(array).view(memory)


def _allocated(array: np.ndarray) -> np.ndarray:
    """A copy at a 256-byte boundary, as a GPU's allocator would give it."""
    raw = np.empty(array.nbytes + 256, np.uint8)
    start = -raw.ctypes.data % 256
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def run(case: Case, on: str = "vgpu", *, diverged: bool = False, policy: str | None = None) -> Arrays:
    """Outputs and buffers of a case by name, from the virtual GPU or a real one ("gpu")."""
    n = case.threads
    assert n % case.block == 0, f"{case.name}: {n} threads are no multiple of the block, {case.block}"
    arrays = {name: _to_memory(ty, array) for name, (ty, array) in case.inputs.items()}
    assert all(len(a) == n for a in arrays.values()), f"{case.name}: inputs of different lengths"
    results = {name: _allocated(array) for name, array in case.buffers.items()}
    results |= {name: np.zeros(n, TYPES[ty][0]) for name, ty in case.outputs.items()}
    args = [*arrays.values(), *results.values()]
    text = ptx_of(case, diverged)
    if on == "gpu":
        _run_silicon(case, text, args, n // case.block)
    else:
        from tensorladder import vgpu

        device = vgpu.Device(case.target, policy or case.policy, numerics=case.numerics)
        vgpu.launch(
            text, "kernel", n // case.block, case.block, args, smem=case.smem, cluster=case.cluster, device=device
        )
    return {name: a != 0 if case.outputs.get(name) == "pred" else a for name, a in results.items()}


def _run_silicon(case: Case, text: str, args: Sequence[np.ndarray], grid: int) -> None:
    """Through the driver: copy in, launch, copy out. The arrays are changed in place."""
    from tensorladder.core.errors import KernelError
    from tensorladder.core.program import Launch, Module
    from tensorladder.silicon import driver

    _context(driver)
    addresses = []
    for array in args:
        address = ctypes.c_uint64()
        driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(array.nbytes, 16)))
        driver.call("cuMemcpyHtoD_v2", address, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes))
        addresses.append(address)
    params = b"".join(int(a.value).to_bytes(8, "little") for a in addresses)
    stream = driver.Stream()
    module = Module(text, case.target)
    stream.enqueue(Launch(module, "kernel", (grid, 1, 1), (case.block, 1, 1), params, case.smem, (case.cluster, 1, 1)))
    try:
        stream.synchronize()
    except KernelError as error:
        raise Fault(f"{case.name}: {error}") from error
    for array, address in zip(args, addresses, strict=True):
        driver.call("cuMemcpyDtoH_v2", ctypes.c_void_p(array.ctypes.data), address, ctypes.c_size_t(array.nbytes))
        driver.call("cuMemFree_v2", address)


class Fault(Exception):
    """The GPU faulted: no more can run in this process."""


def _context(driver: Any, made: list = []) -> None:  # noqa: B006 - the one context of the process
    if not made:
        driver.library()
        device, context = ctypes.c_int(), ctypes.c_void_p()
        driver.call("cuDeviceGet", ctypes.byref(device), 0)
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        driver.call("cuCtxSetCurrent", context)
        made.append(context)


def run_elementwise(
    body: str,
    inputs: Mapping[str, tuple[str, np.ndarray]],
    outputs: Mapping[str, str],
    on: str = "vgpu",
    **options: Any,
) -> list[np.ndarray]:
    """One kernel without a case around it; gives the outputs in order. Options are those of `Case`."""
    results = run(Case("elementwise", body, inputs, outputs, **options), on)
    return [results[name] for name in outputs]


# ---------------------------------------------------------------- comparing
def expected(case: Case) -> Arrays | None:
    """What the reference says, by result name, in the types of memory; None without a reference."""
    if case.reference is None:
        return None
    with np.errstate(all="ignore"):
        value = case.reference(**case.arrays())
    names = list(case.outputs)
    if not isinstance(value, dict):
        value = dict(zip(names, value if isinstance(value, tuple) else (value,), strict=True))
    found = {}
    for name, array in value.items():
        ty = case.outputs.get(name)
        if ty == "pred":
            found[name] = np.broadcast_to(np.asarray(array, bool), (case.threads,))
        elif ty is not None:
            found[name] = _cast(np.asarray(array), np.dtype(TYPES[ty][0]), case.threads)
        else:
            found[name] = np.asarray(array)
    return found


def _cast(array: np.ndarray, memory: np.dtype, n: int) -> np.ndarray:
    """To a type of memory: integers keep their low bits, equal sizes their bits, floats round."""
    kinds = array.dtype.kind + memory.kind
    if kinds == "ff" or (kinds[0] in "iub" and kinds[1] in "iu"):
        array = array.astype(memory)
    elif array.dtype.itemsize == memory.itemsize:
        array = array.view(memory)
    else:
        raise TypeError(f"the reference gave {array.dtype} for a result of {memory}")
    return np.broadcast_to(array, (n,))


def same(case: Case, name: str, got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Which elements of a result agree."""
    if case.compare is not None:
        return case.compare(name, got, want, case.arrays())
    ty = case.outputs.get(name, "")
    if got.dtype.kind == "f":
        return _same_float(got, want, case.ulp)
    if ty in ("bf16", "bf16x2", "f16x2", "f32x2"):
        parts = {"bf16": None, "bf16x2": None, "f16x2": np.float16, "f32x2": np.float32}[ty]
        g, w = (_bf16(a) if parts is None else a.view(parts) for a in (got, want))
        agree = _same_float(g, w, case.ulp, 16 if parts is None else 0)
        return agree.reshape(len(got), -1).all(axis=1)
    return got == want


def _bf16(bits: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(bits).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _same_float(got: np.ndarray, want: np.ndarray, ulp: int, shift: int = 0) -> np.ndarray:
    both_nan = np.isnan(got) & np.isnan(want)
    as_int = {2: np.int16, 4: np.int32, 8: np.int64}[got.dtype.itemsize]
    g, w = (np.ascontiguousarray(a).view(as_int) for a in (got, want))
    if ulp == 0:
        return both_nan | (g == w)
    low = np.iinfo(as_int).min
    g, w = (np.where(a < 0, low - a, a).astype(object if as_int is np.int64 else np.int64) >> shift for a in (g, w))
    return both_nan | ((np.abs(g - w) <= ulp) & (np.isnan(got) == np.isnan(want)))


def compare(case: Case, got: Arrays, want: Arrays, source: str, only: np.ndarray | None = None) -> None:
    """Raise AssertionError with the first few differences. only: which threads count."""
    for name, right in want.items():
        agree = same(case, name, got[name], right)
        if only is not None and len(agree) == len(only):
            agree = agree | ~only
        if agree.all():
            continue
        where = np.flatnonzero(~np.ravel(agree))
        shown = []
        for k in where[:4]:
            operands = ", ".join(f"{n}={_show(a[1][k])}" for n, a in case.inputs.items() if k < len(a[1]))
            shown.append(f"thread {k}: {operands} gave {_show(got[name].flat[k])}, {source} {_show(right.flat[k])}")
        raise AssertionError(
            f"{case.name}: %{name} differs in {len(where)} of {agree.size} elements\n  " + "\n  ".join(shown)
        )


def _show(x: np.generic) -> str:
    if x.dtype.kind == "f":
        return f"{x!s} ({int(x.view(f'u{x.dtype.itemsize}')):#x})"
    return f"{int(x)} ({int(x) & (1 << 8 * x.dtype.itemsize) - 1:#x})"


# ---------------------------------------------------------------- recordings
def recorded(module: str, case: Case, folder: Path = DATA) -> Arrays | None:
    """What silicon gave for this very case, or None."""
    table = _recordings(str(folder / f"{module}.npz"))
    prefix = f"{case.name}|{case.digest}|"
    found = {key[len(prefix) :]: array for key, array in table.items() if key.startswith(prefix)}
    return found or None


def _recordings(path: str, cache: dict[str, Arrays] = {}) -> Arrays:  # noqa: B006 - one read a file
    if path not in cache:
        cache[path] = {}
        if Path(path).exists():
            with np.load(path) as data:
                cache[path] = {key: data[key] for key in data.files}
    return cache[path]


@dataclass
class Recorder:
    """Collects results from silicon, and writes one file a test module."""

    tables: dict[str, Arrays] = field(default_factory=dict)

    def add(self, module: str, case: Case, results: Arrays) -> None:
        for name, array in results.items():
            self.tables.setdefault(module, {})[f"{case.name}|{case.digest}|{name}"] = array

    def write(self, folder: Path = DATA, keep: bool = True) -> None:
        """keep: leave recordings of cases that were not run now, where the file has them."""
        folder.mkdir(parents=True, exist_ok=True)
        for module, table in self.tables.items():
            path = folder / f"{module}.npz"
            fresh = {key.split("|")[0] for key in table}
            old = _recordings(str(path)) if keep else {}
            table = {k: v for k, v in old.items() if k.split("|")[0] not in fresh} | table
            np.savez_compressed(path, **dict(sorted(table.items())))


# ---------------------------------------------------------------- tests
def check(case: Case, on: str = "vgpu", module: str = "", recorder: Recorder | None = None) -> Arrays:
    """Run a case and compare it with its reference and, on the virtual GPU, with what silicon gave."""
    got = run(case, on)
    if on == "gpu" and recorder is not None:
        recorder.add(module, case, got)
    want = expected(case)
    if want is not None and not (on == "gpu" and case.departs):
        compare(case, got, want, "reference")
    silicon = recorded(module, case) if on == "vgpu" and module else None
    if silicon is not None and not case.departs:
        strict = replace(case, compare=None, ulp=0) if case.numerics == "exact" else case
        compare(strict, got, silicon, "silicon")
    assert on == "gpu" or want is not None or silicon is not None, f"{case.name}: neither reference nor recording"
    return got


def check_diverged(case: Case) -> None:
    """The body under a branch that every third thread takes: outputs of the others stay untouched."""
    got, want = run(case, diverged=True), expected(case)
    if want is None:
        return
    inside = np.arange(case.threads) % 3 == 0
    compare(case, got, want, "reference", inside)
    for name in case.outputs:
        assert not got[name][~inside].any(), f"{case.name}: %{name} changed in threads that skip the body"


def cases_test(cases: Sequence[Case]) -> Any:
    """A parametrised test of cases (None where pytest is not installed). The module keeps its cases in CASES."""
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), f"case names repeat: {sorted({n for n in names if names.count(n) > 1})}"
    try:
        import pytest
    except ImportError:
        return None
    module = sys._getframe(1).f_globals["__name__"].rpartition(".")[2]

    @pytest.mark.parametrize("case", cases, ids=names)
    def test_cases(case: Case, on: str, recorder: Recorder | None) -> None:
        if on == "gpu" and not case.silicon:
            pytest.skip("a case for the virtual GPU alone")
        check(case, on, module, recorder)

    return test_cases


# ---------------------------------------------------------------- inputs
def ints(ty: str, n: int, seed: int = 0) -> np.ndarray:
    """n integers of a PTX type: extremes and small numbers first, powers of two about, then uniform bits."""
    dtype = np.dtype(TYPES[ty][0])
    bits = 8 * dtype.itemsize
    mask = (1 << bits) - 1
    edges = [0, 1, 2, 3, mask, mask - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1, (1 << (bits - 1)) + 1]
    edges += [v for k in range(2, bits) for v in ((1 << k) - 1, 1 << k)]
    rng = np.random.default_rng([seed, bits])
    uniform = rng.integers(0, mask, n, np.uint64, endpoint=True)
    short = uniform >> rng.integers(0, bits, n).astype(np.uint64)  # all magnitudes alike
    picked = np.array(edges, np.uint64)[rng.integers(0, len(edges), n)]
    chosen = np.choose(rng.integers(0, 4, n), [uniform, short, picked, ~short & np.uint64(mask)])
    return chosen.astype(f"u{dtype.itemsize}").view(dtype)


def bits(ty: str, n: int, seed: int = 0) -> np.ndarray:
    """n values of a PTX type with uniform bits (floats: all exponents, NaN and infinity among them)."""
    dtype = np.dtype(TYPES[ty][0])
    raw = np.random.default_rng([seed, 7]).integers(0, 2**64 - 1, n, np.uint64, endpoint=True)
    return raw.astype(f"u{dtype.itemsize}").view(dtype)


def floats(ty: str, n: int, seed: int = 0) -> np.ndarray:
    """n floats of f16, bf16, f32 or f64: special values (zeros, denormals, infinity, NaN), moderate ones, any bits."""
    rng = np.random.default_rng([seed, 11])
    exact = {"f16": np.float16, "bf16": np.float32, "f32": np.float32, "f64": np.float64}[ty]
    info = np.finfo(exact)
    special = [0.0, 1.0, 0.5, 1.5, 2.0, 3.0, np.inf, np.nan, info.max, info.tiny, info.smallest_subnormal]
    special += [info.tiny / 2, info.eps, 1 + info.eps]
    special += [-x for x in special]
    special = np.array(special, exact)[rng.integers(0, len(special), n)]
    moderate = (rng.standard_normal(n) * np.exp2(rng.integers(-8, 8, n))).astype(exact)
    any_bits = bits({"bf16": "f32"}.get(ty, ty), n, seed + 1)
    chosen = np.choose(rng.integers(0, 3, n), [special, moderate, any_bits]).astype(exact)
    if ty == "bf16":
        return (chosen.view(np.uint32) >> 16).astype(np.uint16)
    return chosen


def pair(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Two 16-bit arrays packed to 32-bit words, or two 32-bit arrays to 64-bit words; the first in the low half."""
    wide = {2: np.uint32, 4: np.uint64}[low.dtype.itemsize]
    return np.stack([low, high], axis=1).reshape(-1).view(wide).copy()


def halves(word: np.ndarray, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """The two halves of packed words as `dtype`, low first."""
    parts = np.ascontiguousarray(word).view(dtype).reshape(len(word), 2)
    return parts[:, 0].copy(), parts[:, 1].copy()
