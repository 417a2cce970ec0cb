"""Fused rungs: attention and its relatives, several products and reductions in one pass."""
