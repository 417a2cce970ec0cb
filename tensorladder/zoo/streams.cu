// Streams: each kernel is launched on two streams, and what orders the launches is the host's part (streams.py).
#include "zoo.cuh"

KERNEL(streams_no_wait) {
    out[threadIdx.x] = 2 * out[threadIdx.x] + x[threadIdx.x];  // hazard: streams-no-wait
}

KERNEL(streams_event_too_early) {
    out[threadIdx.x] = 2 * out[threadIdx.x] + x[threadIdx.x];  // hazard: streams-event-too-early
}

KERNEL(streams_wait_the_wrong_way) {
    out[threadIdx.x] = 2 * out[threadIdx.x] + x[threadIdx.x];  // hazard: streams-wait-the-wrong-way
}

KERNEL(streams_other_one_synchronised) {
    out[threadIdx.x] = 2 * out[threadIdx.x] + x[threadIdx.x];  // hazard: streams-other-one-synchronised
}
