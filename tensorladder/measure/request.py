"""What a person asks for, as text, turned into values: each refusal names the argument and how to ask right."""

from __future__ import annotations

import re

from tensorladder.core import arch
from tensorladder.core.errors import UsageError
from tensorladder.rungs.rung import RungInfo, catalog

PLACES = ("vgpu", "gpu")
POLICIES = ("eager", "lazy", "random:N", "timed")
# How the tensor cores accumulate: in float32 steps, in float64, or bit for bit as measured on a chip.
NUMERICS = ("f32", "f64", "exact")
EXTENT_LIMIT = 1 << 31

_RANDOM = re.compile(r"random:(\d{1,18})")


def parse_shape(text: str, least: int = 1) -> tuple[int, ...]:
    """ "512,512,512" as integers. UsageError for anything but extents from `least` to below 2^31, split by commas.

    least: 0 where a problem looks at them afterwards, which may have a padding of 0.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]+", part) for part in parts):
        raise UsageError(f"--shape {text!r} is not a list of positive integers: write --shape 512,512,512")
    extents = tuple(int(part) for part in parts)
    for extent in extents:
        if not least <= extent < EXTENT_LIMIT:
            raise UsageError(f"--shape {text!r}: extent {extent} must lie between {least} and 2^31 - 1")
    return extents


def parse_policy(text: str, asked: str = "", option: str = "--async ") -> str:
    """A policy of asynchronous effects in its canonical spelling.

    asked: how an error quotes what was asked for, where that was not --async. option: what a policy stands behind.
    """
    asked = asked or f"{option}{text!r}"
    policy = text.strip().lower()
    if policy in POLICIES[:2] or policy == "timed" or _RANDOM.fullmatch(policy):
        return policy
    if policy.startswith("random"):
        raise UsageError(
            f"{asked}: give the schedule's seed as a number of at most 18 digits, such as {option}random:7"
        )
    raise UsageError(f"{asked} is not a policy: use {', '.join(POLICIES)}")


def parse_place(text: str) -> str:
    """ "vgpu" or "gpu"."""
    if text not in PLACES:
        raise UsageError(f"--on {text!r} is not a place to run: use --on vgpu or --on gpu")
    return text


def parse_numerics(text: str) -> str:
    """How the tensor cores accumulate."""
    if text not in NUMERICS:
        raise UsageError(f"--numerics {text!r} is not a model of accumulation: use {', '.join(NUMERICS)}")
    return text


def parse_arch(text: str, info: RungInfo) -> str:
    """An architecture that `info` compiles for; UsageError names those there are."""
    name = arch.find(text).name
    if name not in info.archs:
        raise UsageError(f"--arch {text!r}: {info.name} compiles for {', '.join(info.archs)}")
    return name


def parse_series(text: str | None) -> tuple[RungInfo, ...]:
    """The rungs of the series named in "a,b" (all rungs for None), in the catalogue's order."""
    infos = catalog()
    if text is None:
        return infos
    known = list(dict.fromkeys(info.series for info in infos))
    wanted = [name.strip().lower() for name in text.split(",")]
    for name in wanted:
        if name not in known:
            raise UsageError(f"--series {text!r}: there is no series {name!r}; use {', '.join(known)}")
    return tuple(info for info in infos if info.series in wanted)


def parse_sm_count(count: int | None) -> int | None:
    """How many SMs there are; None for the reference part's."""
    if count is not None and not 1 <= count <= 1024:
        raise UsageError(f"--sm-count {count} must lie between 1 and 1024")
    return count


def parse_timeout(seconds: float | None) -> float | None:
    """Seconds, positive; None for no limit."""
    if seconds is not None and not 0 < seconds < float("inf"):
        raise UsageError(f"--timeout {seconds:g} must be a positive number of seconds")
    return seconds


def parse_seed(seed: int) -> int:
    """A seed that numpy's generators and the virtual GPU's take: 0 to 2^63 - 1."""
    if not 0 <= seed < 1 << 63:
        raise UsageError(f"--seed {seed} must lie between 0 and 2^63 - 1")
    return seed
