"""The ladder's steps in CUDA C++, a .cu beside each rung, compiled by NVRTC. `gemm` is the host part they share."""
