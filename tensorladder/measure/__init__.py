"""Run one rung or many, judge and time them; look into what was compiled; examine the machine."""

from tensorladder.measure.environment import Check, examine
from tensorladder.measure.run import Request, Result, climb, requests, run_rung

__all__ = ["Check", "Request", "Result", "climb", "examine", "requests", "run_rung"]
