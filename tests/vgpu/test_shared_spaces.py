"""Which part of shared memory an instruction reaches: .shared and .shared::cta the CTA's own, .shared::cluster any.

An H200 stops with "illegal instruction" at ld, st and atom of .shared::cta with another CTA's address. The first KB of
the window is the system's.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from tensorladder import vgpu
from tensorladder.core.errors import KernelError, UsageError

_TX = "mbarrier::complete_tx::bytes"


def launch(body: str, cluster: int = 2, policy: str = "eager", target: str = "sm_90a") -> np.ndarray:
    """Run `body` in CTAs of a warp; %peer: the place of `mem` in the other CTA, %far: its generic address."""
    out = np.zeros(64, np.uint32)
    text = f""".version 8.7
.target {target}
.address_size 64
.visible .entry k(.param .u64 p) {{
  .shared .align 128 .b8 mem[1024];
  .reg .b32 %r<8>, %rank, %to, %own, %peer; .reg .b64 %out, %far; .reg .pred %q<4>;
  ld.param.u64 %out, [p]; mov.u32 %rank, %cluster_ctarank; xor.b32 %to, %rank, 1; mov.u32 %own, mem;
  mapa.shared::cluster.u32 %peer, %own, %to; cvt.u64.u32 %far, %peer; cvta.shared::cluster.u64 %far, %far;
  mov.u32 %r0, 5; st.shared.u32 [mem], %r0; mbarrier.init.shared::cta.b64 [mem+512], 1;
  barrier.cluster.arrive; barrier.cluster.wait;
  {body}
  barrier.cluster.arrive; barrier.cluster.wait;
  ret;
}}
"""
    device = vgpu.Device(target, policy, timeout=20)
    vgpu.launch(text, "k", cluster, 32, [out], cluster=cluster, device=device)
    return out


OWN_ALONE = [
    "ld.shared.u32 %r1, [%peer];",
    "ld.shared::cta.v4.u32 {%r1, %r2, %r3, %r4}, [%peer];",
    "ld.shared.u32 %r1, [%peer]; ld.shared.u32 %r2, [%peer+4];",
    "st.shared.u32 [%peer], %r0;",
    "atom.shared.add.u32 %r1, [%peer], 1;",
    "red.shared::cta.add.u32 [%peer], 1;",
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%peer];",
    "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%peer], {%r1};",
    "cp.async.ca.shared.global [%peer], [%out], 4;",
    "cp.async.bulk.global.shared::cta.bulk_group [%out], [%peer], 16;",
    f"cp.async.bulk.shared::cta.global.{_TX} [%peer], [%out], 16, [mem+512];",
    f"cp.async.bulk.shared::cluster.shared::cta.{_TX} [%peer], [%peer], 16, [mem+512];",
]


@pytest.mark.parametrize("policy", ["eager", "lazy", "random:1"])
@pytest.mark.parametrize("text", OWN_ALONE)
def test_the_own_part_alone(text: str, policy: str) -> None:
    with pytest.raises(KernelError, match=r"another CTA's \(rank [01] of the cluster.*PTX line 11") as caught:
        launch(text, policy=policy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [*OWN_ALONE[:8], "mbarrier.try_wait.parity.shared::cta.b64 %q0, [%peer+512], 1;"])
def test_the_own_address_carries_the_rank(text: str) -> None:
    launch(text.replace("%peer", "%own"))


@pytest.mark.parametrize("text", [
    "ld.shared::cluster.u32 %r1, [%peer];", "ld.u32 %r1, [%far];", "atom.shared::cluster.exch.b32 %r1, [%peer], 5;",
])  # fmt: skip
def test_any_part_of_the_cluster(text: str) -> None:
    assert (launch(text + " st.global.u32 [%out], %r1;")[0]) == 5


def test_isspacep_tells_the_own_part_from_the_others() -> None:
    bits = [("shared", 1), ("shared::cta", 2), ("shared::cluster", 4), ("global", 8)]
    ask = " ".join(
        f"isspacep.{space} %q0, %far; selp.u32 %r2, {bit}, 0, %q0; or.b32 %r1, %r1, %r2;" for space, bit in bits
    )
    store = "st.global.u32 [%out], %r1;"
    assert launch(f"mov.u32 %r1, 0; {ask} {store}")[0] == 4
    own = "cvt.u64.u32 %far, %own; cvta.shared.u64 %far, %far;"
    assert launch(f"{own} mov.u32 %r1, 0; {ask} {store}")[0] == 7
    assert launch(f"mov.u64 %far, %out; mov.u32 %r1, 0; {ask} {store}")[0] == 8


# ---------------------------------------------------------------- targets
@pytest.mark.parametrize("text, target, needed", [
    ("wgmma.fence.sync.aligned;", "sm_100a", "sm_90a"),
    ("wgmma.fence.sync.aligned;", "sm_90", "sm_90a"),
    ("tcgen05.fence::before_thread_sync;", "sm_90a", "sm_100a or"),
    ("tcgen05.fence::before_thread_sync;", "sm_120a", "sm_100a or"),
    ("clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r1, %r2;", "sm_90a", "sm_100 or later"),
])  # fmt: skip
def test_an_instruction_of_another_architecture_is_refused_as_ptxas_does(text: str, target: str, needed: str) -> None:
    with pytest.raises(UsageError, match=rf"PTX line 11: \S+ needs \.target {needed}.*this module says {target}$"):
        launch(text, target=target)


def test_clusters_need_sm_90() -> None:
    with pytest.raises(UsageError, match=r"needs \.target sm_90 or later; this module says sm_80"):
        launch("", cluster=1, target="sm_80")


@pytest.mark.parametrize("text", ["cp.async.wait_group -1;", "cp.async.bulk.wait_group.read -1;",
                                  "wgmma.wait_group.sync.aligned -1;", "cp.async.wait_group %r0;"])  # fmt: skip
def test_a_count_of_groups_is_an_immediate_from_0_on(text: str) -> None:
    with pytest.raises(UsageError, match=r"PTX line 11: .*wants one count of groups, an immediate from 0 on"):
        launch(text)
