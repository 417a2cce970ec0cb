// C = A B^T by mma.sync, 4 x 8 MMAs a warp, through a ring of stages. A (M, K), B (N, K) and C (M, N) are row-major.
#include "element.cuh"

constexpr int kThreads = 32 * WARPS_M * WARPS_N;
constexpr int kRows = TILE_M / WARPS_M / 16, kColumns = TILE_N / WARPS_N / 8;  // MMAs of 16 x 8 x 16 a warp
constexpr int kVector = 8;                                                     // elements in 16 bytes
constexpr int kVectors = TILE_K / kVector;                                     // in a row of a tile
constexpr int kStage = (TILE_M + TILE_N) * TILE_K;                             // elements: A's tile, then B's
constexpr int kPitchC = TILE_N + kVector;                                      // elements, of C's tile at the end
static_assert(kVectors == 4 || kVectors == 8, "a row of a tile is 64 or 128 bytes");

// Where the vector k of a row lies in a tile, in elements: its number is changed by the row's, so that the eight rows
// that ldmatrix reads at a time lie in all 32 banks.
__device__ constexpr int place(int row, int vector) {
    return row * TILE_K + (vector ^ (kVectors == 8 ? row % 8 : row / 2 % 4)) * kVector;
}

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// Start copying a tile of rows by TILE_K, 16 bytes a thread at a time; what lies outside the matrix becomes zero.
template <int rows>
__device__ void load(Element* tile, const Element* matrix, int row0, int limit, int k0, int K) {
#pragma unroll
    for (int i = threadIdx.x; i < rows * kVectors; i += kThreads) {
        const int row = i / kVectors, vector = i % kVectors, k = k0 + vector * kVector;
        const bool inside = row0 + row < limit && k < K;
        const Element* from = inside ? matrix + size_t(row0 + row) * K + k : matrix;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"(shared_address(tile + place(row, vector))), "l"(from), "r"(inside ? 16 : 0) : "memory");
    }
}

// Four 8 x 8 matrices; lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void load_matrices(unsigned (&r)[4], const Element* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

#define TL_MMA(type)                                                                                                \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "       \
        "{%0,%1,%2,%3};"                                                                                            \
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                                    \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

__device__ inline void multiply(float (&sum)[4], const unsigned* a, const unsigned* b, fp16) { TL_MMA("f16"); }
__device__ inline void multiply(float (&sum)[4], const unsigned* a, const unsigned* b, bf16) { TL_MMA("bf16"); }

extern "C" __global__ void __launch_bounds__(kThreads)
    kernel(const Element* A, const Element* B, Element* C, int M, int N, int K) {
    extern __shared__ __align__(128) Element stages[];

    // Down RASTER rows of tiles, then the next column, so that CTAs that run together share A and B in L2.
    const int tiles_m = (M + TILE_M - 1) / TILE_M, tiles_n = (N + TILE_N - 1) / TILE_N;
    const int group = blockIdx.x / (RASTER * tiles_n), within = blockIdx.x % (RASTER * tiles_n);
    const int height = min(tiles_m - group * RASTER, RASTER);
    const int m0 = (group * RASTER + within % height) * TILE_M, n0 = within / height * TILE_N;

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_m = warp / WARPS_N * kRows * 16, warp_n = warp % WARPS_N * kColumns * 8;

    const int tiles_k = (K + TILE_K - 1) / TILE_K;
    auto fetch = [&](int tile) {
        if (tile < tiles_k) {
            Element* stage = stages + tile % STAGES * kStage;
            load<TILE_M>(stage, A, m0, M, tile * TILE_K, K);
            load<TILE_N>(stage + TILE_M * TILE_K, B, n0, N, tile * TILE_K, K);
        }
        // An empty group as well: "all but the newest STAGES - 2" then means the same tile in every iteration.
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll 1
    for (int tile = 0; tile < STAGES - 1; ++tile) fetch(tile);

    float sum[kRows][kColumns][4] = {};
    for (int tile = 0; tile < tiles_k; ++tile) {
        // This thread's copies have landed; after the barrier everybody's have, and the stage before is free.
        asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
        __syncthreads();
        fetch(tile + STAGES - 1);

        const Element* sA = stages + tile % STAGES * kStage;
        const Element* sB = sA + TILE_M * TILE_K;
#pragma unroll
        for (int k = 0; k < kVectors; k += 2) {
            unsigned a[kRows][4], b[kColumns / 2][4];
            // A: rows 0 to 7 and 8 to 15 of the first 8 k, then of the next. B: both halves of k of 8 columns, twice.
            for (int i = 0; i < kRows; ++i)
                load_matrices(a[i], sA + place(warp_m + i * 16 + lane % 16, k + lane / 16));
            for (int j = 0; j < kColumns / 2; ++j)
                load_matrices(b[j], sB + place(warp_n + j * 16 + lane / 16 * 8 + lane % 8, k + lane / 8 % 2));
            for (int i = 0; i < kRows; ++i)
                for (int j = 0; j < kColumns; ++j) multiply(sum[i][j], a[i], &b[j / 2][j % 2 * 2], Element{});
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");  // only empty groups are left
    __syncthreads();  // everybody is done with the last stage: C's tile may lie over it

    // A lane holds two neighbouring columns of rows lane / 4 and lane / 4 + 8 of each MMA.
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
        for (int j = 0; j < kColumns; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                __align__(4) Element pair[2];
                for (int e = 0; e < 2; ++e) from_float(pair[e], sum[i][j][half * 2 + e]);
                const int row = warp_m + i * 16 + half * 8 + lane / 4, column = warp_n + j * 8 + lane % 4 * 2;
                *reinterpret_cast<unsigned*>(stages + row * kPitchC + column) = *reinterpret_cast<const unsigned*>(pair);
            }
    __syncthreads();

    // Rows of C in vectors of 16 bytes, where rows start at multiples of that; else element by element.
    const int width = N % kVector == 0 ? kVector : 1, per_row = TILE_N / width;
    for (int i = threadIdx.x; i < TILE_M * per_row; i += kThreads) {
        const int row = i / per_row, column = i % per_row * width;
        if (m0 + row >= M || n0 + column >= N) continue;
        const Element* from = stages + row * kPitchC + column;
        Element* to = C + size_t(m0 + row) * N + n0 + column;
        if (width == kVector) {
            *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
        } else {
            *to = *from;
        }
    }
}
