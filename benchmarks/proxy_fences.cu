// Where does fence.proxy.async have to stand, and may a CTA exit before its bulk store has read? Built and run by
// `python -m benchmarks.proxy_fences run`, for a GPU of compute capability 9.0.
//
// copies: threads write shared memory (with bank conflicts, so that stores queue up), hand over by a barrier, one
// thread copies by cp.async.bulk to global memory, all compare. products: the same with wgmma. exits: a CTA stores and
// exits.
#include <cstdint>
#include <cstdio>
#include <cuda_runtime.h>
enum Mode { NONE, WRITERS, READER, ALL_AFTER };  // who executes the fence; the last two: after the barrier
enum Hand { BAR, MBAR };

__device__ __forceinline__ void fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ uint32_t value(uint32_t round, uint32_t i) {
  return (round * 2654435761u) ^ (i * 40503u + 17u);
}

template <int MODE, int HAND, int CPASYNC = 0>
__global__ void __launch_bounds__(1024) copies(uint32_t* out, const uint32_t* source,
                                               unsigned long long* stale, int rounds, int words, int skew) {
  extern __shared__ __align__(128) uint32_t buffer[];
  __shared__ __align__(8) uint64_t bar;
  uint32_t b = (uint32_t)__cvta_generic_to_shared(&bar), s = (uint32_t)__cvta_generic_to_shared(buffer);
  int t = threadIdx.x, n = blockDim.x;
  uint32_t* mine = out + (size_t)blockIdx.x * words;
  if (t == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(n));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  unsigned long long bad = 0;
  for (int r = 0; r < rounds; ++r) {
    // the writers: with skew the last warp begins late, and its stores are the last before the barrier
    if (skew && t >= n - 32) { long long c = clock64(); while (clock64() - c < skew) {} }
    int lane = t & 31, w = t >> 5, warps = n >> 5;
    if (!CPASYNC) for (int k = w; k < words / 32; k += warps) {
      // word (k & 31) of row lane in a block of 32 rows of 32 words: one bank for all lanes
      int block = k / 32, i = block * 1024 + lane * 32 + (k & 31);
      if (i < words) asm volatile("st.shared.u32 [%0], %1;" ::"r"(s + 4 * i), "r"(value(r, i)) : "memory");
    }
    if (CPASYNC) {  // words come from global memory by cp.async: what is expected is there, by round parity
      const uint32_t* from = source + (r & 1) * words;
      for (int i = 4 * t; i < words; i += 4 * n)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(s + 4 * i), "l"(from + i) : "memory");
      asm volatile("cp.async.wait_all;" ::: "memory");
    }
    if (MODE == WRITERS) fence();
    if (HAND == BAR) __syncthreads();
    else {
      asm volatile("{ .reg .b64 x; mbarrier.arrive.shared::cta.b64 x, [%0]; }" ::"r"(b) : "memory");
      if (t == 0) {
        uint32_t done = 0;
        while (!done)
          asm volatile(
              "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
              : "=r"(done) : "r"(b), "r"(r & 1) : "memory");
      }
    }
    if (MODE == ALL_AFTER) fence();
    if (t == 0) {
      if (MODE == READER) fence();
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(mine), "r"(s), "r"(words * 4)
                   : "memory");
      asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
    }
    __syncthreads();
    for (int i = t; i < words; i += n) bad += *(volatile uint32_t*)(mine + i) != value(CPASYNC ? r & 1 : r, i);
    __syncthreads();
  }
  if (bad) atomicAdd(stale, bad);
}

// One warpgroup: threads store A (64 x 16, K-major, no swizzle) and B (8 x 16), then wgmma m64n8k16 reads them.
template <int MODE>
__global__ void __launch_bounds__(128) products(unsigned long long* stale, int rounds, int skew) {
  __shared__ __align__(128) uint16_t a[64 * 16], bm[8 * 16];
  int t = threadIdx.x;
  auto desc = [](const void* p, uint32_t lead, uint32_t stride) {
    uint64_t at = (uint32_t)__cvta_generic_to_shared(p);
    return ((at & 0x3FFFF) >> 4) | (uint64_t)(lead >> 4) << 16 | (uint64_t)(stride >> 4) << 32;
  };
  unsigned long long bad = 0;
  for (int r = 0; r < rounds; ++r) {
    if (skew && t >= 96) { long long c = clock64(); while (clock64() - c < skew) {} }
    // core matrices of 8 rows x 16 bytes; all of A is one small integer that changes by the round, B is 1
    uint16_t one = 0x3C00, x = (r & 1) ? 0x4000 : 0x4200;  // 1, 2, 3 in half
    for (int k = 7; k >= 0; --k) {
      int i = (t % 8) * 128 + (t / 8) * 8 + k;  // conflicts
      asm volatile("st.shared.u16 [%0], %1;" ::"r"((uint32_t)__cvta_generic_to_shared(a + i)), "h"(x) : "memory");
    }
    asm volatile("st.shared.u16 [%0], %1;" ::"r"((uint32_t)__cvta_generic_to_shared(bm + t)), "h"(one) : "memory");
    if (MODE == WRITERS) fence();
    __syncthreads();
    if (MODE == ALL_AFTER || MODE == READER) fence();
    float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "l"(desc(a, 128, 256)), "l"(desc(bm, 128, 256)));
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;"
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)::"memory");
    float want = 16.f * ((r & 1) ? 2.f : 3.f);
    bad += (d0 != want) + (d1 != want) + (d2 != want) + (d3 != want);
    __syncthreads();
  }
  if (bad) atomicAdd(stale, bad);
}

// A CTA fills its shared memory, stores it by cp.async.bulk and exits: does the next one overwrite what is still read?
template <int WAIT>
__global__ void __launch_bounds__(1024) exits(uint32_t* out, int words, int first) {
  extern __shared__ __align__(128) uint32_t buffer[];
  uint32_t s = (uint32_t)__cvta_generic_to_shared(buffer);
  for (int i = threadIdx.x; i < words; i += blockDim.x) buffer[i] = value(first + blockIdx.x, i);
  fence();
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 ::"l"(out + (size_t)blockIdx.x * words), "r"(s), "r"(words * 4) : "memory");
    if (WAIT) asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}
__global__ void compare(const uint32_t* out, int words, int first, unsigned long long* stale) {
  unsigned long long bad = 0;
  for (int i = threadIdx.x; i < words; i += blockDim.x)
    bad += out[(size_t)blockIdx.x * words + i] != value(first + blockIdx.x, i);
  if (bad) atomicAdd(stale, bad);
}

__global__ void fill(uint32_t* source, int words) {
  for (int i = threadIdx.x; i < 2 * words; i += blockDim.x) source[i] = value(i / words, i % words);
}

static unsigned long long* stale;

template <typename F>
static void report(const char* what, const char* fence, F launch) {
  cudaMemset(stale, 0, 8);
  launch();
  cudaError_t status = cudaDeviceSynchronize();
  unsigned long long n = 0;
  cudaMemcpy(&n, stale, 8, cudaMemcpyDeviceToHost);
  printf("{\"what\": \"%s\", \"fence\": \"%s\", \"stale\": %llu, \"status\": \"%s\"}\n", what, fence, n,
         cudaGetErrorString(status));
}

template <int MODE, int HAND, int CPASYNC>
static void copy(const char* fence, uint32_t* out, uint32_t* source, int words, int skew, int threads) {
  char what[128];
  int rounds = words > 4096 ? 4000 : 20000;
  snprintf(what, sizeof what, "copy of %d bytes written by %s, %s, %d threads, skew %d, %d rounds", words * 4,
           CPASYNC ? "cp.async" : "st", HAND == BAR ? "bar.sync" : "mbarrier", threads, skew, rounds);
  report(what, fence, [&] {
    copies<MODE, HAND, CPASYNC><<<132, threads, 32768>>>(out, source, stale, rounds, words, skew);
  });
}

template <int WAIT>
static void exit_after(const char* fence, uint32_t* out, int words, int blocks) {
  const int bytes = 225000;  // one CTA an SM
  char what[128];
  snprintf(what, sizeof what, "exit after a store of %d bytes, 20 times %d CTAs", words * 4, blocks);
  cudaFuncSetAttribute(exits<WAIT>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  report(what, fence, [&] {
    for (int k = 0; k < 20; ++k) {
      exits<WAIT><<<blocks, 1024, bytes>>>(out, words, k * blocks);
      compare<<<blocks, 256>>>(out, words, k * blocks, stale);
    }
  });
}

int main() {
  const int blocks = 132 * 64;
  uint32_t *out, *source, *all;
  cudaMalloc(&stale, 8);
  cudaMalloc(&out, 132 * 65536);
  cudaMalloc(&source, 1 << 20);
  cudaMalloc(&all, (size_t)blocks * 56320 * 4);
  for (int words : {1024, 8192, 55296}) {
    exit_after<0>("no wait", all, words, blocks);
    exit_after<1>("wait", all, words, blocks);
  }
  for (int words : {1024, 8192}) {
    fill<<<1, 1024>>>(source, words);
    for (int skew : {0, 1500}) {
      for (int threads : {256, 1024}) {
        copy<NONE, BAR, 0>("none", out, source, words, skew, threads);
        copy<WRITERS, BAR, 0>("writers", out, source, words, skew, threads);
        copy<READER, BAR, 0>("reader", out, source, words, skew, threads);
        copy<ALL_AFTER, BAR, 0>("all after", out, source, words, skew, threads);
        copy<NONE, MBAR, 0>("none", out, source, words, skew, threads);
        copy<WRITERS, MBAR, 0>("writers", out, source, words, skew, threads);
        copy<READER, MBAR, 0>("reader", out, source, words, skew, threads);
        copy<NONE, BAR, 1>("none", out, source, words, skew, threads);
        copy<WRITERS, BAR, 1>("writers", out, source, words, skew, threads);
        copy<READER, BAR, 1>("reader", out, source, words, skew, threads);
      }
    }
  }
  for (int skew : {0, 1500}) {
    char what[96];
    snprintf(what, sizeof what, "wgmma m64n8k16, skew %d, 50000 rounds", skew);
    report(what, "none", [&] { products<NONE><<<264, 128>>>(stale, 50000, skew); });
    report(what, "writers", [&] { products<WRITERS><<<264, 128>>>(stale, 50000, skew); });
    report(what, "all after", [&] { products<ALL_AFTER><<<264, 128>>>(stale, 50000, skew); });
  }
}
