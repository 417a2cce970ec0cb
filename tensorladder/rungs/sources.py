"""What a rung is compiled from, as a digest: stale packs and times are told by it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def digest(own: Iterable[Path]) -> str:
    """Of a rung's own files, and the device code that rungs share."""
    seen = hashlib.sha256()
    for path in (*own, *sorted((Path(__file__).parent / "parts").glob("*.py"))):
        seen.update(path.read_bytes())
    return seen.hexdigest()[:16]
