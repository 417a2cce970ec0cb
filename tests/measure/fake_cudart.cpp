// A CUDA runtime that only looks: what bindings/launch.cu would launch, told to test_extension.py. No GPU is needed.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstring>

#include "launch.h"

// What cuTensorMapEncodeTiled was called with, in the 128 bytes of a map.
struct Encoded {
    int type, rank, interleave, swizzle, promotion, fill;
    void* address;
    unsigned long long extents[2], pitch;
    unsigned box[2], steps[2];
};
static_assert(sizeof(Encoded) <= sizeof(CUtensorMap), "it must fit");

extern "C" {
unsigned geometry[7];           // grid, block, shared memory
int sizes[6];                   // of the kernel's parameters, in bytes
unsigned char parameters[512];  // one after another

const char* try_launch(void* a, void* b, void* c, int m, int n, int k) { return launch(a, b, c, m, n, k, 0, nullptr); }
}

static CUresult encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                       const cuuint64_t* extents, const cuuint64_t* pitches, const cuuint32_t* box,
                       const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                       CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    const Encoded seen = {type, int(rank), interleave, swizzle, promotion, fill, address, {extents[0], extents[1]},
                          pitches[0], {box[0], box[1]}, {steps[0], steps[1]}};
    std::memcpy(map, &seen, sizeof seen);
    return CUDA_SUCCESS;
}

cudaError_t cudaLaunchKernel(const void*, dim3 grid, dim3 block, void** given, size_t smem, cudaStream_t) {
    const unsigned seen[] = {grid.x, grid.y, grid.z, block.x, block.y, block.z, unsigned(smem)};
    std::memcpy(geometry, seen, sizeof seen);
    unsigned char* to = parameters;
    for (int i = 0; i < 6; to += sizes[i++]) std::memcpy(to, given[i], sizes[i]);
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
    *function = reinterpret_cast<void*>(&encode);
    *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "no error here"; }

// What nvcc's own part of the object calls: kernels registered when the library is loaded.
extern "C" {
void** __cudaRegisterFatBinary(void*) {
    static void* handle;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*) {}
unsigned __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return 0; }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) { return cudaSuccess; }
}
