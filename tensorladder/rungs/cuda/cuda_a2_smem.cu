// C = A B^T from tiles in shared memory. A (M, K), B (N, K) and C (M, N) are row-major.
#include "element.cuh"

extern "C" __global__ void __launch_bounds__(TILE* TILE)
    kernel(const Element* A, const Element* B, Element* C, int M, int N, int K) {
    // A row is a word longer than it has to be: lanes read sB down a column, and 32 rows then lie in 32 banks.
    __shared__ float sA[TILE][TILE + 1];
    __shared__ float sB[TILE][TILE + 1];

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE;
    const int m = m0 + ty, n = n0 + tx;

    float sum = 0;
    for (int k0 = 0; k0 < K; k0 += TILE) {
        // Neighbouring threads fetch neighbouring elements of a row. What lies outside is zero, which adds nothing.
        const int k = k0 + tx, row_b = n0 + ty;
        sA[ty][tx] = m < M && k < K ? to_float(A[size_t(m) * K + k]) : 0.0f;
        sB[ty][tx] = row_b < N && k < K ? to_float(B[size_t(row_b) * K + k]) : 0.0f;
        __syncthreads();  // the tiles are complete

#pragma unroll
        for (int i = 0; i < TILE; ++i) sum += sA[ty][i] * sB[tx][i];
        __syncthreads();  // everybody has read them
    }
    if (m < M && n < N) from_float(C[size_t(m) * N + n], sum);
}
