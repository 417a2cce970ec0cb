// C = A B^T, 8 x 8 elements of C a thread. A (M, K), B (N, K) and C (M, N) are row-major.
#include "element.cuh"

constexpr int kQuad = 4;  // a thread's 8 rows are two runs of four, half a tile apart; so are its 8 columns
constexpr int kThreadsN = TILE_N / (2 * kQuad);
constexpr int kThreads = TILE_M / (2 * kQuad) * kThreadsN;
constexpr int kPitchA = TILE_M + 4, kPitchB = TILE_N + 4;  // words; rows stay aligned to 16 bytes

// A tile of `rows` rows by TILE_K, turned so that equal k lie together: tile[k][row]. Outside the matrix it is zero.
template <int rows, int pitch>
__device__ void load(float (*tile)[pitch], const Element* matrix, int row0, int limit, int k0, int K) {
    for (int i = threadIdx.x; i < rows * TILE_K; i += kThreads) {
        const int row = i / TILE_K, k = i % TILE_K;
        const bool inside = row0 + row < limit && k0 + k < K;
        tile[k][row] = inside ? to_float(matrix[size_t(row0 + row) * K + k0 + k]) : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    kernel(const Element* A, const Element* B, Element* C, int M, int N, int K) {
    __shared__ __align__(16) float sA[TILE_K][kPitchA];
    __shared__ __align__(16) float sB[TILE_K][kPitchB];

    const int m0 = blockIdx.y * TILE_M, n0 = blockIdx.x * TILE_N;
    const int tm = threadIdx.x / kThreadsN * kQuad, tn = threadIdx.x % kThreadsN * kQuad;

    float sum[2 * kQuad][2 * kQuad] = {};
    for (int k0 = 0; k0 < K; k0 += TILE_K) {
        load<TILE_M>(sA, A, m0, M, k0, K);
        load<TILE_N>(sB, B, n0, N, k0, K);
        __syncthreads();  // the tiles are complete

#pragma unroll 4
        for (int k = 0; k < TILE_K; ++k) {
            // 16 words by four 16-byte reads, for 64 multiply-adds.
            float4 a[2], b[2];
            for (int half = 0; half < 2; ++half) {
                a[half] = *reinterpret_cast<const float4*>(&sA[k][half * TILE_M / 2 + tm]);
                b[half] = *reinterpret_cast<const float4*>(&sB[k][half * TILE_N / 2 + tn]);
            }
            const float* rows = reinterpret_cast<const float*>(a);
            const float* columns = reinterpret_cast<const float*>(b);
            for (int i = 0; i < 2 * kQuad; ++i)
                for (int j = 0; j < 2 * kQuad; ++j) sum[i][j] += rows[i] * columns[j];
        }
        __syncthreads();  // everybody has read them
    }

#pragma unroll
    for (int i = 0; i < 2 * kQuad; ++i) {
        const int m = m0 + i / kQuad * (TILE_M / 2) + tm + i % kQuad;
#pragma unroll
        for (int j = 0; j < 2 * kQuad; ++j) {
            const int n = n0 + j / kQuad * (TILE_N / 2) + tn + j % kQuad;
            if (m < M && n < N) from_float(C[size_t(m) * N + n], sum[i][j]);
        }
    }
}
