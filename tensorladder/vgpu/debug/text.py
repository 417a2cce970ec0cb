"""A dump for a person: what comes first is where, then the warp's registers, memory, barriers, and the other warps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import PurePath
from typing import Any

from tensorladder.vgpu.debug.values import lanes_text, lines_of
from tensorladder.vgpu.debug.values import text_of as value_text

#: elements of memory in a row
_ROW = {1: 16, 2: 8, 4: 8, 8: 4}
#: characters of a kernel's name
_NAME = 72


def text_of(record: Mapping[str, Any]) -> str:
    """The lines of a dump."""
    lines = [*_head(record)]
    for title, found in (
        ("registers", _registers(record.get("registers", []))),
        ("shared memory", _shared(record["shared"])),
        ("tensor memory", _tensor(record["tmem"])),
        ("mbarriers", (_mbarrier(one) for one in record["mbarriers"])),
        ("named barriers", (_barrier(one) for one in record["barriers"])),
        ("in flight", (_operation(one) for one in record["in_flight"])),
        ("warps", (line for one in record["warps"] for line in _warp(one))),
    ):
        body = [f"    {line}" for line in found]
        if body:
            lines += [f"  {title}", *body]
    if record.get("others"):
        lines.append(f"  {record['others']} more CTAs hang: hang@cta=X,Y,Z shows one of them")
    return "\n".join(lines)


def _head(record: Mapping[str, Any]) -> Iterator[str]:
    cta = ",".join(map(str, record["cta"]))
    order = record["policy"] if record["policy"] != "random" else f"random, seed {record['seed']}"
    if record["reason"] == "hang":
        yield f"hang: kernel {short(record['kernel'])}, CTA {cta}"
    else:
        yield (
            f"breakpoint {record['break']}: kernel {short(record['kernel'])}, CTA {cta}, warp {record['warp']}, "
            f"{lanes_text(record['lanes'])}, time {record['time']}"
        )
        yield f"  before {place(record['where'])}"
    yield (
        f"  launch {record['launch']} on {record['arch']}, {order}; clock {record['clock']}, step {record['step']}; "
        f"rank {record['rank']} of its cluster, SM {record['sm']}"
    )


def short(name: str) -> str:
    """A kernel's name, which compilers make long."""
    return name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."


def place(where: Mapping[str, Any]) -> str:
    """`opcode, FILE:LINE, PTX line N`."""
    parts = [where.get("what", "an instruction")]
    if where.get("file") and where.get("line"):
        parts.append(f"{PurePath(where['file']).name}:{where['line']}")
    if where.get("ptx_line"):
        parts.append(f"PTX line {where['ptx_line']}")
    return ", ".join(parts)


def _registers(registers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line or more a register; neighbours that hold the same are one line."""
    alike = [list(group) for _, group in groupby(registers, lambda reg: {**reg, "name": None})]
    names = [group[0]["name"] if len(group) == 1 else f"{group[0]['name']} .. {group[-1]['name']}" for group in alike]
    width = max(map(len, names), default=0)
    for name, (reg, *more) in zip(names, alike, strict=True):
        first, *rest = lines_of(dict(reg))
        yield f"{name:{width}} {reg['type']:5} {first}{f'   ({len(more) + 1} registers)' if more else ''}"
        yield from (f"{'':{width}}       {line}" for line in rest)


def _shared(shared: Mapping[str, Any]) -> Iterator[str]:
    yield f"{shared['bytes']} bytes, from 0x400 on"
    for region in shared["regions"]:
        if "values" not in region:
            yield region["what"]
            continue
        values, size = region["values"], region["bytes"] // len(region["values"])
        yield f"{region['what']}: {region['type']} from {region['address']:#x} on"
        for k in range(0, len(values), _ROW[size]):
            words = " ".join(_element(value, size) for value in values[k : k + _ROW[size]])
            yield f"  {region['address'] + k * size:#06x}  {words}"


def _element(value: Any, size: int) -> str:
    if isinstance(value, int):
        return f"{value & (1 << 8 * size) - 1:0{2 * size}x}"
    return value_text(value)


def _tensor(allocations: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in allocations:
        if "columns" in one:
            runs = ", ".join(f"{a}-{b}" if a < b else str(a) for a, b in one["written"])
            yield (
                f"columns {one['column']} to {one['column'] + one['columns'] - 1}, from {place(one['allocated'])}; "
                + (f"written: {runs}" if runs else "nothing is written there yet")
            )
        else:
            yield one["what"]
        for column in one.get("shown", []):
            first, *rest = lines_of(dict(column))
            lanes = f"lanes {column['lane']}-{column['lane'] + 31}"
            yield f"  column {column['column']}, {lanes}, {column['type']}: {first}"
            yield from (f"    {line}" for line in rest)


def _mbarrier(one: Mapping[str, Any]) -> str:
    waiting = "; ".join(f"warp {w['warp']} waits for parity {w['parity']}" for w in one["waiting"])
    last = f"; {one['last']}" if one["last"] else ""
    return (
        f"{one['address']:#06x}: phase {one['phase']}, {one['pending']} of {one['expected']} arrivals and {one['tx']} "
        f"bytes pending{'; ' if waiting else ''}{waiting}{last}"
    )


def _barrier(one: Mapping[str, Any]) -> str:
    waiting = ", ".join(str(w["warp"]) for w in one["waiting"])
    return (
        f"barrier {one['barrier']}: {one['arrived']} of {one['expected']} threads are there, {one['completed']} times "
        f"complete{f'; warps {waiting} wait' if waiting else ''}"
    )


def _operation(one: Mapping[str, Any]) -> str:
    where = one["where"]
    notes = "" if one["issued_in_full"] else ", not issued by all its warps yet"
    notes += ", has read its source" if one["source_read"] else ""
    return f"{one['what']} of warp {where['warp']} ({place(where)}){notes}"


def _warp(one: Mapping[str, Any]) -> Iterator[str]:
    lanes = one.get("lanes", 0xFFFFFFFF)
    some = "" if lanes == 0xFFFFFFFF else f", {lanes_text(lanes)}"
    yield f"warp {one['warp']}{some}: {one['state']}"
    yield from (f"  {line}" for line in _registers(one.get("registers", [])))
