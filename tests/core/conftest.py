"""Property tests here are the same on every run, and may be slow on a busy machine without failing for it."""

from hypothesis import settings

settings.register_profile("core", deadline=None, derandomize=True)
settings.load_profile("core")
