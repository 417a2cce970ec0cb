"""Speed claims, each a ratio measured in one run. `python -m benchmarks` prints them all."""
