"""Layout rungs: what a swizzle and a thread-value layout mean, executed."""
