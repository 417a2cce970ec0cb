"""Whether this process has the virtual GPU for its CUDA device, as under `tensorladder exec` and `pytest --vgpu`.

Here, so that host code for both kinds of GPU can ask without loading the virtual one's engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorladder.vgpu.driver import Session

#: what such a process launches on, while `vgpu.driver.attached` lasts
session: Session | None = None
