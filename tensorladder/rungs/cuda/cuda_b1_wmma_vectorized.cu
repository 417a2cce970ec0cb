// C = A B^T on tensor cores, tiles and results moved 16 bytes at a time. A (M, K), B (N, K) and C (M, N) are row-major.
#include "wmma.cuh"

constexpr int kThreads = 32 * WARPS_M * WARPS_N;
constexpr int kRows = TILE_M / WARPS_M / kWmma, kColumns = TILE_N / WARPS_N / kWmma;  // fragments a warp
constexpr int kVector = 8;                  // elements in 16 bytes
constexpr int kVectors = TILE_K / kVector;  // in a row of a tile
constexpr int kPitch = TILE_K + kVector;    // elements: rows of 16 bytes more than their length start in other banks

// A tile of rows by TILE_K, 16 bytes a thread at a time. K is a multiple of 8: a vector lies inside or outside as a whole.
template <int rows>
__device__ void load(Element (*tile)[kPitch], const Element* matrix, int row0, int limit, int k0, int K) {
#pragma unroll
    for (int i = threadIdx.x; i < rows * kVectors; i += kThreads) {
        const int row = i / kVectors, k = i % kVectors * kVector;
        uint4 vector = {};
        if (row0 + row < limit && k0 + k < K)
            vector = *reinterpret_cast<const uint4*>(matrix + size_t(row0 + row) * K + k0 + k);
        *reinterpret_cast<uint4*>(&tile[row][k]) = vector;
    }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    kernel(const Element* A, const Element* B, Element* C, int M, int N, int K) {
    __shared__ __align__(32) Element sA[TILE_M][kPitch];
    __shared__ __align__(32) Element sB[TILE_N][kPitch];
    __shared__ __align__(32) float patches[WARPS_M * WARPS_N][kWmma * kWmma];

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m0 = blockIdx.y * TILE_M, n0 = blockIdx.x * TILE_N;
    const int warp_m = warp / WARPS_N * kRows * kWmma, warp_n = warp % WARPS_N * kColumns * kWmma;

    Accumulator sum[kRows][kColumns];
    for (int k0 = 0; k0 < K; k0 += TILE_K) {
        load<TILE_M>(sA, A, m0, M, k0, K);
        load<TILE_N>(sB, B, n0, N, k0, K);
        __syncthreads();  // the tiles are complete

#pragma unroll
        for (int k = 0; k < TILE_K; k += kWmma) {
            Operand<Element> a[kRows], b[kColumns];
            for (int i = 0; i < kRows; ++i) load_a(a[i], &sA[warp_m + i * kWmma][k], kPitch);
            for (int j = 0; j < kColumns; ++j) load_b(b[j], &sB[warp_n + j * kWmma][k], kPitch);
            for (int i = 0; i < kRows; ++i)
                for (int j = 0; j < kColumns; ++j) multiply(sum[i][j], a[i], b[j]);
        }
        __syncthreads();  // everybody has read them
    }

    // Which lane holds which sum is not known: fragment by fragment they are stored, and read back half a row a lane.
    float* patch = patches[warp];
    const int row = lane / 2, column = lane % 2 * kVector;
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
            store(patch, sum[i][j]);
            __syncwarp();
            __align__(16) Element half[kVector];
            for (int e = 0; e < kVector; ++e) from_float(half[e], patch[row * kWmma + column + e]);
            const int m = m0 + warp_m + i * kWmma + row, n = n0 + warp_n + j * kWmma + column;
            Element* to = C + size_t(m) * N + n;
            if (m < M && N % kVector == 0) {
                if (n < N) *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(half);
            } else if (m < M) {
                for (int e = 0; e < kVector; ++e)
                    if (n + e < N) to[e] = half[e];
            }
            __syncwarp();  // before the next fragment
        }
}
