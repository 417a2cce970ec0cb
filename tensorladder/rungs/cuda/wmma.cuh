// Warp matrix instructions as nvcuda::wmma has them (CUDA's mma.h), for C = A B^T with A and B of 16 bits, as inline PTX.
//
// A fragment is a 16 x 16 tile spread over the registers of a warp. Which lane holds which element is the
// instructions' own affair: a tile can be loaded, multiplied and stored, and no more. All lanes of a warp take part in
// each. A tile's first element lies at a multiple of 32 bytes, and its rows `pitch` elements apart, a multiple of 8
// (CUDA C++ Programming Guide, "Warp Matrix Functions").
#pragma once
#include "element.cuh"

constexpr int kWmma = 16;  // rows, columns and depth of a fragment

template <class T>
struct Operand;  // of A or B: a lane's share of 256 elements

template <>
struct Operand<fp16> {
    unsigned r[8];  // fp16 elements are held twice
};

template <>
struct Operand<bf16> {
    unsigned r[4];
};

struct Accumulator {
    float r[8] = {};
};

#define TL_FOUR(x) "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
#define TL_EIGHT(x) TL_FOUR(x), "=r"(x[4]), "=r"(x[5]), "=r"(x[6]), "=r"(x[7])

// A's rows, and B's, which are the columns of B^T, are contiguous along K.
__device__ inline void load_a(Operand<fp16>& a, const fp16* tile, unsigned pitch) {
    asm volatile("wmma.load.a.sync.aligned.row.m16n16k16.f16 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8], %9;"
                 : TL_EIGHT(a.r) : "l"(tile), "r"(pitch) : "memory");
}
__device__ inline void load_b(Operand<fp16>& b, const fp16* tile, unsigned pitch) {
    asm volatile("wmma.load.b.sync.aligned.col.m16n16k16.f16 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8], %9;"
                 : TL_EIGHT(b.r) : "l"(tile), "r"(pitch) : "memory");
}
__device__ inline void load_a(Operand<bf16>& a, const bf16* tile, unsigned pitch) {
    asm volatile("wmma.load.a.sync.aligned.row.m16n16k16.bf16 {%0,%1,%2,%3}, [%4], %5;"
                 : TL_FOUR(a.r) : "l"(tile), "r"(pitch) : "memory");
}
__device__ inline void load_b(Operand<bf16>& b, const bf16* tile, unsigned pitch) {
    asm volatile("wmma.load.b.sync.aligned.col.m16n16k16.bf16 {%0,%1,%2,%3}, [%4], %5;"
                 : TL_FOUR(b.r) : "l"(tile), "r"(pitch) : "memory");
}

#define TL_SUMS(x)                                                                                               \
    "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3]), "+f"(x[4]), "+f"(x[5]), "+f"(x[6]), "+f"(x[7])

// sum += A B^T
__device__ inline void multiply(Accumulator& sum, const Operand<fp16>& a, const Operand<fp16>& b) {
    asm("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, "
        "{%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19,%20,%21,%22,%23}, {%0,%1,%2,%3,%4,%5,%6,%7};"
        : TL_SUMS(sum.r)
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(a.r[4]), "r"(a.r[5]), "r"(a.r[6]), "r"(a.r[7]),
          "r"(b.r[0]), "r"(b.r[1]), "r"(b.r[2]), "r"(b.r[3]), "r"(b.r[4]), "r"(b.r[5]), "r"(b.r[6]), "r"(b.r[7]));
}
__device__ inline void multiply(Accumulator& sum, const Operand<bf16>& a, const Operand<bf16>& b) {
    asm("wmma.mma.sync.aligned.row.col.m16n16k16.f32.bf16.bf16.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, "
        "{%8,%9,%10,%11}, {%12,%13,%14,%15}, {%0,%1,%2,%3,%4,%5,%6,%7};"
        : TL_SUMS(sum.r)
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]), "r"(b.r[2]), "r"(b.r[3]));
}

// The sums as 16 rows of 16 floats.
__device__ inline void store(float* tile, const Accumulator& sum) {
    asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.f32 [%0], {%1,%2,%3,%4,%5,%6,%7,%8}, %9;"
                 :
                 : "l"(tile), "f"(sum.r[0]), "f"(sum.r[1]), "f"(sum.r[2]), "f"(sum.r[3]), "f"(sum.r[4]), "f"(sum.r[5]),
                   "f"(sum.r[6]), "f"(sum.r[7]), "r"(kWmma)
                 : "memory");
}
