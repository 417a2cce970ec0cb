// The host part of a rung in C++, for nvcc: what gemm.py does in Python. Compiled with -DKERNEL_SOURCE=name.cu, the
// macros of that kernel, and those of `Geometry.macros`: how it is launched, what it demands of its arrays.
#include "launch.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

#define TL_TEXT_OF(x) #x
#define TL_TEXT(x) TL_TEXT_OF(x)
#include TL_TEXT(KERNEL_SOURCE)

namespace {

constexpr int kStaticSmem = 48 << 10;  // more has to be asked for, once a device

// Makes a device the current one for as long as it lives.
struct OnDevice {
    int before = 0;
    bool moved = false;
    cudaError_t error;

    explicit OnDevice(int device) {
        error = cudaGetDevice(&before);
        if (error != cudaSuccess || before == device) return;
        error = cudaSetDevice(device);
        moved = error == cudaSuccess;
    }
    ~OnDevice() {
        if (moved) cudaSetDevice(before);
    }
};

const char* ask_for_smem(int device) {
    static std::atomic<std::uint64_t> asked{0};  // a bit a device
    const std::uint64_t bit = std::uint64_t(1) << (device % 64);
    if (DYNAMIC_SMEM <= kStaticSmem || (device < 64 && asked.load() & bit)) return nullptr;
    const cudaError_t error = cudaFuncSetAttribute(
        reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, DYNAMIC_SMEM);
    if (error != cudaSuccess) return cudaGetErrorString(error);
    asked.fetch_or(bit);
    return nullptr;
}

#if BOX_K
// The driver's encoder, found at run time: nothing here links with libcuda.
decltype(&cuTensorMapEncodeTiled) encoder() {
    static const auto found = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult result;
        const cudaError_t error = cudaGetDriverEntryPointByVersion(
            "cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
        return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? function : nullptr;
    }();
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
}

constexpr CUtensorMapDataType type_of(fp16) { return CU_TENSOR_MAP_DATA_TYPE_FLOAT16; }
constexpr CUtensorMapDataType type_of(bf16) { return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16; }

// Boxes of `box` rows by BOX_K columns of a row-major matrix, which lie in shared memory under the 128-byte swizzle.
bool encode(CUtensorMap& map, const void* matrix, int rows, int columns, int box) {
    const cuuint64_t extents[] = {cuuint64_t(columns), cuuint64_t(rows)};
    const cuuint64_t pitches[] = {cuuint64_t(columns) * sizeof(Element)};
    const cuuint32_t box_extents[] = {BOX_K, cuuint32_t(box)}, steps[] = {1, 1};
    return encoder()(&map, type_of(Element{}), 2, const_cast<void*>(matrix), extents, pitches, box_extents, steps,
                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
#endif

}  // namespace

const char* launch(const void* A, const void* B, void* C, int M, int N, int K, int device, void* stream) {
    if (M < 1 || N < 1 || K < 1) return "M, N and K must be 1 at least";
    if (K % K_MULTIPLE != 0) return "K must be a multiple of " TL_TEXT(K_MULTIPLE) ": pad it";
    for (const void* array : {A, B, static_cast<const void*>(C)})
        if (reinterpret_cast<std::uintptr_t>(array) % ALIGN != 0)
            return "A, B and C must start at multiples of " TL_TEXT(ALIGN) " bytes: copy them";
    const OnDevice here(device);
    if (here.error != cudaSuccess) return cudaGetErrorString(here.error);
    if (const char* wrong = ask_for_smem(device)) return wrong;

#if BOX_K
    if (encoder() == nullptr) return "the driver has no cuTensorMapEncodeTiled: CUDA 12 at least is needed";
    CUtensorMap A_map, B_map;
    if (!encode(A_map, A, M, K, GRID_M) || !encode(B_map, B, N, K, GRID_N)) return "the driver refuses a tensor map";
    void* parameters[] = {&A_map, &B_map, &C, &M, &N, &K};
#else
    void* parameters[] = {&A, &B, &C, &M, &N, &K};
#endif
    const unsigned rows = (M - 1) / GRID_M + 1, columns = (N - 1) / GRID_N + 1;
    const dim3 grid = GRID_FLAT ? dim3(rows * columns) : dim3(columns, rows), block(BLOCK_X, BLOCK_Y);
    const cudaError_t error = cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, parameters, DYNAMIC_SMEM,
                             static_cast<cudaStream_t>(stream));
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
