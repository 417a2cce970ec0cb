// Tensor maps that the kernel makes: written by threads, read by TMA through a proxy of its own.
#include "zoo.cuh"

// A map of 64 words in a row from `address` on, built out of zeros in shared memory by one warp.
#define MAKE_MAP(map, address) \
    map[t % 32] = 0; \
    __syncwarp(); \
    if (t == 0) { \
        MAP_SET_ADDRESS(map, address); \
        MAP_SET("rank", map, 0); \
        MAP_SET("elemtype", map, 2); \
        MAP_SET("interleave_layout", map, 0); \
        MAP_SET("swizzle_mode", map, 0); \
        MAP_SET("fill_mode", map, 0); \
        MAP_SET_FIRST("box_dim", map, 64); \
        MAP_SET_FIRST("global_dim", map, 64); \
        MAP_SET_FIRST("element_stride", map, 1); \
    } \
    __syncwarp()

#define SET_UP() \
    __shared__ alignas(128) u32 map[32]; \
    __shared__ alignas(128) u32 buffer[64]; \
    __shared__ u64 full; \
    const u32 t = threadIdx.x; \
    u32* published = out + 1024; \
    if (t == 0) BARRIER_INIT(&full, 1); \
    if (t == 0) BARRIER_INIT_FENCE(); \
    if (t < 32) { MAKE_MAP(map, x); }

KERNEL(tensor_map_not_acquired) {
    SET_UP();
    if (t < 32) MAP_PUBLISH(published, map);
    __syncthreads();
    if (t == 0) {
        if (!broken) MAP_ACQUIRE(published);
        EXPECT(&full, 256);
        TENSOR_LOAD(buffer, published, 0, &full);  // hazard: tensor-map-not-acquired
    }
    WAIT(&full, 0);
    out[t] = buffer[t];
}

KERNEL(tensor_map_not_released) {
    SET_UP();
    if (t < 32) published[t] = map[t];
    if (!broken) MAP_RELEASE();
    __syncthreads();
    if (t == 0) {
        MAP_ACQUIRE(published);
        EXPECT(&full, 256);
        TENSOR_LOAD(buffer, published, 0, &full);  // hazard: tensor-map-not-released
    }
    WAIT(&full, 0);
    out[t] = buffer[t];
}
