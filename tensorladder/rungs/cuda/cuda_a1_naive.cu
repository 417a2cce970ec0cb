// C = A B^T, a thread an element of C. A (M, K), B (N, K) and C (M, N) are row-major.
#include "element.cuh"

constexpr int kUnroll = UNROLL;

extern "C" __global__ void __launch_bounds__(BLOCK_M* BLOCK_N)
    kernel(const Element* A, const Element* B, Element* C, int M, int N, int K) {
    const int m = blockIdx.y * BLOCK_M + threadIdx.y;
    const int n = blockIdx.x * BLOCK_N + threadIdx.x;
    if (m >= M || n >= N) return;

    // 64-bit offsets: M * K may exceed 2^31.
    const Element* a = A + size_t(m) * K;
    const Element* b = B + size_t(n) * K;
    float sum = 0;
#pragma unroll kUnroll
    for (int k = 0; k < K; ++k) sum += to_float(a[k]) * to_float(b[k]);
    from_float(C[size_t(m) * N + n], sum);
}
