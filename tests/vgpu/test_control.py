"""Calls of system functions, the dynamic stack, and what is refused by name."""

from __future__ import annotations

import math
import re

import numpy as np

from tests.vgpu.ptx_kernels import Case, cases_test, ptx_of

N = 64
U32 = np.uint32
IDX = np.arange(N, dtype=U32)

_STACK = """
    .reg .b64 %p, %q, %s, %size; .reg .b32 %i, %k, %v; .reg .pred %c;
    and.b32 %k, %idx, 7; add.u32 %i, %k, 1; mul.wide.u32 %size, %i, 4;
    stacksave.u64 %s;
    alloca.u64 %p, %size, 16; alloca.u64 %q, 4;
    st.local.u32 [%q], 1000; mov.u32 %i, 0;
    FILL: mul.wide.u32 %size, %i, 4; add.u64 %size, %size, %p; mad.lo.u32 %v, %i, 10, %idx; st.local.u32 [%size], %v;
    add.u32 %i, %i, 1; setp.le.u32 %c, %i, %k; @%c bra FILL;
    ld.local.u32 %d, [%size]; ld.local.u32 %v, [%q]; add.u32 %d, %d, %v;
    stackrestore.u64 %s; alloca.u64 %q, 8;
    sub.u64 %q, %q, %s; cvt.u32.u64 %v, %q; and.b32 %v, %v, 0xfffffff0; add.u32 %d, %d, %v;
    and.b64 %p, %p, 15; cvt.u32.u64 %v, %p; add.u32 %d, %d, %v;"""

CASES = [
    Case(
        "alloca, stacksave, stackrestore",
        _STACK,
        {},
        {"d": "u32"},
        lambda: (IDX & 7) * 10 + IDX + 1000 - 16,  # the stack grows down
        n=N,
        block=N,
    )
]
test_cases = cases_test(CASES)


# ---------------------------------------------------------------- printf
_DECLARATIONS = """
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.extern .func (.param .b64 r) malloc (.param .b64 a);
"""


def text(name, value):
    """A string as a module variable."""
    data = value.encode() + b"\0"
    return f".global .align 1 .b8 {name}[{len(data)}] = {{{', '.join(map(str, data))}}};\n"


def store(values):
    """PTX that lays arguments out as C does, in the local array `args`; %s arguments are variable names."""
    code, offset = "", 0
    for k, value in enumerate(values):
        size = 4 if isinstance(value, int) and -(2**31) <= value < 2**31 else 8
        offset = -(-offset // size) * size
        if isinstance(value, str):
            code += f"mov.u64 %w, {value}; cvta.global.u64 %w, %w; st.local.u64 [args+{offset}], %w;\n"
        elif isinstance(value, float):
            bits = int(np.float64(value).view(np.uint64))
            code += f"mov.b64 %w, {bits:#x}; st.local.b64 [args+{offset}], %w;\n"
        elif size == 4:
            code += f"mov.b32 %v, {value & 0xFFFFFFFF:#x}; st.local.b32 [args+{offset}], %v;\n"
        else:
            code += f"mov.b64 %w, {value & (2**64 - 1):#x}; st.local.b64 [args+{offset}], %w;\n"
        offset += size
        assert k < 64
    return code


CALL = """{ .param .b64 a; .param .b64 b; .param .b32 r;
    mov.u64 %w, fmt; cvta.global.u64 %w, %w; st.param.b64 [a], %w;
    mov.u64 %w, args; cvta.local.u64 %w, %w; st.param.b64 [b], %w;
    call.uni (r), vprintf, (a, b); ld.param.b32 %v, [r]; }"""


def printed(fmt, values=(), body=None, strings=None, n=1, block=1, **options):
    """What a kernel prints."""
    from tensorladder import vgpu

    module = _DECLARATIONS + text("fmt", fmt) + "".join(text(k, v) for k, v in (strings or {}).items())
    code = ".local .align 8 .b8 args[256]; .reg .b32 %v; .reg .b64 %w; .reg .pred %p;\n"
    code += (body or "").replace("CALL", CALL) or store(values) + CALL
    case = Case("x", code, {}, {"d": "u32"}, None, n=n, block=block, module=module)
    shown = []
    device = vgpu.Device("sm_90a", **options)
    device.output = shown.append
    vgpu.launch(ptx_of(case), "kernel", n // block, block, [np.zeros(n, U32)], device=device)
    return "".join(shown)


def test_conversions():
    fmt = "%d %i %u|%5d|%-5d|%05d|%+d|% d|%.3d|%x %X %#x %o %#o|%c%c|%s|%10s|%-6s|%.2s|%%|"
    fmt += "%lld %llu %llx|%ld %zu|%hd %hhu\n"
    values = [-1, 2, -1, 42, 42, 42, 42, 42, 7, 255, 255, 255, 8, 8, 65, 66, "word", "word", "word", "word"]
    values += [-(2**40), 2**63, 2**40, 2**33, 2**34, 70000, 300]
    want = "-1 2 4294967295|   42|42   |00042|+42| 42|007|ff FF 0xff 10 010|AB|word|      word|word  |wo|%|"
    want += "-1099511627776 9223372036854775808 10000000000|8589934592 17179869184|4464 44\n"
    assert printed(fmt, values, strings={"word": "word"}) == want


def test_floats_stars_and_pointers():
    fmt = "%f %.2f %e %.1E %g %G %8.3f|%-8.1f|%+.0f %a|%*d|%-*d|%.*f|%p %p|%f %F %5.1f %d\n"
    values = [1.5, 2.345, 12345.678, 0.00012, 1e-5, 1e20, math.pi, 2.25, 3.7, 1.0, 5, 7, 4, 7, 2, 1.23456]
    values += [2**47 + 16, 0, math.inf, -math.inf, math.nan, 3]
    values[17] = 2**63  # a word of 8 bytes, made zero below
    want = "1.500000 2.35 1.234568e+04 1.2E-04 1e-05 1E+20    3.142|2.2     |+4 0x1p+0|    7|7   |1.23|"
    got = printed(fmt, values)
    assert got.startswith(want), got
    assert got[len(want) :] == "0x800000000010 0x8000000000000000|inf -INF   nan 3\n"


def test_lanes_in_order_and_unknown_conversions():
    body = "mov.u32 %v, %idx; st.local.u32 [args], %v; and.b32 %v, %v, 1; setp.eq.u32 %p, %v, 0; @%p bra EVEN;\n"
    body += "CALL\nEVEN:"
    assert printed("%d,", body=body, n=40, block=40) == "".join(f"{k}," for k in range(1, 40, 2))
    assert printed("%y%d\n", [5]) == "%y5\n"
    assert printed("plain\n") == "plain\n"


def test_ctas_print_in_order_whatever_the_workers_do():
    body = "mov.u32 %v, %ctaid.x; st.local.u32 [args], %v;\nCALL"
    want = "".join(f"{k}\n" * 2 for k in range(20))
    for _ in range(3):
        assert printed("%d\n", body=body, n=40, block=2, workers=4) == want


def test_a_full_buffer_says_so():
    body = "mov.u32 %v, 0; LOOP: st.local.u32 [args], %v;\nCALL\nld.local.u32 %v, [args]; add.u32 %v, %v, 1;"
    body += "setp.lt.u32 %p, %v, 2000; @%p bra LOOP;"
    got = printed("number %d of many, with some text behind it\n", body=body, n=32, block=32)
    assert got.startswith("number 0 of many") and got.endswith("the rest of the output is lost\n")
    numbers = [int(x) for x in re.findall(r"number (\d+) of", got)]
    assert numbers == sorted(numbers) and len(numbers) > 5000


def fails(body, *words, error="KernelError", module=_DECLARATIONS):
    import pytest

    from tensorladder import vgpu
    from tensorladder.core import errors

    case = Case("x", ".reg .b64 %w;\n" + body, {}, {"d": "u32"}, None, n=N, block=N, module=module)
    with pytest.raises(getattr(errors, error)) as caught:
        vgpu.launch(ptx_of(case), "kernel", 1, N, [np.zeros(N, U32)])
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_assert_and_stack_overflow():
    module = _DECLARATIONS + text("what", "i < n") + text("file", "/some/where/kernel.cu") + text("name", "void k()")
    body = ".reg .pred %p; setp.ne.u32 %p, %idx, 37; @%p bra FINE;\n"
    body += "{ .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;\n"
    for param, value in (("a", "what"), ("b", "file"), ("d", "name")):
        body += f"mov.u64 %w, {value}; cvta.global.u64 %w, %w; st.param.b64 [{param}], %w;\n"
    body += "st.param.b32 [c], 12; st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e); }\nFINE:"
    fails(body, "assertion `i < n` failed (kernel.cu:12)", "warp 1, lane 5", module=module)
    fails("L: alloca.u64 %w, 1000; bra L;", "alloca of 1000 bytes does not fit", "16368 bytes")


def test_refused_by_name():
    call = "{{ .param .b64 a; .param .b64 r; st.param.b64 [a], 8; call (r), {name}, (a); }}"
    fails(call.format(name="malloc"), "call of malloc", error="Unsupported")
    other = ".extern .func (.param .b64 r) somewhere (.param .b64 a);"
    fails(call.format(name="somewhere"), "call of somewhere, which has no body", error="Unsupported", module=other)
    proto = "P: .callprototype (.param .b64 _) _ (.param .b64 _);\n" + call.format(name="%w").replace("(a);", "(a), P;")
    fails(proto, "call through a register", error="Unsupported")
    recursive = ".func f() { call f; ret; }"
    fails("call f;", "recursive call of f", error="Unsupported", module=recursive)
