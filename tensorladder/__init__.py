"""tensorladder: learn, write, test and use tensor-core kernels from Python, with or without a GPU."""

__version__ = "0.1.0"
