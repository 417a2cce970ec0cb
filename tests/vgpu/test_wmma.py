"""wmma.load, wmma.mma and wmma.store against numpy: shapes, types, layouts, strides, state spaces; exact sums."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from tests.vgpu.ptx_kernels import Case, cases_test, run
from tests.vgpu.wgmma_kernels import decode, encode

_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1, "u8": 1, "f64": 8, "f32": 4, "s32": 4}
_DTYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
#: registers of a fragment (PTX ISA, "Matrix Fragments for WMMA")
_REGISTERS = {
    ("f16", "a"): (8, 8, 8), ("f16", "b"): (8, 8, 8), ("bf16", "a"): (4, 8, 2), ("bf16", "b"): (4, 2, 8),
    ("s8", "a"): (2, 4, 1), ("s8", "b"): (2, 1, 4), ("u8", "a"): (2, 4, 1), ("u8", "b"): (2, 1, 4),
    ("tf32", "a"): (4,), ("tf32", "b"): (4,), ("f64", "a"): (1,), ("f64", "b"): (1,),
}  # fmt: skip
_SHAPES = ("m16n16k16", "m32n8k16", "m8n32k16")


@dataclass(frozen=True)
class Wmma:
    """D = A B + C of one warp. layouts: of A, B, C and D; pad: elements after each line; shared: A lies there."""

    shape: str
    ty: str
    d: str
    c: str
    layouts: str = "rcrr"
    pad: int = 0
    shared: bool = False
    satfinite: bool = False
    scale: bool = False

    @property
    def name(self) -> str:
        parts = [self.shape, self.d, self.ty, self.c, self.layouts, f"pad{self.pad}"]
        return "-".join(parts + ["shared"] * self.shared + ["sat"] * self.satfinite + ["scale"] * self.scale)

    @property
    def size(self) -> tuple[int, int, int]:
        m, rest = self.shape[1:].split("n")
        n, k = rest.split("k")
        return int(m), int(n), int(k)

    def extents(self, which: str) -> tuple[int, int]:
        m, n, k = self.size
        return {"a": (m, k), "b": (k, n)}.get(which, (m, n))

    def type_of(self, which: str) -> str:
        return {"c": self.c, "d": self.d}.get(which, self.ty)

    def values(self, which: str) -> np.ndarray:
        rng = np.random.default_rng([len(self.name), ord(which)])
        if self.satfinite:
            low, high = {"s8": (-128, 127), "u8": (0, 255), "s32": (-(2**31), 2**31 - 1)}[self.type_of(which)]
            x = rng.choice([low, high], self.extents(which))
            return x.astype(np.float64)
        return rng.integers(0 if self.type_of(which) == "u8" else -4, 5, self.extents(which)).astype(np.float64)

    def memory(self, which: str, values: np.ndarray) -> np.ndarray:
        """The matrix as it lies in memory, with padded lines."""
        ty = self.type_of(which)
        lines = values if self.layouts["abcd".index(which)] == "r" else values.T
        if ty == "f64":
            codes = np.ascontiguousarray(lines).view(np.uint64)
        else:
            codes = encode(lines, ty).astype(_DTYPES[_BYTES[ty]])
        return np.pad(codes, ((0, 0), (0, self.pad)))

    def want(self) -> np.ndarray:
        a, b, c = (self.values(which) for which in "abc")
        total = (2 * a if self.scale else a) @ b + c
        if self.satfinite:
            total = np.clip(total, -(2.0**31), 2.0**31 - 1)
        return self.memory("d", total)

    def registers(self, which: str) -> int:
        shape = _SHAPES.index(self.shape) if self.shape in _SHAPES else 0
        if which in "ab":
            return _REGISTERS[self.ty, which][shape]
        return {"f16": 4, "f64": 2}.get(self.type_of(which), 8)

    def fragment(self, which: str) -> str:
        return "{" + ", ".join(f"%{which}{r}_" for r in range(self.registers(which))) + "}"

    def move(self, what: str, which: str, address: str, space: str = ".global") -> str:
        layout = {"r": "row", "c": "col"}[self.layouts["abcd".index(which)]]
        opcode = f"wmma.{what}.{which}.sync.aligned.{layout}.{self.shape}{space}.{self.type_of(which)}"
        rows, columns = self.extents(which)
        stride = (columns if layout == "row" else rows) + self.pad
        tail = "" if not self.pad else f", {stride}"
        if what == "store":
            return f"{opcode} [{address}], {self.fragment(which)}{tail};"
        return f"{opcode} {self.fragment(which)}, [{address}]{tail};"

    def case(self, **options) -> Case:
        reg = "b64" if self.ty == "f64" else "b32"
        lines = [f".reg .{reg} %{w}{r}_;" for w in "abcd" for r in range(self.registers(w))]
        address, space = "%a", ".global"
        buffers = {w: self.memory(w, self.values(w)) for w in "abc"} | {"d": np.zeros_like(self.want())}
        if self.shared:
            size = buffers["a"].nbytes
            lines += [f".shared .align 32 .b8 tile[{size}]; .reg .b32 %x, %to; mov.u32 %to, tile; .reg .b64 %from;"]
            lines += [f"ld.global.b32 %x, [%a+{k}]; st.shared.b32 [%to+{k}], %x;" for k in range(0, size, 4)]
            lines += ["bar.warp.sync -1;"]
            address, space = "%to", ".shared"
        lines += [self.move("load", "a", address, space), self.move("load", "b", "%b")]
        lines += [self.move("load", "c", "%c", "")]
        if self.scale:
            lines += [f"add.f16x2 %a{r}_, %a{r}_, %a{r}_;" for r in range(self.registers("a"))]
        layouts = ".".join({"r": "row", "c": "col"}[x] for x in self.layouts[:2])
        types = f"{self.d}.{self.c}" if self.ty == "f16" else f"{self.d}.{self.ty}.{self.ty}.{self.c}"
        sat = ".satfinite" if self.satfinite else ""
        opcode = f"wmma.mma.sync.aligned.{layouts}.{self.shape}.{types}{sat}"
        lines += [f"{opcode} {', '.join(self.fragment(w) for w in 'dabc')};", self.move("store", "d", "%d")]
        want = self.want()
        return Case(self.name, "\n".join(lines), {}, {}, lambda **_: {"d": want}, buffers=buffers, n=32, block=32,
                    **options)  # fmt: skip


_LAYOUTS = ["".join(x) for x in product("rc", repeat=4)]
_WMMAS = [
    *(Wmma(s, "f16", d, c) for s in _SHAPES for d, c in product(("f16", "f32"), repeat=2)),
    *(Wmma(s, ty, d, d) for s in _SHAPES for ty, d in (("bf16", "f32"), ("s8", "s32"), ("u8", "s32"))),
    *(Wmma(s, "f16", "f32", "f32", layouts, 8) for s in _SHAPES for layouts in _LAYOUTS),
    *(Wmma("m16n16k8", "tf32", "f32", "f32", layouts, 4) for layouts in _LAYOUTS),
    *(Wmma(s, "s8", "s32", "s32", layouts, 16) for s in _SHAPES for layouts in ("rrrr", "ccrc", "crcr")),
    *(Wmma(s, ty, "s32", "s32", satfinite=True) for s in _SHAPES for ty in ("s8", "u8")),
    Wmma("m8n8k4", "f64", "f64", "f64"), Wmma("m8n8k4", "f64", "f64", "f64", "crcc", 2),
    *(Wmma(s, "f16", "f16", "f16", "crrc", 8, shared=True, scale=True) for s in _SHAPES),
]  # fmt: skip
CASES = [w.case() for w in _WMMAS]
test_cases = cases_test(CASES)


def test_decoding_is_the_inverse_of_encoding() -> None:
    x = np.arange(-8, 9).astype(np.float64)
    for ty in ("f16", "bf16", "tf32", "s8", "f32", "s32"):
        assert np.array_equal(decode(encode(x, ty), ty), x)


def test_out_of_bounds_is_an_error() -> None:
    import pytest

    from tensorladder.core.errors import KernelError

    case = _WMMAS[0].case()
    buffers = dict(case.buffers, a=case.buffers["a"][:8].copy())
    with pytest.raises(KernelError, match="out of bounds"):
        run(Case(case.name, case.body, {}, {}, buffers=buffers, n=32, block=32))
