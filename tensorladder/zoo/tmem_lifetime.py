"""Tensor memory's life: allocated, used after what was written has landed, freed when nobody uses it."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.memory import SmemAllocator

from tensorladder.zoo.case import Case

CASES = [
    Case(
        name="tmem-leak",
        wrong="a path to the end that does not deallocate",
        kind="tmem",
        language="cuda",
        arch="sm_100a",
        block=(128, 1, 1),
    ),
    Case(
        name="tmem-freed-while-read",
        wrong="the warp that allocated deallocates, and no barrier says that the others have read",
        kind="tmem",
        language="cuda",
        arch="sm_100a",
        block=(128, 1, 1),
    ),
    Case(
        name="tmem-alloc-without-permit",
        wrong="columns are allocated after the permit to allocate was given up",
        kind="tmem",
        language="cuda",
        arch="sm_100a",
    ),
    Case(
        name="tmem-store-not-waited",
        wrong="what a warp stored is read by the other warpgroup's warp with no tcgen05.wait::st",
        kind="missing-wait",
        language="cuda",
        arch="sm_100a",
        block=(256, 1, 1),
    ),
    Case(
        name="tmem-freed-other-columns",
        wrong="32 columns are allocated and 64 are freed",
        kind="tmem",
        arch="sm_100a",
    ),
]


@cute.kernel
def tmem_freed_other_columns(x: cute.Tensor, out: cute.Tensor, broken: cutlass.Constexpr):
    slot = SmemAllocator().allocate_array(cutlass.Int32, 1)
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    if warp == 0:
        cute.arch.alloc_tmem(32, slot)
        cute.arch.relinquish_tmem_alloc_permit()
    cute.arch.sync_threads()
    tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, slot)
    if warp == 0:
        cute.arch.dealloc_tmem(tmem, 64 if broken else 32)  # hazard: tmem-freed-other-columns
