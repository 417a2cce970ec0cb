"""The virtual GPU: runs compiled PTX on the CPU. `Device` for streams and programs, `launch` for your own PTX.

`check` runs a kernel and reports its hazards.
"""

from tensorladder.vgpu.check import Checker, check
from tensorladder.vgpu.machine.device import Device
from tensorladder.vgpu.machine.launcher import launch

__all__ = ["Checker", "Device", "check", "launch"]
