"""Kernels of the op from a pack, where neither the DSL nor a compiler is installed: TENSORLADDER_PACK names its folder.

    tensorladder pack --arch sm_90a -o DIR --ops      # anywhere, with no GPU
    TENSORLADDER_PACK=DIR python model.py             # beside torch and a driver

A packed kernel is for all extents and strides of one `Form`, one choice of knobs and one number of SMs. Where the model
chooses knobs that are not packed, they are compiled if the DSL is there; else the best ones that are packed serve.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import platform
from collections.abc import Sequence

from tensorladder.core.errors import UsageError
from tensorladder.measure import dynamic
from tensorladder.ops import kernels
from tensorladder.ops.grouped_plan import GroupedPlan
from tensorladder.ops.kernels import Choice
from tensorladder.ops.launch import Compiled
from tensorladder.ops.plan import DEFAULT_OUTPUT, Plan
from tensorladder.rungs.parts.form import Form
from tensorladder.silicon.pack import Dynamic, Pack

VARIABLE = "TENSORLADDER_PACK"


def folder() -> str:
    """The pack that kernels are taken from; "" where there is none."""
    return os.environ.get(VARIABLE, "").strip()


def kernel(plan: Plan | GroupedPlan, ranked: Sequence[Choice], sm_count: int, nearest: bool) -> Compiled | None:
    """The kernel of the first choice, from the pack; None where it has not got it, or there is no pack.

    nearest: take the first of `ranked` that is packed. UsageError where none is, or something is wrong with the pack.
    """
    place = folder()
    if not place:
        return None
    for one in ranked if nearest else ranked[:1]:
        found = _find(place, key(plan.form, one, sm_count))
        if found is not None:
            return found
    if not nearest:
        return None
    shape = f"{plan.m},{plan.n},{plan.k}"
    raise UsageError(
        f"{VARIABLE}={place} has no kernel for {spell(plan.form)} on {sm_count} SMs: where the DSL is installed, "
        f"`tensorladder pack -o {place} --add --form {spell(plan.form)} --shape {shape} --sms {sm_count}` makes one"
    )


def key(form: Form, one: Choice, sm_count: int) -> str:
    """What a packed kernel is found by, as JSON."""
    facts = {"kernel": one.kernel, "form": dataclasses.asdict(form), "knobs": dict(one.knobs), "sms": sm_count}
    return json.dumps(facts, sort_keys=True)


@functools.lru_cache(maxsize=1024)
def _find(place: str, key: str) -> Compiled | None:
    opened, found = _opened(place)
    if key not in found:
        return None
    entry = found[key]
    return Compiled(dynamic.program(opened, entry), kernels.find(entry.rung).flat, entry.unread)


@functools.lru_cache(maxsize=8)
def _opened(place: str) -> tuple[Pack, dict[str, Dynamic]]:
    """A pack and its kernels of ops. UsageError where it is damaged, stale, or for another GPU."""
    opened = Pack.open(place)
    opened.check_gpu()
    found = {json.dumps(entry.op, sort_keys=True): entry for entry in opened.dynamic if entry.op}
    for entry in found.values():
        if entry.source != kernels.source_digest(entry.rung):
            raise UsageError(f"pack {place} is stale: {entry.rung} has changed since it was packed: pack it again")
        if entry.machine != platform.machine():
            raise UsageError(f"pack {place} was made on {entry.machine}, this is {platform.machine()}: pack it here")
    return opened, found


def spell(form: Form) -> str:
    """A form as `parse_form` reads it."""
    plain = Form(form.dtype, DEFAULT_OUTPUT.get(form.dtype, form.dtype))
    words = [form.dtype]
    for field in dataclasses.fields(Form):
        value = getattr(form, field.name)
        if value != getattr(plain, field.name):
            words.append(f"{field.name}={str(value).lower() if isinstance(value, bool) else value}")
    return ",".join(words)
