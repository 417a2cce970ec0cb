"""What host code sees of the virtual GPU: the `torch.cuda` facade, and the runner of unmodified scripts."""

from .script import Hook, attached, run_script
from .session import Session

__all__ = ["Hook", "Session", "attached", "run_script"]
