# ruff: noqa: E501 (texts of C)
"""Random C functions, run by the virtual GPU (through NVRTC or nvcc) and by the host's C compiler, bit for bit.

    python tests/vgpu/fuzz_c.py FIRST COUNT [--arch sm_80] [--debug] [--keep FOLDER]

A program is a chain of phases, each a function of one thread's state, with collectives between them (shared memory
behind __syncthreads, shuffles, votes, integer atomics) that the host emulates over all threads. Programs have no
undefined behaviour: unsigned arithmetic, masked shifts and indices, guarded divisors, float to integer only in range.
Floats need -fmad=false and -ffp-contract=off; NaNs are made one NaN before they are compared.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

INTS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
UNSIGNED = {
    "u8": "u32",
    "s8": "u32",
    "u16": "u32",
    "s16": "u32",
    "u32": "u32",
    "s32": "u32",
    "u64": "u64",
    "s64": "u64",
}
VARS = [f"{t}_{k}" for t in INTS for k in range(2)] + ["f32_0", "f32_1", "f64_0", "f64_1"]

COMMON = r"""
typedef unsigned char u8; typedef signed char s8; typedef unsigned short u16; typedef short s16;
typedef unsigned int u32; typedef int s32; typedef unsigned long long u64; typedef long long s64;
typedef float f32; typedef double f64;
struct State { VARS_ };
struct Pair { u16 a; s64 b; u8 c[5]; f32 d; };
"""
HOST = r"""
#include <math.h>
#include <string.h>
#define DEV static
#define NOINLINE
static u32 popc(u32 x) { return __builtin_popcount(x); }
static u32 popcll(u64 x) { return __builtin_popcountll(x); }
static u32 clz(u32 x) { return x ? __builtin_clz(x) : 32; }
static u32 clzll(u64 x) { return x ? __builtin_clzll(x) : 64; }
static u32 ffs_(u32 x) { return __builtin_ffs(x); }
static u32 brev(u32 x) { u32 r = 0; for (int i = 0; i < 32; i++) r |= ((x >> i) & 1) << (31 - i); return r; }
static u64 brevll(u64 x) { return ((u64)brev((u32)x) << 32) | brev((u32)(x >> 32)); }
static u32 mulhi(u32 a, u32 b) { return (u32)(((u64)a * b) >> 32); }
static u64 mulhi64(u64 a, u64 b) { return (u64)(((unsigned __int128)a * b) >> 64); }
static s64 smulhi64(s64 a, s64 b) { return (s64)(((__int128)a * b) >> 64); }
static u32 perm(u32 a, u32 b, u32 s) { u64 v = ((u64)b << 32) | a; u32 r = 0;
  for (int i = 0; i < 4; i++) r |= (u32)((v >> (8 * ((s >> (4 * i)) & 7))) & 255) << (8 * i); return r; }
static u32 funnel(u32 lo, u32 hi, u32 s) { return (u32)(((((u64)hi << 32) | lo) >> (s & 31))); }
static u32 sad(s32 a, s32 b, u32 c) { return c + (a > b ? (u32)a - (u32)b : (u32)b - (u32)a); }
static s32 dp4a(s32 a, s32 b, s32 c) { u32 r = c; for (int i = 0; i < 4; i++)
  r += (u32)((s32)(s8)((u32)a >> (8 * i)) * (s32)(s8)((u32)b >> (8 * i))); return (s32)r; }
static u32 fbits(f32 x) { u32 r; memcpy(&r, &x, 4); return x != x ? 0x7fffffffu : r; }
static u64 dbits(f64 x) { u64 r; memcpy(&r, &x, 8); return x != x ? 0x7ffffffffffffffull : r; }
static f32 asf(u32 x) { f32 r; memcpy(&r, &x, 4); return r; }
static f64 asd(u64 x) { f64 r; memcpy(&r, &x, 8); return r; }
"""
DEVICE = r"""
#define DEV static __device__
#define NOINLINE __noinline__
DEV u32 popc(u32 x) { return __popc(x); }
DEV u32 popcll(u64 x) { return __popcll(x); }
DEV u32 clz(u32 x) { return __clz(x); }
DEV u32 clzll(u64 x) { return __clzll(x); }
DEV u32 ffs_(u32 x) { return __ffs(x); }
DEV u32 brev(u32 x) { return __brev(x); }
DEV u64 brevll(u64 x) { return __brevll(x); }
DEV u32 mulhi(u32 a, u32 b) { return __umulhi(a, b); }
DEV u64 mulhi64(u64 a, u64 b) { return __umul64hi(a, b); }
DEV s64 smulhi64(s64 a, s64 b) { return __mul64hi(a, b); }
DEV u32 perm(u32 a, u32 b, u32 s) { return __byte_perm(a, b, s & 0x7777); }
DEV u32 funnel(u32 lo, u32 hi, u32 s) { return __funnelshift_r(lo, hi, s); }
DEV u32 sad(s32 a, s32 b, u32 c) { return __sad(a, b, c); }
DEV s32 dp4a(s32 a, s32 b, s32 c) { return __dp4a(a, b, c); }
DEV u32 fbits(f32 x) { return x != x ? 0x7fffffffu : __float_as_uint(x); }
DEV u64 dbits(f64 x) { return x != x ? 0x7ffffffffffffffull : (u64)__double_as_longlong(x); }
DEV f32 asf(u32 x) { return __uint_as_float(x); }
DEV f64 asd(u64 x) { return __longlong_as_double((s64)x); }
"""


class Program:
    """One random program: `device` and `host` are C texts; `threads` a block, `ctas` blocks."""

    def __init__(self, seed: int):
        self.r = random.Random(seed)
        self.seed = seed
        self.threads = self.r.choice([1, 2, 7, 31, 32, 32, 33, 45, 64, 64, 70, 96])
        self.ctas = self.r.choice([1, 2, 3])
        self.functions: list[str] = []
        self.names: list[str] = []
        self.depth = 0
        self.loops = 0
        self.count = 0
        for k in range(self.r.randint(0, 2)):
            self.functions.append(self.helper(k))
        self.steps: list[tuple] = []
        for k in range(self.r.randint(1, 3)):
            self.functions.append(self.phase(k))
            self.steps.append(("phase", k))
            for _ in range(self.r.choice([0, 1, 1, 2])):
                self.steps.append(self.collective())
        self.device, self.host = self.device_text(), self.host_text()

    # ------------------------------------------------------------ expressions
    def pick(self, *options):
        return self.r.choice(options)

    def const(self, t: str) -> str:
        bits = int(t[1:])
        v = self.pick(0, 1, 2, 3, 5, 7, 0x7F, 0x80, 0xFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF,
                      self.r.getrandbits(bits), self.r.getrandbits(6))  # fmt: skip
        if bits == 64:
            v = self.pick(v, v << 31, (1 << 63) | v, (1 << 64) - 1 - v)
        return f"(({t}){v & ((1 << bits) - 1)}ull)"

    def integer(self, t: str, d: int) -> str:
        """An expression that is cast to integer type t."""
        if d <= 0 or self.r.random() < 0.15:
            return self.pick(f"s->{t}_{self.r.randint(0, 1)}", f"s->{t}_{self.r.randint(0, 1)}", self.const(t))
        u = UNSIGNED[t]
        signed = "s32" if u == "u32" else "s64"
        bits = int(u[1:])
        k = self.r.randint(0, 21)
        a, b = self.integer(self.pick(*INTS), d - 1), self.integer(self.pick(*INTS), d - 1)
        ua, ub = f"(({u}){a})", f"(({u}){b})"
        if k <= 4:
            e = f"{ua} {self.pick('+', '-', '*')} {ub}"
        elif k <= 6:
            e = f"{ua} {self.pick('&', '|', '^')} {ub}"
        elif k == 7:
            e = f"{ua} {self.pick('<<', '>>')} ((u32){b} & {bits - 1})"
        elif k == 8:
            e = f"({signed}){a} >> ((u32){b} & {bits - 1})"
        elif k == 9:
            e = f"{ua} {self.pick('/', '%')} ({ub} | 1)"
        elif k == 10:
            e = f"({signed}){a} {self.pick('/', '%')} ({self.pick('', '-')}({signed})(({ub} & 0x{self.pick('7f', '7fff', '7fffff')}) | 2))"
        elif k == 11:
            e = f"({self.boolean(d - 1)} ? {ua} : {ub})"
        elif k == 12:
            e = f"{self.pick('~', '-')}{ua}"
        elif k == 13:
            e = self.boolean(d - 1)
        elif k == 14:
            f, w = self.pick(
                ("popc", 32), ("clz", 32), ("ffs_", 32), ("brev", 32), ("popcll", 64), ("clzll", 64), ("brevll", 64)
            )
            e = f"{f}((u{w}){a})"
        elif k == 15:
            e = self.pick(f"mulhi((u32){a}, (u32){b})", f"mulhi64((u64){a}, (u64){b})", f"smulhi64((s64){a}, (s64){b})",
                          f"perm((u32){a}, (u32){b}, {self.r.getrandbits(16)}u)", f"funnel((u32){a}, (u32){b}, {self.r.randint(0, 31)})",
                          f"sad((s32){a}, (s32){b}, 7u)", f"dp4a((s32){a}, (s32){b}, 3)", f"perm((u32){a}, 17u, (u32){b})")  # fmt: skip
        elif k == 16:
            e = f"m[{a} & 7]"
        elif k == 17:
            e = f"in[(u32){a} & 63]"
        elif k == 18:
            e = self.pick(f"fbits({self.real('f32', d - 1)})", f"dbits({self.real('f64', d - 1)})")
        elif k == 19:
            x = self.real(self.pick("f32", "f64"), d - 1)
            e = f"clampi({x})"
        else:
            e = self.pick(f"q.a + {ua}", f"q.b ^ {ua}", f"q.c[(u32){a} % 5]", f"p[(u32){a} & 15]")
        return f"(({t})({e}))"

    def real(self, t: str, d: int) -> str:
        if d <= 0 or self.r.random() < 0.2:
            return self.pick(
                f"s->{t}_0", f"s->{t}_1", f"({t}){self.r.uniform(-9, 9):.3f}", f"({t})1e{self.r.randint(-30, 30)}"
            )
        k = self.r.randint(0, 9)
        a, b = self.real(t, d - 1), self.real(t, d - 1)
        if k <= 4:
            return f"({a} {self.pick('+', '-', '*', '*', '/')} {b})"
        if k == 5:
            return f"{'sqrtf' if t == 'f32' else 'sqrt'}({a})"
        if k == 6:
            return f"({t}){self.integer(self.pick(*INTS), d - 1)}"
        if k == 7:
            return f"({self.boolean(d - 1)} ? {a} : {b})"
        if k == 8:
            return f"{'fmaf' if t == 'f32' else 'fma'}({a}, {b}, {self.real(t, 0)})"
        return f"({t}){self.real('f64' if t == 'f32' else 'f32', d - 1)}"

    def boolean(self, d: int) -> str:
        k = self.r.randint(0, 6)
        if k <= 3:
            t = self.pick(*INTS)
            return f"({self.integer(t, d - 1)} {self.pick('<', '<=', '>', '>=', '==', '!=')} {self.integer(t, d - 1)})"
        if k == 4:
            t = self.pick("f32", "f64")
            return f"({self.real(t, d - 1)} {self.pick('<', '<=', '>', '>=', '==', '!=')} {self.real(t, d - 1)})"
        if k == 5:
            return f"({self.integer('u32', d - 1)} & {1 << self.r.randint(0, 8)})"
        if d <= 0:
            return "(tid & 1)"
        return f"({self.boolean(d - 1)} {self.pick('&&', '||')} {self.boolean(d - 1)})"

    # ------------------------------------------------------------ statements
    def assign(self) -> str:
        v = self.pick(*VARS)
        t = v[:3].rstrip("_")
        if (
            self.names and self.r.random() < 0.12
        ):  # alone in its statement: the order of effects in one is the compiler's
            call = f"{self.pick(*self.names)}(s, in, m, {self.integer('u32', 1)} & 7, {self.integer('s64', 1)})"
            return f"{{ s64 r = {call}; s->s64_1 ^= r; s->u16_0 += (u16)r; }}"
        if t[0] == "f":
            return f"s->{v} = {self.real(t, 2)};"
        if self.r.random() < 0.25:
            return self.pick(
                f"m[{self.integer('u32', 1)} & 7] = (u32){self.integer('u32', 2)};",
                f"q.a = {self.integer('u16', 2)};", f"q.b = {self.integer('s64', 2)};", f"q.d = {self.real('f32', 1)}; s->f32_0 = q.d;",
                f"q.c[(u32){self.integer('u32', 1)} % 5] = {self.integer('u8', 2)};",
                f"p[(u32){self.integer('u32', 1)} & 15] = {self.integer('u8', 2)};",
                f"{{ struct Pair r = q; r.a++; q = {self.boolean(1)} ? r : q; }}",
            )  # fmt: skip
        return f"s->{v} = {self.integer(t, self.pick(1, 2, 2, 3))};"

    def block(self, n: int, d: int, loop: bool, ret: str) -> str:
        return " ".join(self.statement(d, loop, ret) for _ in range(n))

    def statement(self, d: int, loop: bool, ret: str) -> str:
        k = self.r.randint(0, 15)
        if d <= 0 or k <= 4:
            out = self.assign()
            if loop and self.r.random() < 0.2:
                out += f" if ({self.boolean(2)}) {self.pick('break', 'continue')};"
            return out
        self.count += 1
        i = f"i{self.count}"
        if k <= 8:
            other = f" else {{ {self.block(self.r.randint(1, 3), d - 1, loop, ret)} }}" if self.r.random() < 0.6 else ""
            return f"if ({self.boolean(2)}) {{ {self.block(self.r.randint(1, 3), d - 1, loop, ret)} }}{other}"
        if k <= 11 and self.loops < 3:
            self.loops += 1
            body = self.block(self.r.randint(1, 3), d - 1, True, ret)
            self.loops -= 1
            trips = self.pick(f"({self.integer('u32', 1)} & 7)", f"({self.integer('u32', 1)} % 5)", "4", "(tid % 6)")
            if self.r.random() < 0.5:
                return f"for (u32 {i} = 0, n{i} = {trips}; {i} < n{i}; {i}++) {{ {body} }}"
            return f"{{ u32 {i} = {trips}; do {{ if ({i}-- == 0) break; {body} }} while ({self.boolean(1)}); }}"
        if k <= 13:
            n = self.pick(3, 5, 9)
            cases = []
            for c in range(n):
                end = self.pick("break;", "break;", "")
                cases.append(f"case {c if self.r.random() < 0.9 else c + 20}: {self.block(1, d - 2, False, ret)} {end}")
            return f"switch ({self.integer('u32', 1)} % {n}) {{ {' '.join(cases)} default: {self.assign()} }}"
        if k == 14:
            return f"if ({self.boolean(2)}) {ret}"
        return self.assign()

    def helper(self, k: int) -> str:
        ret = f"return {self.integer('s64', 1)};"
        mark = self.pick("NOINLINE ", "")
        text = f"""DEV {mark}s64 h{k}(struct State *s, const u32 *in, u32 *m, u32 tid, s64 x) {{
  struct Pair q = {{(u16)x, x, {{1, 2, 3, 4, 5}}, 0.5f}}; u8 p[16] = {{0}};
  {self.block(self.r.randint(1, 3), 2, False, ret)}
  return (s64)((u64)x * 3) + s->s32_0 + q.a + q.c[2] + p[3];
}}"""
        self.names.append(f"h{k}")
        return text

    def phase(self, k: int) -> str:
        mark = self.pick("NOINLINE ", "", "")
        return f"""DEV {mark}void phase{k}(struct State *s, const u32 *in, u32 *m, u32 tid) {{
  struct Pair q = {{(u16)tid, (s64)tid * 77, {{1, 2, 3, 4, (u8)tid}}, 0.25f}}; u8 p[16] = {{1, 2}};
  {self.block(self.r.randint(1, 4), 3, False, "return;")}
  s->u32_1 += q.a + q.c[4] + p[1]; s->s64_0 ^= q.b;
}}"""

    def collective(self) -> tuple:
        var = self.pick("u32_0", "s32_1", "u32_1", "s32_0", "u64_0", "f32_0")
        return (
            self.pick("shared", "xor", "idx", "up", "down", "ballot", "any", "all", "atomic", "match", "divided", "reduce"),
            var, self.pick("u32_0", "u32_1", "s32_0", "s32_1"), self.r.randint(1, 31), self.pick("add", "max", "min", "and", "or", "xor"),
            self.pick("global", "shared"), f"(s->{self.pick('u32_0', 'u32_1', 'u16_1')} {self.pick('& 1', '% 3 == 1', '& 12', '> 99')})",
        )  # fmt: skip

    # ------------------------------------------------------------ texts
    def common(self) -> str:
        clamp = ("DEV s32 clampi(f64 x) { return x > -1e9 && x < 1e9 ? (s32)x : 12345; }\n"
                 "DEV void init(struct State *s, const u32 *in, u32 *m, u32 tid) { "
                 + " ".join(f"s->{v} = ({v[:3].rstrip('_')})(s32)(in[(tid + {7 * k}) & 63] ^ (tid * {k}u));" for k, v in enumerate(VARS))
                 + " for (int i = 0; i < 8; i++) m[i] = in[(tid + i) & 63]; }\n"
                 "DEV void finish(struct State *s, u32 *m, u64 *out, u32 tid) { out += tid * 32; for (int i = 0; i < 8; i++) out[24 + i] = m[i]; "
                 + " ".join(f"out[{k}] = {'fbits' if v[1:3] == '32' and v[0] == 'f' else 'dbits' if v[0] == 'f' else '(u64)'}(s->{v});"
                            for k, v in enumerate(VARS)) + " }\n")  # fmt: skip
        return clamp

    def header(self) -> str:
        return COMMON.replace("VARS_", " ".join(f"{v[:3].rstrip('_')} {v};" for v in VARS))

    def device_text(self) -> str:
        lines = []
        for k, step in enumerate(self.steps):
            lines.append("  " + self.device_step(k, step))
        body = "\n".join(lines)
        return f"""{self.header()}{DEVICE}{self.common()}{chr(10).join(self.functions)}
extern "C" __global__ void k(const u32 *in, u64 *out, u32 *counters) {{
  __shared__ u64 sh[96]; __shared__ u32 sc[64];
  u32 t = threadIdx.x, n = blockDim.x, tid = blockIdx.x * n + t, lane = t & 31;
  u32 live = n - (t & ~31u); u32 full = live >= 32 ? 0xffffffffu : (1u << live) - 1;
  u32 width = live >= 32 ? 32 : live;
  struct State st; struct State *s = &st; u32 m[8];
  for (u32 i = t; i < 64; i += n) sc[i] = 0;
  init(s, in, m, tid);
{body}
  finish(s, m, out, tid);
}}
"""

    def device_step(self, k: int, step: tuple) -> str:
        if step[0] == "phase":
            return f"phase{step[1]}(s, in, m, tid);"
        kind, v, u, c, op, where, cond = step
        if kind == "shared":
            value = "fbits(s->f32_0)" if v == "f32_0" else f"(u64)s->{v}"
            return f"__syncthreads(); sh[t] = {value}; __syncthreads(); s->u64_1 += sh[(t + {c}) % n]; __syncthreads();"
        if kind in ("xor", "idx", "up", "down"):
            value = "fbits(s->f32_0)" if v == "f32_0" else f"s->{v}"
            target = f"s->{v}" if v != "f32_0" else "s->u32_0"
            call = {
                "xor": f"__shfl_xor_sync(full, {value}, {c})",
                "idx": f"__shfl_sync(full, {value}, (lane + {c}) % width)",
                "up": f"__shfl_up_sync(full, {value}, {c})",
                "down": f"__shfl_down_sync(full, {value}, {c})",
            }[kind]
            guard = {
                "xor": f"(lane ^ {c}) < width",
                "idx": "1",
                "up": "1",
                "down": f"lane + {c} < width || lane + {c} > 31",
            }[kind]
            return f"{{ auto r = {call}; if ({guard}) {target} = r; }}"
        if kind in ("ballot", "any", "all"):
            return f"s->{u} {self.vote_op(step)}= (u32)__{kind}_sync(full, {cond});"
        if kind == "match":
            return f"s->{u} ^= __match_any_sync(full, s->{u} % 3u);"
        if kind == "reduce":
            return f"s->{u} = __reduce_{op}_sync(full, (u32)s->{u});"
        if kind == "divided":
            return (f"{{ u32 g = __ballot_sync(full, {cond}); if ({cond}) {{ for (u32 j = 0; j <= lane % 3; j++) s->u64_0 = s->u64_0 * 5 + j; "
                    f"s->{u} = __shfl_sync(g, s->{u}, __ffs(g) - 1); }} else {{ s->{u} ^= __ballot_sync(full & ~g, s->u16_0 & 1); }} }}")  # fmt: skip
        name = op.capitalize()
        place = (
            f"counters[(blockIdx.x * 64 + {c} + tid % 3) & 255]" if where == "global" else f"sc[({c} + tid % 3) & 63]"
        )
        if where == "global":
            place = f"counters[blockIdx.x * 64 + ({c} + tid % 3)]"
        fold = f" s->u64_1 += {place};"
        return f"__syncthreads(); atomic{name}(&{place}, (u32)s->{u}); __syncthreads();{fold} __syncthreads();"

    def vote_op(self, step: tuple) -> str:
        return "+-^"[step[3] % 3]

    def host_text(self) -> str:
        body = "\n".join("  " + self.host_step(s) for s in self.steps)
        return f"""{self.header()}{HOST}{self.common()}{chr(10).join(self.functions)}
void run(const u32 *in, u64 *out, u32 *counters) {{
 for (u32 cta = 0; cta < {self.ctas}; cta++) {{
  enum {{ N = {self.threads} }};
  static struct State S[N]; static u32 M[N][8]; static u64 x[N]; u32 sc[64] = {{0}};
#define ALL for (u32 t = 0; t < N; t++)
#define FIX struct State *s = &S[t]; u32 tid = cta * N + t, lane = t & 31, base = t & ~31u, width = N - base > 32 ? 32 : N - base;
  ALL {{ FIX init(s, in, M[t], tid); (void)lane; (void)width; }}
{body}
  ALL {{ FIX finish(s, M[t], out, tid); (void)lane; (void)width; }}
 }}
}}
"""

    def host_step(self, step: tuple) -> str:
        if step[0] == "phase":
            return f"ALL {{ FIX phase{step[1]}(s, in, M[t], tid); }}"
        kind, v, u, c, op, where, cond = step
        value = "fbits(s->f32_0)" if v == "f32_0" else f"(u64)s->{v}"
        t_ = v[:3].rstrip("_")
        target = f"s->{v}" if v != "f32_0" else "s->u32_0"
        if kind == "shared":
            return f"ALL {{ FIX x[t] = {value}; }} ALL {{ FIX s->u64_1 += x[(t + {c}) % N]; }}"
        if kind in ("xor", "idx", "up", "down"):
            source = {"xor": f"lane ^ {c}", "idx": f"(lane + {c}) % width", "up": f"lane < {c} ? lane : lane - {c}",
                      "down": f"lane + {c} > 31 ? lane : lane + {c}"}[kind]  # fmt: skip
            cast = t_ if v != "f32_0" else "u32"
            return f"ALL {{ FIX x[t] = {value}; }} ALL {{ FIX u32 f = {source}; if (f < width) {target} = ({cast})x[base + f]; }}"
        if kind in ("ballot", "any", "all", "divided", "match", "reduce"):
            pred = {"match": f"s->{u} % 3u", "reduce": f"(u32)s->{u}"}.get(kind, f"!!{cond}")
            first = f"ALL {{ FIX x[t] = {pred}; }}"
            if kind == "match":
                return f"{first} ALL {{ FIX u32 g = 0; for (u32 i = 0; i < width; i++) g |= (u32)(x[base + i] == x[t]) << i; s->{u} ^= g; }}"
            if kind == "reduce":
                e = {
                    "add": "a + b",
                    "max": "a > b ? a : b",
                    "min": "a < b ? a : b",
                    "and": "a & b",
                    "or": "a | b",
                    "xor": "a ^ b",
                }[op]
                return f"{first} ALL {{ FIX u32 a = (u32)x[base]; for (u32 i = 1; i < width; i++) {{ u32 b = (u32)x[base + i]; a = {e}; }} s->{u} = a; }}"
            gather = "u32 g = 0; for (u32 i = 0; i < width; i++) g |= (u32)x[base + i] << i;"
            if kind == "divided":
                return (f"{{ static u32 y[N], z[N]; {first} ALL {{ FIX y[t] = s->{u}; z[t] = s->u16_0 & 1; }} ALL {{ FIX {gather} u32 h = 0; "
                        f"for (u32 i = 0; i < width; i++) if (!x[base + i]) h |= z[base + i] << i; "
                        f"if (x[t]) {{ for (u32 j = 0; j <= lane % 3; j++) s->u64_0 = s->u64_0 * 5 + j; s->{u} = y[base + ffs_(g) - 1]; }} else s->{u} ^= h; }} }}")  # fmt: skip
            e = {"ballot": "g", "any": "(g != 0)", "all": "(popc(g) == width)"}[kind]
            return f"{first} ALL {{ FIX {gather} s->{u} {self.vote_op(step)}= (u32){e}; }}"
        place = f"counters[cta * 64 + ({c} + tid % 3)]" if where == "global" else f"sc[({c} + tid % 3) & 63]"
        e = {
            "add": "a + b",
            "max": "a > b ? a : b",
            "min": "a < b ? a : b",
            "and": "a & b",
            "or": "a | b",
            "xor": "a ^ b",
        }[op]
        return f"ALL {{ FIX u32 a = {place}, b = (u32)s->{u}; {place} = {e}; }} ALL {{ FIX s->u64_1 += {place}; }}"

    # ------------------------------------------------------------ runs
    def inputs(self) -> np.ndarray:
        rng = np.random.default_rng(self.seed)
        data = rng.integers(0, 2**32, 64, dtype=np.uint32)
        data[::3] = rng.integers(0, 20, len(data[::3]))
        data[1::7] = 0xFFFFFFFF - rng.integers(0, 5, len(data[1::7]))
        return data

    def expected(self, folder: Path) -> tuple[np.ndarray, np.ndarray]:
        """What the host's compiler makes of it: states (u64[threads of all CTAs, 32]) and counters."""
        source, library = folder / "p.c", folder / f"p{self.seed}.so"
        source.write_text(self.host)
        subprocess.run(
            ["gcc", "-w", "-O1", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off", "-mfma", "-shared", "-fPIC", "-o", library, source, "-lm"],
            check=True,
        )  # fmt: skip
        out = np.zeros((self.ctas * self.threads, 32), np.uint64)
        counters = np.zeros(256, np.uint32)
        data = self.inputs()
        run = ctypes.CDLL(str(library)).run
        run(*(ctypes.c_void_p(a.ctypes.data) for a in (data, out, counters)))
        library.unlink()
        return out, counters

    def got(self, ptx: str, policy: str = "eager") -> tuple[np.ndarray, np.ndarray]:
        """What the virtual GPU makes of compiled text."""
        from tensorladder import vgpu

        out = np.zeros((self.ctas * self.threads, 32), np.uint64)
        counters = np.zeros(256, np.uint32)
        vgpu.launch(ptx, "k", self.ctas, self.threads, [self.inputs(), out, counters], policy=policy, timeout=60)
        return out, counters


def compiled(text: str, arch: str, debug: bool, folder: Path) -> str:
    """PTX of CUDA text: optimised by NVRTC, or not at all by nvcc."""
    if debug:
        (folder / "k.cu").write_text(text)
        words = ["nvcc", "-w", "-ptx", "-G", "-fmad=false", f"-arch={arch}", "-o", folder / "k.ptx", folder / "k.cu"]
        subprocess.run(words, check=True)
        return (folder / "k.ptx").read_text()
    from tensorladder.frontends.nvrtc import compile_cuda

    return compile_cuda(text, arch, ["-fmad=false"]).ptx


def main() -> int:
    p = argparse.ArgumentParser()
    p.add_argument("first", type=int)
    p.add_argument("count", type=int)
    p.add_argument("--arch", default="sm_80")
    p.add_argument("--debug", action="store_true", help="compile with -G (nothing optimised)")
    p.add_argument("--verbose", action="store_true", help="say each seed before it runs")
    p.add_argument("--keep", default="", help="folder for programs that differ")
    a = p.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        for seed in range(a.first, a.first + a.count):
            program = Program(seed)
            if a.verbose:
                print(f"seed {seed}", file=sys.stderr, flush=True)
            want = program.expected(Path(name))
            policy = ("eager", f"random:{seed}")[seed % 2]
            ptx = ""
            try:
                ptx = compiled(program.device, a.arch, a.debug, Path(name))
                have = program.got(ptx, policy)
                rows, columns = np.nonzero(want[0] != have[0])
                counts = np.nonzero(want[1] != have[1])[0]
                trouble = (
                    f"state: threads {sorted(set(rows.tolist()))[:8]} fields {sorted(set(columns.tolist()))[:8]}"
                    if len(rows)
                    else ""
                )
                trouble += f" counters {counts[:8].tolist()}" if len(counts) else ""
            except Exception as e:  # every exception is a finding
                trouble = f"{type(e).__name__}: {str(e)[:300]}"
            if trouble:
                bad += 1
                print(f"seed {seed} ({program.ctas}x{program.threads}, {policy}): {trouble}", flush=True)
                if a.keep:
                    folder = Path(a.keep) / f"{seed}"
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / "k.cu").write_text(program.device)
                    (folder / "k.c").write_text(program.host)
                    (folder / "k.ptx").write_text(ptx)
    print(f"{a.count} programs, {bad} differ")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
