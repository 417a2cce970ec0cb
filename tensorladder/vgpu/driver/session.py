"""One script's view of a GPU: an architecture, a place where launches run, and a clock for events.

Launches are run as soon as a host function that enqueued them returns: the script's tensors lie in host memory and
may be read by the next line. Launches of one host function still run together, so that dependent grids overlap.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ...core.arch import Arch
from ...core.errors import TensorladderError
from ...core.program import Stream

Range = tuple[str, int, int, Any]
"""Memory that a launch may touch: name, address, bytes, owner."""


@dataclass
class Session:
    """arch: what the script sees. new_stream(ranges): a stream on which launches may touch the given host memory.

    failure is the first error of a launch, kept because foreign code between it and the top may turn it into another.
    """

    arch: Arch
    new_stream: Callable[[list[Range]], Stream]
    emulated_seconds: float = 0.0
    failure: TensorladderError | None = None
    _ranges: dict[int, tuple[int, weakref.ref[Any]]] = field(default_factory=dict)
    _notes: set[str] = field(default_factory=set)

    def run(self, enqueue: Callable[[Stream], Any], extra: list[Range] | None = None) -> Any:
        """Call `enqueue` with a stream, then run what it enqueued. extra: further memory that launches may touch."""
        stream = self.new_stream([*self.ranges(), *(extra or [])])
        start = time.perf_counter()
        try:
            result = enqueue(stream)
            stream.synchronize()
        except TensorladderError as error:
            self.failure = self.failure or error
            raise
        finally:
            self.emulated_seconds += time.perf_counter() - start
        return result

    def track(self, address: int, size: int, owner: Any) -> None:
        """Device memory that the script owns, as long as `owner` lives."""
        if size and address not in self._ranges:
            self._ranges[address] = (size, weakref.ref(owner, lambda _: self._ranges.pop(address, None)))
        elif size:
            held, _ = self._ranges[address]
            self._ranges[address] = (max(held, size), weakref.ref(owner, lambda _: self._ranges.pop(address, None)))

    def ranges(self) -> Iterator[Range]:
        """The device memory that is alive now."""
        for address, (size, owner) in list(self._ranges.items()):
            alive = owner()
            if alive is not None:
                yield f"tensor at {address:#x}", address, size, alive

    def note(self, text: str) -> None:
        """Tell the person something once, beside the script's own output."""
        if text not in self._notes:
            self._notes.add(text)
            print(f"tensorladder: {text}", file=sys.stderr)
