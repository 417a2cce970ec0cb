"""Rungs for sm_100a: tcgen05 MMA, tensor memory, CTA pairs."""
