"""PTX kernels around wgmma.mma_async and their matrices, for the virtual GPU and a real one (see ptx_kernels).

`Mma` describes one product D = +-A B (+ C) of a warpgroup, in as many instructions along K as its tile of shared memory
holds. Element places follow the PTX ISA ("Shared Memory Matrix Layout", "Register Fragments"), written down here once
more, element by element.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.vgpu.ptx_kernels import Case

#: bytes of an element, K of an instruction
SIZES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
#: swizzle: (span in bytes, code in the descriptor)
SWIZZLES = {"none": (16, 0), "128B": (128, 1), "64B": (64, 2), "32B": (32, 3)}
_SMALL = {"e4m3": (4, 3), "e5m2": (5, 2)}


# ---------------------------------------------------------------- elements
def decode(codes: np.ndarray, ty: str) -> np.ndarray:
    """Bit patterns to float64."""
    if ty in _SMALL:
        exponent, mantissa = _SMALL[ty]
        bias = (1 << (exponent - 1)) - 1
        c = codes.astype(np.int64)
        e, m = (c >> mantissa) & ((1 << exponent) - 1), c & ((1 << mantissa) - 1)
        value = np.where(e > 0, (1 + m / (1 << mantissa)) * 2.0 ** (e - bias), m / (1 << mantissa) * 2.0 ** (1 - bias))
        if ty == "e5m2":
            value = np.where(e == 31, np.where(m == 0, np.inf, np.nan), value)
        else:
            value = np.where((e == 15) & (m == 7), np.nan, value)
        return np.where(c >> 7 & 1, -value, value)
    if ty in ("s8", "u8", "s32"):
        return codes.astype({"s8": np.int8, "u8": np.uint8, "s32": np.int32}[ty]).astype(np.float64)
    if ty == "f16":
        return codes.astype(np.uint16).view(np.float16).astype(np.float64)
    if ty == "bf16":
        return (codes.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    bits = codes.astype(np.uint32) & (0xFFFFE000 if ty == "tf32" else 0xFFFFFFFF)
    return bits.view(np.float32).astype(np.float64)


def encode(values: np.ndarray, ty: str) -> np.ndarray:
    """Values that the type holds (floats: rounded) to bit patterns, as uint32."""
    if ty in _SMALL:
        every = decode(np.arange(256), ty)
        table = np.where(np.isfinite(every), every, 1e9)
        return np.abs(table[None, :] - values.reshape(-1, 1)).argmin(axis=1).reshape(values.shape).astype(np.uint32)
    if ty in ("s8", "u8"):
        return values.astype(np.int64).astype(np.uint32) & 0xFF
    if ty == "s32":
        return values.astype(np.int64).astype(np.uint32)
    if ty == "f16":
        return values.astype(np.float16).view(np.uint16).astype(np.uint32)
    bits = values.astype(np.float32).view(np.uint32)
    return bits >> 16 if ty == "bf16" else bits


# ---------------------------------------------------------------- a product
@dataclass(frozen=True)
class Mma:
    """One product. steps: instructions along K (0: what a row of the swizzle span holds). base: base offset of both
    descriptors, their tiles starting so many 128-byte rows late. values: "ints" exact sums; "normal"; "full" integers.
    """

    n: int
    a: str = "f16"
    b: str = ""
    d: str = "f32"
    swizzle: str = "128B"
    mn_a: int = 0
    mn_b: int = 0
    registers: bool = False
    scale_a: int = 1
    scale_b: int = 1
    keep: int = 1
    satfinite: bool = False
    base: int = 0
    values: str = "ints"
    steps: int = 0

    @property
    def b_type(self) -> str:
        return self.b or self.a

    @property
    def k(self) -> int:
        """K of an instruction: 32 bytes."""
        return 32 // SIZES[self.a]

    @property
    def count(self) -> int:
        """Instructions along K."""
        if self.steps:
            return self.steps
        return 2 if self.mn_a or self.mn_b or self.registers or self.swizzle != "128B" else 4

    @property
    def name(self) -> str:
        parts = [f"n{self.n}", self.d, self.a, self.b_type, self.swizzle]
        parts += ["regs"] * self.registers + ["mn_a"] * self.mn_a + ["mn_b"] * self.mn_b
        parts += [f"sa{self.scale_a}"] * (self.scale_a < 0) + [f"sb{self.scale_b}"] * (self.scale_b < 0)
        parts += ["fresh"] * (not self.keep) + ["sat"] * self.satfinite + [f"base{self.base}"] * bool(self.base)
        return "-".join(parts + [self.values] * (self.values != "ints"))

    @property
    def d_count(self) -> int:
        return self.n // 4 if self.d == "f16" else self.n // 2

    # ------------------------------------------------------------ shared memory
    def offsets(self, mn: int, e: int, rows: int, swizzle: str) -> tuple[int, int, int]:
        """(LBO, SBO, bytes of one swizzle span of K) of an operand of `rows` rows, element size e."""
        span = SWIZZLES[swizzle][0]
        if not mn:
            if swizzle == "none":  # chunks of 16 bytes: all rows of one, then the next
                return rows * 16, 128, rows * 32
            return 16, 8 * span, rows * span
        if swizzle == "none":
            return -(-rows // 8) * 128, 128, 2 * -(-rows // 8) * 128
        repeats = -(-rows * e // span)
        return 8 * span, repeats * 8 * span, 2 * repeats * 8 * span

    def place(self, r: np.ndarray, p: np.ndarray, mn: int, e: int, rows: int, swizzle: str) -> np.ndarray:
        """Byte offset of element (row r, k = p) in the tile, p over all steps."""
        span = SWIZZLES[swizzle][0]
        lbo, sbo, _ = self.offsets(mn, e, rows, swizzle)
        first, q = self.first(p // self.k, mn, e, rows), p % self.k
        if not mn:
            b = q * e
            if swizzle == "none":
                at = first + r // 8 * sbo + r % 8 * 16 + b // 16 * lbo + b % 16
            else:
                at = first + r // 8 * sbo + r % 8 * span + b
        elif swizzle == "none":
            at = first + r % 8 * 2 + r // 8 * sbo + q % 8 * 16 + q // 8 * lbo
        else:
            at = first + r % (span // e) * e + r // (span // e) * lbo + q % 8 * span + q // 8 * sbo
        if swizzle != "none":
            at = at ^ at >> 3 & span - 16
        return at

    def first(self, step, mn: int, e: int, rows: int):
        """Byte offset of an instruction's tile: along a row of the span, then in the next span."""
        span, whole = SWIZZLES[self.swizzle][0], self.offsets(mn, e, rows, self.swizzle)[2]
        if mn or self.swizzle == "none":
            return step * whole
        return 32 * step // span * whole + 32 * step % span

    def image(self, codes: np.ndarray, mn: int, ty: str) -> np.ndarray:
        """Shared memory (bytes) of an operand, codes [rows][K of all steps]."""
        e = SIZES[ty]
        rows, k = codes.shape
        swizzle = self.swizzle
        r, p = np.meshgrid(np.arange(rows), np.arange(k), indexing="ij")
        at = self.place(r, p, mn, e, rows, swizzle) + 128 * self.base
        out = np.zeros(-(-(int(at.max()) + e) // 512) * 512, np.uint8)
        for byte in range(e):
            out[at + byte] = codes >> 8 * byte & 0xFF
        return out

    def descriptor(self, mn: int, ty: str, rows: int) -> int:
        """All but the address."""
        lbo, sbo, _ = self.offsets(mn, SIZES[ty], rows, self.swizzle)
        return lbo >> 4 << 16 | sbo >> 4 << 32 | self.base << 49 | SWIZZLES[self.swizzle][1] << 62

    # ------------------------------------------------------------ matrices
    def matrices(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Codes of A [64][K], B [n][K] and C [64][n]."""
        rng = np.random.default_rng([self.n, self.k, len(self.name)])
        shapes = (64, self.k * self.count), (self.n, self.k * self.count), (64, self.n)
        types = self.a, self.b_type, self.d
        out = []
        for shape, ty in zip(shapes, types, strict=True):
            if self.values == "full":
                low, high = {"s8": (-128, 127), "u8": (0, 255), "s32": (-(2**31), 2**31 - 1)}[ty]
                x = np.where(rng.random(shape) < 0.4, rng.choice([low, high], shape), rng.integers(low, high, shape))
            elif self.values == "normal":
                x = rng.standard_normal(shape)
            else:
                x = rng.integers(0 if ty == "u8" else -3, 4, shape)
            out.append(encode(x, ty))
        return tuple(out)

    def fragment(self, c: np.ndarray) -> np.ndarray:
        """[64][n] codes of D to [register][thread] words."""
        t = np.arange(128)
        row, col = 16 * (t // 32) + t % 32 // 4, 2 * (t % 4)
        out = np.zeros((self.d_count, 128), np.uint32)
        for r in range(self.d_count):
            if self.d == "f16":
                j, h = divmod(r, 2)
                out[r] = c[row + 8 * h, 8 * j + col] | c[row + 8 * h, 8 * j + col + 1] << 16
            else:
                j, e = divmod(r, 4)
                out[r] = c[row + 8 * (e // 2), 8 * j + col + e % 2]
        return out

    def a_fragment(self, a: np.ndarray) -> np.ndarray:
        """[64][K] codes of A to [step][register][thread] words."""
        size = SIZES[self.a]
        per = 4 // size
        t = np.arange(128)
        out = np.zeros((self.count, 4, 128), np.uint32)
        for step in range(self.count):
            for r in range(4):
                row = 16 * (t // 32) + t % 32 // 4 + 8 * (r % 2)
                for e in range(per):
                    col = self.k * step + 4 * per * (r // 2) + per * (t % 4) + e
                    out[step, r] |= a[row, col] << np.uint32(8 * size * e)
        return out

    def product(self, again: int = 0) -> np.ndarray:
        """[64][n] codes of the result in float64 (integers: exactly), the last instruction `again` times more."""
        a, b, c = self.matrices()
        av, bv = decode(a, self.a), decode(b, self.b_type)
        total = decode(c, self.d) * self.keep
        with np.errstate(all="ignore"):
            for step in (*range(self.count), *[self.count - 1] * again):  # saturation is an instruction's
                part = slice(self.k * step, self.k * (step + 1))
                total = total + self.scale_a * self.scale_b * (av[:, part] @ bv[:, part].T)
                if self.satfinite:
                    total = np.clip(total, -(2.0**31), 2.0**31 - 1)
                if self.d == "f16":
                    total = total.astype(np.float16).astype(np.float64)
        if self.d == "s32":
            total = (total.astype(np.int64) & 0xFFFFFFFF).astype(np.float64)
        return encode(total, self.d)

    # ------------------------------------------------------------ the kernel
    @property
    def opcode(self) -> str:
        sat = ".satfinite" if self.satfinite else ""
        types = f"{self.d}.{self.a}.{self.b_type}"
        return f"wgmma.mma_async.sync.aligned.m64n{self.n}k{self.k}{sat}.{types}"

    @property
    def tail(self) -> str:
        """What stands after scale-d."""
        values = [] if self.a in ("s8", "u8") else [self.scale_a, self.scale_b]
        if self.k == 16:
            values += [self.mn_b] if self.registers else [self.mn_a, self.mn_b]
        return "".join(f", {v}" for v in values)

    def body(
        self,
        before: str = "",
        inside: str = "",
        before_wait: str = "",
        wait: str = "wgmma.wait_group.sync.aligned 0;",
    ) -> str:
        """PTX. `before` stands before the first instruction, `inside` between the last one and the commit.

        `{mma}` in the texts is one more instruction on the last operands, `{mma:%e}` the same with D in %e0, %e1, ...
        """
        a_bytes, b_bytes = self.images_bytes()
        d = ", ".join(f"%d{r}" for r in range(self.d_count))
        lines = [f".reg .b32 %d<{self.d_count}>, %o, %end, %sa, %sb, %x<4>, %a<4>; .reg .b64 %p, %q, %da, %db, %s;",
                 f".reg .pred %more, %keep; .shared .align 1024 .b8 tile[{a_bytes + b_bytes}];",
                 "mov.u32 %sa, tile;", f"add.u32 %sb, %sa, {a_bytes};"]  # fmt: skip
        for name, at, size in (("a", "%sa", a_bytes), ("b", "%sb", b_bytes)):
            if not size:
                continue
            lines += [f"shl.b32 %o, %idx, 2; add.u32 %end, {at}, {size}; add.u32 %o, %o, {at};",
                      f"mul.wide.u32 %p, %idx, 4; add.u64 %p, %p, %{name};", f"COPY_{name}:",
                      "ld.global.b32 %x0, [%p]; st.shared.b32 [%o], %x0;",
                      "add.u32 %o, %o, 512; add.u64 %p, %p, 512; setp.lt.u32 %more, %o, %end;",
                      f"@%more bra COPY_{name};"]  # fmt: skip
        lines += ["fence.proxy.async; bar.sync 0;", "mul.wide.u32 %p, %idx, 4; add.u64 %q, %p, %d;"]
        lines += [f"ld.global.b32 %d{r}, [%q+{512 * r}];" for r in range(self.d_count)]
        lines += [f"setp.ne.u32 %keep, {self.keep}, 0;"]
        for which, mn, ty, rows in (("a", self.mn_a, self.a, 64), ("b", self.mn_b, self.b_type, self.n)):
            lines += [f"add.u32 %o, %s{which}, {128 * self.base}; and.b32 %o, %o, 0x3ffff; shr.u32 %o, %o, 4;",
                      f"cvt.u64.u32 %d{which}, %o;",
                      f"or.b64 %d{which}, %d{which}, {self.descriptor(mn, ty, rows):#x};"]  # fmt: skip
        steps = []
        if self.registers:
            lines.append("add.u64 %q, %p, %a;")
            lines.append(f".reg .b32 %f<{4 * self.count}>;")
            lines += [f"ld.global.b32 %f{r}, [%q+{512 * r}];" for r in range(4 * self.count)]
        for step in range(self.count):
            for which, mn, ty, rows in (("a", self.mn_a, self.a, 64), ("b", self.mn_b, self.b_type, self.n)):
                if step:
                    e = SIZES[ty]
                    by = (self.first(step, mn, e, rows) - self.first(step - 1, mn, e, rows)) >> 4
                    steps.append(f"add.u64 %d{which}, %d{which}, {by};")
            a = "%da"
            if self.registers:
                a = "{" + ", ".join(f"%f{4 * step + r}" for r in range(4)) + "}"
            steps.append(f"{self.opcode} {{{d}}}, {a}, %db, %keep{self.tail};")
            steps.append("setp.eq.u32 %keep, 0, 0;")
        lines += [before, "wgmma.fence.sync.aligned;", *steps, inside, "wgmma.commit_group.sync.aligned;"]
        lines += [before_wait, wait]
        lines += ["add.u64 %q, %p, %d;"]
        lines += [f"st.global.b32 [%q+{512 * r}], %d{r};" for r in range(self.d_count)]
        text = "\n".join(lines)
        for mark, to in (("{mma}", d), ("{mma:%e}", d.replace("%d", "%e"))):
            text = text.replace(mark, f"{self.opcode} {{{to}}}, {a}, %db, %keep{self.tail};")
        return text

    def images_bytes(self) -> tuple[int, int]:
        """Bytes of the two tiles in shared memory, whole kilobytes (A in registers: none)."""
        a, b, _ = self.matrices()
        a_bytes = 0 if self.registers else len(self.image(a, self.mn_a, self.a))
        return -(-a_bytes // 1024) * 1024, -(-len(self.image(b, self.mn_b, self.b_type)) // 1024) * 1024

    def case(self, **options) -> Case:
        """The kernel as a case; d is [register][thread]."""
        a, b, c = self.matrices()
        a_bytes, b_bytes = self.images_bytes()
        b_image = np.zeros(b_bytes, np.uint8)
        found = self.image(b, self.mn_b, self.b_type)
        b_image[: len(found)] = found
        if self.registers:
            a_image = self.a_fragment(a)
        else:
            a_image = np.zeros(a_bytes, np.uint8)
            found = self.image(a, self.mn_a, self.a)
            a_image[: len(found)] = found
        buffers = {"a": a_image, "b": b_image, "d": self.fragment(c)}
        text = self.body(**{k: options.pop(k) for k in ("before", "inside", "before_wait", "wait") if k in options})
        want = self.fragment(self.product())
        if self.values == "normal":
            options["compare"] = _close(self.d, SIZES[self.a] == 1)
            options["numerics"] = "exact"
        return Case(self.name, text, {}, {}, lambda **_: {"d": want}, buffers=buffers, n=128, **options)


def _close(d: str, narrow: bool):
    """Rounding of the tensor cores: a few units of the last place of the largest.

    8-bit floats: each of up to 33 terms cut at 2^-13.
    """

    def compare(name: str, got: np.ndarray, want: np.ndarray, inputs: dict) -> np.ndarray:
        kind = np.float16 if d == "f16" else np.float32
        if got.dtype != np.uint32:
            return got == want
        g, w = (np.ascontiguousarray(x).view(kind).astype(np.float64) for x in (got, want))
        bound = {"f16": 3e-2 if narrow else 2e-2, "f32": 2e-2 if narrow else 2e-5}[d]
        near = np.abs(g - w) <= bound * np.maximum(np.abs(w), 1)
        return near.reshape(*got.shape, -1).all(axis=-1)

    return compare
