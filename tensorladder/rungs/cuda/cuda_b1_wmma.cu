// C = A B^T on tensor cores, a 16 x 16 tile of C a warp. A (M, K), B (N, K) and C (M, N) are row-major.
#include "wmma.cuh"

constexpr int kThreads = 32 * WARPS_M * WARPS_N;
constexpr int kElements = kWmma * kWmma;

// What a warp keeps of its own in shared memory: tiles at an edge, made whole with zeros, and at last its sums.
union Patch {
    Element operand[2][kElements];
    float sums[kElements];
};

// A 16 x 16 tile that can be loaded as it lies, or is copied into `patch` first. Returns it, and its pitch.
__device__ const Element* tile_at(const Element* matrix, int row0, int rows, int k0, int K, Element* patch, int& pitch) {
    const Element* tile = matrix + size_t(row0) * K + k0;
    pitch = K;
    if (row0 + kWmma <= rows && k0 + kWmma <= K && K % 8 == 0) return tile;
    for (int i = threadIdx.x % 32; i < kElements; i += 32) {
        const int row = i / kWmma, k = i % kWmma;
        patch[i] = row0 + row < rows && k0 + k < K ? tile[size_t(row) * K + k] : Element{};
    }
    pitch = kWmma;
    return patch;
}

extern "C" __global__ void __launch_bounds__(kThreads)
    kernel(const Element* A, const Element* B, Element* C, int M, int N, int K) {
    __shared__ __align__(32) Patch patches[WARPS_M * WARPS_N];

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Patch& patch = patches[warp];
    const int m0 = (blockIdx.y * WARPS_M + warp / WARPS_N) * kWmma;
    const int n0 = (blockIdx.x * WARPS_N + warp % WARPS_N) * kWmma;
    if (m0 >= M || n0 >= N) return;  // warps never wait for each other

    Accumulator sum;
    for (int k0 = 0; k0 < K; k0 += kWmma) {
        int pitch_a, pitch_b;
        const Element* tile_a = tile_at(A, m0, M, k0, K, patch.operand[0], pitch_a);
        const Element* tile_b = tile_at(B, n0, N, k0, K, patch.operand[1], pitch_b);
        __syncwarp();  // the patch is complete

        Operand<Element> a, b;
        load_a(a, tile_a, pitch_a);
        load_b(b, tile_b, pitch_b);
        multiply(sum, a, b);
        __syncwarp();  // all lanes have read the patch
    }

    // Which lane holds which sum is not known: they are stored, and read back in rows.
    store(patch.sums, sum);
    __syncwarp();
    for (int i = lane; i < kElements; i += 32) {
        const int m = m0 + i / kWmma, n = n0 + i % kWmma;
        if (m < M && n < N) from_float(C[size_t(m) * N + n], patch.sums[i]);
    }
}
