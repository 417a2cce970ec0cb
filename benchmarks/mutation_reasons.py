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
    """Mutants that a reason is for: patterns of the opcode, the change, and where given of the rung, the source line,
    the place ("FILE:LINE PTX LINE"). rule: what the checker calls it. wrong: some schedule may give a wrong result.
    """

    op: str
    change: str
    effect: str
    why: str
    rung: str = ""
    code: str = ""
    fates: tuple[str, ...] = ("right",)
    place: str = ""
    rule: str = ""
    wrong: bool = False

    def fits(self, record: dict[str, Any]) -> bool:
        return (
            record["fate"] in self.fates
            and (self.wrong or not record["wrong"])
            and all(re.search(getattr(self, key), record[key]) for key in ("op", "change", "rung", "code"))
            and re.search(self.place, f"{record['file']}:{record['line']} PTX {record['ptx_line']}") is not None
            and (not self.rule or self.rule in record["rules"])
        )


#: the producer's waits for all slots before its CTA ends
DRAIN = r"\.tail\(\)|sync_object_empty\.wait\(fill|mbarrier_wait\(empty \+ load\.index"
#: fences between the arrival of the warps that have loaded an accumulator and the MMAs that overwrite it
LOADED_BEFORE = (
    r"v7_warp_specialized.py:226 |v8_two_cta.py:241 |v9_two_consumers.py:248 |v6_persistent.py:239 "
    r"|fused_topk_indexer_tcgen05.py:261 "
    r"|tirx-v6.* PTX 1217$|tirx-v7.* PTX 882$|tirx-v8.* PTX 1098$|tirx-v9.* PTX 1446$"
)

RULES = (
    Rule("", "flip", NOT_RUN, "the ring does not come to its end there at this shape", fates=("not run",)),
    Rule("", "", NOT_RUN, "never executed at this shape", fates=("not run",)),
    # ------------------------------------------------------------ the same as before
    Rule(r"fence|membar", "doubled", SAME, "a second fence with nothing between orders nothing more"),
    Rule(r"tcgen05\.wait|wait_(group|all)|griddepcontrol\.wait", "doubled", SAME, "a second wait finds nothing left"),
    Rule(r"try_wait", "doubled", SAME, "the phase is complete still: the next one waits for this warp's arrival"),
    Rule(r"griddepcontrol\.launch_dependents", "removed", SAME, "a CTA's end lets the next launch begin, too"),
    Rule(r"griddepcontrol\.launch_dependents", "doubled", SAME, "a CTA lets the next launch begin once"),
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
    Rule(r"tcgen05\.fence::after", "removed", BLIND, "MMAs overwrite what other warps have loaded: fenced in the ISA's "
         "pattern, and looked for only where what was written is read", place=LOADED_BEFORE),
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
    Rule(r"fence\.mbarrier_init", "removed", IDLE, "no other CTA uses the barriers: the own one's asynchronous "
         "operations access them through the generic proxy (PTX ISA 9.3), so a CTA barrier is enough"),
    Rule(r"barrier\.cluster\.wait|griddepcontrol\.wait", "removed", IDLE,
         "the other role waits, and its loads hand that on", rung=r"^c8"),
    Rule(r"bar\.sync", "removed", IDLE, "the wait for sums_empty orders it, too: racecheck does not follow that",
         rung=r"^c8", code="together"),
    Rule(r"bar\.warp\.sync", "removed", IDLE, "the lanes have waited and no more: what is complete is so for all of "
         "them", rung=r"^c8"),
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
    # ------------------------------------------------------------ for review
    Rule(r"fence\.acq_rel\.cluster", "removed", REVIEW, "a wait of CTA scope for what st.async of another CTA brings: "
         "QuACK's reduce.py and CUTLASS wait so", rung=r"^a0", fates=("review",)),
    Rule("", "", REVIEW, "the CTA ends while its store may read: the ISA says nothing of it, published kernels do it, "
         "no H200 was seen to lose a word (the virtual GPU's late stores do)", fates=("review",), rule="STORE_AT_EXIT",
         wrong=True),
    Rule(r"barrier\.cluster\.wait", "removed", REVIEW, "the CTA ends while its copies to peers may read its memory, as "
         "with stores", fates=("review",), rule="SENT_AT_EXIT"),
    Rule(r"fence\.proxy", "removed", REVIEW, "threads read, then the async proxy writes: fenced in the ISA's example "
         "of clusterlaunchcontrol, not in TMA's rings", fates=("review",), rule="CANCEL_NOT_FENCED"),
    Rule(r"fence\.proxy", "removed", REVIEW, "what cp.async has written: CUTLASS's WGMMA kernels that copy so have "
         "none", fates=("review",), rule="PROXY_COPIED"),
    Rule(r"fence\.mbarrier_init", "removed", REVIEW, "other CTAs use the barriers after a cluster barrier, whose scope "
         "is wide enough for them", fates=("review",)),
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

#: instructions of asynchronous and collective work that have no mutant, and why
UNCHANGED = (
    (r"cp\.async\.(ca|cg|bulk\.(shared|tensor|global))|wgmma\.mma_async|tcgen05\.(mma|cp|ld|st)\.|st\.async|"
     r"red\.async|clusterlaunchcontrol\.try_cancel|mma\.|wmma\.|ldmatrix|stmatrix", "the work itself"),
    (r"shfl|vote|redux|match|elect|clusterlaunchcontrol\.query", "a value that the kernel computes with"),
    (r"tcgen05\.alloc", "gives an address: without it nothing could run"),
    (r"setmaxnreg", "registers, which order nothing; a launch is refused where they do not add up"),
    (r"cp\.async\.bulk\.prefetch|prefetch", "a hint"),
)  # fmt: skip


def reason(record: dict[str, Any]) -> Rule | None:
    """Why a mutant is no error; None where its result is wrong, or nobody has said."""
    return next((rule for rule in RULES if rule.fits(record)), None)


def by_construction(op: str, change: str) -> bool:
    """Whether a change says the same as before in any kernel."""
    return any(r.effect == SAME and re.search(r.op, op) and re.search(r.change, change) for r in RULES)
