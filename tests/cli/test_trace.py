"""`trace`: the file, the figures, and what is refused."""

from __future__ import annotations

import json
import shutil

import pytest

from benchmarks import pipeline_depth
from tensorladder.measure import bench
from tensorladder.measure import pack as packs
from tensorladder.rungs.rung import find, load
from tests.core.trace_files import TraceProcessor, problems

pytest.importorskip("cutlass")

KEYS = {"file", "bytes", "ctas", "ctas_written", "rung", "arch", "on", "shape", "dtype", "source", "ok", "error",
        "nanoseconds", "tracks", "spans", "arrows", "left_out", "overlap", "waits", "message"}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("traces")


def record(ask, folder, *arguments):
    said = ask("trace", *arguments, "-o", str(folder / "t.json"), "--json")
    assert (said.code, said.err) == (0, ""), said
    (line,) = said.out.splitlines()
    return json.loads(line), json.loads((folder / "t.json").read_text())


@pytest.mark.parametrize("probes", [(), ("--probes",)], ids=["machine", "probes"])
@pytest.mark.parametrize("rung", ["c2", "a2-smem-pipeline"])
def test_both_sources_write_the_same_format(ask, tmp_path, rung, probes):
    said, whole = record(ask, tmp_path, rung, "--shape", "256,256,256", *probes)
    assert set(said) == KEYS and said["ok"] and said["source"] == ("probes" if probes else "machine")
    assert problems(whole) == []
    spans = [event for event in whole["traceEvents"] if event["ph"] == "X"]
    arrows = [event for event in whole["traceEvents"] if event["ph"] == "s"]
    assert len(arrows) > 10 and len({event["pid"] for event in spans}) == said["ctas_written"]
    if said["ctas"] == said["ctas_written"]:
        assert (len(spans), len(arrows)) == (said["spans"], said["arrows"])
    kinds = {event["cat"] for event in spans}
    assert {"run", "wait"} <= kinds if (rung, probes) != ("c2", ("--probes",)) else {"tensor", "load"} <= kinds
    if rung == "c2":
        assert said["overlap"]["of"] == "tensor" and said["overlap"]["share"] > 0.5


def test_a_name_that_ends_in_svg_is_drawn(ask, tmp_path):
    said = ask("trace", "c2", "-o", str(tmp_path / "c2.svg"))
    assert said.code == 0 and "1 of 2 CTAs" in said.out and "ui.perfetto.dev" not in said.out
    assert (tmp_path / "c2.svg").read_text().startswith("<svg")


def test_ctas_are_written_by_sm_and_counted(ask, tmp_path):
    said, whole = record(ask, tmp_path, "a1-naive-cuda-like", "--shape", "64,64,64", "--ctas", "3")
    assert (said["ctas"], said["ctas_written"]) == (16, 3)
    names = [event["args"]["name"] for event in whole["traceEvents"] if event["name"] == "process_name"]
    assert names == ["SM 0, CTA 0", "SM 1, CTA 1", "SM 2, CTA 2"]


def test_knobs_change_what_is_traced(ask, tmp_path):
    few, many = (record(ask, tmp_path, f"c2:stages={n}", "--shape", "128,256,1024")[0] for n in (2, 4))
    assert few["nanoseconds"] > many["nanoseconds"]


def test_what_a_person_reads(ask, tmp_path):
    said = ask("trace", "c2", "-o", str(tmp_path / "t.json"))
    assert said.code == 0 and said.err == ""
    for words in ("ui.perfetto.dev", "on the virtual GPU", "loads in flight during", "consumers: ", "'wait: mbarrier'"):
        assert words in said.out


@pytest.mark.parametrize(("asked", "word"), [
    ("c2", "-o"),
    ("q9 -o x.json", "q9"),
    ("c2:depth=3 -o x.json", "no knob 'depth'"),
    ("c2:stages=many -o x.json", "stages"),
    ("c2 -o no/such/folder/x.json", "no/such/folder"),
    ("c2 -o no/such/folder/x.svg", "no/such/folder"),
    ("a1-naive-cuda-like -o x.svg", "nothing to draw"),
    ("c2 -o x.json --ctas 0", "--ctas 0"),
    ("c2 -o x.json --on moon", "--on"),
    ("c2 -o x.json --shape 1,2", "M,N,K"),
    ("d2 -o x.json --probes", "a2-smem-pipeline, c2-warp-specialized"),
    ("d2 -o x.json --on gpu", "no probes"),
    ("c2 -o x.json --pack p", "--pack is for --on gpu"),
    ("c2 -o x.json --async lazy", "--async"),
    ("c2:warpgroups=1,tile=64x128x64 -o x.json --probes", "warpgroups=1"),
    ("a2-smem-pipeline:threads_m=8,threads_n=12,tile=64x48 -o x.json --probes", "power of two"),
])  # fmt: skip
def test_refusals(ask, tmp_path, monkeypatch, asked, word):
    monkeypatch.chdir(tmp_path)
    said = ask("trace", *asked.split())
    assert said.code == 2 and said.out == "" and said.err.count("\n") == 1 and word in said.err
    assert not list(tmp_path.iterdir())


def test_a_wrong_result_ends_with_1(ask, tmp_path, monkeypatch):
    from tensorladder.measure import trace

    judged = trace.judge
    monkeypatch.setattr(trace, "judge", lambda asked, case, *rest: judged(asked, spoilt(case), *rest))
    said = ask("trace", "a0", "-o", str(tmp_path / "t.json"), "--json")
    assert said.code == 1 and "wrong" in said.err and not json.loads(said.out)["ok"]


def spoilt(case):
    case.arrays[case.outputs[0]][...] = 0
    return case


def test_a_kernel_that_stops_leaves_its_timeline(ask, tmp_path, monkeypatch):
    from tensorladder.core.errors import KernelError
    from tensorladder.vgpu.machine import execution

    def stop(*_):
        raise KernelError("kernel c2 hangs: warp 3 waits")

    monkeypatch.setattr(execution, "_raise_failure", stop)
    said = ask("trace", "c2", "-o", str(tmp_path / "t.json"), "--json")
    record = json.loads(said.out)
    assert said.code == 1 and "hangs" in said.err and not record["ok"] and record["error"] is None
    assert record["spans"] > 100 and problems(json.loads((tmp_path / "t.json").read_text())) == []


def test_what_is_not_modelled_ends_with_3(ask, tmp_path, monkeypatch):
    from tensorladder.core.errors import Unsupported
    from tensorladder.vgpu import Device

    def refuse(*_):
        raise Unsupported("not modelled: foo (PTX line 3)")

    monkeypatch.setattr(Device, "run_stream", refuse)
    said = ask("trace", "a0", "-o", str(tmp_path / "t.json"))
    assert said.code == 3 and "not modelled" in said.err and not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------ the kernels


@pytest.mark.parametrize(("name", "shape"), [("c2", (256, 256, 128)), ("a2-smem-pipeline", (64, 64, 64))])
def test_probes_are_compiled_out(name, shape):
    info = find(name)
    module = load(info)
    plain, probed = (module.compile("sm_90a", shape, "fp16", module.RUNG.config(probes=on)) for on in (False, True))
    assert "%globaltimer" not in plain.modules[0].ptx and "%clock" not in plain.modules[0].ptx
    assert probed.modules[0].ptx.count("%globaltimer_lo") >= 5
    (fewer,), (more,) = plain.launches(*arrays(info, shape)), probed.launches(*arrays(info, shape, True))
    assert len(fewer.params) < len(more.params)


def arrays(info, shape, probed=False):
    import numpy as np

    from tensorladder.problems import numpy_empty

    found = list(info.problem.make(shape, "fp16", 0, numpy_empty).arrays.values())
    config = load(info).RUNG.config(probes=True)
    return [*found, np.empty(packs.probe_buffer(info, shape, "fp16", config), np.int64)] if probed else found


@pytest.mark.parametrize("policy", ["eager", "lazy", "random:3"])
def test_the_variant_with_probes_is_right_under_every_policy(policy):
    from tensorladder.core.probes import Plan, decode, poisoned
    from tensorladder.problems.problem import examine
    from tensorladder.vgpu import Device

    info, shape = find("c2"), (200, 264, 328)
    module = load(info)
    config = module.RUNG.config(probes=True)
    device = Device("sm_90a", policy=policy)
    case = info.problem.make(shape, "fp16", 1, device.memory.empty)
    extents = packs.probe_buffer(info, shape, "fp16", config)
    buffer = device.memory.empty("probes", extents, "int64")
    buffer[...] = poisoned(extents)
    stream = device.stream()
    module.compile("sm_90a", shape, "fp16", config)(stream, *case.arrays.values(), buffer)
    stream.synchronize()
    assert examine(case).ok
    assert len(decode(Plan.of(module.RUNG.probes), buffer, {"stages": 4}, "t").of_kind("load")) == 4 * 6


# ------------------------------------------------------------------------------------------- Perfetto, and the study


@pytest.mark.parametrize("asked", [("c2",), ("d4-persistent",), ("c2", "--probes")], ids=" ".join)
def test_perfettos_trace_processor_reads_the_file(ask, tmp_path, asked):
    processor = TraceProcessor(tmp_path)
    said, whole = record(ask, tmp_path, *asked)
    assert said["ctas"] == said["ctas_written"]
    slices, arrows, losses, names = processor.ask(
        tmp_path / "t.json",
        "select count(*) n, max(depth) deepest, sum(dur) time, min(ts) first, max(ts + dur) last from slice",
        "select count(*) n, sum(a.ts + a.dur <= b.ts + 1) forward, sum(a.ts <= b.ts) later from flow "
        "join slice a on a.id = slice_out join slice b on b.id = slice_in",
        "select name, value from stats where severity != 'info' and value > 0",
        "select distinct name from thread where name is not null order by name",
    )
    spans = [event for event in whole["traceEvents"] if event["ph"] == "X"]
    (counted,) = slices
    assert counted["n"] == said["spans"] == len(spans) and counted["deepest"] == 0  # none inside another
    assert counted["time"] == sum(int(event["dur"] * 1000) for event in spans)
    assert counted["last"] - counted["first"] == pytest.approx(said["nanoseconds"], abs=2)
    assert arrows[0]["n"] == arrows[0]["later"] == said["arrows"] > 10
    assert losses == []
    assert {row["name"] for row in names} == {
        event["args"]["name"] for event in whole["traceEvents"] if event["name"] == "thread_name"
    }


def test_the_study_of_depths_prints_what_was_measured(capsys):
    machine, records = bench.read(pipeline_depth.KEPT)
    assert machine["gpu"] == "NVIDIA H200" and len(records) == 36 and all(r["ok"] for r in records)
    assert pipeline_depth.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:9]] == ["2", "3", "4", "5", "6", "7", "enough"]
    assert "stages=4 4096x4096x4096: load during 91 % of tensor" in lines[lines.index(lines[9]) + 8]
    by_depth = {(r["config"]["stages"], r["shape"][2]): r["ratio"] for r in records if r["config"]["warpgroups"] == 2}
    for k in pipeline_depth.K_EXTENTS:  # two stages are never enough, and beyond four there is little to gain
        assert by_depth[2, k] < 0.8 * by_depth[4, k] and by_depth[7, k] < 1.05 * by_depth[4, k]
    waited = {r["settings"]: r["waits"]["consumer 0"]["wait: full"]
              for r in bench.read(pipeline_depth.TRACED)[1] if r["shape"] == [4096] * 3}  # fmt: skip
    assert waited["stages=2"] > 0.8 > waited["stages=3"] > 0.4 > 0.15 > waited["stages=4"]


def test_the_study_packs_what_it_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pipeline_depth, "DEPTHS", range(2, 4))
    monkeypatch.setattr(pipeline_depth, "K_EXTENTS", (512,))
    monkeypatch.setattr(pipeline_depth, "PROBED", pipeline_depth.PROBED[-1:])
    assert pipeline_depth.main(["pack", str(tmp_path / "p")]) == 0 and "5 kernels" in capsys.readouterr().out
    opened = packs.open_current(tmp_path / "p")
    depths = {(e.config["stages"], e.shape) for e in opened.entries if not e.config["probes"]}
    assert depths == {(n, (4096, 4096, 512)) for n in (2, 3)}
    assert [e.rung for e in opened.entries if e.config["probes"]] == ["a2-smem-pipeline"]
    shutil.rmtree(tmp_path / "p")
    assert pipeline_depth.main(["--from", str(tmp_path / "none.jsonl")]) == 2


def test_a_pack_holds_the_probe_buffer(tmp_path):
    (wanted,) = packs.wanted(["c2:probes=true"], "sm_90a", pipeline_depth.suite(), [(256, 512, 128)], ["fp16"])
    entry = packs.make(wanted, "sm_90a").entry
    assert [array.name for array in entry.arrays] == ["A", "B", "C", "probes"]
    assert entry.arrays[-1].shape == (4, 4, 12) and entry.arrays[-1].output and entry.config["probes"]
    assert len({number for _, number, _ in entry.launches[0].addresses}) == 4
