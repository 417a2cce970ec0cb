"""Breakpoints: a warp stops at a line of PTX or of its source, and what the machine holds then is dumped.

    points = Breakpoints(["ptx:16@warp=1"])                     # or FILE.py:LINE, KERNEL+LINES, hang
    vgpu.launch(ptx_text, "kernel", grid, block, args, breakpoints=points)
    print(points.hits[0])                                       # or .to_json()

- `places`: what a person asks for. `codegen.points`: where that is in a kernel, and the code of it; a kernel without
  breakpoints has none, and one with them takes the same steps.
- `state`: the machine's state as plain data. `values`, `text`: how it is said.
- `breakpoints`: which warp's arrival counts, and what happens then.
"""

from __future__ import annotations

from tensorladder.vgpu.debug.breakpoints import Breakpoints, Dump

__all__ = ["Breakpoints", "Dump"]
