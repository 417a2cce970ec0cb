"""Host threads that a script starts: each has the virtual GPU for its CUDA device, as the main one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from ...core.errors import TensorladderError
from .session import Session


@contextlib.contextmanager
def known_in_threads(session: Session) -> Iterator[None]:
    """While this lasts, threads run inside what facades have put into `session.in_threads` (torch's modes are a
    thread's own)."""
    original = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        run = thread.run

        def inside() -> None:
            with contextlib.ExitStack() as stack:
                for enter in session.in_threads:
                    stack.enter_context(enter())
                run()

        thread.run = inside  # type: ignore[method-assign]
        original(thread)

    threading.Thread.start = start  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        threading.Thread.start = original  # type: ignore[method-assign]


@contextlib.contextmanager
def ended_with_the_script(session: Session) -> Iterator[None]:
    """Wait for a script's threads, but for daemons, before it ends, as its interpreter does. What stopped a launch in
    one of them, and nobody caught, is kept in `session.unseen`."""
    before, hook = set(threading.enumerate()), threading.excepthook

    def excepthook(args: Any) -> None:
        if isinstance(args.exc_value, TensorladderError):
            session.unseen = session.unseen or args.exc_value
        else:
            hook(args)

    threading.excepthook = excepthook
    try:
        yield
    finally:
        while alive := [t for t in threading.enumerate() if t not in before and not t.daemon]:
            for thread in alive:
                thread.join()
        threading.excepthook = hook
