"""atomics."""
