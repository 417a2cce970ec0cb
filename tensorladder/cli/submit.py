"""`tensorladder submit ... -- VERB ...`: the same verb on a Ray cluster or on Modal, once or fanned out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from tensorladder.cli import output
from tensorladder.cli.options import Json
from tensorladder.core.errors import UsageError
from tensorladder.submit import Job, SubmitError, on_modal, on_ray

COLUMNS = ("call", "host", "attempt", "exit", "result")
RIGHT = ("attempt", "exit")


def submit(
    context: typer.Context,
    arguments: Annotated[list[str], typer.Argument(metavar="VERB ...", help="the verb and its arguments, after --")],
    on: Annotated[str, typer.Option("--on", metavar="ray|modal", help="where")] = "ray",
    address: Annotated[
        str, typer.Option("--address", metavar="URL", envvar="RAY_API_SERVER_ADDRESS", help="Ray's dashboard")
    ] = on_ray.ADDRESS,
    fan: Annotated[
        list[str] | None,
        typer.Option("--fan", metavar="OPTION=VALUE", help="an option of the verb, many times; VALUE may be 1..8"),
    ] = None,
    cpus: Annotated[float, typer.Option("--cpus", metavar="N", help="CPUs a call takes")] = 1,
    gpus: Annotated[float, typer.Option("--gpus", metavar="N", help="GPUs a call takes")] = 0,
    gpu: Annotated[str, typer.Option("--gpu", metavar="KIND", help="the kind of GPU on Modal")] = on_modal.GPU,
    retries: Annotated[int, typer.Option("--retries", metavar="N", help="times a lost worker's call is retried")] = 3,
    as_json: Json = False,
) -> int:
    """Run a verb on a Ray cluster or on Modal."""
    words = tuple(word for word in arguments if word != "--json")
    job = Job(words, tuple(fan or ()), cpus, gpus, retries)
    for call in job.calls():
        _understood(context, call)
    places = {"ray": lambda: on_ray.submit(job, address), "modal": lambda: on_modal.submit(job, gpu)}
    if on not in places:
        raise UsageError(f"--on {on!r} is not a place to submit to: use --on ray or --on modal")
    return _gather(places[on](), len(job.calls()), as_json or len(words) < len(arguments))


def _understood(context: typer.Context, call: tuple[str, ...]) -> None:
    """Parses a call as the workers will: what is asked wrongly ends here, in one line."""
    group: Any = context.find_root().command
    group.get_command(context, call[0]).make_context(call[0], [*call[1:]], parent=context.find_root())


def _gather(events: Iterable[dict[str, Any]], count: int, as_json: bool) -> int:
    """Prints results as they come (or a table at the end) and losses on stderr. The worst exit code of the calls."""
    ends: list[dict[str, Any]] = []
    lost = 0
    with output.progress(f"{count} calls"):
        for event in events:
            if "done" in event:
                ends.append(event["done"])
                _show(ends[-1], as_json)
            elif "lost" in event:
                lost += 1
                _lost(event["lost"], as_json)
            elif "waiting" in event:
                output.complain(event["waiting"])
    failed = [end["exit"] for end in ends if end["exit"] != 0]
    if as_json:
        output.emit({"summary": {"calls": count, "ok": len(ends) - len(failed), "failed": len(failed), "lost": lost}})
    else:
        output.print_table(output.table(COLUMNS, map(_row, ends), RIGHT))
        output.write(f"{count} calls, {len(ends) - len(failed)} ok, {len(failed)} failed, {lost} workers lost")
    return _worst(failed)


def _worst(codes: list[int | None]) -> int:
    """1: a result is wrong or a call died; else 3: something is incomplete (no worker finished it); else 2, else 0."""
    known = {SubmitError.exit_code if code is None else code if code in (2, 3) else 1 for code in codes}
    return 1 if 1 in known else max(known, default=0)


def _show(end: dict[str, Any], as_json: bool) -> None:
    if as_json:
        for record in end["records"]:
            output.emit(record)
    if end["said"]:
        output.complain(f"{end['ran']['call']}: {end['said']}")


def _lost(event: dict[str, Any], as_json: bool) -> None:
    ran = event["ran"]
    then = "given to another" if event["retried"] else "given up"
    place = f"{ran['host']} (attempt {ran['attempt']})"
    output.complain(f"{ran['call']}: lost its worker on {place}, {then}: {event['why']}")
    if as_json:
        output.emit({"lost": event})


def _row(end: dict[str, Any]) -> tuple[object, ...]:
    ran, records = end["ran"], end["records"]
    good = sum(bool(record.get("ok", True)) for record in records)
    return ran["call"], ran["host"], ran["attempt"], end["exit"], f"{good} of {len(records)} lines ok"
