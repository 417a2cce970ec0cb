// C = A B^T by WGMMA, operands by descriptor from tiles that TMA loads. A (M, K), B (N, K) and C (M, N) are row-major.
#include "async.cuh"

constexpr int kThreads = 128 * WARPGROUPS;
constexpr int kColumns = TILE_N / 128;                            // instructions of 64 x 128 x 16 side by side
constexpr int kVector = 8;                                        // elements in 16 bytes
constexpr unsigned kRow = TILE_K * sizeof(Element);               // bytes of a row of a tile
constexpr unsigned kTileA = TILE_M * kRow, kTileB = TILE_N * kRow;  // bytes
constexpr unsigned kStage = kTileA + kTileB;
constexpr int kPitchC = TILE_N + kVector;  // elements, of C's tile at the end
static_assert(kRow == 128, "rows are as wide as the 128-byte swizzle");
static_assert(TILE_M == 64 * WARPGROUPS, "a warpgroup multiplies 64 rows");

// How WGMMA reads a tile (PTX ISA, "Shared memory matrix layout"): address, distance of groups of 8 rows, both in units
// of 16 bytes, and the 128-byte swizzle. 32 bytes further along K is 2 more.
__device__ inline unsigned long long descriptor(unsigned address) {
    constexpr unsigned long long groups = 8 * kRow / 16, swizzle_128b = 1;
    return (address & 0x3ffff) / 16 | 1ull << 16 | groups << 32 | swizzle_128b << 62;
}

#define TL_8(d, i)                                                                                               \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define TL_WGMMA(type)                                                                                            \
    asm volatile(                                                                                                 \
        "{ .reg .pred p; setp.ne.b32 p, %66, 0;\n"                                                                \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {"                                         \
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,"  \
        "%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,"    \
        "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, p, 1, 1, 0, 0; }"                                \
        : TL_8(d, 0), TL_8(d, 8), TL_8(d, 16), TL_8(d, 24), TL_8(d, 32), TL_8(d, 40), TL_8(d, 48), TL_8(d, 56)    \
        : "l"(a), "l"(b), "r"(accumulate))

// d = A B^T, plus d where `accumulate`. Asynchronous: d may not be touched before wait().
__device__ inline void multiply(float (&d)[64], unsigned long long a, unsigned long long b, int accumulate, fp16) {
    TL_WGMMA("f16");
}
__device__ inline void multiply(float (&d)[64], unsigned long long a, unsigned long long b, int accumulate, bf16) {
    TL_WGMMA("bf16");
}

template <int in_flight>
__device__ inline void wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(in_flight) : "memory");
}

extern "C" __global__ void __launch_bounds__(kThreads, CTAS_PER_SM)
    kernel(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, Element* C, int M, int N, int K) {
    extern __shared__ __align__(1024) unsigned char memory[];
    // The swizzle's pattern repeats every 1024 bytes: tiles start there. Full barriers lie behind the stages.
    const unsigned stages = (shared_address(memory) + 1023) / 1024 * 1024, full = stages + STAGES * kStage;

    // Down RASTER rows of tiles, then the next column, so that CTAs that run together share A and B in L2.
    const int tiles_m = (M + TILE_M - 1) / TILE_M, tiles_n = (N + TILE_N - 1) / TILE_N;
    const int group = blockIdx.x / (RASTER * tiles_n), within = blockIdx.x % (RASTER * tiles_n);
    const int height = min(tiles_m - group * RASTER, RASTER);
    const int m0 = (group * RASTER + within % height) * TILE_M, n0 = within / height * TILE_N;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) barrier_init(full + 8 * stage, 1);
        barrier_init_fence();
    }
    __syncthreads();

    const int tiles_k = (K + TILE_K - 1) / TILE_K;
    auto fetch = [&](int tile) {
        if (threadIdx.x != 0 || tile >= tiles_k) return;
        const unsigned stage = stages + tile % STAGES * kStage, barrier = full + 8 * (tile % STAGES);
        barrier_expect(barrier, kStage);
        tma_load(stage, A, m0, tile * TILE_K, barrier);
        tma_load(stage + kTileA, B, n0, tile * TILE_K, barrier);
    };
#pragma unroll 1
    for (int tile = 0; tile < STAGES - 1; ++tile) fetch(tile);

    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // the same for all lanes, as the compiler must know
    float sum[kColumns][64];
#pragma unroll 1
    for (int tile = 0; tile < tiles_k; ++tile) {
        const unsigned stage = stages + tile % STAGES * kStage;
        const unsigned long long a = descriptor(stage + warpgroup * 64 * kRow), b = descriptor(stage + kTileA);
        barrier_wait(full + 8 * (tile % STAGES), tile / STAGES % 2);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");  // orders the sums' registers
#pragma unroll
        for (int k = 0; k < TILE_K / 16; ++k)
#pragma unroll
            for (int j = 0; j < kColumns; ++j)
                multiply(sum[j], a + 2 * k, b + 2 * k + j * 128 * kRow / 16, tile + k > 0, Element{});
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");

        // All groups but the last are complete: this warpgroup has read the stage that is overwritten next. After the
        // barrier all have.
        wait<1>();
        __syncthreads();
        fetch(tile + STAGES - 1);
    }
    wait<0>();
    __syncthreads();  // nobody reads a stage any more: C's tile may lie over them

    // A lane holds two neighbouring columns of rows lane / 4 and lane / 4 + 8 of its warp's 16, in every 8 columns.
    Element* tile = reinterpret_cast<Element*>(memory);
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
#pragma unroll
        for (int i = 0; i < 64; i += 2) {
            __align__(4) Element pair[2];
            for (int e = 0; e < 2; ++e) from_float(pair[e], sum[j][i + e]);
            Element* to = tile + (row + i / 2 % 2 * 8) * kPitchC + j * 128 + i / 4 * 8 + lane % 4 * 2;
            *reinterpret_cast<unsigned*>(to) = *reinterpret_cast<const unsigned*>(pair);
        }
    __syncthreads();

    // Rows of C in vectors of 16 bytes, where rows start at multiples of that; else element by element.
    const int width = N % kVector == 0 ? kVector : 1, per_row = TILE_N / width;
    for (int i = threadIdx.x; i < TILE_M * per_row; i += kThreads) {
        const int row = i / per_row, column = i % per_row * width;
        if (m0 + row >= M || n0 + column >= N) continue;
        const Element* from = tile + row * kPitchC + column;
        Element* to = C + size_t(m0 + row) * N + n0 + column;
        if (width == kVector) {
            *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
        } else {
            *to = *from;
        }
    }
}
