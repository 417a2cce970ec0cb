"""The ladder: one file a rung, one hardware feature a step. `rung` is the protocol and the catalogue."""

from tensorladder.rungs.rung import Rung, RungInfo, catalog, find, load

__all__ = ["Rung", "RungInfo", "catalog", "find", "load"]
