"""Breakpoints: where they stop, what the dump says, and that a schedule is the same with them and without."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from tensorladder import vgpu
from tensorladder.core.errors import KernelError, UsageError
from tensorladder.vgpu.codegen.kernel import lower
from tensorladder.vgpu.codegen.points import Place
from tensorladder.vgpu.debug import Breakpoints
from tensorladder.vgpu.debug.places import parse
from tensorladder.vgpu.ptx import parse as parse_ptx


def kernel(body: str, declared: str = "", name: str = "kernel", target: str = "sm_90") -> str:
    """A kernel whose body begins at PTX line 9; %out is its argument."""
    return f""".version 8.6
.target {target}
.address_size 64
.visible .entry {name}(.param .u64 out)
{{ {declared}
  .reg .b32 %r<16>; .reg .b64 %rd<4>; .reg .f32 %f<4>; .reg .pred %p<4>; .reg .b64 %out;
  ld.param.u64 %out, [out];
  mov.u32 %r1, %tid.x;
{body}
}}
"""


#: each thread writes its number, and reads its neighbour's in the other warp
TURN = kernel(
    """  mov.u32 %r2, tile;
  mad.lo.u32 %r3, %r1, 4, %r2;
  st.shared.u32 [%r3], %r1;
  bar.sync 0;
  xor.b32 %r4, %r1, 32;
  mad.lo.u32 %r5, %r4, 4, %r2;
  ld.shared.u32 %r6, [%r5];
  mul.wide.u32 %rd2, %r1, 4;
  add.u64 %rd3, %out, %rd2;
  st.global.u32 [%rd3], %r6;
  ret;""",
    ".shared .align 4 .b8 tile[256];",
)
#: a loop of four turns; %f1 is never stored where another block would read it
LOOP = kernel(
    """  mov.u32 %r2, 0;
again:
  mul.lo.u32 %r3, %r2, 10;
  cvt.rn.f32.u32 %f1, %r3;
  add.f32 %f2, %f1, 0f3F000000;
  cvt.rzi.u32.f32 %r4, %f2;
  add.u32 %r2, %r2, 1;
  setp.lt.u32 %p1, %r2, 4;
  @%p1 bra again;
  st.global.u32 [%out], %r4;
  ret;"""
)
#: two warps wait for one that comes; with 2 expected in place of 1 they hang
WAITS = """  mov.u32 %r2, bar;
  setp.eq.u32 %p1, %r1, 0;
  @%p1 mbarrier.init.shared.b64 [%r2], COUNT;
  bar.sync 0;
  @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 0;
again:
  mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0;
  @!%p2 bra again;
  st.global.u32 [%out], %r1;
  ret;"""


def stop(text: str, where: str, *, grid: int = 1, block: int = 64, name: str = "kernel", **options) -> dict:
    """The record of the one hit that ends the launch."""
    out = np.zeros(64 * grid, np.uint32)
    device = vgpu.launch(text, name, grid, block, [out], breakpoints=[where], **options)
    assert device.breakpoints.stopped is device.breakpoints.hits[-1] and len(device.breakpoints.hits) == 1
    json.dumps(device.breakpoints.hits[0].to_json(), allow_nan=False)
    return device.breakpoints.hits[0].to_json()


def hits(text: str, *where: str, block: int = 64, grid: int = 1, going_on: int = 100, **options) -> list[dict]:
    """The records of all hits of a launch that goes on."""
    points = Breakpoints(where, going_on=going_on)
    vgpu.launch(text, "kernel", grid, block, [np.zeros(64 * grid, np.uint32)], breakpoints=points, **options)
    return [hit.to_json() for hit in points.hits]


def register(record: dict, name: str) -> dict:
    found = next(reg for reg in record["registers"] if reg["name"] == name)
    return {key: found[key] for key in found if key not in ("name", "type")}


# ---------------------------------------------------------------- what a dump says
def test_registers_memory_barriers_and_the_other_warp():
    got = stop(TURN, "ptx:15@cta=1,warp=1", grid=2)
    assert (got["kernel"], got["cta"], got["warp"], got["lanes"]) == ("kernel", [1, 0, 0], 1, 0xFFFFFFFF)
    assert got["where"]["ptx_line"] == 15 and got["where"]["what"] == "ld.shared.u32"
    assert register(got, "%r1") == {"first": 32, "step": 1} and register(got, "%r5") == {"first": 0x400, "step": 4}
    assert {reg["name"] for reg in got["registers"]} == {"%r1", "%r5", "%out"}  # what is read from here on
    (region,) = got["shared"]["regions"]
    assert (region["address"], region["values"]) == (0x400, list(range(32)))
    assert got["barriers"] == [{"barrier": 0, "arrived": 0, "expected": 64, "completed": 1, "waiting": []}]
    assert [warp["state"].split(",")[0] for warp in got["warps"]] == ["has waited long enough", "is at the breakpoint"]


def test_values_that_no_other_block_reads_are_there_too():
    got = stop(LOOP, "ptx:13@hit=3", block=32)
    assert got["time"] == 3 and register(got, "%f1") == {"uniform": 20.0}
    assert next(reg["type"] for reg in got["registers"] if reg["name"] == "%f1") == "f32"


def test_each_turn_is_a_hit_and_the_launch_goes_on():
    found = hits(LOOP, "ptx:12", block=32)
    assert [register(one, "%r3")["uniform"] for one in found] == [0, 10, 20, 30]
    assert [one["time"] for one in found] == [1, 2, 3, 4]
    assert len(hits(LOOP, "ptx:12", block=32, going_on=2)) == 2


def test_only_lanes_that_execute_the_instruction_come_there():
    text = kernel("  setp.lt.u32 %p1, %r1, 3;\n  @%p1 st.global.u32 [%out], %r1;\n  ret;")
    (got,) = hits(text, "ptx:10")  # the second warp has no such lane
    assert (got["warp"], got["lanes"]) == (0, 7) and register(got, "%r1") == {"values": [0, 1, 2]}
    assert register(got, "%p1") == {"lanes": 7}


def test_lanes_that_went_another_way():
    body = "  setp.lt.u32 %p1, %r1, 8;\n  mov.u32 %r2, 5;\n  @%p1 bra low;\n  mov.u32 %r2, 6;\n  bra.uni end;\n"
    text = kernel(body + "low:\n  add.u32 %r2, %r2, %r1;\nend:\n  st.global.u32 [%out], %r2;\n  ret;")
    (low,) = hits(text, "ptx:15", block=32)
    assert low["lanes"] == 0xFF and register(low, "%r1") == {"values": list(range(8))}
    (high,) = hits(text, "ptx:12@lane=9", block=32)
    assert high["lanes"] == 0xFFFFFF00 and register(high, "%out")["uniform"] > 0
    both = hits(text, "ptx:17", block=32)
    assert sum(one["lanes"] for one in both) == 0xFFFFFFFF


@pytest.mark.parametrize("policy", ["eager", "lazy", "timed"])
def test_a_warp_that_waited_comes_once(policy):
    text = kernel(WAITS.replace("COUNT", "1"), ".shared .align 8 .b64 bar;")
    found = hits(text, "ptx:15", block=96, policy=policy)
    assert sorted(one["warp"] for one in found) == [0, 1, 2] and {one["time"] for one in found} == {1}


def test_an_mbarrier_says_what_it_waits_for_and_who_waits():
    text = kernel(WAITS.replace("COUNT", "1").replace("_, [%r2], 0", "_, [%r2], 64"), ".shared .align 8 .b64 bar;")
    out = np.zeros(64, np.uint32)
    points = Breakpoints(["hang"])
    with pytest.raises(KernelError, match="hangs"):
        vgpu.launch(text, "kernel", 1, 64, [out], breakpoints=points)
    (got,) = (hit.to_json() for hit in points.hits)
    (barrier,) = got["mbarriers"]
    assert (barrier["address"], barrier["phase"], barrier["pending"], barrier["tx"]) == (0x400, 0, 0, 64)
    assert [(one["warp"], one["parity"]) for one in barrier["waiting"]] == [(0, 0), (1, 0)]
    assert "warp 0, mbarrier.arrive.expect_tx" in barrier["last"]
    assert all(warp["where"]["ptx_line"] == 15 and register(warp, "%r2")["uniform"] == 0x400 for warp in got["warps"])
    assert register(got["warps"][1], "%r1") == {"first": 32, "step": 1}
    assert "0 of 1 arrivals and 64 bytes pending" in str(points.hits[0])


def test_a_launch_that_takes_too_long_shows_where_its_warps_are():
    text = kernel("  mov.u32 %r2, 0;\nround:\n  add.u32 %r2, %r2, 1;\n  bra.uni round;")
    points = Breakpoints(["hang@warp=1"])
    with pytest.raises(KernelError, match="time-out"):
        vgpu.launch(text, "kernel", 1, 64, [np.zeros(4, np.uint32)], breakpoints=points, timeout=0.2)
    (warp,) = points.hits[0].to_json()["warps"]
    assert warp["warp"] == 1 and warp["where"]["ptx_line"] == 11 and register(warp, "%r2")["uniform"] > 1000


def test_what_is_in_flight():
    body = "  mov.u32 %r2, tile;\n  cp.async.ca.shared.global [%r2], [%out], 4;\n  cp.async.commit_group;\n"
    text = kernel(body + "  cp.async.wait_group 0;\n  ret;", ".shared .align 16 .b8 tile[64];")
    assert stop(text, "ptx:12", policy="eager", block=1)["in_flight"] == []
    (copy,) = stop(text, "ptx:12", policy="lazy", block=1)["in_flight"]
    assert copy["what"] == "cp.async" and copy["where"]["ptx_line"] == 10 and copy["where"]["lanes"] == 1


def test_tensor_memory():
    body = """  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [place], 32;
  ld.shared.u32 %r2, [place];
  add.u32 %r3, %r2, 2;
  cvt.rn.f32.u32 %f1, %r1;
  mov.b32 %r4, %f1;
  tcgen05.st.sync.aligned.32x32b.x2.b32 [%r3], {%r4, 7};
  tcgen05.wait::st.sync.aligned;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;
  ret;"""
    text = kernel(body.replace("7}", "%r2}"), ".shared .align 8 .b32 place;", target="sm_100a")
    got = stop(text, "ptx:16", block=32, arch="sm_100a")
    (tensor,) = got["tmem"]
    assert (tensor["column"], tensor["columns"], tensor["written"]) == (0, 32, [[2, 3]])
    assert tensor["allocated"]["ptx_line"] == 9
    assert tensor["shown"][0]["values"] == [float(lane) for lane in range(32)]
    points = Breakpoints(["ptx:16"], dump=["tmem:2:1:u32", "tmem:600:1", "smem:0x400:4", "smem:0:4", "smem:%r3:4"])
    vgpu.launch(text, "kernel", 1, 32, [np.zeros(4, np.uint32)], arch="sm_100a", breakpoints=points)
    asked = points.hits[0].to_json()
    assert asked["tmem"][1]["shown"][0]["values"][:2] == [0, 0x3F800000] and "no such" in asked["tmem"][2]["what"]
    first, outside, nothing = asked["shared"]["regions"]
    assert first["values"] == [0] and "outside" in outside["what"] and "holds nothing" in nothing["what"]


# ---------------------------------------------------------------- where
SOURCES = """  .loc 1 10 0
  mov.u32 %r2, 1;
  .loc 1 12 0
  add.u32 %r3, %r1, %r2;
  add.u32 %r3, %r3, 1;
  .loc 1 10 0
  add.u32 %r3, %r3, %r2;
  .loc 1 20 0
  st.global.u32 [%out], %r3;
  ret;
}
.file 1 "/project/kernels/gemm.py"
{"""


def test_a_source_line_is_its_first_instruction_in_each_block():
    text = kernel(SOURCES).replace("{\n}", "").replace("\n{\n", "\n")
    for name in ("gemm.py", "kernels/gemm.py", "/project/kernels/gemm.py"):
        (got,) = hits(text, f"{name}:12", block=32)
        assert got["where"] == {"what": "add.u32", "file": "/project/kernels/gemm.py", "line": 12, "ptx_line": 12}
    assert [one["where"]["ptx_line"] for one in hits(text, "gemm.py:10", block=32)] == [10]
    with pytest.raises(UsageError, match=r"gemm.py:13: .* nearest lines that have one: 12 and 20"):
        stop(text, "gemm.py:13")
    with pytest.raises(UsageError, match=r"comes from that file, but from gemm.py"):
        stop(text, "other.py:13")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("ptx:18", "nearest lines that have one: 17 and 19"),
        ("ptx:99", "nearest lines that have one: 20$"),
        ("kernel+14", "nearest lines that have one: 13 and 15"),
        ("colonel+3", "no kernel colonel was launched, only kernel"),
        ("gemm.py:3", "no source lines"),
    ],
)
def test_a_line_without_an_instruction_is_refused(where, said):
    text = LOOP.replace("  st.global.u32", "\n  st.global.u32")
    with pytest.raises(UsageError, match=said) as refused:
        stop(text, where)
    assert f"--break {where}" in str(refused.value) and "\n" not in str(refused.value)


def test_lines_counted_from_the_kernel():
    assert stop(LOOP, "kernel+8")["where"]["ptx_line"] == stop(LOOP, "ern+8")["where"]["ptx_line"] == 12


@pytest.mark.parametrize(
    "text",
    ["", "12", "ptx:", "ptx:x", "a.py", "hang@hit=1", "ptx:3@", "ptx:3@x=1", "ptx:3@cta=1,2,3,4", "ptx:3@warp=", "k+",
     "ptx:3@hit=0", "ptx:3@hit=1,2", "ptx:3@lane=32", "ptx:3@warp=1,warp=2", "ptx:3@cta"],
)  # fmt: skip
def test_texts_that_say_nothing(text):
    with pytest.raises(UsageError, match="--break"):
        parse(text)


def test_conditions():
    got = parse("a/b.py:3@cta=0,1,warp=4,5,lane=1,hit=2,launch=3,kernel=gemm_1")
    assert got.place == Place("file", "a/b.py", 3) and got.cta == (0, 1, 0) and got.warps == (4, 5)
    assert (got.lanes, got.hit, got.launch, got.kernel) == (2, 2, 3, "gemm_1")
    assert hits(LOOP, "ptx:12@kernel=other") == hits(LOOP, "ptx:12@launch=2") == []
    points = Breakpoints(["ptx:12@warp=7", "hang"], going_on=1)
    vgpu.launch(LOOP, "kernel", 1, 64, [np.zeros(64, np.uint32)], breakpoints=points)
    assert [line.partition(": ")[2] for line in points.unmet()] == [
        "reached 8 times, never as its conditions say", "the launch did not hang",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "region", ["smem", "smem:0", "gmem:0:4", "smem:0:5", "smem:0:4:f99", "tmem:0:4:f16", "smem:0:0"]
)
def test_regions_that_say_nothing(region):
    with pytest.raises(UsageError, match="--dump"):
        Breakpoints(["hang"], dump=[region])


# ---------------------------------------------------------------- what they cost, and change
def test_code_without_breakpoints_has_nothing_of_them():
    module = parse_ptx(LOOP)
    plain, asked = lower(module, "kernel"), lower(parse_ptx(LOOP), "kernel", wanted=(Place("ptx", "", 12),))
    assert "tl_break" not in plain.ir and "tl_break" in asked.ir and plain.points is None
    elsewhere = lower(parse_ptx(LOOP), "kernel", wanted=(Place("ptx", "", 9999),))
    assert elsewhere.ir == plain.ir and elsewhere.frame_bytes == plain.frame_bytes


#: threads take numbers one by one: who gets which is up to the schedule
ORDER = kernel(
    """  mov.u32 %r2, 0;
again:
  atom.global.add.u32 %r3, [%out], 1;
  add.u32 %r2, %r2, 1;
  bar.warp.sync 0xffffffff;
  setp.lt.u32 %p1, %r2, 6;
  @%p1 bra again;
  mul.wide.u32 %rd1, %r1, 4;
  add.u64 %rd1, %rd1, %out;
  st.global.u32 [%rd1+4], %r3;
  ret;"""
)


@pytest.mark.parametrize("policy", ["eager", "random:3", "random:8"])
def test_the_schedule_is_the_same_with_breakpoints(policy):
    def run(points: Breakpoints | None) -> tuple:
        out = np.zeros(129, np.uint32)
        device = vgpu.launch(ORDER, "kernel", 1, 128, [out], policy=policy, breakpoints=points)
        return out.tobytes(), device.instructions, device.cycles

    first, second = Breakpoints(["ptx:11", "ptx:13"], going_on=99), Breakpoints(["ptx:11", "ptx:13"], going_on=99)
    assert run(None) == run(first) == run(second)
    dumped = [[{**hit.to_json(), "registers": None} for hit in points.hits] for points in (first, second)]
    assert dumped[0] == dumped[1] and len(dumped[0]) == 48
    assert len({(hit["step"], hit["clock"], hit["warp"]) for hit in dumped[0]}) > 24


def test_a_failure_while_a_dump_is_shown_comes_out():
    def show(dump) -> None:
        raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        vgpu.launch(LOOP, "kernel", 1, 32, [np.zeros(4, np.uint32)], breakpoints=Breakpoints(["ptx:12"], show=show))


def test_hazards_are_looked_for_up_to_the_breakpoint():
    racy = TURN.replace("  bar.sync 0;", "  ")
    for where, race in (("ptx:15@warp=0", False), ("ptx:18@warp=1", True)):
        points = Breakpoints([where])
        report = vgpu.check(racy, "kernel", 1, 64, [np.zeros(64, np.uint32)], breakpoints=points)
        assert points.stopped is not None
        assert ("race" in {finding.kind for finding in report.findings}) == race
