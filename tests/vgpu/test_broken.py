# ruff: noqa: E501 (tables of hostile text)
"""Hostile input: text that is not whole, operands that do not fit, arguments and extents that make no sense.

Every one of these ends in one line of a TensorladderError, never in an exception of Python or LLVM, and never in a
crash of the process.
"""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from tensorladder import vgpu
from tensorladder.core.errors import KernelError, TensorladderError, Unsupported, UsageError
from tensorladder.vgpu.codegen import table

HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"


def kernel(params: str, body: str, before: str = "") -> str:
    """PTX of kernel `k`; its body starts at line 6."""
    return f"""{HEAD}{before}.visible .entry k({params}) {{
.reg .b32 %r<16>; .reg .b64 %rd<16>; .reg .b16 %h<8>; .reg .f32 %f<8>; .reg .f64 %d<8>; .reg .pred %p<4>; .reg .b8 %q<4>;
{body}
}}
"""


STORE = kernel(
    ".param .u64 a",
    "ld.param.u64 %rd1, [a]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;\n"
    "mad.lo.u32 %r4, %r1, %r2, %r3; mul.wide.u32 %rd2, %r4, 4; add.u64 %rd3, %rd1, %rd2;\n"
    "st.global.u32 [%rd3], %r4; ret;",
)
EMPTY = kernel("", "ret;")


@pytest.mark.parametrize(
    "text",
    [
        "add.u32 %r1", "add.u32 %r1, %r2, %r3, %r4", "add.u32", "mad.lo.s64 %rd1, %rd2", "ld.global.u32 %r1",
        "ld.global.u32 %r1, %r2", "ld", "st.global.u32 7", "st.local.u64 %rd1, {%r1, %r2}", "selp.b32 %r1, %r2, %r3",
        "mov.b64 %rd1, {%r1, %r2, %r3}", "bar.sync", "barrier -1", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 %r1",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1}", "shfl.sync.up.b32 %r1, %r2", "match.any.sync.b32 %r1, %r2",
        "cp.async.wait_group", "cp.async.wait_group %r1", "mbarrier.inval.shared.b64", "rcp.rn.f32 %f1", "red.wrap",
        "cvt.u32.u64 %r1", "prefetch", "discard.global.L2 [%rd1]", "clz.b32 %r1, %r2, %r3", "membar.gl 7", "copysign.f64 %d1",
        "atom.global.add.u32 %r1", "mapa.shared::cluster.u32 %r1", "isspacep.global %p1", "slct.f32.s32 %f1",
        "activemask.b32", "elect.sync", "redux.sync.add.u32 %r1", "tensormap.replace.tile.fill_mode.global.b1024.b32",
    ],
)  # fmt: skip
def test_operands_that_do_not_fit(text: str) -> None:
    with pytest.raises(UsageError, match="PTX line 6: ") as caught:
        vgpu.launch(kernel("", f"{text}; ret;"), "k", 1, 32, [])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["bra %r1", "bra", "bra 7", "@%p1 bra [%rd1]", "brx.idx %r1, T", "brx.idx %r1", "brx.idx"]
)
def test_branches_to_no_label(text: str) -> None:
    with pytest.raises(UsageError, match="PTX line 6: "):
        vgpu.launch(kernel("", f"{text}; ret;"), "k", 1, 32, [])


@pytest.mark.parametrize(
    "text", ["ex2.approx.f32 {%r1,%r2}, 1.5", "fma.rn.f64 {%h1,%h2}, 7, %r1, %r1", "abs.f32 %d1, [%rd1]"]
)
def test_operands_of_a_wrong_kind_name_their_line(text: str) -> None:
    """Also where only LLVM sees that types differ."""
    with pytest.raises(TensorladderError, match="PTX line 7") as caught:
        vgpu.launch(kernel("", f"mov.u32 %r1, 1;\n{text};\nadd.u32 %r1, %r1, 1; ret;"), "k", 1, 32, [])
    assert "\n" not in str(caught.value)


def test_a_refused_instruction_is_found_by_bisection(monkeypatch: pytest.MonkeyPatch) -> None:
    """IR that LLVM does not take names the instruction that it came from."""
    from tensorladder.vgpu.codegen.table import TABLE, Entry

    table.load()
    monkeypatch.setitem(TABLE, "clz", Entry("clz", "logic", lambda e, i: e.op("add <32 x i32> 1, i1 2")))
    with pytest.raises(UsageError, match=r"PTX line 7: malformed clz: `clz\.b32 %r1, %r2`"):
        vgpu.launch(
            kernel("", "mov.u32 %r2, 1;\nclz.b32 %r1, %r2;\nadd.u32 %r1, %r1, 1; ret; // bisection"), "k", 1, 1, []
        )


OPERANDS = [
    "%r1", "%rd1", "%h1", "%f1", "%d1", "%p1", "%q1", "[%rd1]", "[v]", "v", "7", "-1", "0x7fffffffffffffff", "0f3F800000",
    "{%r1,%r2}", "{%f1,%f2,%f1,%f2}", "{}", "_", "%r1|%p1", "!%p1", "-%r1", "%tid.x", "[%rd1,{%r1,%r2}]", "%r1.b0", "1.5",
    "99999999999999999999999", "[0]", "foo", "(%r1)",
]  # fmt: skip


@pytest.mark.parametrize("family", table.FAMILIES)
def test_every_mnemonic_with_odd_operands(family: str) -> None:
    """Operands of any number and kind: code is generated, or one line says why not."""
    from tensorladder.vgpu.codegen.kernel import lower
    from tensorladder.vgpu.ptx import parse

    rnd = random.Random(family)
    for name, entry in sorted(table.load().items()):
        if entry.family != family:
            continue
        for _ in range(4):
            mods = "".join(
                f".{m}" for m in rnd.sample(["sync", "rn", "f32", "u32", "b64", "global", "aligned", "f16x2"], 2)
            )
            text = f"{name}{mods} {', '.join(rnd.choice(OPERANDS) for _ in range(rnd.randint(0, 5)))};"
            try:
                lower(
                    parse(
                        kernel("", f"@%p1 {text} ret;", ".global .b32 v;\n").replace("@%p1", rnd.choice(["", "@%p1"]))
                    ),
                    "k",
                )
            except TensorladderError as e:
                assert "\n" not in str(e) and "line" in str(e), text


def test_edited_text() -> None:
    """A kernel's text cut off or with bytes changed: an error of one line, or a kernel."""
    from tensorladder.vgpu.codegen.kernel import lower
    from tensorladder.vgpu.ptx import parse

    rnd = random.Random(1)
    for _ in range(1000):
        data = bytearray(STORE.encode())
        if rnd.random() < 0.3:
            del data[rnd.randrange(len(data)) :]
        for _ in range(rnd.randint(1, 3)):
            if data:
                data[rnd.randrange(len(data))] = rnd.choice(b'{}[]();,.%@!|+-0x9aZ \n"/*<>=_$:')
        try:
            module = parse(data.decode())
            for name in module.kernels:
                lower(module, name)
        except TensorladderError as e:
            assert "\n" not in str(e)


@pytest.mark.parametrize(
    "text",
    [
        kernel("", ".reg .b32 %x<9999999999>; ret;"), kernel("", ".reg .b32 %x<-1>; ret;"), kernel("", "bra L; ret;"),
        kernel("", "{" * 5000 + "ret;"), kernel("", "mov.u32 %r1, " + "-" * 5000 + "1; ret;"), STORE[:-9], HEAD[:9],
        kernel("", "ret;", ".global .b8 v[99999999999999999];\n"), kernel("", "mov.u32 %zz, 1;"), kernel("", "st.u32 ["),
        kernel("", "ret;", ".global .b32 v[2] = {1, zz, {;\n"), kernel("", "@%p1"), kernel("", 'ret; "'),
    ],
)  # fmt: skip
def test_text_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError, match="PTX") as caught:
        vgpu.launch(text, "k", 1, 32, [])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"grid": 0}, "grid=0"), ({"grid": 1.5}, "grid=1.5"), ({"grid": None}, "grid=None"), ({"grid": "12"}, "grid='12'"),
        ({"block": (32, 0)}, "block="), ({"block": 1025}, "block.x"), ({"block": (1, 1, 65)}, "block.z"),
        ({"grid": (1, 1, 1, 1)}, "grid="), ({"grid": 2**31}, "grid.x"), ({"cluster": 3}, "cluster"), ({"smem": "1"}, "smem="),
        ({"smem": -1}, "shared memory"), ({"smem": 1 << 62}, "shared memory"), ({"policy": "random:²"}, "policy"),
        ({"args": []}, "takes 1 arguments"), ({"args": [None]}, "NoneType"), ({"args": [b"abc"]}, "8 bytes"),
        ({"args": [np.array([None] * 64)]}, "Python objects"), ({"args": [5.0]}, "no integer"), ({"args": [2**64]}, "does not fit"),
        ({"ptx_text": STORE.encode()}, "bytes given"), ({"ptx_text": ""}, "not a PTX module"), ({"kernel": "x"}, "it has: k"),
        ({"arch": "sm_80"}, "for sm_90a, which does not run on sm_80"), ({"arch": "sm_100a"}, "give arch='sm_90a'"),
    ],
)  # fmt: skip
def test_launches_that_make_no_sense(changed: dict, message: str) -> None:
    asked = {"ptx_text": STORE, "kernel": "k", "grid": 1, "block": 32, "args": [np.zeros(64, np.uint32)]} | changed
    with pytest.raises(TensorladderError, match=message) as caught:
        vgpu.launch(**asked)
    assert "\n" not in str(caught.value)


def test_launches_at_the_edges() -> None:
    out = np.zeros(1024, np.uint32)
    vgpu.launch(EMPTY, "k", 1, 1, [])
    vgpu.launch(kernel("", ""), "k", np.int64(2), np.array([3]), [])
    vgpu.launch(EMPTY, "k", 1, 1, [], smem=227 * 1024, seed=-(2**70), policy=f"random:{2**90}")
    vgpu.launch(STORE, "k", 1, (16, 8, 8), [out])
    assert (out[:16] == 15).any() or (out[:16] < 16).all()


@pytest.mark.parametrize(("kind", "value"), [("f32", 3), ("f32", np.int32(3)), ("f64", True), ("f32", 2.5), ("f16", 1)])
def test_numbers_become_the_parameters_type(kind: str, value: object) -> None:
    bits = kind[1:]
    body = f"ld.param.b{bits} %x, [n]; ld.param.u64 %rd1, [a]; st.global.b{bits} [%rd1], %x; ret;"
    out = np.zeros(1, f"f{int(bits) // 8}")
    vgpu.launch(kernel(f".param .{kind} n, .param .u64 a", f".reg .b{bits} %x;\n{body}"), "k", 1, 1, [value, out])
    assert out[0] == float(value)  # type: ignore[arg-type]


def test_out_of_bounds_in_one_lane_of_one_cta() -> None:
    with pytest.raises(
        KernelError, match=r"past the end of argument 0 of shape \(7, 14\).*CTA \(2, 0, 0\), warp 1, lane 0"
    ):
        vgpu.launch(STORE, "k", 3, 33, [np.zeros((7, 14), np.uint32)])


def test_reads_past_the_parameters_name_them() -> None:
    text = kernel(
        ".param .align 64 .b8 s[128], .param .u64 a",
        "mov.b64 %rd4, s; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd5, %rd4, %rd2;\n"
        "ld.param.u32 %r2, [%rd5]; ld.param.u64 %rd1, [a]; add.u64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r2; ret;",
    )
    out, given = np.zeros(64, np.uint32), np.arange(32, dtype=np.uint32)
    vgpu.launch(text, "k", 1, 32, [given.tobytes(), out])
    np.testing.assert_array_equal(out[:32], given)
    with pytest.raises(KernelError, match="past the end of kernel parameters"):
        vgpu.launch(text, "k", 1, 64, [given.tobytes(), out])


def _chain(depth: int) -> str:
    """Functions that call each other `depth` deep; function n adds n."""
    text = ""
    for n in range(depth + 1):
        inner = (
            f"{{ .param .b32 p0; .param .b32 q0; st.param.b32 [p0], %a1; call.uni (q0), f{n - 1}, (p0); ld.param.b32 %a1, [q0]; }}"
            if n
            else ""
        )
        text += f".func (.param .b32 r) f{n}(.param .b32 x) {{ .reg .b32 %a<2>; ld.param.b32 %a1, [x]; add.u32 %a1, %a1, {n}; {inner} st.param.b32 [r], %a1; ret; }}\n"
    return kernel(
        ".param .u64 a",
        f"ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; {{ .param .b32 p0; .param .b32 q0; st.param.b32 [p0], %r1; call.uni (q0), f{depth}, (p0);\n"
        "ld.param.b32 %r2, [q0]; } mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd1, %rd2; st.global.u32 [%rd2], %r2; ret;",
        text,
    )


def test_deep_calls() -> None:
    out = np.zeros(32, np.uint32)
    vgpu.launch(_chain(20), "k", 1, 32, [out])
    np.testing.assert_array_equal(out, np.arange(32) + 210)
    with pytest.raises(Unsupported, match="more than 32 calls deep"):
        vgpu.launch(_chain(40), "k", 1, 32, [out])
    with pytest.raises(UsageError, match="with 0 arguments and 1 results"):
        vgpu.launch(_chain(1).replace("f1, (p0)", "f1, ()"), "k", 1, 32, [out])


def test_launches_from_many_threads() -> None:
    device, trouble = vgpu.Device("sm_90a"), []

    def work() -> None:
        try:
            for shared in (device, None):
                out = np.zeros(512, np.uint32)
                vgpu.launch(STORE, "k", 8, 64, [out], device=shared)
                np.testing.assert_array_equal(out, np.arange(512))
        except BaseException as e:
            trouble.append(e)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not trouble
