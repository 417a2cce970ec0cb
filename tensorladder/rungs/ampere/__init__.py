"""Ampere rungs: warp MMA from shared memory (sm_80 up)."""
