"""What host code sees of the virtual GPU: the `torch.cuda` facade, and the runner of unmodified scripts."""

from .script import Hook, run_script
from .session import Session

__all__ = ["Hook", "Session", "run_script"]
