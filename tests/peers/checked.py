"""Third-party kernels under the hazard checker.

    TENSORLADDER_PEERS_CHECKED=F.jsonl make peers PEERS=folder      # a line a test is added to F.jsonl
    python -m benchmarks.peers_checked                              # the table of what is kept

Where the variable names a file, every test of this folder runs its kernels under the checker and fails at a finding of
rank error that `FAULTS` does not explain. Scripts run in processes of their own: as `tensorladder exec --check` runs
them, but this file writes the findings for the test to read:

    python -m tests.peers.checked FINDINGS.jsonl SCRIPT ARCH POLICY ARGS...
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.mutation_table import judged_by

HOME = Path(__file__).parents[2]
RECORDS = "TENSORLADDER_PEERS_CHECKED"
#: set for a test's time: where the processes that it starts leave their findings
FINDINGS = "TENSORLADDER_PEERS_FINDINGS"


@dataclass(frozen=True)
class Fault:
    """A kernel of another project that breaks a rule of the ISA's or of CUDA's, and is known to.

    test: a pattern of its tests. project, kernel: whose, and its name. reasons: kind of finding to why it is a fault.
    """

    test: str
    project: str
    kernel: str
    reasons: Mapping[str, str]


_STREAM = (
    "{} on the default stream and used on a torch.cuda.Stream(), a non-blocking one, which does not wait for it (CUDA "
    "programming guide, implicit synchronization)"
)
_RELAXED = (
    "barrier.cluster.arrive.relaxed orders no memory (PTX ISA, barrier.cluster), and no fence.acq_rel.cluster stands "
    "before it"
)
_SINGLE = "setmaxnreg by single warps of a warpgroup: the same one must be executed by all of its warps (PTX ISA)"
_ONCE_A_WARP = (
    "a lane of each warp initialises the same barriers: mbarrier.init of a valid mbarrier without mbarrier.inval is "
    "undefined (PTX ISA)"
)

FAULTS: tuple[Fault, ...] = (
    Fault(r"test_tirx_book.*\[[123]\b", "modern-gpu-programming-for-mlsys", "steps 1 to 3", {
        "missing-proxy-fence": "threads copy A and B into shared memory, and tcgen05.mma, of the async proxy, reads "
        "them: no fence.proxy.async anywhere",
    }),
    Fault(r"test_tirx_book.*\[[89]\b", "modern-gpu-programming-for-mlsys", "steps 8 and 9", {
        "barrier-init": "the peer CTA's copies signal barriers after a CTA barrier alone: nothing orders their "
        "mbarrier.init in the other CTA before (fence.mbarrier_init and a cluster barrier do)",
    }),
    Fault(r"test_async_copy.*MultiStage(I|LargeChunk)\b", "cuda-samples", "MatrixMulAsyncCopyMultiStage, -LargeChunk", {
        "slot-reuse": "five stages are in flight in four buffers: cp.async writes the one whose copy is not waited for",
        "missing-wait": "the same, where the buffer is read",
    }),
    Fault(r"test_async_copy.*LargeChunkAWBarrier", "cuda-samples", "MatrixMulAsyncCopyLargeChunkAWBarrier", {
        "barrier-init": "`if (threadIdx.x == 0)` in a block of 16 x 16: 16 threads initialise one barrier, which is "
        "undefined with no mbarrier.inval between (PTX ISA)",
    }),
    Fault(r"fmha_bwd\.py", "cutlass", "fmha_bwd", {
        "tmem": "tcgen05.dealloc after a barrier of the compute warps alone: dQ's products and the reduce warps' loads "
        "are not over; `--async lazy` stops at a product whose columns are gone",
    }),
    Fault(r"\[elementwise_apply\.py", "cutlass", "elementwise_apply", {
        "race": _STREAM.format("its tensors are made") + "; its result is compared with no synchronisation",
    }),
    Fault(r"\[programmatic_dependent_launch\.py", "cutlass", "programmatic_dependent_launch", {
        "race": _STREAM.format("its tensors are filled"),
    }),
    Fault(r"\[dense_gemm_fp8_2xacc\.py", "cutlass", "dense_gemm_fp8_2xacc", {
        "race": _STREAM.format("the scale factors are copied"),
    }),
    Fault(r"\[cluster_tmem_reduce\.py", "cutlass", "primitives cluster_tmem_reduce", {
        "missing-wait": "tcgen05.ld after tcgen05.cp with tcgen05.wait::st between: tcgen05.cp wants a commit that is "
        "waited for (PTX ISA, tcgen05, completion mechanisms)",
        "race": "a CTA reads its peer's shared memory, and exits: " + _RELAXED,
        "tmem": "tcgen05.dealloc with the same tcgen05.cp not waited for",
    }),
    Fault(r"\[05_minimal_tensor_mma\w*\.py|\[10_minimal_tensor_mma\w*\.py", "cutlass",
          "primitives 05_minimal_tensor_mma, 10_minimal_tensor_mma_fp8", {
        "barrier-init": _ONCE_A_WARP, "collective": _SINGLE,
    }),
    Fault(r"\[gemm_M128_N128_Kany\w*\.py", "cutlass", "primitives gemm_M128_N128_Kany_TN_warpspec_multistage", {
        "barrier-init": _ONCE_A_WARP, "collective": _SINGLE,
        "race": "the address of tensor memory is read with no barrier after another warp's tcgen05.alloc; "
        + _STREAM.format("its tensors are filled"),
    }),
    Fault(r"\[tma_multicast\.py", "cutlass", "primitives tma_multicast", {
        "missing-wait": "the leader alone waits for the copy, and hands it on by a cluster barrier: " + _RELAXED,
    }),
    Fault(r"\[2cta_mma_blockscale_m128\.py", "cutlass", "primitives 2cta_mma_blockscale_m128", {
        "missing-wait": "the peer's scale factors of B arrive at a barrier that nobody waits for",
        "scope": "the peer's scale factors of A are handed on to the other CTA by mbarrier.arrive.release.cta",
    }),
    Fault(r"test_deepgemm\.py", "DeepGEMM", "sm90_paged_mqa_logits_metadata", {
        "race": "each lane stores its prefix sums and reads other lanes' with only shfl.sync between, no __syncwarp "
        "(which the same kernel has for ragged queries): shfl orders no memory (PTX ISA, bar.warp.sync does)",
    }),
    Fault(r"test_deepgemm_gemm.*sm100_bf16_gemm-2", "DeepGEMM", "sm100_bf16_gemm in pairs", {
        "race": "warps read the address of tensor memory that warp 2's tcgen05.alloc has written to shared memory: "
        + _RELAXED,
    }),
    Fault(r"test_flash_attention.*(113-203-64-False-3|combine)", "flash-attention", "flash_fwd_combine", {
        "uninitialised": "log-sum-exps of rows past the end are not loaded, and the highest split of all of a thread's "
        "rows bounds its loop: garbage there makes it read partial results past the last split",
    }),
    Fault(r"test_flashinfer.*paged", "flashinfer", "gqa_decode_paged", {
        "race": "lanes read page numbers that other lanes' cp.async has brought: bar.warp.sync stands before "
        "cp.async.wait_group, which waits for the own lane's copies, and not after it",
    }),
    Fault(r"test_flashinfer.*atomic", "flashinfer", "gqa_decode with its reduction in a cluster", {
        "tmem": "the wait before tcgen05.dealloc is CuTe DSL's PipelineUmmaAsync.producer_tail, which CTAs of odd rank "
        "skip (it takes two CTAs for a pair): with cta_group::1 they free columns that their epilogue has yet to read",
    }),
    Fault(r"test_triton_tests.*11-tcgen05-mma-scaled", "triton", "Gluon 11, mma_scaled_pipelined_kernel", {
        "tmem": "where there is no next tile, the MMA and its commit are off by their predicate, and the tcgen05.cp of "
        "the scales before them are not: no commit covers these copies, and tcgen05.dealloc follows",
    }),
    Fault(r"\[c1_wgmma_tma_load_store", "learn-cutedsl", "c1_wgmma_tma_load_store", {
        "slot-reuse": "warp 0 refills both stages after its own warpgroup's wait, while the other one's wgmma reads "
        "them; C is stored over A",
        "race": "the same, where the write came first",
        "missing-wait": "the same, where the copy came first",
        "barrier-phase": "a warp that is late misses a phase of the barrier", "deadlock": "the same, when it happens",
    }),
    Fault(r"\[z2_tmem_lower", "learn-cutedsl", "z2_tmem_lower", {
        "missing-wait": "tcgen05.ld right after tcgen05.st: no tcgen05.wait::st (PTX ISA, tcgen05, non-pipelined "
        "instructions in one thread)",
        "tmem": "tcgen05.dealloc with the same tcgen05.st not waited for",
    }),
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


def faults_of(test: str) -> tuple[Fault, ...]:
    return tuple(fault for fault in FAULTS if re.search(fault.test, test))


def unexplained(test: str, findings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Findings of rank error that FAULTS does not name."""
    kinds = {kind for fault in faults_of(test) for kind in fault.reasons}
    return [f for f in findings if f["verdict"] == "error" and f["kind"] not in kinds]


def record(test: str, files: Sequence[str], findings: Sequence[dict[str, Any]], failed: bool) -> dict[str, Any]:
    """A line of the results: what of a test's kernels was found. files: the subject's first, then what it needs.

    A test that failed without a finding of rank error may not have run all of its kernels: its verdict is "failed".
    """
    ranks = ("clean", "review", "incomplete", "error")
    verdict = max((f["verdict"] for f in findings), key=ranks.index, default="none launched")
    if failed and verdict != "error":
        verdict = "failed"

    def kinds(rank: str) -> dict[str, int]:
        return dict(sorted(Counter(f["kind"] for f in findings if f["verdict"] == rank).items()))

    faults = [f for f in findings if f["verdict"] in ("error", "review")]
    return {
        "test": test, "files": list(dict.fromkeys(files)), "verdict": verdict,
        "arch": sorted({f["arch"] for f in findings}),
        "errors": kinds("error"), "reviews": kinds("review"), "checker": judged_by(),
        "faults": [{key: f.get(key) for key in ("verdict", "kind", "message", "where", "other")} for f in faults],
    }  # fmt: skip


def main(findings: str, script: str, arch: str, policy: str, *arguments: str) -> int:
    """Run a script as `tensorladder exec --check` does, and keep what the checker found."""
    from tensorladder.core.errors import TensorladderError, Unsupported
    from tensorladder.measure.hazards import new_checker
    from tensorladder.measure.scripts import run_script

    checker, code = new_checker(), 1
    try:
        code = run_script(script, arguments, arch=arch, policy=policy, checker=checker)
    except TensorladderError as error:
        print(error, file=sys.stderr)
        checker.stopped(error)
        code = error.exit_code
    except BaseException as error:  # of a script that did not come to its end nothing is said to be clean
        checker.stopped(Unsupported(f"{Path(script).name} ended early: {type(error).__name__}"))
        raise
    finally:
        write(findings, found_by(checker), arch)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
