"""Every rung compiles for every architecture it names, and its launches are legal there; wrong requests are refused.

In the usual run a rung's first architecture with its first element type and its last with its last; all of them under
`make matrix`.
"""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from tensorladder.core import arch as archs
from tensorladder.core import cubin
from tensorladder.core.errors import MissingExtra, UsageError
from tensorladder.rungs.rung import catalog, find, load
from tensorladder.silicon.disassemble import sass

pytest.importorskip("cutlass")
pytest.importorskip("ml_dtypes")

OURS = [info for info in catalog() if info.series in ("a", "b", "c", "d", "v", "z", "cuda")]
SOME = sorted({(i.name, a, d) for i in OURS for a, d in ((i.archs[0], i.dtypes[0]), (i.archs[-1], i.dtypes[-1]))})
REST = sorted({(i.name, a, d) for i in OURS for a in i.archs for d in i.dtypes} - set(SOME))
MATRIX = [*SOME, *(pytest.param(*one, marks=pytest.mark.matrix) for one in REST)]

# What every kernel with tensor memory has to have, and every kernel of CTA pairs.
TCGEN05 = [r"tcgen05\.alloc", r"tcgen05\.relinquish", r"tcgen05\.dealloc", r"tcgen05\.wait::ld",
           r"tcgen05\.fence::after_thread_sync", r"tcgen05\.fence::before_thread_sync"]  # fmt: skip
PAIRS = [r"tcgen05\.mma\.cta_group::2\.kind::f(16|8f6f4)", r"tcgen05\.commit\.cta_group::2\S*multicast::cluster",
         r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\S*cta_group::2",
         r"barrier\.cluster\.arrive", r"barrier\.cluster\.wait", r"mbarrier\.arrive\.shared::cluster"]  # fmt: skip

# What makes a rung the rung it is: opcodes that its PTX must have.
FEATURES = {
    "a0-vector-add": ["ld.global.v", "st.global.v"],
    "a1-naive-cuda-like": ["fma.rn.f32"],
    "a2-smem-padded": ["bar.sync", "ld.shared", "st.shared"],
    # 16-byte accesses: from sm_100 on the compiler writes them as two 64-bit elements
    "a2-smem-swizzled": [r"ld\.shared\.(v4\.b32|v2\.b64)", r"st\.shared\.(v4\.b(32|16)|v2\.b64)", r"xor\.b32"],
    "a2-smem-pipeline": ["mbarrier.init", "mbarrier.try_wait", "mbarrier.arrive"],
    "b2-warp-mma": ["mma.sync.aligned.m16n8k16", "ldmatrix.sync.aligned.m8n8.x4", "cp.async.cg", "cp.async.wait_group"],
    "b5-tma": ["cp.async.bulk.tensor.2d.shared::cta.global", "cp.async.bulk.tensor.2d.global.shared::cta",
               "fence.proxy.async.shared::cta", "fence.mbarrier_init", "cp.async.bulk.wait_group.read"],
    "b6-colwise-scaling": ["mma.sync.aligned.m16n8k16", "mul.f32"],
    # rows along K are read as they are, B (stored K, N) transposed; copies with a source size; rows of C by 16 bytes
    "b9-epilogue": [r"cp\.async\.cg\.shared\.global\s+\[%r\d+\], \[%rd\d+\], 16, %r\d+;",
                    "ldmatrix.sync.aligned.m8n8.x4.shared", "ldmatrix.sync.aligned.m8n8.x4.trans",
                    "st.global.v4"],
    "b10-implicit-gemm": [r"cp\.async\.cg\.shared\.global\s+\[%r\d+\], \[%rd\d+\], 16, %r\d+;",
                          "mma.sync.aligned.m16n8k16", "ldmatrix.sync.aligned.m8n8.x4"],
    "b7-warp-specialized": ["setmaxnreg.inc", "setmaxnreg.dec", "mbarrier.arrive.expect_tx", "bar.warp.sync"],
    "b8-register-double-buffering": ["bar.arrive", "setmaxnreg.inc", "ldmatrix.sync.aligned.m8n8.x4"],
    "a0-cluster-reduce": ["shfl.sync.bfly", "barrier.cluster.arrive", "barrier.cluster.wait", "mapa.shared::cluster"],
    "a1-grouped": ["fma.rn.f32"],
    "a1-cluster-launch-control": ["clusterlaunchcontrol.try_cancel", "clusterlaunchcontrol.query_cancel.is_canceled",
                                  "fence.proxy.async.shared::cta"],
    "a1-dependent-launch": ["griddepcontrol.launch_dependents", "griddepcontrol.wait"],
    "fused-sdpa-naive": ["shfl.sync.bfly", "ex2.approx", "fma.rn.f32"],
    "fused-dsa-split": [r"cp\.async\.cg\.shared\.global\s+\[%r\d+\], \[%rd\d+\], 16, %r\d+;", "ex2.approx",
                        "lg2.approx", "griddepcontrol.launch_dependents", "griddepcontrol.wait", "fma.rn.f32"],
    # V^T is read transposed (A, the last but one immediate), weights are stored transposed
    "fused-dsa-wgmma": [r"wgmma\.mma_async\.sync\.aligned\.m64n16k16\.f32\.bf16\.bf16[^;]* p, 1, +1, 0, 0;",
                        r"m64n16k16\.f32\.bf16\.bf16[^;]* p, 1, +1, 1, 0;", "stmatrix.sync.aligned.m8n8.x4.trans",
                        "vote.sync.ballot", "fence.proxy.async.shared::cta", "griddepcontrol.wait"],
    "c1-wgmma": ["wgmma.mma_async.sync.aligned.m64n128k16.f32", "wgmma.fence", "wgmma.commit_group",
                 r"wgmma\.wait_group\.sync\.aligned\s+1;", "fence.proxy.async.shared::cta"],
    "c2-warp-specialized": ["wgmma.mma_async.sync.aligned.m64n256k16.f32", "setmaxnreg.inc", "setmaxnreg.dec",
                            "mbarrier.arrive.expect_tx"],
    "c3-persistent": [r"wgmma\.mma_async\.sync\.aligned\.m64n256k(16|32)\.f32",
                      r"cp\.async\.bulk\.wait_group\.read\s+1;"],
    # B stored (K, N): the last immediate of wgmma says that it is read transposed
    "c6-epilogue": [r"wgmma\.mma_async\.sync\.aligned\.m64n256k16\.f32[^;]* p, 1, +1, 0, 1;", "fma.rn.f32"],
    "c8-split-k": [r"wgmma\.mma_async\.sync\.aligned\.m64n64k(16|32)\.f32", "mapa.shared::cluster",
                   r"cp\.async\.bulk\.shared::cluster\.shared::cta", "griddepcontrol.wait",
                   r"cp\.async\.bulk\.prefetch\.tensor"],
    "c9-grouped": [r"wgmma\.mma_async\.sync\.aligned\.m64n128k16\.f32[^;]* p, 1, +1, 0, 1;", "shfl.sync.up",
                   "vote.sync.ballot", r"st\.global\.(v4\.b32|v2\.b64)", r"cp\.async\.bulk\.tensor\.3d\.shared",
                   "multicast::cluster", "griddepcontrol.wait"],
    "c4-multicast": ["multicast::cluster", "fence.mbarrier_init.release.cluster", "barrier.cluster.wait",
                     r"mbarrier\.arrive\.\S*shared::cluster"],
    "c5-ping-pong": [r"wgmma\.mma_async\.sync\.aligned\.m64n128k(16|32)\.f32", "bar.arrive"],
    "c7-fused-ping-pong": [r"wgmma\.mma_async\.sync\.aligned\.m64n128k16\.f32[^;]* p, 1, +1, 0, 1;", "fma.rn.f32",
                           "multicast::cluster", "bar.arrive"],
    "d1-tcgen05": [*TCGEN05, r"tcgen05\.mma\.cta_group::1\.kind::f16", r"tcgen05\.commit\.cta_group::1",
                   r"tcgen05\.ld\.sync\.aligned\.32x32b\.x128"],
    "d1-tcgen05-subtiles": [*TCGEN05, r"tcgen05\.mma\.cta_group::1", r"tcgen05\.ld\.sync\.aligned\.32x32b\.x32"],
    "d2-warp-specialized": [*TCGEN05, r"tcgen05\.mma\.cta_group::1", r"bar\.sync\s+1, 128", "bar.warp.sync"],
    "d3-two-cta": [*TCGEN05, *PAIRS, r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\S*multicast::cluster"],
    "d4-persistent": [*TCGEN05, *PAIRS, r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta",
                      r"fence\.proxy\.async\.shared::cta", r"cp\.async\.bulk\.wait_group\.read"],
    "d4-block-scaled": [*TCGEN05, r"tcgen05\.mma\.cta_group::2\.kind::mxf(8f6f4|4nvf4)\.block_scale",
                        r"tcgen05\.cp\.cta_group::2\.32x128b\.warpx4"],
    "d5-epilogue": [*TCGEN05, r"tcgen05\.mma\.cta_group::2\.kind::f16", r"tcgen05\.ld\.sync\.aligned\.32x32b\.x32",
                    r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta", "fma.rn.f32"],
    "v1-one-tile": ["tcgen05.alloc", "tcgen05.mma.cta_group::1.kind::f16", "tcgen05.commit", "tcgen05.wait::ld",
                    "tcgen05.ld.sync.aligned.32x32b.x128", "tcgen05.dealloc", "fence.proxy.async.shared::cta",
                    "st.global.v4"],
    "v2-k-loop": [r"tcgen05.mma.cta_group::1.kind::f16.*, %p\d+;", "mbarrier.try_wait.parity"],
    "v3-grid": ["%ctaid.y", "tcgen05.relinquish_alloc_permit"],
    "v4-tma": ["cp.async.bulk.tensor.2d.shared::cta.global", "cp.async.bulk.tensor.2d.global.shared::cta",
               "mbarrier.arrive.expect_tx", "cp.async.bulk.wait_group.read"],
    "v7-warp-specialized": [r"bar.sync\s+1, 128", "bar.warp.sync", "tcgen05.fence::before_thread_sync"],
    "v8-two-cta": ["tcgen05.mma.cta_group::2", "tcgen05.commit.cta_group::2.*multicast::cluster", "mapa",
                   "cp.async.bulk.tensor.2d.shared::cluster.*cta_group::2", "mbarrier.arrive.release.cluster",
                   "barrier.cluster.arrive", "barrier.cluster.wait"],
    "v9-two-consumers": ["tcgen05.mma.cta_group::2", "tcgen05.ld.sync.aligned.32x32b.x64", r"bar.sync\s+%r\d+, 128"],
    "cuda-a1-naive": ["fma.rn.f32"],
    "cuda-a2-smem": ["bar.sync", r"st\.shared\.(f|b)32", r"ld\.shared\.(f|b)32", "fma.rn.f32"],
    "cuda-a3-register-tile": ["bar.sync", r"ld\.shared\.v4\.(f|b)32", "fma.rn.f32"],
    "cuda-b1-wmma": [r"wmma\.load\.a\.sync\.aligned\.row\.m16n16k16", r"wmma\.load\.b\.sync\.aligned\.col\.m16n16k16",
                     r"wmma\.mma\.sync\.aligned\.row\.col\.m16n16k16\.f32", r"wmma\.store\.d", "bar.warp.sync"],
    "cuda-b1-wmma-smem": [r"wmma\.mma\.sync\.aligned\.row\.col\.m16n16k16\.f32", "bar.sync", r"st\.shared\.(b|u)16"],
    "cuda-b1-wmma-vectorized": [r"wmma\.mma\.sync", r"ld\.global\.v4", r"st\.shared\.v4", r"st\.global\.v4"],
    "cuda-b2-vectorized-2d": ["mma.sync.aligned.m16n8k16", "ldmatrix.sync.aligned.m8n8.x4", "cp.async.cg",
                              r"cp\.async\.wait_group 2;", r"st\.global\.v4"],
    "cuda-c1-wgmma": [r"wgmma\.mma_async\.sync\.aligned\.m64n128k16\.f32", r"wgmma\.wait_group\.sync\.aligned\s+1;",
                      "cp.async.bulk.tensor.2d.shared::cta.global", "mbarrier.arrive.expect_tx", r"st\.global\.v4"],
    "cuda-d1-tcgen05": [*TCGEN05, r"tcgen05\.mma\.cta_group::1\.kind::f16", r"tcgen05\.commit\.cta_group::1",
                        r"tcgen05\.ld\.sync\.aligned\.32x32b\.x32", "cp.async.bulk.tensor.2d.shared::cta.global"],
    "z2-tmem-lifecycle": [*TCGEN05, r"tcgen05\.st\.sync\.aligned\.32x32b\.x32", r"tcgen05\.wait::st"],
}  # fmt: skip


def compiled(name, arch=None, shape=None, dtype=None, **knobs):
    info = find(name)
    module = load(info)
    config = dataclasses.replace(module.RUNG.config(), **knobs)
    return module.compile(arch or info.archs[0], shape or info.default_shape, dtype or info.dtypes[0], config)


def launches_of(name, shape, dtype, program):
    case = find(name).problem.make(shape, dtype)
    return program.launches(*case.arrays.values())


def launch_of(name, shape, dtype, program):
    (launch,) = launches_of(name, shape, dtype, program)
    return launch


@pytest.mark.parametrize(("name", "arch", "dtype"), MATRIX)
def test_compiles_and_launches(name, arch, dtype):
    info = find(name)
    program = compiled(name, arch, dtype=dtype)
    (module,) = program.modules
    assert re.search(rf"\.target {arch}\b", module.ptx) and module.cubin
    for feature in FEATURES.get(name, ()):
        assert re.search(feature, module.ptx), feature
    launches = launches_of(name, info.default_shape, dtype, program)
    assert launches
    for launch in launches:
        archs.check_launch(archs.find(arch), launch.grid, launch.block, launch.cluster, launch.smem)
        assert residents(launch, arch) >= 1


def residents(launch, arch):
    """CTAs that an SM holds, by the threads, registers and shared memory of the launch."""
    used = cubin.registers(launch.module.cubin, launch.kernel)
    assert used
    return archs.occupancy(archs.find(arch), math.prod(launch.block), used, launch.smem).ctas


@pytest.mark.parametrize("name", ["b5-tma", "b7-warp-specialized", "b8-register-double-buffering"])
def test_two_ctas_fit_on_an_h200_sm(name):
    program = compiled(name, "sm_90a")
    launch = launch_of(name, find(name).default_shape, "fp16", program)
    assert residents(launch, "sm_90a") == 2


def test_dynamic_shapes_share_a_compilation():
    program = compiled("a1-naive-batched", shape=(1, 8, 8, 8))
    assert launch_of("a1-naive-batched", (3, 70, 33, 5), "fp32", program).grid == (2, 3, 3)
    program = compiled("a1-naive-tvm-ffi", shape=(1, 64, 32))
    assert launch_of("a1-naive-tvm-ffi", (100, 64, 32), "fp32", program).grid == (2, 4, 1)


def test_tvm_ffi_checks_its_arrays():
    program = compiled("a1-naive-tvm-ffi", shape=(8, 64, 32))
    case = find("a1-naive-tvm-ffi").problem.make((8, 64, 32), "fp32")
    a, b, c = case.arrays.values()
    with pytest.raises(UsageError):
        program.launches(a, b, c[:4])


def test_persistent_grids_follow_the_sm_count():
    for name in ("a1-naive-persistent", "a1-naive-static-scheduler"):
        program = compiled(name, shape=(256, 256, 32), sm_count=5, ctas_per_sm=2)
        grid = launch_of(name, (256, 256, 32), "fp32", program).grid
        assert grid[0] * grid[1] * grid[2] == 10
    program = compiled("d4-persistent", shape=(2048, 2048, 64), sm_count=14, cluster=(2, 2))
    launch = launch_of("d4-persistent", (2048, 2048, 64), "fp16", program)
    assert launch.grid == (6, 2, 1) and launch.cluster == (2, 2, 1)


def test_a_cluster_reduces_integers_by_remote_atomics_and_floats_by_remote_stores():
    ptx = {dtype: compiled("a0-cluster-reduce", dtype=dtype).modules[0].ptx for dtype in ("int32", "fp32")}
    assert re.search(r"(red|atom)\.\S*shared::cluster\S*\.add", ptx["int32"]) and "st.async" not in ptx["int32"]
    assert "st.async" in ptx["fp32"] and not re.search(r"\t(red|atom)\.", ptx["fp32"])


def test_fp8_fills_the_same_rows_with_twice_the_elements():
    for name, shape in (("c3-persistent", "m64n256k32"), ("c5-ping-pong", "m64n128k32")):
        program = compiled(name, dtype="e4m3")
        assert f"wgmma.mma_async.sync.aligned.{shape}.f32.e4m3.e4m3" in program.modules[0].ptx
        assert (
            launch_of(name, (256, 256, 256), "e4m3", program).smem
            == launch_of(name, (256, 256, 256), "fp16", compiled(name)).smem
        )


def test_the_second_kernel_is_launched_as_a_dependent():
    for overlap in (True, False):
        program = compiled("a1-dependent-launch", shape=(64, 64, 8), overlap=overlap)
        first, second = launches_of("a1-dependent-launch", (64, 64, 8), "fp32", program)
        assert first.kernel != second.kernel and not first.attributes
        assert bool(second.attributes.get("programmatic_stream_serialization")) == overlap


def test_clusters_are_launched():
    program = compiled("c4-multicast", shape=(512, 512, 64), cluster_n=2)
    launch = launch_of("c4-multicast", (512, 512, 64), "fp16", program)
    assert launch.cluster == (4, 1, 1) and launch.grid == (8, 1, 1)
    program = compiled("c4-multicast", shape=(1024, 1024, 64), sm_count=5)
    assert launch_of("c4-multicast", (1024, 1024, 64), "fp16", program).grid == (4, 1, 1)


# What the tensor cores, TMA and multicast are in machine code.
SASS = {
    "c1-wgmma": ["HGMMA.64x128x16.F32", "UTMALDG.2D", "UTMASTG.2D", "WARPGROUP.DEPBAR.LE gsb0, 0x1"],
    "cuda-c1-wgmma": ["HGMMA.64x128x16.F32", "UTMALDG.2D", "WARPGROUP.DEPBAR.LE gsb0, 0x1"],
    "cuda-d1-tcgen05": ["UTCHMMA", "UTCBAR", "LDTM.x32", "UTMALDG.2D", "UTCATOMSWS.FIND_AND_SET", "STG.E.128"],
    "c2-warp-specialized": ["HGMMA.64x256x16.F32", "USETMAXREG.TRY_ALLOC", "USETMAXREG.DEALLOC", "UTMAPF.L2.2D"],
    "c3-persistent": ["HGMMA.64x256x16.F32", "UTMASTG.2D"],
    "c4-multicast": ["HGMMA.64x256x16.F32", "UTMALDG.2D.MULTICAST", "UCGABAR_WAIT"],
    "c8-split-k": ["HGMMA.64x64x16.F32", "UTMALDG.2D", "UBLKCP.S.S", "UTMAPF.L2.2D"],
    "c9-grouped": ["HGMMA.64x128x16.F32", "UTMALDG.2D.MULTICAST", "UTMALDG.3D", "UTMASTG.2D", "VOTE"],
    "c5-ping-pong": ["HGMMA.64x128x16.F32", "UTMALDG.2D", "BAR.ARV"],
}


@pytest.mark.parametrize("name", SASS)
def test_machine_code_holds_what_the_rung_claims(name):
    try:
        text = sass(compiled(name).modules[0].cubin)
    except MissingExtra:
        pytest.skip("no nvdisasm here")
    assert not [opcode for opcode in SASS[name] if opcode not in text]
    assert not re.search(r"\b(STL|LDL)\b", text), "registers are spilled to local memory"


REFUSALS = [
    ("b2-warp-mma", {"shape": (64, 64, 12)}, "K=12"),
    ("b2-warp-mma", {"arch": "sm_70"}, "sm_70"),
    ("b2-warp-mma", {"dtype": "fp32"}, "fp32"),
    ("b2-warp-mma", {"shape": (64, 64)}, "shape"),
    ("b2-warp-mma", {"tile": (128, 128, 48)}, "tile"),
    ("b2-warp-mma", {"tile": (120, 128, 32)}, "tile"),
    ("b2-warp-mma", {"stages": 1}, "stages"),
    ("b2-warp-mma", {"arch": "sm_86", "stages": 7}, "stages"),
    ("b2-warp-mma", {"warps_m": 0}, "warps_m"),
    ("b2-warp-mma", {"raster": 0}, "raster"),
    ("b5-tma", {"shape": (1, 64, 64)}, "M=1"),
    ("b5-tma", {"shape": (64, 60, 64)}, "N=60"),
    ("b5-tma", {"shape": (64, 64, 60)}, "K=60"),
    ("b5-tma", {"arch": "sm_80"}, "sm_80"),
    ("b5-tma", {"arch": "sm_120a", "stages": 4}, "stages"),
    ("b5-tma", {"tile": (128, 96, 64)}, "tile"),
    ("b5-tma", {"tile": (128, 128, 32)}, "tile"),
    ("b6-colwise-scaling", {"shape": (64, 64, 4)}, "K=4"),
    ("b7-warp-specialized", {"shape": (64, 64, 60)}, "K=60"),
    ("b7-warp-specialized", {"consumer_registers": 232}, "consumer_registers"),
    ("b7-warp-specialized", {"consumer_registers": 212}, "consumer_registers"),
    ("b7-warp-specialized", {"ctas_per_sm": 0}, "ctas_per_sm"),
    ("b7-warp-specialized", {"warps_m": 1}, "warps"),
    ("b8-register-double-buffering", {"stages": 20}, "stages"),
    ("d1-tcgen05", {"arch": "sm_90a"}, "sm_90a"),
    ("d1-tcgen05", {"dtype": "fp32"}, "fp32"),
    ("d1-tcgen05", {"shape": (1, 64, 64)}, "M=1"),
    ("d1-tcgen05", {"shape": (64, 1, 64)}, "N=1"),
    ("d1-tcgen05", {"shape": (64, 64, 60)}, "K=60"),
    ("d1-tcgen05", {"tile": (64, 128, 64)}, "tile"),
    ("d1-tcgen05", {"tile": (128, 256, 64)}, "tile"),
    ("d1-tcgen05", {"tile": (128, 128, 32)}, "tile"),
    ("d1-tcgen05", {"stages": 8}, "stages"),
    ("d1-tcgen05", {"stages": 1}, "stages"),
    ("d1-tcgen05-subtiles", {"tile": (128, 272, 64)}, "tile"),
    ("d1-tcgen05-subtiles", {"tile": (128, 96, 64), "subtile": 64}, "subtile"),
    ("d1-tcgen05-subtiles", {"raster": 0}, "raster"),
    ("d2-warp-specialized", {"stages": 5}, "stages"),
    ("d2-warp-specialized", {"subtile": 48}, "subtile"),
    ("d3-two-cta", {"tile": (128, 256, 64)}, "tile"),
    ("d3-two-cta", {"cluster": (1, 2)}, "cluster"),
    ("d3-two-cta", {"cluster": (4, 4)}, "cluster"),
    ("d3-two-cta", {"cluster": (8, 1), "tile": (256, 96, 64)}, "cluster"),
    ("d4-persistent", {"shape": (64, 60, 64)}, "N=60"),
    ("d4-persistent", {"shape": (64, 64, 72), "dtype": "fp8"}, "K=72"),
    ("d4-persistent", {"stages": 7}, "stages"),
    ("d4-persistent", {"buffers": 0}, "buffers"),
    ("d4-persistent", {"sm_count": 7, "cluster": (4, 2)}, "sm_count"),
    ("d4-block-scaled", {"shape": (64, 64, 40)}, "K=40"),
    ("d4-block-scaled", {"shape": (64, 60, 256)}, "N=60"),
    ("d4-block-scaled", {"shape": (64, 64, 64), "dtype": "nvfp4"}, "K=64"),
    ("d4-block-scaled", {"dtype": "fp16"}, "fp16"),
    ("d4-block-scaled", {"k_bytes": 64}, "k_bytes"),
    ("d4-block-scaled", {"stages": 7}, "stages"),
    ("d4-block-scaled", {"stages": 9, "buffers": 1}, "tensor memory"),
    ("d4-block-scaled", {"subtile": 48}, "subtile"),
    ("d4-block-scaled", {"sm_count": 1}, "sm_count"),
    ("v1-one-tile", {"shape": (128, 128, 128)}, "K=128"),
    ("v1-one-tile", {"shape": (256, 128, 64)}, "M=256"),
    ("v1-one-tile", {"arch": "sm_90a"}, "sm_90a"),
    ("v1-one-tile", {"tile": (64, 128, 64)}, "tile"),
    ("v2-k-loop", {"shape": (128, 128, 96)}, "K=96"),
    ("v2-k-loop", {"shape": (128, 256, 64)}, "N=256"),
    ("v2-k-loop", {"tile": (128, 256, 64)}, "tile"),
    ("v3-grid", {"shape": (256, 192, 64)}, "N=192"),
    ("v3-grid", {"shape": (200, 128, 64)}, "M=200"),
    ("v4-tma", {"shape": (1, 64, 64)}, "M=1"),
    ("v4-tma", {"shape": (64, 60, 64)}, "N=60"),
    ("v4-tma", {"tile": (128, 32, 64)}, "tile"),
    ("v5-pipeline", {"shape": (64, 64, 60)}, "K=60"),
    ("v5-pipeline", {"stages": 1}, "stages"),
    ("v5-pipeline", {"stages": 7}, "stages"),
    ("v6-persistent", {"sm_count": 0}, "sm_count"),
    ("v6-persistent", {"raster": 0}, "raster"),
    ("v7-warp-specialized", {"ctas_per_sm": 0}, "ctas_per_sm"),
    ("v7-warp-specialized", {"dtype": "fp32"}, "fp32"),
    ("v8-two-cta", {"sm_count": 1}, "sm_count"),
    ("v8-two-cta", {"tile": (128, 256, 64)}, "tile"),
    ("v8-two-cta", {"stages": 7}, "stages"),
    ("v9-two-consumers", {"tile": (512, 32, 64)}, "tile"),
    ("v9-two-consumers", {"stages": 5}, "stages"),
    ("a0-vector-add", {"shape": (0,)}, "N=0"),
    ("a0-vector-add", {"vector_bytes": 3}, "vector_bytes"),
    ("a0-vector-add", {"threads": 2000}, "threads"),
    ("a1-naive-cuda-like", {"block_m": 64}, "block_m"),
    ("a1-naive-cute", {"tile": (30, 32, 8)}, "tile"),
    ("a1-naive-batched", {"shape": (70000, 8, 8, 8)}, "L=70000"),
    ("a1-naive-persistent", {"sm_count": 0}, "sm_count"),
    ("a2-smem-padded", {"tile": (64, 64, 15)}, "tile"),
    ("a2-smem-padded", {"pad_bytes": 3}, "pad_bytes"),
    ("a2-smem-swizzled", {"shape": (64, 64, 30)}, "K=30"),
    ("a2-smem-pipeline", {"arch": "sm_80"}, "sm_80"),
    ("a2-smem-pipeline", {"producers": 40}, "producers"),
    ("a2-smem-pipeline", {"stages": 40}, "stages"),
    ("a0-cluster-reduce", {"cluster": 16}, "cluster"),
    ("a0-cluster-reduce", {"threads": 100}, "threads"),
    ("a0-cluster-reduce", {"arch": "sm_80"}, "sm_80"),
    ("a0-cluster-reduce", {"shape": (70000, 8)}, "M=70000"),
    ("a1-cluster-launch-control", {"arch": "sm_90a"}, "sm_90a"),
    ("a1-cluster-launch-control", {"tile": (30, 32, 8)}, "tile"),
    ("a1-dependent-launch", {"arch": "sm_80"}, "sm_80"),
    ("a1-dependent-launch", {"dtype": "fp16"}, "fp16"),
    ("a1-dependent-launch", {"block_m": 64}, "block_m"),
    ("a1-grouped", {"shape": (4, 64, 64)}, "shape"),
    ("a1-grouped", {"tile": (30, 32, 8)}, "tile"),
    ("a1-grouped", {"sm_count": 0}, "sm_count"),
    ("c1-wgmma", {"arch": "sm_100a"}, "sm_100a"),
    ("c1-wgmma", {"shape": (1, 64, 64)}, "M=1"),
    ("c1-wgmma", {"shape": (64, 60, 64)}, "N=60"),
    ("c1-wgmma", {"tile": (64, 128, 64)}, "tile"),
    ("c1-wgmma", {"tile": (128, 256, 64)}, "tile"),
    ("c1-wgmma", {"tile": (128, 0, 64)}, "tile"),
    ("c1-wgmma", {"warpgroups": 0}, "warpgroups"),
    ("c1-wgmma", {"stages": 8}, "stages"),
    ("c2-warp-specialized", {"shape": (64, 64, 60)}, "K=60"),
    ("c2-warp-specialized", {"consumer_registers": 240}, "consumer_registers"),
    ("c2-warp-specialized", {"tile": (256, 256, 64), "stages": 2}, "tile"),
    ("c2-warp-specialized", {"ctas_per_sm": 9}, "ctas_per_sm"),
    ("c3-persistent", {"c_stages": 3}, "c_stages"),
    ("c3-persistent", {"c_stages": 4}, "c_stages"),
    ("c3-persistent", {"sm_count": 0}, "sm_count"),
    ("c6-epilogue", {"c_stages": 3}, "c_stages"),
    ("c6-epilogue", {"raster": 0}, "raster"),
    ("c8-split-k", {"shape": (4, 64, 60)}, "K=60"),
    ("c8-split-k", {"tile": (96, 64, 128)}, "N must be a multiple of 64"),
    ("c8-split-k", {"tile": (64, 64, 96)}, "K must be a multiple of 64"),
    ("c8-split-k", {"tile": (64, 512, 64)}, "1 to 256"),
    ("c8-split-k", {"tile": (256, 256, 64)}, "accumulators"),
    ("c8-split-k", {"tile": (64, 20, 64)}, "passes"),
    ("c8-split-k", {"passes": 3}, "passes"),
    ("c8-split-k", {"share": 3}, "share"),
    ("c8-split-k", {"split": 9}, "split"),
    ("c8-split-k", {"stages": 7}, "stages"),
    ("c8-split-k", {"ctas_per_sm": 0}, "ctas_per_sm"),
    ("c8-split-k", {"sm_count": 1}, "sm_count"),
    ("c8-split-k", {"warpgroups": 5}, "warpgroups"),
    ("c2-warp-specialized", {"ahead": -1}, "ahead"),
    ("c2-warp-specialized", {"ctas_per_sm": 2}, "consumer_registers"),
    ("c3-persistent", {"dtype": "e4m3", "shape": (64, 64, 24)}, "multiple of 16"),
    ("c9-grouped", {"shape": (4, 64, 60, 64)}, "N=60"),
    ("c9-grouped", {"shape": (4, 64, 64, 60)}, "K=60"),
    ("c9-grouped", {"sm_count": 1}, "sm_count"),
    ("c9-grouped", {"split": "k"}, "split"),
    ("c9-grouped", {"tile": (128, 96, 64)}, "tile"),
    ("c9-grouped", {"tile": (64, 128, 64), "split": "m"}, "tile"),
    ("c9-grouped", {"tile": (128, 64, 64), "split": "n"}, "tile"),
    ("c9-grouped", {"stages": 8}, "stages"),
    ("c4-multicast", {"cluster_m": 3}, "cluster_m"),
    ("c4-multicast", {"cluster_m": 1}, "cluster_m"),
    ("c4-multicast", {"cluster_m": 4, "cluster_n": 4}, "cluster_n"),
    ("c4-multicast", {"sm_count": 1}, "sm_count"),
    ("c5-ping-pong", {"tile": (96, 128, 64)}, "tile"),
    ("c5-ping-pong", {"tile": (128, 256, 64), "stages": 4}, "tile"),
    ("c5-ping-pong", {"stages": 7}, "stages"),
    ("c5-ping-pong", {"dtype": "e4m3", "shape": (64, 64, 24)}, "multiple of 16"),
    ("c7-fused-ping-pong", {"tile": (128, 160, 64), "stages": 4}, "B's N is contiguous"),
    ("c7-fused-ping-pong", {"tile": (128, 192, 64), "stages": 4}, "cluster_m"),
    ("c7-fused-ping-pong", {"tile": (128, 256, 64), "stages": 2}, "accumulators"),
    ("c7-fused-ping-pong", {"c_stages": 0}, "c_stages"),
    ("c7-fused-ping-pong", {"stages": 7}, "stages"),
    ("z0-swizzle", {"shape": (64, 96)}, "cols=96"),
    ("z0-swizzle", {"rows": 12}, "rows"),
    ("z1-tv-to-mn", {"shape": (8, 8)}, "shape"),
    ("z2-tmem-lifecycle", {"shape": (64, 30)}, "cols=30"),
    ("z2-tmem-lifecycle", {"columns": 48}, "columns"),
    ("z2-tmem-lifecycle", {"repeat": 128}, "repeat"),
    ("cuda-a1-naive", {"block_m": 64}, "block_m"),
    ("cuda-a1-naive", {"unroll": 0}, "unroll"),
    ("cuda-a1-naive", {"dtype": "e4m3"}, "e4m3"),
    ("cuda-a2-smem", {"tile": 64}, "tile=64"),
    ("cuda-a3-register-tile", {"tile": (128, 100, 16)}, "tile"),
    ("cuda-a3-register-tile", {"tile": (256, 256, 16)}, "threads"),
    ("cuda-a3-register-tile", {"tile": (128, 128, 64)}, "shared memory"),
    ("cuda-b1-wmma", {"dtype": "fp32"}, "fp32"),
    ("cuda-b1-wmma", {"warps_m": 40}, "warps_m"),
    ("cuda-b1-wmma-smem", {"tile": (64, 48, 32)}, "tile"),
    ("cuda-b1-wmma-smem", {"tile": (64, 64, 24)}, "tile"),
    ("cuda-b1-wmma-smem", {"tile": (256, 128, 32)}, "sums"),
    ("cuda-b1-wmma-vectorized", {"shape": (64, 64, 60)}, "K=60"),
    ("cuda-b1-wmma-vectorized", {"tile": (128, 128, 128)}, "shared memory"),
    ("cuda-b2-vectorized-2d", {"shape": (64, 64, 60)}, "K=60"),
    ("cuda-b2-vectorized-2d", {"tile": (128, 128, 48)}, "tile"),
    ("cuda-b2-vectorized-2d", {"arch": "sm_86", "stages": 7}, "stages"),
    ("cuda-b2-vectorized-2d", {"stages": 1}, "stages"),
    ("cuda-b2-vectorized-2d", {"raster": 0}, "raster"),
    ("cuda-c1-wgmma", {"arch": "sm_100a"}, "sm_100a"),
    ("cuda-c1-wgmma", {"shape": (64, 64, 60)}, "K=60"),
    ("cuda-c1-wgmma", {"tile": (64, 128, 64)}, "tile"),
    ("cuda-c1-wgmma", {"tile": (128, 192, 64)}, "tile"),
    ("cuda-c1-wgmma", {"tile": (128, 256, 64)}, "ctas_per_sm"),
    ("cuda-c1-wgmma", {"stages": 8}, "stages"),
    ("cuda-c1-wgmma", {"warpgroups": 5}, "warpgroups"),
    ("cuda-d1-tcgen05", {"arch": "sm_90a"}, "sm_90a"),
    ("cuda-d1-tcgen05", {"shape": (64, 64, 60)}, "K=60"),
    ("cuda-d1-tcgen05", {"tile": (64, 128, 64)}, "tile"),
    ("cuda-d1-tcgen05", {"tile": (128, 96, 64)}, "tile"),
    ("cuda-d1-tcgen05", {"tile": (128, 128, 128)}, "tile"),
    ("cuda-d1-tcgen05", {"stages": 8}, "stages"),
]


@pytest.mark.parametrize(("name", "request_", "named"), REFUSALS)
def test_refusals_name_the_argument(name, request_, named):
    with pytest.raises(UsageError) as refusal:
        compiled(name, **request_)
    assert named in str(refusal.value) and "\n" not in str(refusal.value)
