"""Why a mutant that no error was found in is no fault, does no harm, or is for review alone (benchmarks.mutation)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

#: the change says the same as before, in any kernel
SAME = "same"
#: nothing in this kernel depends on what was changed
IDLE = "idle"
#: nothing is known of it
NOT_RUN = "not run"
#: a fault that is for review by design: what it does to the result hangs on the chip
REVIEW = "review"
#: a fault that the checker does not see
BLIND = "blind"


@dataclass(frozen=True)
class Rule:
    """Mutants that a reason is for: patterns of the opcode, the change, and where given of rung and source line."""

    op: str
    change: str
    effect: str
    why: str
    rung: str = ""
    code: str = ""
    fates: tuple[str, ...] = ("right",)

    def fits(self, record: dict[str, Any]) -> bool:
        return (
            record["fate"] in self.fates
            and not record["wrong"]
            and all(
                re.search(pattern, record[key])
                for key, pattern in (("op", self.op), ("change", self.change), ("rung", self.rung), ("code", self.code))
            )
        )


#: the producer's waits for all slots before its CTA ends
DRAIN = r"\.tail\(\)|sync_object_empty\.wait\(fill|mbarrier_wait\(empty \+ load\.index"

RULES = (
    Rule("", "", NOT_RUN, "never executed at this shape", fates=("not run",)),
    # ------------------------------------------------------------ the same as before
    Rule(r"fence|membar", "doubled", SAME, "a second fence with nothing between orders nothing more"),
    Rule(r"tcgen05\.wait|wait_(group|all)|griddepcontrol\.wait", "doubled", SAME, "a second wait finds nothing left"),
    Rule(r"commit_group", "doubled", SAME, "an empty group: a wait for all but the last n leaves fewer operations"),
    Rule(r"^(bar|barrier)\.(cta\.|warp\.)?sync", "doubled", SAME, "all meet twice"),
    Rule(r"tcgen05\.relinquish_alloc_permit", "", SAME, "the permit ends with the CTA, too"),
    # ------------------------------------------------------------ no harm in this kernel
    Rule(r"try_wait", "removed", IDLE, "the first wait for a slot that nobody has used passes at once",
         code=r"acquire"),
    Rule(r"try_wait", "removed", IDLE, "before the exit the wait for the slot that was used last covers it",
         code=DRAIN),
    Rule(r"try_wait", "removed", IDLE, "before the exit the wait for the slot that was used last covers it",
         rung=r"^tirx-v[789]"),
    Rule(r"wgmma\.fence", "removed", IDLE, "no register of the WGMMA was touched since the one before"),
    Rule(r"commit_group", "removed", IDLE, "the next commit, or the wait for all, covers it"),
    Rule(r"tcgen05\.fence", "removed", IDLE, "no tcgen05 operation in flight of another thread, or a fence beside it"),
    Rule(r"mbarrier\.arrive", "removed|doubled", IDLE, "nobody waits for it again: one tile a CTA", code="accumulator",
         rung=r"^d[123]"),
    Rule(r"mbarrier\.init", r"count \+ 1", IDLE, "nobody waits for it: one tile a CTA", code="accumulator",
         rung=r"^d[123]", fates=("right", "review")),
    Rule(r"bar\.sync", "removed", IDLE, "a warpgroup's rows of C lie over rows of A that itself has multiplied",
         rung=r"^c1"),
    Rule(r"bar\.sync", "removed", IDLE, "the barrier of the warps that store comes after their last loads, too",
         rung=r"^(tirx-)?v7"),
    Rule(r"bar\.sync", "removed", IDLE, "a thread reads the counts that itself has added up, in one CTA a query",
         rung=r"^fused-topk-indexer-tcgen05", code=r"sync_threads"),
    Rule(r"wait_group|bar\.sync", "removed", IDLE, "the first chunk of a tile waits for all buffers", rung=r"^c[579]",
         code=r"self\.stages - 1 if number|together"),
    Rule(r"cp\.async\.wait_group", "removed", IDLE, "the groups that are left hold no copies",
         rung=r"^(b(2|6|9|10)|cuda-b2)"),
    Rule(r"fence\.mbarrier_init", "removed", IDLE, "threads of the CTA alone use the barriers, after a CTA barrier",
         rung=r"^(a2|fused-dsa-wgmma)"),
    Rule(r"fence\.mbarrier_init", "removed", IDLE, "the fence.proxy.async after the copies of threads does it, too",
         rung=r"^(tirx-)?v[123]"),
    Rule(r"barrier\.cluster\.wait|griddepcontrol\.wait", "removed", IDLE,
         "the other role waits, and its loads hand that on", rung=r"^c8"),
    Rule(r"bar\.warp\.sync", "removed", IDLE, "all lanes together do what comes before (.aligned)",
         rung=r"^(b7|d[2-5]|(tirx-)?v[789]|fused-topk-indexer-tcgen05)"),
    Rule(r"bar\.warp\.sync", "removed", IDLE, "the lanes meet at the .sync.aligned instruction behind it, too",
         rung=r"^cuda-d1"),
    Rule(r"bar\.warp\.sync", "removed", IDLE, "no fragment comes after it", code="before the next fragment",
         rung=r"^cuda-b1-wmma-"),
    Rule(r"cp\.async\.bulk\.wait_group", "removed", IDLE, "threads, not TMA, store the last tile of a CTA here",
         rung=r"^c9", code=r"\(0, read=True\)"),
    # ------------------------------------------------------------ not seen
    Rule(r"bar\.warp\.sync", "removed", BLIND, "one lane arrives while other lanes may be to fence: fences are a "
         "warp's here", rung=r"^fused-dsa-(tcgen05|pipelined)"),
    Rule(r"bar\.warp\.sync", "removed", BLIND, "one lane arrives while others may not be through with their accesses"),
    Rule(r"barrier\.cluster\.wait", "removed", BLIND, "the CTA may exit while its copies to peers read its memory",
         rung=r"^fused-topk-indexer"),
    Rule(r"fence\.proxy", "removed", BLIND, "threads read, then the async proxy writes: fenced in the ISA's example of "
         "clusterlaunchcontrol, not in TMA's rings, and not looked for", rung=r"^a1-cluster-launch"),
    # ------------------------------------------------------------ for review
    Rule(r"fence\.acq_rel\.cluster", "removed", REVIEW, "a wait of CTA scope for what st.async of another CTA brings: "
         "QuACK's reduce.py and CUTLASS wait so", rung=r"^a0", fates=("review",)),
    Rule(r"fence\.mbarrier_init", "removed", REVIEW, "a CTA barrier, no fence for the async proxy: published kernels "
         "have no more (learn-cutedsl's launch control)", fates=("review",)),
    Rule(r"try_wait", "flipped", REVIEW, "passes too early, and hangs where the warp is late: as in published kernels "
         "the warps that only look on (d1, TIRx v4 to v6)", fates=("review",)),
    Rule(r"tcgen05\.fence", "removed", REVIEW, "published kernels have none there (learn-cutedsl's d1 to d3, "
         "TIRx's book)", fates=("review",)),
    Rule(r"tcgen05\.wait", "removed", REVIEW, "published kernels have none (learn-cutedsl's d1 to d3, z2)",
         fates=("review",)),
    Rule(r"bar\.warp\.sync", "removed", REVIEW, "one lane frees a slot that others may yet read, where lanes do not "
         "run together", rung=r"^(c8|fused)", fates=("review",)),
    Rule(r"bar\.warp\.sync", "removed", REVIEW, "lanes that only a warp-wide instruction keeps together: it orders no "
         "memory by the ISA, and practice leans on it", fates=("review",)),
    Rule(r"tcgen05\.dealloc", "doubled", REVIEW, "frees what is free, as TIRx's v7 to v9 do: harmless where nobody has "
         "allocated it since", fates=("review",)),
)  # fmt: skip


def reason(record: dict[str, Any]) -> Rule | None:
    """Why a mutant is no error; None where its result is wrong, or nobody has said."""
    return next((rule for rule in RULES if rule.fits(record)), None)


def by_construction(op: str, change: str) -> bool:
    """Whether a change says the same as before in any kernel."""
    return any(r.effect == SAME and re.search(r.op, op) and re.search(r.change, change) for r in RULES)
