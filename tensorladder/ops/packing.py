"""Pack kernels of the op: which ones, by the forms that are asked for and the model's choices; compiled with no GPU."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tensorladder.core.errors import UsageError
from tensorladder.frontends import ptxparams
from tensorladder.frontends.cutedsl import host_part, without_lines
from tensorladder.measure import dynamic
from tensorladder.measure import pack as rung_packs
from tensorladder.measure.suites import SUITES, Suite
from tensorladder.ops import calls, grouped_plan, kernels, packs
from tensorladder.ops.choose import choose
from tensorladder.ops.kernels import Choice, Product
from tensorladder.ops.plan import DEFAULT_OUTPUT, INPUTS
from tensorladder.ops.tune import contenders
from tensorladder.rungs.parts.form import Form
from tensorladder.silicon import pack
from tensorladder.silicon.pack import Dynamic, Pack

DTYPES = ("bf16", "e4m3")  # of the forms that are packed by default
A_FORM = 6  # choices of knobs that are packed for each form, where no shapes are given
SUITE = ("llm", "square")  # whose shapes say which
SMS = 132  # of an H100 SXM and an H200


def parse_form(text: str) -> Form:
    """ "bf16,bias=bf16,activation=gelu": a form's fields, the element type of A and B first. UsageError for others."""
    dtype, *words = text.split(",")
    _check_type(dtype, f"--form {text!r}")
    fields: dict[str, Any] = {"dtype": dtype, "out": DEFAULT_OUTPUT.get(dtype, dtype)}
    known = {field.name: field.default for field in dataclasses.fields(Form)}
    for word in words:
        name, _, value = word.partition("=")
        if name not in known or name == "dtype":
            raise UsageError(f"--form {text!r}: {name!r} is none of {', '.join(list(known)[1:])}")
        truth = {"": True, "true": True, "false": False}
        if isinstance(known[name], bool) and value not in truth:
            raise UsageError(f"--form {text!r}: {name} takes true or false")
        fields[name] = truth[value] if isinstance(known[name], bool) else value
    return Form(**fields)


def _check_type(dtype: str, where: str) -> None:
    if dtype not in INPUTS:
        raise UsageError(f"{where}: {dtype!r} is none of the operands' types, {', '.join(INPUTS)}")


def forms(dtype: str) -> tuple[Form, ...]:
    """What is packed for an element type by default: a layer's products, forward and backward. UsageError for another
    type than they take."""
    _check_type(dtype, f"--dtype {dtype}")
    if dtype in DEFAULT_OUTPUT:
        return (Form(dtype, DEFAULT_OUTPUT[dtype], scaled=True),)
    plain = Form(dtype, dtype)
    return (
        plain,
        dataclasses.replace(plain, b_major="mn"),
        dataclasses.replace(plain, a_major="mn", b_major="mn"),
        dataclasses.replace(plain, bias=dtype),
        dataclasses.replace(plain, bias=dtype, activation="gelu"),
        dataclasses.replace(plain, bias=dtype, residual=dtype),
        dataclasses.replace(plain, residual=dtype),
        dataclasses.replace(plain, activation="silu", gated=True),
    )


class Wanted(NamedTuple):
    """A kernel to be packed."""

    form: Form
    choice: Choice
    sm_count: int


class Made(NamedTuple):
    """A packed kernel, with its machine code and its host object by digest."""

    entry: Dynamic
    code: dict[str, bytes]
    host: dict[str, bytes]


def wanted(
    arch: str, asked: Sequence[Form], shapes: Sequence[tuple[int, ...]] = (), sm_count: int = SMS, tune: bool = False
) -> list[Wanted]:
    """What the model chooses for these forms: for each shape (M, N, K), or the most frequent ones; of groups
    all that it may choose. tune: for each shape all that `tune=True` measures.

    UsageError for a shape of other than three extents, and for a form that no kernel computes.
    """
    for shape in shapes:
        if len(shape) != 3:
            raise UsageError(f"--shape {','.join(map(str, shape))}: with --ops it takes M,N,K")
    made = []
    for form in asked:
        if form.ragged:
            made += [Wanted(form, one, sm_count) for one in grouped_plan.choices(form)]
            continue
        if tune:
            each = [contenders(Product(m, n, k, 1, form), sm_count, arch) for m, n, k in shapes]
            made += [Wanted(form, one, sm_count) for one in dict.fromkeys(one for ones in each for one in ones)]
            continue
        over = shapes or [shape for name in SUITE for shape in SUITES[name].shapes]
        found = Counter(choose(m, n, k, 1, form, sm_count, arch) for m, n, k in over)
        made += [Wanted(form, one, sm_count) for one, _ in found.most_common(None if shapes else A_FORM)]
    return made


def of_suite(suite: Suite, sm_count: int = SMS) -> list[Wanted]:
    """The sm_90a kernels that calls of a suite of benchmarks take, all of its shapes (plain products by default)."""
    made: dict[Wanted, None] = {}
    for call in map(calls.find, suite.ops or ("matmul",)):
        for shape in suite.shapes:
            try:
                form, one = calls.pick(call, shape, call.dtypes[0], sm_count)
            except UsageError:  # said where it is called
                continue
            made[Wanted(form, one, sm_count)] = None
    return list(made)


def make(arch: str, one: Wanted) -> Made:
    """Compile a kernel. UsageError where its knobs are impossible, MissingExtra without the DSL."""
    with without_lines():
        program = kernels.build(arch, one.form, kernels.config(one.choice, one.sm_count))
    part, module = host_part(program), program.modules[0]
    if part is None or not module.cubin:
        raise UsageError(f"{one.choice.kernel}: it is compiled for fixed extents: nothing to pack")
    image = rung_packs.compact(part.image, module.cubin)
    code, host = pack.digest(module.cubin), pack.digest(image)
    entry = Dynamic(
        one.choice.kernel, arch, one.form.dtype, dict(one.choice.knobs), kernels.source_digest(one.choice.kernel),
        part.names, (), part.name, platform.machine(), code, host, ptxparams.heads(module.ptx),
        rung_packs.unread(module.ptx), tuple(dynamic.arguments(rung_packs.demands(part))),
        json.loads(packs.key(one.form, one.choice, one.sm_count)),
    )  # fmt: skip
    return Made(entry, {code: module.cubin}, {host: image})


def write(place: str | Path, arch: str, made: Sequence[Made], made_with: Any, add: bool = False) -> int:
    """Write a pack of these, or with `add` to one that is there what it has not got. Its size in bytes.

    UsageError where there is none to add to, or it is for another architecture.
    """
    entries, code, host = {}, {}, {}
    old: Pack | None = None
    if add:
        old = Pack.open(place)
        if old.arch != arch:
            raise UsageError(f"--add: {place} is for {old.arch}: use --arch {old.arch}")
        code, host = old.files(pack.CODE), old.files(pack.HOST)
        entries = {json.dumps(one.op, sort_keys=True): one for one in old.dynamic if one.op}
    for one in made:
        entries[json.dumps(one.entry.op, sort_keys=True)] = one.entry
        code |= one.code
        host |= one.host
    others = [one for one in old.dynamic if not one.op] if old else []
    fixed = old.entries if old else ()
    return pack.write(place, arch, fixed, code, made_with, [*others, *entries.values()], host)
