"""The hazard checker on what orders threads beside barriers: scopes, proxies of global memory, launches, lanes."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from tensorladder import vgpu
from tensorladder.core.findings import Report, Verdict
from tensorladder.core.tensormap import TensorMap, encode
from tests.vgpu.test_check import FENCE, FILL, HEAD, INIT, MINE, READ, STORE, SYNC, check, errors, init, kinds, wait
from tests.vgpu.test_dependent import TRIGGER, WAIT, Chain, stage

# ---------------------------------------------------------------- scopes
#: CTA 0 writes and sets a flag, CTA 1 polls the flag and reads
FLAG = """mov.u32 %r6, %ctaid.x; setp.eq.u32 %p2, %r6, 0; add.u64 %rd3, %rd0, 512; @!%p2 bra SECOND;
    @%p0 st.global.u32 [%rd0], 7; {before} @%p0 st.{write}.global.u32 [%rd3], 1; bra OUT;
    SECOND: @!%p0 bra OUT;
    SPIN: ld.{read}.global.u32 %r7, [%rd3]; setp.eq.u32 %p3, %r7, 0; @%p3 bra SPIN; {after}
    ld.global.u32 %r5, [%rd0]; OUT:"""
GPU, CTA, CLUSTER = "fence.acq_rel.gpu;", "fence.acq_rel.cta;", "fence.acq_rel.cluster;"
# (fence before the flag, how it is written, how it is read, fence after it, kinds that are found)
PATTERNS = [
    (GPU, "relaxed.gpu", "acquire.gpu", "", ""),
    ("", "release.gpu", "relaxed.gpu", GPU, ""),
    ("membar.gl;", "volatile", "volatile", "membar.gl;", ""),
    ("", "release.gpu", "relaxed.gpu", "bar.warp.sync 1;", ""),
    (CTA, "relaxed.gpu", "acquire.gpu", "", "scope"),
    ("membar.cta;", "volatile", "acquire.gpu", "", "scope"),
    (CLUSTER, "relaxed.gpu", "acquire.gpu", "", "scope"),
    ("", "release.cta", "acquire.gpu", "", "scope"),
    (GPU, "relaxed.gpu", "acquire.cta", "", "scope"),
    (GPU, "relaxed.cta", "acquire.gpu", "", "scope"),
    (GPU, "relaxed.gpu", "relaxed.gpu", CTA, "scope"),
    (GPU, "relaxed.gpu", "relaxed.gpu", "", "race"),
    ("", "volatile", "volatile", GPU, "race"),
]


@pytest.mark.parametrize(("before", "write", "read", "after", "kind"), PATTERNS)
def test_a_flag_orders_what_its_fences_and_scopes_cover(before, write, read, after, kind) -> None:
    report = check(FLAG.format(before=before, write=write, read=read, after=after), grid=2)
    assert errors(report) == set(kind.split()), "\n".join(map(str, report.findings))


def test_a_scope_may_be_as_narrow_as_its_threads() -> None:
    """Two CTAs of a cluster; lane 0 of two warps of a CTA."""
    body = FLAG.format(before=CLUSTER, write="relaxed.cluster", read="acquire.cluster", after="")
    assert check(body, grid=2, cluster=2).verdict is Verdict.CLEAN
    of_warps = "and.b32 %r9, %r0, 31; setp.eq.u32 %p0, %r9, 0; shr.u32 %r6, %r0, 5;"
    assert check(body.replace("mov.u32 %r6, %ctaid.x;", of_warps).replace("cluster", "cta")).verdict is Verdict.CLEAN


def test_the_instruction_of_narrow_scope_is_named() -> None:
    (found,) = check(FLAG.format(before=CTA, write="relaxed.gpu", read="acquire.gpu", after=""), grid=2).findings
    assert "fence.acq_rel.cta (PTX line 12) would order the two CTAs" in found.message


def test_atomics_of_cta_scope_are_for_one_cta() -> None:
    assert errors(check("@%p0 red.relaxed.cta.global.add.u32 [%rd0], 1;", grid=2)) == {"scope"}
    assert check("red.relaxed.cta.global.add.u32 [%rd0], 1;").verdict is Verdict.CLEAN


# ---------------------------------------------------------------- proxies of global memory
FENCED_INIT = init(1).replace(SYNC, "fence.mbarrier_init.release.cluster;" + SYNC)
WRITE = "st.global.u32 [%rd1], %r0;"
COMPLETE = "@%p0 cp.async.bulk.wait_group 0;"
ADD = STORE.replace("cp.async.bulk.", "cp.reduce.async.bulk.", 1).replace(".bulk_group", ".bulk_group.add.u32", 1)
LOAD_OUT = "@%p0 ld.global.u32 %r5, [%rd2];"
ZERO = "st.global.u32 [%rd1+1024], 0;"
# (what happens, body, kinds that are found)
PROXIES = [
    ("no fence", FENCED_INIT + WRITE + SYNC + FILL + wait(0), "missing-proxy-fence"),
    ("no fence, one thread", FENCED_INIT + "@%p0 " + WRITE + FILL + wait(0), "missing-proxy-fence"),
    ("a fence of shared memory", FENCED_INIT + WRITE + FENCE + SYNC + FILL + wait(0), "missing-proxy-fence"),
    ("a fence", FENCED_INIT + WRITE + "fence.proxy.async.global;" + SYNC + FILL + wait(0), ""),
    ("a fence by the reader", FENCED_INIT + WRITE + SYNC + "fence.proxy.async;" + FILL + wait(0), ""),
    ("a fence and no barrier", FENCED_INIT + WRITE + "fence.proxy.async;" + FILL + wait(0), "race"),
    ("a store that has been read", MINE + FENCE + SYNC + STORE + READ + LOAD_OUT, "missing-wait"),
    ("a store that is complete", MINE + FENCE + SYNC + STORE + COMPLETE + LOAD_OUT, ""),
    ("a sum over plain writes", ZERO + MINE + FENCE + SYNC + ADD + READ, "missing-proxy-fence"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "kind"), [pytest.param(*p[1:], id=p[0]) for p in PROXIES])
def test_the_async_proxy_sees_global_memory_after_its_fence(body, kind) -> None:
    for policy in ("eager", "lazy"):
        report = check(body, policy=policy)
        assert kinds(report) == set(kind.split()), "\n".join(map(str, report.findings))


# ---------------------------------------------------------------- tensor maps
MAPPED = HEAD.replace(".param .u64 out)", ".param .u64 out, .param .u64 map)") + (
    "ld.param.u64 %rd8, [map]; .shared .align 128 .b8 own[128]; mov.u32 %r11, own; add.u64 %rd4, %rd0, 256;"
)
RELEASE = "fence.proxy.tensormap::generic.release.gpu;"
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [%rd8], 128;"
OTHER = "fence.proxy.tensormap::generic.acquire.gpu [%rd0], 128;"
IN_PLACE = "@%p0 tensormap.replace.tile.global_address.global.b1024.b64 [%rd8], %rd4;"
IN_SHARED = """setp.lt.u32 %p4, %r0, 32; @!%p4 bra NO; cvt.u64.u32 %rd5, %r1; add.u64 %rd5, %rd5, %rd8;
    add.u32 %r13, %r11, %r1; ld.global.u32 %r14, [%rd5]; st.shared.u32 [%r13], %r14; bar.warp.sync -1;
    @%p0 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r11], %rd4; bar.warp.sync -1; {publish} NO:"""
PUBLISH = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd8], [%r11], 128;"
COPY_MAP = "ld.shared.u32 %r14, [%r13]; st.global.u32 [%rd5], %r14;"
MAPS = [
    ("unchanged", "", "", ""),
    ("changed in place", IN_PLACE + RELEASE, ACQUIRE, ""),
    ("published", IN_SHARED.format(publish=PUBLISH), ACQUIRE, ""),
    ("not acquired", IN_PLACE + RELEASE, "", "missing-proxy-fence"),
    ("published and not acquired", IN_SHARED.format(publish=PUBLISH), "", "missing-proxy-fence"),
    ("another one acquired", IN_PLACE + RELEASE, OTHER, "missing-proxy-fence"),
    ("not released", IN_PLACE, ACQUIRE, "missing-proxy-fence"),
    ("copied by stores", IN_SHARED.format(publish=COPY_MAP), ACQUIRE, "missing-proxy-fence"),
]


def _aligned(size: int) -> np.ndarray:
    raw = np.zeros(size + 128, np.uint8)
    return raw[-raw.ctypes.data % 128 :][:size]


def check_map(edit: str, acquire: str) -> Report:
    out, tensor_map = _aligned(16384).view(np.uint32), _aligned(128)
    made = TensorMap(out.ctypes.data, "u32", 2, (64, 4), (256,), (64, 1), (1, 1))
    tensor_map[:] = np.frombuffer(encode(made), np.uint8)
    load = f"""{edit} bar.sync 0; @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 256; {acquire}
        @%p0 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%rd8, {{0, 0}}],
        [%r10];"""
    text = MAPPED + FENCED_INIT + load + wait(0) + "\nret;\n}\n"
    return vgpu.check(text, "kernel", 1, 64, [out, tensor_map], timeout=60)


@pytest.mark.parametrize(("edit", "acquire", "kind"), [pytest.param(*m[1:], id=m[0]) for m in MAPS])
def test_a_changed_tensor_map_is_released_and_acquired(edit, acquire, kind) -> None:
    report = check_map(edit, acquire)
    assert kinds(report) == set(kind.split()), "\n".join(map(str, report.findings))


# ---------------------------------------------------------------- launches that overlap
# (launches, whether they are right)
CHAINS = {
    "all wait": (Chain([stage("a"), stage("b"), stage("c")]), True),
    "no trigger": (Chain([stage("a", first=""), stage("b", first="")]), True),
    "no wait": (Chain([stage("a"), stage("b", first="")]), False),
    "a wait after the read": (Chain([stage("a"), stage("b", first="", then=WAIT)]), False),
    "a trigger after the store": (Chain([stage("a", first=WAIT, then=TRIGGER), stage("b", first="")]), False),
    "the launch but one before": (
        Chain([stage("a"), stage("b", first=TRIGGER, delay=1), stage("c", first="")], reads=(0, 0, 1)), False
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_a_launch_waits_for_the_one_before_whose_memory_it_uses(name) -> None:
    """Under the eager policy too, where launches follow each other: the result is right by luck."""
    chain, right = CHAINS[name]
    checker = vgpu.Checker()
    chain.run("eager", checker=checker)
    report = checker.report(name)
    assert errors(report) == (set() if right else {"race"}), "\n".join(map(str, report.findings))
    if not right:
        assert "of kernel a" in report.findings[0].message and "griddepcontrol.wait" in report.findings[0].fix


# ---------------------------------------------------------------- arrivals of CTA scope
def test_an_arrival_of_cta_scope_hands_nothing_to_another_cta() -> None:
    body = INIT.format(count=64) + """@%p0 fence.mbarrier_init.release.cluster; mov.u32 %r6, %cluster_ctarank;
        setp.eq.u32 %p2, %r6, 0; st.shared.u32 [%r3], %r0; barrier.cluster.arrive; barrier.cluster.wait; @%p2 bra FIRST;
        mapa.shared::cluster.u32 %r7, %r3, 0; ld.shared::cluster.u32 %r5, [%r7]; mapa.shared::cluster.u32 %r7, %r10, 0;
        mbarrier.arrive.release.{scope}.shared::cluster.b64 _, [%r7]; bra OUT;
        FIRST: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r10], 0; @!%p1 bra FIRST;
        st.shared.u32 [%r3], 5; OUT: barrier.cluster.arrive; barrier.cluster.wait;"""  # fmt: skip
    assert check(body.replace("{scope}", "cluster"), grid=2, cluster=2).verdict is Verdict.CLEAN
    assert errors(check(body.replace("{scope}", "cta"), grid=2, cluster=2)) == {"scope"}
    assert check(body.replace("release.{scope}.", ""), grid=2, cluster=2).verdict is Verdict.CLEAN  # as CUTLASS does
    # a read after the arrival is a race whatever the scope
    read = "mapa.shared::cluster.u32 %r9, %r3, 0; ld.shared::cluster.u32 %r5, [%r9];"
    late = body.replace("_, [%r7]; bra OUT;", "_, [%r7]; " + read + " bra OUT;")
    first, _, rest = late.partition("mapa.shared::cluster.u32 %r7, %r3, 0; ld.shared::cluster.u32 %r5, [%r7];")
    assert rest and errors(check((first + rest).replace("{scope}", "cta"), grid=2, cluster=2)) == {"race"}


# ---------------------------------------------------------------- lanes of one warp
NEXT = "add.u32 %r4, %r1, 4; and.b32 %r4, %r4, 127; add.u32 %r4, %r4, %r2; ld.shared.u32 %r5, [%r4];"  # the next lane's
LEAD = "@%p0 st.shared.u32 [%r2], 5; "
ALL = "ld.shared.u32 %r5, [%r2];"
MET = "bar.warp.sync -1;"
SHUFFLE = "shfl.sync.bfly.b32 %r6, %r0, 1, 31, -1;"
HALVES = """setp.lt.u32 %p4, %r0, 16; @!%p4 bra B; st.shared.u32 [%r3], %r0; {first} bra JOIN;
    B: {second} add.u32 %r4, %r3, -64; ld.shared.u32 %r5, [%r4]; JOIN:"""
MATRIX = """shl.b32 %r4, %r0, 4; add.u32 %r4, %r4, %r2;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r5, %r6, %r7, %r8}, [%r4];"""
ONE = "@%p0 ld.shared.u32 %r5, [%r2+4]; setp.eq.u32 %p4, %r0, 1;"  # lane 0 reads what lane 1 writes
OTHERS = "setp.gt.u32 %p6, %r0, 15; @%p6 shfl.sync.bfly.b32 %r6, %r0, 1, 31, 0xffff0000;"
# (what happens, body, kinds of errors, kinds for review)
LANES = [
    ("lockstep", MINE + NEXT, "race", ""),
    ("a shuffle", MINE + SHUFFLE + NEXT, "race", ""),
    ("an election", MINE + "elect.sync %r6|%p5, -1;" + NEXT, "race", ""),
    ("a fence", MINE + "fence.acq_rel.cta;" + NEXT, "race", ""),
    ("bar.warp.sync", MINE + MET + NEXT, "", ""),
    ("a barrier", MINE + SYNC + NEXT, "", ""),
    ("reads, then a write", NEXT + MINE, "", "race"),
    ("a read of one lane, then another lane's write", ONE + "@%p4 " + MINE, "race", ""),
    ("a read of one lane, a shuffle, another lane's write", ONE + SHUFFLE + "@%p4 " + MINE, "", "race"),
    ("a read of one lane, a shuffle of others", ONE + OTHERS + "@%p4 " + MINE, "race", ""),
    ("reads, then a write after bar.warp.sync", MINE + MET + NEXT + MET + MINE, "", ""),
    ("one lane's value", LEAD + ALL, "race", ""),
    ("one lane's value after bar.warp.sync", LEAD + MET + ALL, "", ""),
    ("volatile", MINE.replace("st", "st.volatile") + NEXT.replace("ld", "ld.volatile"), "", ""),
    ("own words", MINE + "ld.shared.u32 %r5, [%r3]; st.shared.u32 [%r3], %r5;", "", ""),
    ("a matrix", MINE + MATRIX, "", "race"),
    ("halves that do not meet", HALVES.format(first="", second=""), "race", ""),
    ("halves that meet", HALVES.format(first=MET, second=MET), "", ""),
    ("halves that meet among themselves", HALVES.format(first="bar.warp.sync 0xffff;", second=""), "race", ""),
    ("global memory", "st.global.u32 [%rd1], %r0; @%p0 ld.global.u32 %r5, [%rd1+8];", "race", ""),
    ("one word, different values", "st.shared.u32 [%r2], %r0;", "race", ""),
    ("one word, the same value", "st.shared.u32 [%r2], 7;", "", ""),
    ("one word, atomically", "atom.shared.exch.b32 %r5, [%r2], %r0;", "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("body", "wrong", "review"), [pytest.param(*c[1:], id=c[0]) for c in LANES])
def test_lanes_of_a_warp_are_ordered_by_bar_warp_sync(body, wrong, review) -> None:
    report = check(body, block=32)
    assert errors(report) == set(wrong.split()), "\n".join(map(str, report.findings))
    if review:
        assert review in kinds(report)


def test_lanes_that_collide_are_named() -> None:
    found = next(f for f in check(LEAD + ALL, block=32).findings if f.kind == "race")
    assert "ld.shared.u32 by lane 1 and st.shared.u32 by lane 0 of the same warp" in found.message
    assert "__syncwarp" in found.fix
    found = next(f for f in check("st.shared.u32 [%r2], %r0;", block=32).findings if f.kind == "race")
    assert "different values of lanes 0 and 1" in found.message
