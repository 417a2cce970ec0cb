// The element types of the rungs in this folder, with no CUDA header: NVRTC alone compiles them.
//
// A rung is compiled with -DElement=fp16, bf16 or fp32. nvcc takes them as well:
//     nvcc -cubin -arch=sm_80 -DElement=fp16 -D... cuda_a1_naive.cu
#pragma once

struct fp16 {
    unsigned short bits;
};
struct bf16 {
    unsigned short bits;
};
typedef float fp32;

// Widening is exact.
__device__ inline float to_float(fp16 x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
}
__device__ inline float to_float(bf16 x) { return __uint_as_float(unsigned(x.bits) << 16); }
__device__ inline float to_float(fp32 x) { return x; }

// Narrowing rounds to nearest, ties to even.
__device__ inline void from_float(fp16& narrow, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x)); }
__device__ inline void from_float(bf16& narrow, float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x)); }
__device__ inline void from_float(fp32& narrow, float x) { narrow = x; }
