"""Options that several verbs share, declared once so that they read the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="one JSON object a line")]
RungName = Annotated[str, typer.Argument(metavar="RUNG", help="a rung's name or its step, such as b7")]
Shape = Annotated[
    str | None, typer.Option("--shape", metavar="512,512,512", help="extents along the problem's own axes")
]
Dtype = Annotated[str | None, typer.Option("--dtype", help="element type of the inputs, such as float16")]
Arch = Annotated[str | None, typer.Option("--arch", help="architecture to compile for, such as sm_90a")]
On = Annotated[str, typer.Option("--on", metavar="vgpu|gpu", help="the virtual GPU, or a real one")]
Policy = Annotated[
    str,
    typer.Option(
        "--async", metavar="eager|lazy|random:N|timed", help="when the effect of an asynchronous operation happens"
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="seed of the inputs")]
Numerics = Annotated[
    str, typer.Option("--numerics", metavar="f32|f64|exact", help="how tensor cores accumulate (exact: sm_90)")
]
Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", help="stop a launch on the virtual GPU after this long")
]
SmCount = Annotated[
    int | None, typer.Option("--sm-count", metavar="N", help="SMs of the virtual GPU, and of rungs that have this knob")
]
Baseline = Annotated[
    str | None, typer.Option("--baseline", metavar="F.json", help="known findings, which do not count")
]
WriteBaseline = Annotated[
    str | None, typer.Option("--write-baseline", metavar="F.json", help="accept what is found, from now on")
]
Junit = Annotated[str | None, typer.Option("--junit", metavar="F.xml", help="JUnit XML, for CI")]
Sarif = Annotated[str | None, typer.Option("--sarif", metavar="F.sarif", help="SARIF, for code scanning")]
Series = Annotated[str | None, typer.Option("--series", metavar="a,b", help="only these series")]
