// A rung's kernel behind a plain C++ function: what its bindings call, whatever they are made with.
#pragma once

// C = A B^T on a stream (a cudaStream_t) of a device. A (M, K), B (N, K) and C (M, N) are row-major, in its memory. Returns
// what is wrong in a line, or nullptr: the launch is queued.
const char* launch(const void* A, const void* B, void* C, int M, int N, int K, int device, void* stream);
