"""Timelines of launches on the virtual GPU: what each warp, the TMA unit and the tensor cores did, and who let whom go.

Of a launch:

    device = Device("sm_90a", policy="timed")
    device.traced = True
    ...                                   # launch
    timeline(device).write("kernel.json")
"""

from __future__ import annotations

from tensorladder.vgpu.trace.timelines import timeline

__all__ = ["timeline"]
