"""Timelines of the virtual GPU: what they show agrees with the kernel, with itself, and with causes before effects."""

from __future__ import annotations

import itertools

import pytest

from tensorladder.core.errors import KernelError, UsageError
from tensorladder.core.program import Launch, Module
from tensorladder.core.timeline import LOAD, STORE, TENSOR, WAIT
from tensorladder.measure.run import plan
from tensorladder.measure.trace import from_machine, from_probes, roles, waits
from tensorladder.rungs.rung import catalog, find, load
from tensorladder.vgpu import Device
from tensorladder.vgpu.trace import timeline

pytest.importorskip("cutlass")


def trace(name, shape=None, **asked):
    traced = from_machine(plan(find(name), shape=shape, **asked))
    assert traced.result.ok
    return traced


def launch(device, name, arch, shape):
    device.traced = True
    info = find(name)
    arrays = info.problem.make(shape, "fp16", 0, device.memory.empty).arrays
    stream = device.stream()
    load(info).compile(arch, shape, "fp16")(stream, *arrays.values())
    stream.synchronize()


@pytest.fixture(scope="module")
def c2():
    return trace("c2", (256, 512, 512))


def of_track(line, group, name):
    return [s for s in line.spans if line.tracks[s.track].group == group and line.tracks[s.track].name == name]


def test_tracks_are_the_warps_by_role_and_the_units(c2):
    line = c2.timeline
    assert line.groups == [f"SM {n}, CTA {n}" for n in range(4)]
    names = [track.name for track in line.tracks if track.group == "SM 0, CTA 0"]
    parts = ["consumers"] * 8 + ["producer"] + ["nothing"] * 3
    assert names[:12] == [f"warp {n}: {part}" for n, part in enumerate(parts)]
    assert {name.split(" (")[0] for name in names[12:]} == {"TMA loads", "TMA stores", "tensor cores"}


def test_units_did_what_the_kernel_asks_for(c2):
    line = c2.timeline
    for group in line.groups:  # 128 x 256 x 64 by 8 K tiles, C of 128 x 256
        loads, stores = line.of_kind(LOAD, group), line.of_kind(STORE, group)
        assert len(loads) == 16 and sum(s.facts["bytes"] for s in loads) == 8 * (128 + 256) * 64 * 2
        assert sum(s.facts["bytes"] for s in stores) == 128 * 256 * 2
        products = line.of_kind(TENSOR, group)
        assert sum(s.facts["multiply-adds"] for s in products) == 128 * 256 * 512
        assert sum(s.facts["cycles"] for s in products) == 128 * 256 * 512 // 2048


def test_spans_of_a_track_follow_each_other_without_gaps_or_overlap(c2):
    line = c2.timeline
    for number, track in enumerate(line.tracks):
        mine = sorted((s for s in line.spans if s.track == number), key=lambda s: s.start)
        assert all(a.end <= b.start + 1e-6 for a, b in itertools.pairwise(mine)), track
        if track.role:
            assert all(a.end == pytest.approx(b.start) for a, b in itertools.pairwise(mine)), track


def test_every_wait_at_an_mbarrier_has_an_arrow_from_what_ended_it(c2):
    line = c2.timeline
    following = {(s.track, s.start): n for n, s in enumerate(line.spans)}
    ended = {arrow.target: arrow for arrow in line.arrows}
    found = set()
    for span in line.spans:
        if span.name != "wait: mbarrier":
            continue
        arrow = ended[following[span.track, span.end]]
        source = line.spans[arrow.source]
        assert source.end <= span.end + 0.01 or source.start <= span.end  # a warp goes on after it has arrived
        role = line.tracks[span.track].role
        assert source.kind == (LOAD if role == "consumers" else "run"), role
        found.add(role)
    assert found == {"consumers", "producer"}
    for arrow in line.arrows:  # nothing is ended by what has yet to begin
        assert line.spans[arrow.source].start <= line.spans[arrow.target].start


def test_a_timeline_is_the_same_whoever_runs_the_clusters():
    lines = []
    for workers in (1, 2):
        device = Device("sm_90a", policy="timed", workers=workers)
        launch(device, "b7", "sm_90a", (256, 256, 128))
        lines.append(timeline(device, roles(find("b7"))))
    assert lines[0].events() == lines[1].events()


def test_clusters_of_one_sm_follow_each_other():
    line = trace("b7", (256, 512, 64), sm_count=2).timeline
    by_sm = {}
    for group in line.groups:
        mine = [s for s in line.spans if line.tracks[s.track].group == group]
        by_sm.setdefault(group.split(",")[0], []).append((min(s.start for s in mine), max(s.end for s in mine)))
    assert sorted(by_sm) == ["SM 0", "SM 1"] and all(len(times) == 4 for times in by_sm.values())
    for times in by_sm.values():
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(times))


def test_launches_follow_each_other():
    device = Device("sm_90a", policy="timed")
    for _ in range(2):
        launch(device, "b7", "sm_90a", (128, 128, 64))
    line = timeline(device)
    times = [[s for s in line.spans if line.tracks[s.track].group == group] for group in line.groups]
    assert len(times) == 2 and [group.endswith("SM 0, CTA 0") for group in line.groups] == [True, True]
    assert max(s.end for s in times[0]) <= min(s.start for s in times[1])


@pytest.mark.parametrize(("name", "shape", "track", "kind"), [
    ("d2", (256, 256, 256), "tensor cores", TENSOR),
    ("d3", (512, 512, 256), "tensor cores", TENSOR),
    ("b2", (128, 128, 128), "cp.async", LOAD),
    ("z2", None, "tensor memory", "copy"),
    ("a0-cluster-reduce", None, "distributed shared memory", "copy"),
])  # fmt: skip
def test_every_unit_has_its_track(name, shape, track, kind):
    line = trace(name, shape).timeline
    assert any(t.name.split(" (")[0] == track for t in line.tracks) and line.of_kind(kind)
    assert line.left_out == 0 and line.arrows


def test_commits_of_tcgen05_end_the_waits_for_them():
    line = trace("d2", (256, 256, 256)).timeline
    ended = [(line.spans[a.source], line.spans[a.target]) for a in line.arrows]
    sources = {source.name for source, target in ended if line.tracks[target.track].role == "epilogue"}
    assert "tcgen05.mma" in sources


def test_the_record_and_the_probes_of_one_kernel_agree():
    """The same kernel, watched from outside and by itself: K tiles take the same time, within what a mark costs."""
    shape = (128, 256, 1024)
    outside = list(trace("c2", shape).timeline.of_kind(TENSOR))
    whole = from_probes(plan(find("c2"), shape=shape))
    assert whole.result.ok and whole.timeline.overlap(*whole.overlap) > 0.9
    inside = list(whole.timeline.of_kind(TENSOR))
    length = [max(s.end for s in spans) - min(s.start for s in spans) for spans in (outside, inside)]
    assert length[1] == pytest.approx(length[0], rel=0.05)


def test_waits_are_shares_of_a_roles_time(c2):
    shares = waits(c2.timeline)
    assert set(shares) == {"consumers", "producer", "nothing"}
    assert all(0 <= share <= 1 for named in shares.values() for share in named.values())
    assert shares["consumers"]["wait: mbarrier"] > 0.2


def test_only_a_traced_timed_launch_has_a_timeline():
    device = Device("sm_90a", policy="timed")
    with pytest.raises(UsageError, match="traced"):
        timeline(device)
    device = Device("sm_80")
    launch(device, "a0-vector-add", "sm_80", (1024,))
    with pytest.raises(UsageError, match="timed"):
        timeline(device)


def test_tables_of_roles_are_read():
    assert roles(find("c2")) == [(range(4), "consumers"), (range(4, 8), "consumers"), (range(8, 9), "producer"),
                                 (range(9, 12), "nothing")]  # fmt: skip
    assert roles(find("a1-naive-cuda-like"))[0][0] == range(8)
    assert sum(bool(roles(info)) for info in catalog()) > 50


def test_waiting_ends_no_earlier_than_what_it_waits_for():
    """A warp that runs ahead in its slice arrives late: who waits for it goes on with its clock."""
    line = trace("b7", (128, 128, 256)).timeline
    for arrow in line.arrows:
        source, target = line.spans[arrow.source], line.spans[arrow.target]
        if source.kind in (LOAD, TENSOR):
            assert target.facts["cycle"] >= source.facts["done"] and source.facts["done"] <= target.facts["cycle"] + 1
        before = [s for s in line.spans if s.track == target.track and s.end == target.start]
        assert before and before[0].kind == WAIT


HANG = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry k() {
.reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .pred %p<3>;
.shared .align 8 .b64 bar;
mov.u32 %r1, %tid.x;
setp.ne.u32 %p1, %r1, 0;
@!%p1 mbarrier.init.shared.b64 [bar], 2;
bar.sync 0;
setp.lt.u32 %p2, %r1, 32;
@!%p1 mbarrier.arrive.shared.b64 _, [bar];
@%p2 bra done;
wait: mbarrier.try_wait.parity.shared.b64 %p1, [bar], 0;
@!%p1 bra wait;
done: ret;
}
"""


def test_a_kernel_that_hangs_has_its_timeline():
    device = Device("sm_90a", policy="timed")
    device.traced = True
    with pytest.raises(KernelError, match="hangs"):
        device.run(Launch(Module(HANG, "sm_90a"), "k", (1, 1, 1), (64, 1, 1), b""))
    line = timeline(device)
    last = {line.tracks[s.track].name: s for s in line.spans}  # the latest of each
    assert last["warp 0"].kind == "run" and last["warp 1"].kind == WAIT
    assert last["warp 1"].name == "wait: mbarrier" and last["warp 1"].facts["for"].startswith("mbarrier at shared")
    assert last["warp 1"].end >= max(s.end for s in line.spans)
    assert not any(line.spans[arrow.target] is last["warp 1"] for arrow in line.arrows)
