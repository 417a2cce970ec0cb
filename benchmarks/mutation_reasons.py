"""Why a mutant that no error was found in is no fault, does no harm, or is for review alone (benchmarks.mutation)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

#: the change says the same as before, in any kernel
SAME = "same"
#: nothing in this kernel depends on what was changed
IDLE = "idle"
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
    fates: tuple[str, ...] = ("right", "review")

    def fits(self, record: dict[str, Any]) -> bool:
        return (
            record["fate"] in self.fates
            and not record["wrong"]
            and all(
                re.search(pattern, record[key])
                for key, pattern in (("op", self.op), ("change", self.change), ("rung", self.rung), ("code", self.code))
            )
        )


RULES = (
    Rule("", "", IDLE, "never executed at this shape", fates=("not run",)),
    # ------------------------------------------------------------ the same as before
    Rule(r"fence|membar", "doubled", SAME, "a second fence with nothing between orders nothing more"),
    Rule(r"tcgen05\.wait|wait_(group|all)|griddepcontrol\.wait", "doubled", SAME, "a second wait finds nothing left"),
    Rule(r"commit_group", "doubled", SAME, "an empty group: a wait for all but the last n leaves fewer operations"),
    Rule(r"^(bar|barrier)\.", "doubled", SAME, "all meet twice"),
    Rule(r"tcgen05\.relinquish_alloc_permit", "", SAME, "the permit ends with the CTA, too"),
    # ------------------------------------------------------------ no harm in this kernel
    Rule(r"try_wait", "removed|flipped", IDLE, "the first wait for a slot that nobody has used passes at once",
         code=r"acquire|empty|fill", fates=("right",)),
    Rule(r"try_wait", "removed", IDLE, "the wait for the slot that was used last covers it", code=r"\.tail\(\)",
         fates=("right",)),
    Rule(r"wgmma\.fence", "removed", IDLE, "no register of the WGMMA was touched since the one before"),
    Rule(r"commit_group", "removed", IDLE, "the next commit, or the wait for all, covers it", fates=("right",)),
    Rule(r"tcgen05\.fence", "removed", IDLE, "orders no tcgen05 operation of another thread", fates=("right",)),
    Rule(r"mbarrier\.arrive", "removed|doubled", IDLE, "nobody waits for it again: one tile a CTA", code="accumulator",
         rung=r"^(d1|d2|d3)", fates=("right",)),
    Rule(r"bar\.sync", "removed", IDLE, "a warpgroup's rows of C lie over rows of A that itself has multiplied",
         rung=r"^c1", fates=("right",)),
    Rule(r"bar\.sync", "removed", IDLE, "the barrier of the warps that store comes after their last loads, too",
         rung=r"^v7", fates=("right",)),
    Rule(r"wait_group|bar\.sync", "removed", IDLE, "the first chunk of a tile waits for all buffers", rung=r"^c[579]",
         code=r"self\.stages - 1 if number|together", fates=("right",)),
    Rule(r"cp\.async\.wait_group", "removed", IDLE, "the groups that are left hold no copies", rung=r"^b(2|9|10)",
         fates=("right",)),
    Rule(r"fence\.proxy", "removed", IDLE, "it orders loads, which are over, before the next asynchronous write",
         rung=r"^a1-cluster-launch", fates=("right",)),
    Rule(r"fence\.mbarrier_init", "removed", IDLE, "threads of the CTA alone use the barriers, after a CTA barrier",
         fates=("right",)),
    Rule(r"barrier\.cluster\.wait", "removed", IDLE, "the other role waits, and its loads hand that on", rung=r"^c8",
         fates=("right",)),
    Rule(r"bar\.warp\.sync", "removed", IDLE, "what comes before is executed by all lanes together (.aligned)"),
    Rule(r"griddepcontrol\.wait", "removed", IDLE, "no launch before it writes what it reads"),
    Rule(r"cp\.async\.bulk\.wait_group", "removed", IDLE, "threads, not TMA, store the last tile of a CTA here",
         rung=r"^c9", code=r"\(0, read=True\)", fates=("right",)),
    # ------------------------------------------------------------ not seen
    Rule(r"fence\.acq_rel\.cluster", "removed", BLIND, "a wait of CTA scope for what st.async of another CTA completes",
         rung=r"^a0", fates=("right",)),
    # ------------------------------------------------------------ for review
    Rule(r"mbarrier\.init", "count", REVIEW, "a phase ends an arrival early, wrong where that one is late"),
    Rule(r"fence\.mbarrier_init", "removed", REVIEW, "initialised before a CTA barrier, not fenced for other proxies",
         fates=("review",)),
    Rule(r"try_wait", "flipped", REVIEW, "waits for the phase before or after, which passes as the chip has it",
         fates=("review",)),
    Rule(r"tcgen05\.(fence|wait)", "removed", REVIEW, "what is not ordered comes late enough on most chips",
         fates=("review",)),
    Rule(r"tcgen05\.dealloc", "doubled", REVIEW, "frees what is free: harmless where nobody has allocated it since"),
)  # fmt: skip


def reason(record: dict[str, Any]) -> Rule | None:
    """Why a mutant is no error; None where its result is wrong, or nobody has said."""
    return next((rule for rule in RULES if rule.fits(record)), None)


def by_construction(op: str, change: str) -> bool:
    """Whether a change says the same as before in any kernel."""
    return any(r.effect == SAME and re.search(r.op, op) and re.search(r.change, change) for r in RULES)
