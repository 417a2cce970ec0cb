"""CuTe DSL scripts of other projects, unmodified, through `tensorladder exec`: each checks its own result.

CUTLASS's examples for sm_80 and sm_90 and the scripts of the learn-cutedsl course. A script passes where it ends with
exit code 0: it compares with torch and raises on a difference.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.peers

AMPERE = "examples/python/CuTeDSL/cute/ampere/kernel"
HOPPER = "examples/python/CuTeDSL/cute/hopper/kernel"
PRIMITIVES = "examples/python/CuTeDSL/experimental/primitives"
TUTORIALS = "examples/python/CuTeDSL/dsl_tutorials"
ONCE = "--warmup_iterations 0 --iterations 1"

#: script, architecture, arguments
CUTLASS = [
    (f"{AMPERE}/elementwise/elementwise_add.py", "sm_80", "--M 250 --N 520"),
    (f"{AMPERE}/elementwise/elementwise_apply.py", "sm_80", "--M 256 --N 512"),
    (f"{AMPERE}/dense_gemm/sgemm.py", "sm_80", f"--mnk 256,128,64 {ONCE}"),
    (f"{AMPERE}/dense_gemm/tensorop_gemm.py", "sm_80", f"--mnkl 256,256,64,2 {ONCE}"),
    (f"{AMPERE}/attention/flash_attention_v2.py", "sm_80",
     f"--batch_size 1 --seqlen_q 192 --seqlen_k 192 --num_head 2 {ONCE}"),
    (f"{AMPERE}/attention/flash_attention_v2.py", "sm_80",
     f"--batch_size 1 --seqlen_q 256 --seqlen_k 256 --num_head 1 --is_causal {ONCE}"),
    (f"{HOPPER}/cta_norm/cta_norm.py", "sm_90a", "--M 64 --N 1024"),
    (f"{HOPPER}/cta_norm/cta_norm.py", "sm_90a", "--M 64 --N 1024 --norm_type rms"),
    # wgmma: f16, both majors, fp8, clusters with multicast, A in registers
    (f"{HOPPER}/dense_gemm/dense_gemm.py", "sm_90a", f"--mnkl 256,512,256,1 --tile_shape_mn 128,256 {ONCE}"),
    (f"{HOPPER}/dense_gemm/dense_gemm.py", "sm_90a",
     f"--mnkl 256,256,128,2 --cluster_shape_mn 1,2 --a_major m --b_major n {ONCE}"),
    (f"{HOPPER}/dense_gemm/dense_gemm_persistent.py", "sm_90a", f"--mnkl 512,512,256,1 {ONCE}"),
    (f"{HOPPER}/dense_gemm/dense_gemm_persistent.py", "sm_90a",
     f"--mnkl 512,512,256,1 --cluster_shape_mn 2,1 --a_dtype Float8E4M3FN --b_dtype Float8E4M3FN {ONCE}"),
    (f"{HOPPER}/dense_gemm/dense_gemm_fp8_2xacc.py", "sm_90a", f"--mnkl 256,256,512,1 {ONCE}"),
    (f"{HOPPER}/dense_gemm/dense_gemm_fp8_gelu_persistent.py", "sm_90a", f"--mnkl 256,256,512,1 {ONCE}"),
    (f"{HOPPER}/attention/fmha.py", "sm_90a", f"--q_shape 1,256,2,128 --k_shape 1,256,2,128 {ONCE}"),
    (f"{HOPPER}/grouped_gemm/grouped_gemm.py", "sm_90a",  # its timing runs read tensors that are gone
     "--num_groups 2 --problem_sizes_mnkl (256,256,128,1),(128,384,256,1) --iterations 0 --warmup_iterations 0"),
    (f"{HOPPER}/attention/fmha.py", "sm_90a", f"--q_shape 1,256,2,128 --k_shape 1,256,2,128 --is_causal {ONCE}"),
    (f"{AMPERE.replace('kernel', 'tutorial')}/elementwise_add_autotune.py", "sm_80", ""),
    *((f"{TUTORIALS}/{name}.py", "sm_90a", "") for name in (
        "inline_ptx", "call_from_jit", "call_bypass_dlpack", "dynamic_smem_size", "smem_allocator",
        "programmatic_dependent_launch", "torch_fake_tensor", "tvm_ffi/jit_and_use_in_torch")),
    *((f"{PRIMITIVES}/{name}.py", "sm_90a", "") for name in (
        "async_pipeline", "bar_warp_sync", "barrier_cta_red", "barrier_cta_sync", "basic_types", "cp_async_bulk",
        "cp_async_bulk_prefetch", "cp_async_mbarrier_arrive_cta", "cp_async_shared_global",
        "cp_async_shared_global_swizzled", "elect_sync", "ldmatrix_stmatrix", "mbarrier", "mbarrier_lifecycle",
        "pipeline_software_fill", "red", "reduction/block_smem_reduce", "reduction/thread_vector_reduce",
        "reduction/warp_vector_reduce", "redux_sync", "shfl_sync", "tma/tma_1cta_mbarrier", "tma/tma_load_store",
        "tma/tma_load_to_ldmatrix", "tma/tma_pipeline_count2", "tma/tma_pipeline_pingpong",
        "tma/tma_pipeline_warpspec", "tma/tma_store", "tma/tma_swizzle_modes",
        "vote_sync", "warp_named_barrier")),
]  # fmt: skip

COURSE = [
    ("a0_vector_addition", "sm_80"),
    ("a1_naive_cuda_like", "sm_80"),
    ("a1_naive_cute", "sm_80"),
    ("a1_naive_cute_grouped_scheduler", "sm_80"),
    ("a1_naive_cute_persistent_kernel", "sm_80"),
    ("a1_naive_batched_cute_dynamic_shape", "sm_80"),
    ("a1_naive_cute_tvm_ffi_fake_tensors", "sm_80"),
    ("a2_smem_cuda_like", "sm_80"),
    ("a2_smem_pipeline", "sm_90a"),
    ("b2_wmma_smem", "sm_80"),
    ("b5_wmma_tma_load_store", "sm_90a"),
    ("b6_wmma_colwise_scaling", "sm_90a"),
    ("b7_wmma_tma_specialized_pipeline", "sm_90a"),
    ("c2_wgmma_tma_specialized_pipeline", "sm_90a"),
]


def run(script: str, arch: str, arguments: str, policy: str = "eager") -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "tensorladder",
        "exec",
        "--arch",
        arch,
        "--async",
        policy,
        script,
        *arguments.split(),
    ]
    # The examples import their neighbours by folder.
    root = script.split("/CuTeDSL/")[0] + "/CuTeDSL" if "/CuTeDSL/" in script else ""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)


def assert_passed(done: subprocess.CompletedProcess[str]) -> None:
    tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
    assert done.returncode == 0, f"exit {done.returncode}\n{tail}"


@pytest.mark.parametrize(("script", "arch", "arguments"), CUTLASS, ids=lambda value: str(value).rpartition("/")[2])
def test_cutlass_example(checkout, script, arch, arguments) -> None:
    assert_passed(run(str(checkout("cutlass", script)), arch, arguments))


@pytest.mark.parametrize(("name", "arch"), COURSE)
def test_course_script(checkout, name, arch) -> None:
    done = run(str(checkout("learn-cutedsl", f"cutedsl/{name}.py")), arch, "")
    assert_passed(done)
    assert "PASS" in done.stdout, done.stdout[-500:]
