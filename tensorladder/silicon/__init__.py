"""A real GPU: the driver by its C interface, launches, timing, and the disassembler of machine code."""
