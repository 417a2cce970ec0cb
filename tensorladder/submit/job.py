"""What is asked for: a verb's arguments, the options that are fanned out, and what each call needs."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import asdict, dataclass

from tensorladder.core.errors import TensorladderError, UsageError

# Verbs whose whole result is JSON lines. The others write files, which would stay on the worker.
VERBS = ("run", "climb", "bench", "list", "doctor")
MOST_CALLS = 10_000

_NAME = re.compile(r"[a-z][a-z-]*")
_RANGE = re.compile(r"(.*?)(\d{1,18})\.\.(\d{1,18})")


class SubmitError(TensorladderError):
    """The job ended before its results were whole, or the place stopped answering: what came is incomplete."""

    exit_code = 3


@dataclass(frozen=True)
class Job:
    """A verb, fanned out.

    arguments: the verb and its own arguments, without --json. fans: "option=value" or "option=first..last" each; those
    of one option add up, those of several multiply. cpus, gpus: what a call takes of a worker (Modal: gpus 0 or more of
    the kind asked for). retries: how often a call is given to another worker when its worker is lost.
    """

    arguments: tuple[str, ...]
    fans: tuple[str, ...] = ()
    cpus: float = 1
    gpus: float = 0
    retries: int = 3

    def __post_init__(self) -> None:
        if not self.arguments or self.arguments[0] not in VERBS:
            what = repr(self.arguments[0]) if self.arguments else "nothing"
            raise UsageError(f"{what} is no verb whose results are JSON lines: submit {', '.join(VERBS)}")
        for name in ("cpus", "gpus", "retries"):
            if not 0 <= getattr(self, name) < 1e6:
                raise UsageError(f"--{name} {getattr(self, name):g} must be 0 or more")

    def calls(self) -> list[tuple[str, ...]]:
        """The arguments of every call, without --json. UsageError for a fan that cannot be read."""
        options: dict[str, list[str]] = {}
        for fan in self.fans:
            name, values = parse_fan(fan)
            options.setdefault(name, []).extend(values)
        for name in options:
            if any(word.split("=")[0] == f"--{name}" for word in self.arguments):
                raise UsageError(f"--fan {name}=...: --{name} stands among the verb's arguments too, leave one out")
        count = math.prod(map(len, options.values()))
        if count > MOST_CALLS:
            raise UsageError(f"--fan: these are {count} calls, submit at most {MOST_CALLS} at a time")
        words = [[(f"--{name}", value) for value in values] for name, values in options.items()]
        return [self.arguments + tuple(itertools.chain(*chosen)) for chosen in itertools.product(*words)]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        fields = json.loads(text)
        return Job(tuple(fields.pop("arguments")), tuple(fields.pop("fans")), **fields)


def parse_fan(text: str) -> tuple[str, list[str]]:
    """ "seed=1..8" as ("seed", ["1", ..., "8"]); "async=random:1..3" likewise; "shape=64,64,64" as it is."""
    name, equals, value = text.partition("=")
    if not equals or not value or not _NAME.fullmatch(name):
        raise UsageError(f"--fan {text!r}: write --fan seed=1..8 or --fan shape=256,256,256 (an option of the verb)")
    span = _RANGE.fullmatch(value)
    if not span:
        return name, [value]
    before, first, last = span[1], int(span[2]), int(span[3])
    if not first <= last < first + MOST_CALLS:
        raise UsageError(f"--fan {text!r}: a range goes up, over at most {MOST_CALLS} values")
    return name, [f"{before}{number}" for number in range(first, last + 1)]
