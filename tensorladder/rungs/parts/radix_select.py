"""The k largest of each row, exactly: a radix select on histograms of 256 bins, a cluster of CTAs a row.

Floats are compared as whole numbers: a key with the same order has the sign bit flipped, and where that was set all
other bits too. (So -0 is below +0, and NaN is above or below everything by its sign: IEEE 754's totalOrder.) A pass
looks at eight bits of the keys, from the top, and counts those that agree with the threshold's bits found so far. From
the largest digit down the counts add up to k at the threshold's digit; four passes give all of it. Among keys that
equal the threshold the earlier ones are taken, and what is chosen comes out in its order in the row, so that the result
is the same whatever the schedule.

- A warp reads its run of the row once and keeps the keys in shared memory. How many of them it takes is known before
  it writes any, and a ballot says where in the run.
- Digits of scores are far from uniform: a warp's lanes would queue up at the same counter. Each lane counts for itself
  (256 x 32 counters), in a bank of its own; only lanes of the same number in different warps meet.
- CTAs of a cluster send each other their counts by bulk copies, each pass into buffers of its own. The bytes complete
  an mbarrier of the receiver: a barrier of the cluster would, at each pass, also wait for memory (and empty L1).
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.memory import SmemAllocator

from tensorladder.core import arch as archs
from tensorladder.rungs.parts.dsmem import copy_bulk
from tensorladder.rungs.rung import Rung

LANES = 32
BITS = 8  # of a digit
DIGITS = 1 << BITS
PASSES = 32 // BITS
EACH = DIGITS // LANES  # digits of a lane, where a warp looks for the threshold's
PITCH = EACH + 1  # what they are apart in memory, so that lanes read from different banks
RUN = 4  # words of what a warp says of its run: above, equal, and that twice more, to make 16 bytes
ENOUGH = 4096  # keys of a CTA: fewer do not pay for what the CTAs have to send each other
BATCH = 8  # loads that a lane has in flight


def run_of(columns: int, warps: int) -> int:
    """How many columns a warp of a row's `warps` takes at the most: as many as the others, whole warps' widths."""
    return -(-columns // (warps * LANES)) * LANES


def smem_bytes(columns: int, threads: int, cluster: int) -> int:
    """Of shared memory that a CTA needs, with some to spare for alignment."""
    warps = threads // LANES
    keys = warps * run_of(columns, warps * cluster)
    sent = (1 + cluster) * (DIGITS * PASSES + RUN * warps)
    return 4 * (keys + DIGITS * LANES + LANES * PITCH + sent) + 1024


def spread(batch: int, columns: int, threads: int, sm_count: int, room: int) -> int:
    """CTAs a row: as many as its keys need, where one has `room` bytes, and more while a CTA has more than ENOUGH of
    them and there are SMs without a CTA."""
    cluster = 1
    while cluster < archs.PORTABLE_CLUSTER:
        short = smem_bytes(columns, threads, cluster) > room
        idle = 2 * cluster * batch <= sm_count and columns > cluster * ENOUGH
        if not (short or idle):
            break
        cluster *= 2
    return cluster


def check(rung: Rung, arch: str, shape: tuple[int, ...], page: int, config: Any) -> int:
    """CTAs a row for a shape (rows, pages, topk): `config.cluster`, or `spread` where that is 0. UsageError where the
    knobs `threads` and `cluster` do not go with each other, or the keys do not fit."""
    rung.require(shape[0] < 65536, f"B={shape[0]}: queries are the grid's y, at most 65535")
    fits = config.threads in (32, 64, 128, 256, 512, 1024)
    rung.require(fits, f"threads={config.threads}: a power of two from 32 to 1024")
    most = archs.PORTABLE_CLUSTER
    rung.require(0 <= config.cluster <= most, f"cluster={config.cluster}: 1 to {most} CTAs, or 0 for as many as serve")
    columns, room = shape[1] * page, archs.find(arch).smem_per_cta
    cluster = config.cluster or spread(shape[0], columns, config.threads, config.sm_count, room)
    smem = smem_bytes(columns, config.threads, cluster)
    rung.require(smem <= room, f"pages={shape[1]}: the choice keeps keys, {smem} bytes a CTA of {cluster}; {room} fit")
    return cluster


class RadixSelect:
    """idx[row] = where the topk largest of scores[row, :lens[row]] lie, -1 from the end on.

    A row's element i lies at table[row, i // page] * page + i % page. threads: of a CTA, a power of two from 32 on.
    cluster: CTAs a row. dependent: launch by programmatic dependent launch, behind the kernel that writes the scores.
    """

    def __init__(self, topk: int, page: int, threads: int, cluster: int, dependent: bool = True):
        self.topk, self.page = topk, page
        self.threads, self.warps = threads, threads // LANES
        self.cluster = cluster
        self.dependent = dependent

    @cute.jit
    def __call__(self, mS: cute.Tensor, mL: cute.Tensor, mT: cute.Tensor, mI: cute.Tensor):
        """scores (rows, columns) in fp32, lens (rows), table (rows, pages) and idx (rows, topk) in int32."""
        self.kernel(mS, mL, mT, mI).launch(
            grid=(self.cluster, mI.shape[0], 1),
            block=(self.threads, 1, 1),
            cluster=(self.cluster, 1, 1) if self.cluster > 1 else None,
            use_pdl=self.dependent,
        )

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mL: cute.Tensor, mT: cute.Tensor, mI: cute.Tensor):
        tidx, _, _ = cute.arch.thread_idx()
        rank, row, _ = cute.arch.block_idx()  # a row's CTAs are a cluster
        lane, warp = tidx % LANES, cute.arch.make_warp_uniform(tidx // LANES)
        warps = self.warps * self.cluster  # of the row
        number = rank * self.warps + warp  # this warp's among them
        length = mL[row]
        wanted = cutlass.min(length, self.topk)

        smem = SmemAllocator()
        full = smem.allocate_array(cutlass.Int64, PASSES + 1)
        of_lanes = smem.allocate_tensor(cutlass.Int32, cute.make_layout((LANES, DIGITS)), 16)
        of_cta = smem.allocate_tensor(cutlass.Int32, cute.make_layout((DIGITS, PASSES)), 16)
        of_ctas = cute.make_tensor(of_cta.iterator, cute.make_layout((DIGITS, 1, PASSES)))
        totals = smem.allocate_tensor(cutlass.Int32, cute.make_layout(LANES * PITCH), 16)
        my_runs = smem.allocate_tensor(cutlass.Int32, cute.make_layout((RUN, self.warps)), 16)
        runs = my_runs
        if cutlass.const_expr(self.cluster > 1):
            of_ctas = smem.allocate_tensor(cutlass.Int32, cute.make_layout((DIGITS, self.cluster, PASSES)), 16)
            runs = smem.allocate_tensor(cutlass.Int32, cute.make_layout((RUN, warps)), 16)
        most = run_of(mS.shape[1], warps)
        keys = smem.allocate_tensor(cutlass.Uint32, cute.make_layout((most, self.warps)), 16)[None, warp]

        for i in cutlass.range(tidx, DIGITS * LANES, self.threads, unroll=8):
            of_lanes[i] = 0
        # Other CTAs may send what completes a barrier once all have come through that of the cluster.
        if cutlass.const_expr(self.cluster > 1):
            if tidx == 0:
                for step in cutlass.range_constexpr(PASSES + 1):
                    cute.arch.mbarrier_init(full + step, 1)
                cute.arch.mbarrier_init_fence()
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()
        # The scores are there from here on.
        cute.arch.griddepcontrol_wait()

        run = cute.ceil_div(cute.ceil_div(length, warps), LANES) * LANES
        begin = cutlass.min(number * run, length)
        count = cutlass.min(run, length - begin)
        self.load(mS[row, None], keys, begin, count, lane)

        # Where all are wanted none is below the threshold 0, and all that equal it are taken.
        threshold, ties = cutlass.Uint32(0), wanted
        if length > self.topk:
            mask = cutlass.Uint32(0)
            for step in cutlass.range(PASSES, unroll=1):
                shift = cutlass.Uint32((PASSES - 1 - step) * BITS)
                self.count(keys, count, lane, of_lanes, threshold, mask, shift)
                cute.arch.sync_threads()
                self.add_lanes(of_lanes, of_cta[None, step], tidx)
                self.send(of_cta[None, step], of_ctas[None, rank, step], full + step, tidx)
                for digit in cutlass.range(tidx, DIGITS, self.threads):
                    total = cutlass.Int32(0)
                    for other in cutlass.range_constexpr(self.cluster):
                        total += of_ctas[digit, other, step]
                    totals[digit + digit // EACH] = total
                cute.arch.sync_threads()
                digit, ties = self.find(totals, ties, lane)
                threshold = threshold | (cutlass.Uint32(digit) << shift)
                mask = mask | (cutlass.Uint32(DIGITS - 1) << shift)

        # How many of its run each warp takes, for the warps behind it.
        above, equal = cutlass.Int32(0), cutlass.Int32(0)
        for i in cutlass.range(lane, count, LANES, unroll=4):
            above += cutlass.Int32(keys[i] > threshold)
            equal += cutlass.Int32(keys[i] == threshold)
        above, equal = cute.arch.warp_redux_sync(above, "add"), cute.arch.warp_redux_sync(equal, "add")
        if lane < RUN:
            my_runs[lane, warp] = above if lane == 0 else equal
        self.send(my_runs, runs[None, rank * self.warps], full + PASSES, tidx)
        if cutlass.const_expr(self.cluster > 1):
            cute.arch.cluster_arrive_relaxed()
        above, equal = cutlass.Int32(0), cutlass.Int32(0)
        for other in cutlass.range(lane, number, LANES):
            above += runs[0, other]
            equal += runs[1, other]
        above, equal = cute.arch.warp_redux_sync(above, "add"), cute.arch.warp_redux_sync(equal, "add")

        # The place of a token: those above the threshold before it, and as many of the equal ones as are taken.
        before = cutlass.Uint32((1 << lane) - 1)
        for i in cutlass.range(0, count, LANES):
            at = begin + i + lane
            is_above, is_equal = self.compare(keys, i + lane, count, threshold)
            ballot, ballot_equal = cute.arch.vote_ballot_sync(is_above), cute.arch.vote_ballot_sync(is_equal)
            ties_before = equal + cute.arch.popc(cutlass.Uint32(ballot_equal) & before)
            place = above + cute.arch.popc(cutlass.Uint32(ballot) & before) + cutlass.min(ties_before, ties)
            if is_above or (is_equal and ties_before < ties):
                mI[row, place] = mT[row, at // self.page] * self.page + at % self.page
            above += cute.arch.popc(ballot)
            equal += cute.arch.popc(ballot_equal)
        for place in cutlass.range(wanted + number * LANES + lane, self.topk, warps * LANES):
            mI[row, place] = -1
        # What this CTA has sent is read from its shared memory until all have it.
        if cutlass.const_expr(self.cluster > 1):
            cute.arch.cluster_wait()

    @cute.jit
    def load(
        self, scores: cute.Tensor, keys: cute.Tensor, begin: cutlass.Int32, count: cutlass.Int32, lane: cutlass.Int32
    ):
        """The keys of a warp's run. A lane reads again only what it has written itself."""
        found = cute.make_rmem_tensor(BATCH, cutlass.Float32)
        for i in cutlass.range(lane, count, BATCH * LANES):
            for j in cutlass.range_constexpr(BATCH):
                if i + j * LANES < count:
                    found[j] = scores[begin + i + j * LANES]
            for j in cutlass.range_constexpr(BATCH):
                if i + j * LANES < count:
                    keys[i + j * LANES] = self.key(found[j])

    @cute.jit
    def count(
        self, keys: cute.Tensor, count: cutlass.Int32, lane: cutlass.Int32, of_lanes: cute.Tensor,
        threshold: cutlass.Uint32, mask: cutlass.Uint32, shift: cutlass.Uint32,
    ):  # fmt: skip
        """Count the digits of those keys that have the threshold's bits so far. A batch of loads, then its counts:
        no load is moved before a count."""
        found = cute.make_rmem_tensor(BATCH, cutlass.Uint32)
        for i in cutlass.range(lane, count, BATCH * LANES):
            for j in cutlass.range_constexpr(BATCH):
                if i + j * LANES < count:
                    found[j] = keys[i + j * LANES]
            for j in cutlass.range_constexpr(BATCH):
                if i + j * LANES < count and (found[j] & mask) == threshold:
                    digit = cutlass.Int32((found[j] >> shift) & cutlass.Uint32(DIGITS - 1))
                    counter = of_lanes.iterator + (digit * LANES + lane)
                    cute.arch.atomic_add(counter, cutlass.Int32(1), sem="relaxed", scope="cta")

    @cute.jit
    def send(self, source: cute.Tensor, place: cute.Tensor, full: cute.Pointer, tidx: cutlass.Int32):
        """Copy what all threads of the CTA have written to `source` to its place in each CTA of the cluster, and wait
        for what the others send."""
        if cutlass.const_expr(self.cluster > 1):
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.sync_threads()
            if tidx == 0:
                cute.arch.mbarrier_arrive_and_expect_tx(full, 4 * cute.size(source) * self.cluster)
            if tidx < self.cluster:
                to, done = (cute.arch.map_dsmem_ptr(mine, tidx) for mine in (place.iterator, full))
                copy_bulk(to, source.iterator, 4 * cute.size(source), done)
            cute.arch.mbarrier_wait(full, 0)
        else:
            cute.arch.sync_threads()

    @cute.jit
    def key(self, score: cutlass.Float32):
        """A whole number in the order of the floats."""
        bits = score.bitcast(cutlass.Int32)
        return cutlass.Uint32(bits ^ ((bits >> 31) | cutlass.Int32(-(1 << 31))))

    @cute.jit
    def compare(self, keys: cute.Tensor, at: cutlass.Int32, end: cutlass.Int32, threshold: cutlass.Uint32):
        """Whether a key is above the threshold, and whether it equals it; neither from the end on."""
        above, equal = cutlass.Boolean(False), cutlass.Boolean(False)
        if at < end:
            above, equal = keys[at] > threshold, keys[at] == threshold
        return above, equal

    @cute.jit
    def add_lanes(self, of_lanes: cute.Tensor, of_cta: cute.Tensor, tidx: cutlass.Int32):
        """Add the counts of this CTA's lanes up, a thread a digit, and clear them for the next pass. Each thread begins
        at another lane, so that neighbours read from different banks."""
        for digit in cutlass.range(tidx, DIGITS, self.threads):
            total = cutlass.Int32(0)
            for i in cutlass.range(LANES, unroll=LANES):
                lane = (tidx + i) % LANES
                total += of_lanes[lane, digit]
                of_lanes[lane, digit] = 0
            of_cta[digit] = total

    @cute.jit
    def find(self, totals: cute.Tensor, wanted: cutlass.Int32, lane: cutlass.Int32):
        """The digit at which the counts, from the largest digit down, reach `wanted`, and how many of it are wanted.

        Lane 0 has the largest digits.
        """
        mine = cute.make_rmem_tensor(EACH, cutlass.Int32)
        total = cutlass.Int32(0)
        for i in cutlass.range_constexpr(EACH):
            mine[i] = totals[(LANES - 1 - lane) * PITCH + EACH - 1 - i]
            total += mine[i]
        reached = total
        for step in cutlass.range_constexpr(5):
            other = cute.arch.shuffle_sync_up(reached, offset=1 << step)
            if lane >= 1 << step:
                reached += other
        # In the lane where it is reached: digit by digit.
        left, digit, found = wanted - (reached - total), cutlass.Int32(0), cutlass.Int32(0)
        for i in cutlass.range_constexpr(EACH):
            if found == 0:
                if mine[i] >= left:
                    digit, found = DIGITS - 1 - (lane * EACH + i), cutlass.Int32(1)
                else:
                    left -= mine[i]
        here = reached >= wanted and reached - total < wanted
        source = 31 - cute.arch.clz(cute.arch.vote_ballot_sync(here))
        return cute.arch.shuffle_sync(digit, source), cute.arch.shuffle_sync(left, source)
