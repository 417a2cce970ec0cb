"""`tensorladder trace RUNG -o F`: the timeline of a launch as a file for Perfetto, and its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensorladder.cli import output
from tensorladder.cli.options import Arch, Dtype, Json, On, Seed, Shape, SmCount, Timeout
from tensorladder.core.errors import UsageError
from tensorladder.core.files import check_place
from tensorladder.core.timeline import Timeline
from tensorladder.draw.timelines import picture
from tensorladder.draw.what import write
from tensorladder.measure import pack as packs
from tensorladder.measure import trace as measure
from tensorladder.measure.request import parse_shape
from tensorladder.measure.run import plan


def trace(
    rung: Annotated[str, typer.Argument(metavar="RUNG[:KNOB=VALUE,...]", help="a rung, with other knobs: c2:stages=2")],
    file: Annotated[
        str, typer.Option("-o", "--output", metavar="F", help="the file to write: c2.json; c2.svg draws one CTA")
    ],
    shape: Shape = None,
    dtype: Dtype = None,
    on: On = "vgpu",
    arch: Arch = None,
    probes: Annotated[
        bool, typer.Option("--probes", help="on the virtual GPU too, from the rung's probes in place of its own record")
    ] = False,
    pack: Annotated[
        str | None,
        typer.Option("--pack", metavar="DIR", help="with --on gpu: made by `tensorladder pack RUNG:probes=true`"),
    ] = None,
    ctas: Annotated[
        int, typer.Option("--ctas", metavar="N", help="write the first N CTAs by SM (the figures are of all)")
    ] = 8,
    seed: Seed = 0,
    timeout: Timeout = None,
    sm_count: SmCount = None,
    as_json: Json = False,
) -> int:
    """Record what warps, TMA and tensor cores did when, for ui.perfetto.dev: by the virtual GPU, or by probes."""
    info, settings = measure.parse_spec(rung)
    if pack is not None and on != "gpu":
        raise UsageError("--pack is for --on gpu: the virtual GPU runs PTX, which packs leave out")
    drawn = _is_picture(file)
    if ctas < 1:
        raise UsageError(f"--ctas {ctas}: at least 1")
    if on == "gpu" or probes:
        measure.plan_of(info)
    asked = plan(
        info,
        shape=parse_shape(shape) if shape is not None else None,
        dtype=dtype,
        arch=arch,
        on=on,
        policy="timed",
        seed=seed,
        timeout=timeout,
        config=packs.parse_spec(rung)[1] if settings and pack is None else None,
        sm_count=sm_count,
    )
    with output.progress(f"tracing {info.name} for {asked.arch}"):
        if on == "gpu" or probes:
            traced = measure.from_probes(asked, pack, settings)
        else:
            traced = measure.from_machine(asked)
    shown = measure.only_first(traced.timeline, 1 if drawn else ctas)
    size = _draw(shown, file) if drawn else shown.write(file)
    record = {"file": file, "bytes": size, "ctas_written": len(shown.groups), **traced.record()}
    if as_json:
        output.emit(record)
    else:
        _say(record)
    if traced.timeline.left_out:
        output.complain(f"{traced.timeline.left_out} events were left out: a smaller --shape fits")
    if traced.result.message:
        output.complain(f"{info.name}: {traced.result.message}")
    return traced.result.exit_code


def _is_picture(file: str) -> bool:
    """Whether an output is to be a picture. UsageError, before anything runs, where it cannot be written."""
    suffix = check_place(file, "-o").suffix.lower()
    if suffix not in (".svg", ".json", ""):
        raise UsageError(f"-o {file}: it writes F.json, for ui.perfetto.dev, or a picture, F.svg")
    return suffix == ".svg"


def _draw(line: Timeline, file: str) -> int:
    made = picture(line)
    if made is None:
        raise UsageError(f"-o {file}: nothing to draw, no warp waits and no unit works beside them: name it F.json")
    write(Path(file), made)
    return len(made)


def _say(record: dict) -> None:
    shape = "x".join(map(str, record["shape"]))
    output.write(
        f"{record['file']}: {record['rung']} {shape} {record['dtype']}, {record['ctas_written']} of {record['ctas']} "
        f"CTAs, {record['bytes'] / 1e3:.0f} kB" + ("" if record["file"].endswith(".svg") else OPEN)
    )
    output.write(f"{record['nanoseconds'] / 1e3:.2f} us on the {WHERE[record['on']]}, from {SOURCES[record['source']]}")
    if record["overlap"]:
        of = record["overlap"]
        output.write(f"{KINDS[of['with']]} during {100 * of['share']:.1f} % of the time of {KINDS[of['of']]}")
    for role, waits in record["waits"].items():
        said = ", ".join(f"{100 * share:.0f} % in {name!r}" for name, share in waits.items())
        output.write(f"{role}: {said or 'no wait'}")


OPEN = " (open it at ui.perfetto.dev)"
WHERE = {"vgpu": "virtual GPU (timed policy)", "gpu": "GPU"}
SOURCES = {measure.MACHINE: "its own record", measure.PROBES: "the kernel's probes"}
KINDS = {"load": "loads in flight", "tensor": "tensor cores at work", "store": "stores in flight", "run": "work",
         "copy": "copies"}  # fmt: skip
