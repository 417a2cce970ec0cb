"""SIMT rungs: one thread an element, then tiles in shared memory."""
