"""Third-party kernels under the hazard checker.

    TENSORLADDER_PEERS_CHECKED=F.jsonl make peers PEERS=folder      # a line a test is added to F.jsonl
    python -m benchmarks.peers_checked                              # the table of what is kept

Where the variable names a file, every test of this folder runs its kernels under the checker and fails at a finding of
rank error that `KNOWN` does not explain. Scripts run in processes of their own: as `tensorladder exec --check` runs
them, but this file writes the findings for the test to read:

    python -m tests.peers.checked FINDINGS.jsonl SCRIPT ARCH POLICY ARGS...
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[2]
RECORDS = "TENSORLADDER_PEERS_CHECKED"
#: set for a test's time: where the processes that it starts leave their findings
FINDINGS = "TENSORLADDER_PEERS_FINDINGS"

#: kernels that are at fault, by test (a pattern): kinds of error, and the reason
KNOWN: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        r"test_tirx_book.*\[[123]\b", ("missing-proxy-fence",),
        "threads copy A and B into shared memory and tcgen05.mma reads them: no fence.proxy.async",
    ),
    (
        r"test_tirx_book.*\[[89]\b", ("barrier-init",),
        "the peer CTA signals barriers after a CTA barrier alone: they may not be initialised yet",
    ),
    (
        r"test_async_copy.*MultiStage(I|LargeChunk)\b", ("slot-reuse", "missing-wait"),
        "five stages are in flight in four buffers",
    ),
    (
        r"test_async_copy.*LargeChunkAWBarrier", ("barrier-init",),
        "threads of 16 x 16 whose x is 0 initialise one barrier, 16 times: undefined with no mbarrier.inval between",
    ),
    (
        r"fmha_bwd\.py", ("tmem",),
        "tensor memory is freed after a barrier of the compute warps alone: dQ's products and loads are not over",
    ),
    (
        r"mla_decode_fp16\.py", ("race",),
        "two warps that share rows both store their log-sum-exp: the same value twice, with nothing between",
    ),
    (
        r"\[tma_v[01]\.py", ("missing-wait",),
        "the CTA exits after its TMA store, with no commit and no wait for the store's reads",
    ),
    (
        r"\[tma_(load_)?store\.py", ("slot-reuse",),
        "a lane of each of the four warps stores the whole tile: the same bytes, four times, with nothing between",
    ),
    (
        r"\[elementwise_apply\.py", ("race",),
        "tensors of the default stream are used on a torch.cuda.Stream() that does not wait for it, and the result is "
        "compared on the default stream with no synchronisation",
    ),
    (
        r"\[dense_gemm_fp8_2xacc\.py", ("race",),
        "the scales are copied on the default stream and used on a torch.cuda.Stream() that does not wait for it",
    ),
    (
        r"\[cluster_tmem_reduce\.py", ("missing-wait", "race", "tmem"),
        "tcgen05.wait::st stands for the commit that tcgen05.cp wants; cluster barriers with relaxed arrivals order no "
        "memory",
    ),
    (
        r"\[(05|10)_minimal_tensor_mma\w*\.py", ("barrier-init", "collective"),
        "a lane of each warp initialises the same barriers; setmaxnreg by single warps of a warpgroup",
    ),
    (
        r"\[gemm_M128_N128_Kany\w*\.py", ("barrier-init", "collective", "race"),
        "as the minimal ones; the address of tensor memory is read with no barrier after tcgen05.alloc, and all lanes "
        "flip one phase bit in shared memory with no bar.warp.sync between a lane's store and another one's load; its "
        "tensors are filled on the default stream and used on a torch.cuda.Stream() that does not wait for it",
    ),
    (
        r"\[tma_multicast\.py", ("missing-wait",),
        "the leader alone waits for the copy; a cluster barrier with relaxed arrivals does not hand that on",
    ),
    (
        r"\[2cta_mma_blockscale_m128\.py", ("missing-proxy-fence", "missing-wait", "scope"),
        "no proxy fence after cp.async; the peer's scale factors of B arrive at a barrier that nobody waits for; those "
        "of A are handed to the other CTA by mbarrier.arrive.release.cta",
    ),
    (
        r"\[slicek_m32n8k128\.py", ("missing-proxy-fence",),
        "tcgen05.mma reads what cp.async wrote, and nobody executes a proxy fence",
    ),
    (
        r"test_deepgemm", ("race",),
        "each lane stores its prefix sums and reads other lanes' with only shfl.sync between, no __syncwarp (which the "
        "same kernel has for ragged queries)",
    ),
    (
        r"test_quack_file\[test_cross_entropy", ("race",),
        "dx in place of x: a lane stores over the target's logit that lane 0 has read, with only shfl.sync between",
    ),
    (
        r"test_quack_file\[test_rotary", ("race",),
        "an odd half: a lane's vector load of the first half reaches into the second one, which another lane stores "
        "next with no bar.warp.sync between; the values that it reads there are not used",
    ),
    (
        r"\[c1_wgmma_tma_load_store", ("slot-reuse", "race", "missing-wait", "barrier-phase", "deadlock",
                                       "uninitialised"),
        "warp 0 refills stages that the other warpgroup's wgmma still reads, C is stored over A, the CTA exits before "
        "its TMA store has read, a warp that is late misses a phase",
    ),
    (
        r"\[c2_profile", ("missing-wait",),
        "the wait for the TMA store before the exit is commented out",
    ),
    (
        r"\[z2_tmem_lower", ("missing-wait", "tmem"),
        "tcgen05.ld right after tcgen05.st, and dealloc: no tcgen05.wait::st (PTX ISA, tcgen05, non-pipelined "
        "instructions in one thread)",
    ),
    (
        r"test_cutlass_example\[fmha\.py", ("missing-wait",),
        "the epilogue's last TMA stores are not waited for: its PipelineTmaStore has no producer_tail",
    ),
)  # fmt: skip


def exec_command(script: str | Path, arch: str, policy: str, arguments: Sequence[str] = ()) -> list[str]:
    """`tensorladder exec`, under the checker where the test is checked."""
    findings = os.environ.get(FINDINGS)
    if findings:
        return [sys.executable, "-m", "tests.peers.checked", findings, str(script), arch, policy, *arguments]
    return [
        sys.executable, "-m", "tensorladder", "exec", "--arch", arch, "--async", policy, str(script), *arguments,
    ]  # fmt: skip


def write(path: str | Path, findings: Sequence[dict[str, Any]], arch: str) -> None:
    """Add findings to a file, a JSON object a line; where there are none, a line that says so."""
    with open(path, "a", encoding="utf-8") as out:
        for finding in findings or [{"verdict": "clean"}]:
            out.write(json.dumps({**finding, "arch": arch}) + "\n")


def found_by(checker: Any) -> list[dict[str, Any]]:
    return [finding.to_json() for finding in checker.report("").findings]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def unexplained(test: str, findings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Findings of rank error that KNOWN does not name."""
    kinds = {kind for pattern, known, _ in KNOWN if re.search(pattern, test) for kind in known}
    return [f for f in findings if f["verdict"] == "error" and f["kind"] not in kinds]


def why(test: str) -> str:
    """What KNOWN says of a test's kernels."""
    return "; ".join(said for pattern, _, said in KNOWN if re.search(pattern, test))


def record(test: str, files: Sequence[str], findings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A line of the results: what of a test's kernels was found."""
    ranks = ("clean", "review", "incomplete", "error")
    verdict = max((f["verdict"] for f in findings), key=ranks.index, default="none launched")

    def kinds(rank: str) -> dict[str, int]:
        return dict(sorted(Counter(f["kind"] for f in findings if f["verdict"] == rank).items()))

    faults = [f for f in findings if f["verdict"] in ("error", "review")]
    return {
        "test": test, "files": sorted(set(files)), "arch": sorted({f["arch"] for f in findings}), "verdict": verdict,
        "errors": kinds("error"), "reviews": kinds("review"),
        "faults": [{key: f.get(key) for key in ("verdict", "kind", "message", "where", "other")} for f in faults],
    }  # fmt: skip


def main(findings: str, script: str, arch: str, policy: str, *arguments: str) -> int:
    """Run a script as `tensorladder exec --check` does, and keep what the checker found."""
    from tensorladder.core.errors import TensorladderError
    from tensorladder.measure.hazards import new_checker
    from tensorladder.measure.scripts import run_script

    checker, code = new_checker(), 1
    try:
        code = run_script(script, arguments, arch=arch, policy=policy, checker=checker)
    except TensorladderError as error:
        print(error, file=sys.stderr)
        checker.stopped(error)
    finally:
        write(findings, found_by(checker), arch)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
