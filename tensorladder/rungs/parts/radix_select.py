"""The k largest of each row, exactly: a radix select on histograms of 256 bins, a cluster of CTAs a row.

Floats are compared as whole numbers: a key with the same order has the sign bit flipped, and where that was set all
other bits too. (So -0 is below +0, and NaN is above or below everything by its sign: IEEE 754's totalOrder.) A pass
looks at eight bits of the keys, from the top, and counts those that agree with the threshold's bits found so far. From
the largest digit down the counts add up to k at the threshold's digit; four passes give all of it. Among keys that
equal the threshold the earlier ones are taken, and what is chosen comes out in its order in the row, so that the result
is the same whatever the schedule.

- Digits of scores are far from uniform: a warp's lanes would queue up at the same counter. Each lane counts for itself
  (256 x 32 counters), in a bank of its own; only lanes of the same number in different warps meet.
- Each CTA adds its counts into those of all CTAs of the cluster, so that a pass needs one cluster barrier, and every
  warp finds the digit by itself.
- A warp's tokens are a run: how many it takes is known before it writes any, and a ballot says where in the run.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.memory import SmemAllocator

LANES = 32
BITS = 8  # of a digit
DIGITS = 1 << BITS
PASSES = 32 // BITS
EACH = DIGITS // LANES  # digits of a lane, where a warp looks for the threshold's
SMEM = 4 * DIGITS * (LANES + PASSES)
"""Bytes of counters; a few more hold what the warps found."""


class RadixSelect:
    """idx[row] = where the topk largest of scores[row, :lens[row]] lie, -1 from the end on.

    A row's element i lies at table[row, i // page] * page + i % page. threads: of a CTA, whole warps. cluster: CTAs a
    row. dependent: launch by programmatic dependent launch, behind the kernel that writes the scores.
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
            cluster=(self.cluster, 1, 1),
            use_pdl=self.dependent,
        )

    @cute.kernel
    def kernel(self, mS: cute.Tensor, mL: cute.Tensor, mT: cute.Tensor, mI: cute.Tensor):
        tidx, _, _ = cute.arch.thread_idx()
        _, row, _ = cute.arch.block_idx()
        rank = cute.arch.block_idx_in_cluster()
        lane, warp = tidx % LANES, cute.arch.make_warp_uniform(tidx // LANES)
        warps = self.warps * self.cluster  # of the row
        number = rank * self.warps + warp  # this warp's among them
        length, keys = mL[row], mS[row, None]
        wanted = cutlass.min(length, self.topk)

        smem = SmemAllocator()
        of_lanes = smem.allocate_tensor(cutlass.Int32, cute.make_layout((LANES, DIGITS)), 16)
        totals = smem.allocate_tensor(cutlass.Int32, cute.make_layout((DIGITS, PASSES)), 16)
        runs = smem.allocate_tensor(cutlass.Int32, cute.make_layout((2, warps)), 16)  # above, equal

        # What other CTAs add to is zero, and they are running, once all have come through the barrier.
        for i in cutlass.range(tidx, DIGITS * PASSES, self.threads):
            totals[i] = 0
        for i in cutlass.range(tidx, 2 * warps, self.threads):
            runs[i] = 0
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        # The scores are there from here on.
        cute.arch.griddepcontrol_wait()

        # A warp's run: as many tokens as the others', whole warps' widths.
        run = cute.ceil_div(cute.ceil_div(length, warps), LANES) * LANES
        begin = cutlass.min(number * run, length)
        end = cutlass.min(begin + run, length)

        # Where all are wanted none is below the threshold 0, and all that equal it are taken.
        threshold, ties = cutlass.Uint32(0), wanted
        if length > self.topk:
            mask = cutlass.Uint32(0)
            for step in cutlass.range(PASSES, unroll=1):
                shift = cutlass.Uint32((PASSES - 1 - step) * BITS)
                for i in cutlass.range(tidx, DIGITS * LANES, self.threads, unroll=8):
                    of_lanes[i] = 0
                cute.arch.sync_threads()
                for i in cutlass.range(begin + lane, end, LANES, unroll=4):
                    key = self.key(keys[i])
                    if (key & mask) == threshold:
                        digit = cutlass.Int32((key >> shift) & cutlass.Uint32(DIGITS - 1))
                        self.add(of_lanes.iterator + (digit * LANES + lane), 1)
                cute.arch.sync_threads()
                self.share(of_lanes, totals, step, warp, lane)
                cute.arch.cluster_arrive()
                cute.arch.cluster_wait()
                digit, ties = self.find(totals[None, step], ties, lane)
                threshold = threshold | (cutlass.Uint32(digit) << shift)
                mask = mask | (cutlass.Uint32(DIGITS - 1) << shift)

        # How many of its run each warp takes, for the warps behind it.
        above, equal = cutlass.Int32(0), cutlass.Int32(0)
        for i in cutlass.range(begin, end, LANES, unroll=4):
            is_above, is_equal = self.compare(keys, i + lane, end, threshold)
            above += cute.arch.popc(cute.arch.vote_ballot_sync(is_above))
            equal += cute.arch.popc(cute.arch.vote_ballot_sync(is_equal))
        if lane < self.cluster:
            self.add(cute.arch.map_dsmem_ptr(runs.iterator + 2 * number, lane), above, "cluster")
            self.add(cute.arch.map_dsmem_ptr(runs.iterator + (2 * number + 1), lane), equal, "cluster")
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        above, equal = cutlass.Int32(0), cutlass.Int32(0)
        for other in cutlass.range(lane, number, LANES):
            above += runs[0, other]
            equal += runs[1, other]
        above, equal = cute.arch.warp_redux_sync(above, "add"), cute.arch.warp_redux_sync(equal, "add")

        # The place of a token: those above the threshold before it, and as many of the equal ones as are taken.
        before = cutlass.Uint32((1 << lane) - 1)
        for i in cutlass.range(begin, end, LANES):
            at = i + lane
            is_above, is_equal = self.compare(keys, at, end, threshold)
            ballot, ballot_equal = cute.arch.vote_ballot_sync(is_above), cute.arch.vote_ballot_sync(is_equal)
            ties_before = equal + cute.arch.popc(cutlass.Uint32(ballot_equal) & before)
            place = above + cute.arch.popc(cutlass.Uint32(ballot) & before) + cutlass.min(ties_before, ties)
            if is_above or (is_equal and ties_before < ties):
                mI[row, place] = mT[row, at // self.page] * self.page + at % self.page
            above += cute.arch.popc(ballot)
            equal += cute.arch.popc(ballot_equal)
        for place in cutlass.range(wanted + number * LANES + lane, self.topk, warps * LANES):
            mI[row, place] = -1

    @cute.jit
    def key(self, score: cutlass.Float32):
        """A whole number in the order of the floats."""
        bits = score.bitcast(cutlass.Int32)
        return cutlass.Uint32(bits ^ ((bits >> 31) | cutlass.Int32(-(1 << 31))))

    @cute.jit
    def compare(self, keys: cute.Tensor, at: cutlass.Int32, end: cutlass.Int32, threshold: cutlass.Uint32):
        """Whether a token's key is above the threshold, and whether it equals it; neither from the end on."""
        above, equal = cutlass.Boolean(False), cutlass.Boolean(False)
        if at < end:
            key = self.key(keys[at])
            above, equal = key > threshold, key == threshold
        return above, equal

    @cute.jit
    def share(
        self, of_lanes: cute.Tensor, totals: cute.Tensor, step: cutlass.Int32, warp: cutlass.Int32, lane: cutlass.Int32
    ):
        """Add the counts of this CTA's lanes up, a digit a warp at a time, and add them to each CTA's totals."""
        for digit in cutlass.range(warp, DIGITS, self.warps, unroll=8):
            count = cute.arch.warp_redux_sync(of_lanes[lane, digit], "add")
            if lane < self.cluster and count > 0:
                there = cute.arch.map_dsmem_ptr(totals.iterator + (step * DIGITS + digit), lane)
                self.add(there, count, "cluster")

    @cute.jit
    def find(self, totals: cute.Tensor, wanted: cutlass.Int32, lane: cutlass.Int32):
        """The digit at which the counts, from the largest digit down, reach `wanted`, and how many of it are wanted.

        Lane 0 has the largest digits.
        """
        mine = cute.make_rmem_tensor(EACH, cutlass.Int32)
        total = cutlass.Int32(0)
        for i in cutlass.range_constexpr(EACH):
            mine[i] = totals[DIGITS - 1 - (lane * EACH + i)]
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

    @cute.jit
    def add(self, counter: cute.Pointer, count: cutlass.Int32, scope: cutlass.Constexpr = "cta"):
        """Add to a counter in shared memory; nothing else is ordered by it."""
        cute.arch.atomic_add(counter, count, sem="relaxed", scope=scope)
