"""The virtual GPU: runs compiled PTX on the CPU. `Device` for streams and programs, `launch` for your own PTX."""

from tensorladder.vgpu.machine.device import Device
from tensorladder.vgpu.machine.launcher import launch

__all__ = ["Device", "launch"]
