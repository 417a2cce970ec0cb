"""Collectives: what a warp, a warpgroup or a CTA has to do as a whole is done by a part of it."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

from tensorladder.zoo.case import Case

CASES = [
    Case(
        name="collective-cta-barrier-in-one-role",
        wrong="a barrier of the whole CTA inside the role of one warp, while the other waits for that one",
        kind="deadlock",
    ),
    Case(
        name="collective-aligned-by-one-lane",
        wrong="tcgen05.alloc, which a whole warp executes, inside the branch of one lane",
        kind="collective deadlock",
        language="cuda",
        arch="sm_100a",
    ),
    Case(
        name="collective-named-barrier-count",
        wrong="a named barrier for 96 threads, where 64 come",
        kind="deadlock collective",
        language="cuda",
        block=(96, 1, 1),
    ),
    Case(
        name="collective-shuffle-absent-lanes",
        wrong="a shuffle whose mask names the whole warp, inside the branch of half of it",
        kind="collective",
        language="cuda",
    ),
    Case(
        name="collective-masks-differ",
        wrong="lanes that add up together, each half with a mask of its own",
        kind="collective",
        language="cuda",
    ),
    Case(
        name="collective-setmaxnreg-two-warps",
        wrong="two warps of a warpgroup give registers back, the other two do not",
        kind="collective",
        language="cuda",
        block=(128, 1, 1),
    ),
]


@cute.kernel
def collective_cta_barrier_in_one_role(x: cute.Tensor, out: cute.Tensor, broken: cutlass.Constexpr):
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    if warp == 0:
        if cutlass.const_expr(broken):
            cute.arch.sync_threads()  # hazard: collective-cta-barrier-in-one-role
        cute.arch.barrier(barrier_id=1, number_of_threads=64)
    else:
        cute.arch.barrier(barrier_id=1, number_of_threads=64)
