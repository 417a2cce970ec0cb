"""PTX reader: text to typed instructions (`parse`), control-flow graph (`cfg`)."""

from tensorladder.vgpu.ptx.nodes import PtxModule
from tensorladder.vgpu.ptx.parser import parse

__all__ = ["PtxModule", "parse"]
