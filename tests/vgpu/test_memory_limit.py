"""Generated code that gets no more memory ends its process with a line, not with a fault."""

from __future__ import annotations

import subprocess
import sys

_ASK = """
from numba import njit
from tensorladder.vgpu.machine.raw import allocate
print(njit(lambda size: allocate(size))(1 << 60))
"""


def test_no_memory_is_one_line():
    ended = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True)
    assert ended.returncode == 3 and not ended.stdout
    (line,) = ended.stderr.splitlines()
    assert line.startswith("tensorladder: the virtual GPU wants more memory than this process may have")
