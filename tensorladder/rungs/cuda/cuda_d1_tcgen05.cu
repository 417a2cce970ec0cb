// C = A B^T by tcgen05, the sums in tensor memory. A (M, K), B (N, K) and C (M, N) are row-major.
#include "async.cuh"

constexpr int kThreads = 128;                                       // a warp for each 32 lanes of tensor memory
constexpr int kVector = 8;                                          // elements in 16 bytes
constexpr int kChunk = 32;                                          // columns that a tcgen05.ld brings
constexpr unsigned kRow = TILE_K * sizeof(Element);                 // bytes of a row of a tile
constexpr unsigned kTileA = TILE_M * kRow, kTileB = TILE_N * kRow;  // bytes
constexpr unsigned kStage = kTileA + kTileB;
constexpr int kPitchC = TILE_N + kVector;  // elements, of C's tile at the end
static_assert(kRow == 128, "rows are as wide as the 128-byte swizzle");
static_assert(TILE_M == 128, "the lanes of tensor memory");

// How the tensor core reads a tile (PTX ISA, "Shared memory descriptor"): address, distance of groups of 8 rows, both in
// units of 16 bytes, the version, and the 128-byte swizzle. 32 bytes further along K is 2 more.
__device__ inline unsigned long long descriptor(unsigned address) {
    constexpr unsigned long long groups = 8 * kRow / 16, version = 1, swizzle_128b = 2;
    return (address & 0x3ffff) / 16 | 1ull << 16 | groups << 32 | version << 46 | swizzle_128b << 61;
}

// What is multiplied (PTX ISA, "Instruction descriptor"): the sums' type fp32, A's and B's type, N / 8 and M / 16.
template <class T>
constexpr unsigned kOperandType = 0;
template <>
constexpr unsigned kOperandType<bf16> = 1;
constexpr unsigned kInstruction = 1u << 4 | kOperandType<Element> << 7 | kOperandType<Element> << 10 |
                                  TILE_N / 8u << 17 | TILE_M / 16u << 24;

// D = A B^T in tensor memory, plus D where `accumulate`. Issued by one thread, runs on its own.
__device__ inline void multiply(unsigned d, unsigned long long a, unsigned long long b, unsigned accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }"
        :: "r"(d), "l"(a), "l"(b), "n"(kInstruction), "r"(accumulate) : "memory");
}

// An arrival at a barrier once all MMAs that this thread has issued are done.
__device__ inline void commit(unsigned barrier) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" :: "r"(barrier) : "memory");
}

// A barrier orders threads, but not the tensor memory accesses they have issued: one of these goes before it, one after.
__device__ inline void fence_before() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
__device__ inline void fence_after() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

#define TL_4(d, i) "=r"(d[i]), "=r"(d[i + 1]), "=r"(d[i + 2]), "=r"(d[i + 3])
#define TL_16(d, i) TL_4(d, i), TL_4(d, i + 4), TL_4(d, i + 8), TL_4(d, i + 12)

// 32 columns of the warp's 32 lanes, a lane of tensor memory a thread. The registers hold them when it returns.
__device__ inline void load_sums(unsigned (&d)[kChunk], unsigned from) {
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x32.b32 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, [%32];\n"
        "tcgen05.wait::ld.sync.aligned;"
        : TL_16(d, 0), TL_16(d, 16) : "r"(from) : "memory");
}

extern "C" __global__ void __launch_bounds__(kThreads)
    kernel(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, Element* C, int M, int N, int K) {
    extern __shared__ __align__(1024) unsigned char memory[];
    // The swizzle's pattern repeats every 1024 bytes: tiles start there. The barriers lie behind the stages, and then the
    // address in tensor memory that alloc writes.
    const unsigned stages = (shared_address(memory) + 1023) / 1024 * 1024;
    const unsigned full = stages + STAGES * kStage, empty = full + 8 * STAGES, done = empty + 8 * STAGES, slot = done + 8;

    // Down RASTER rows of tiles, then the next column, so that CTAs that run together share A and B in L2.
    const int tiles_m = (M + TILE_M - 1) / TILE_M, tiles_n = (N + TILE_N - 1) / TILE_N;
    const int group = blockIdx.x / (RASTER * tiles_n), within = blockIdx.x % (RASTER * tiles_n);
    const int height = min(tiles_m - group * RASTER, RASTER);
    const int m0 = (group * RASTER + within % height) * TILE_M, n0 = within / height * TILE_N;

    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(full + 8 * stage, 1);   // of the thread that asks for a tile, and its bytes
            barrier_init(empty + 8 * stage, 1);  // of a commit
        }
        barrier_init(done, 1);
        barrier_init_fence();
    }
    if (warp == 0) {
        __syncwarp();
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;"
                     :: "r"(slot), "n"(TILE_N) : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
        fence_before();
    }
    __syncthreads();
    fence_after();
    const unsigned sums = *reinterpret_cast<unsigned*>(memory + (slot - shared_address(memory)));

    if (threadIdx.x == 0) {
        const int tiles_k = (K + TILE_K - 1) / TILE_K;
        auto fetch = [&](int tile) {
            const unsigned stage = stages + tile % STAGES * kStage, barrier = full + 8 * (tile % STAGES);
            barrier_expect(barrier, kStage);
            tma_load(stage, A, m0, tile * TILE_K, barrier);
            tma_load(stage + kTileA, B, n0, tile * TILE_K, barrier);
        };
#pragma unroll 1
        for (int tile = 0; tile < min(STAGES - 1, tiles_k); ++tile) fetch(tile);

#pragma unroll 1
        for (int tile = 0; tile < tiles_k; ++tile) {
            const unsigned stage = stages + tile % STAGES * kStage;
            const unsigned long long a = descriptor(stage), b = descriptor(stage + kTileA);
            barrier_wait(full + 8 * (tile % STAGES), tile / STAGES % 2);
            fence_after();
#pragma unroll
            for (int k = 0; k < TILE_K / 16; ++k) multiply(sums, a + 2 * k, b + 2 * k, tile + k > 0);
            // No commit without a waiter: it could arrive in shared memory that the CTA has left.
            if (tile + STAGES < tiles_k) commit(empty + 8 * (tile % STAGES));

            // Refill the stage of the tile before, once its MMAs are done: this tile's keep the tensor core busy.
            const int next = tile + STAGES - 1, before = tile - 1;
            if (next >= tiles_k) continue;
            if (before >= 0) barrier_wait(empty + 8 * (before % STAGES), before / STAGES % 2);
            fetch(next);
        }
        commit(done);
    }
    __syncwarp();  // what follows, warps do as a whole

    barrier_wait(done, 0);
    fence_after();

    // Thread t holds row t of the tile, 32 columns at a time. All stages are read: C's tile may lie over them.
    Element* tile = reinterpret_cast<Element*>(memory);
#pragma unroll 1
    for (int column = 0; column < TILE_N; column += kChunk) {
        unsigned d[kChunk];
        load_sums(d, sums + (warp * 32 << 16) + column);
#pragma unroll
        for (int i = 0; i < kChunk; i += kVector) {
            __align__(16) Element vector[kVector];
            for (int e = 0; e < kVector; ++e) from_float(vector[e], __uint_as_float(d[i + e]));
            *reinterpret_cast<uint4*>(tile + threadIdx.x * kPitchC + column + i) = *reinterpret_cast<const uint4*>(vector);
        }
    }
    fence_before();
    __syncthreads();

    // Nobody reads tensor memory any more: the warp that allocated it gives it back.
    if (warp == 0) {
        fence_after();
        asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" :: "r"(sums), "n"(TILE_N) : "memory");
    }

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
