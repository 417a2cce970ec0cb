"""Barriers of a CTA, a warp and a cluster, fences, nanosleep: what they order, and what they refuse."""

from __future__ import annotations

import numpy as np

from tests.vgpu.ptx_kernels import Case, cases_test, compare, expected, ptx_of, run

N = 256
U32 = np.uint32
IDX = np.arange(N, dtype=U32)
TILE = ".shared .align 4 .b32 tile[256];\n.reg .b32 %me, %base, %at, %v, %k; .reg .pred %q, %z; mov.u32 %base, tile;\n"
TILE += "mov.u32 %me, %tid.x; mad.lo.u32 %at, %me, 4, %base;\n"


def values(name, body, reference, outputs=None, **options):
    """A case without inputs."""
    options = {"n": N, "block": N} | options
    return Case(name, body, {}, outputs or {"d": "u32"}, reference, **options)


#: the value of the thread at the other end of the CTA, through shared memory
_REVERSE = "sub.u32 %k, {last}, %me; mad.lo.u32 %k, %k, 4, %base; ld.shared.u32 %d, [%k];"


def reverse(name, sync, block=N, **options):
    body = TILE + f"st.shared.u32 [%at], %idx;\n{sync}\n" + _REVERSE.format(last=block - 1)
    grid = np.arange(2 * block, dtype=U32)
    want = (grid // block * block + block - 1 - grid % block).astype(U32)
    return values(name, body, lambda: want, n=2 * block, block=block, **options)


REVERSE = [
    reverse("bar.sync", "bar.sync 0;"),
    reverse("bar.cta.sync with count", "bar.cta.sync 5, 256;"),
    reverse("barrier.sync", "barrier.sync 15;"),
    reverse("barrier.cta.sync.aligned register", "mov.u32 %k, 3; mov.u32 %v, 256;\nbarrier.cta.sync.aligned %k, %v;"),
    reverse("bar.sync 33 threads", "bar.sync 0;", block=33),
    reverse("bar.sync one thread", "bar.sync 1;", block=1),
    reverse("bar.sync 100 threads", "bar.sync 0, 128;", block=100),
    reverse("twice, other order", "bar.sync 0; bar.sync 0;\nbar.sync 1; bar.sync 0;"),
    reverse(
        "barrier.sync in both branches",
        "and.b32 %k, %me, 1; setp.eq.u32 %q, %k, 0; @%q bra EVEN;\n"
        "barrier.sync 2; bra JOIN;\nEVEN: barrier.sync 2;\nJOIN:",
    ),
    reverse("cluster of one", "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;"),
    reverse("cluster of two", "barrier.cluster.arrive;\nbarrier.cluster.wait;", cluster=2),
]

_SEVEN = (IDX % 7 == 0).astype(U32)
REDUCTIONS = [
    values(
        "bar.red.popc",
        ".reg .b32 %k; .reg .pred %q;\nrem.u32 %k, %idx, 7; setp.eq.u32 %q, %k, 0;\nbar.red.popc.u32 %d, 0, %q;",
        lambda: np.full(N, _SEVEN.sum(), U32),
    ),
    values(
        "barrier.cta.red.popc count, negated",
        ".reg .b32 %k; .reg .pred %q;\nrem.u32 %k, %idx, 7; setp.eq.u32 %q, %k, 0;\n"
        "barrier.cta.red.popc.aligned.u32 %d, 3, 256, !%q;",
        lambda: np.full(N, N - _SEVEN.sum(), U32),
    ),
    values(
        "bar.red.and, or in a loop",
        """.reg .b32 %k; .reg .pred %q, %all, %any, %more;
        mov.u32 %d, 0; mov.u32 %k, 0;
        LOOP: setp.ge.u32 %q, %idx, %k;
        bar.red.and.pred %all, 1, %q;
        bar.red.or.pred %any, 1, !%q;
        @%all add.u32 %d, %d, 1;
        @%any add.u32 %d, %d, 100;
        add.u32 %k, %k, 1; setp.lt.u32 %more, %k, 3;
        @%more bra LOOP;""",
        lambda: np.full(N, 201, U32),
    ),
    values(
        "bar.red.popc of 50 threads",
        ".reg .pred %q;\nsetp.ge.u32 %q, %idx, 0;\nbar.red.popc.u32 %d, 0, %q;",
        lambda: np.full(50, 50, U32),
        n=50,
        block=50,
    ),
    values(
        "barrier.red from both branches",
        """.reg .b32 %k; .reg .pred %q, %odd;
        and.b32 %k, %idx, 1; setp.ne.u32 %odd, %k, 0; setp.lt.u32 %q, %idx, 10;
        @%odd bra ODD;
        barrier.red.popc.u32 %d, 4, %q; bra JOIN;
        ODD: barrier.red.popc.u32 %d, 4, %q;
        JOIN:""",
        lambda: np.full(N, 10, U32),
    ),
]

_HANDOVER = """
    shr.u32 %k, %me, 5; setp.ge.u32 %q, %k, 4;
    mov.u32 %d, 0; mov.u32 %v, 0;
    @%q bra CONSUMER;
    PRODUCE: bar.sync 2, 256;
    mad.lo.u32 %k, %v, 1000, %me; st.shared.u32 [%at], %k;
    bar.arrive 1, 256;
    add.u32 %v, %v, 1; setp.lt.u32 %z, %v, 5;
    @%z bra PRODUCE;
    bra DONE;
    CONSUMER: bar.arrive 2, 256;
    bar.sync 1, 256;
    sub.u32 %k, %at, 512; ld.shared.u32 %k, [%k]; add.u32 %d, %d, %k;
    add.u32 %v, %v, 1; setp.lt.u32 %z, %v, 5;
    @%z bra CONSUMER;
    DONE:"""
ROLES = [
    values(
        "producers and consumers, named barriers",
        TILE + _HANDOVER,
        lambda: np.where(IDX < 128, 0, 10000 + 5 * (IDX - 128)).astype(U32),
    ),
]

WARP = [
    values(
        "bar.warp.sync in both branches",
        TILE
        + """and.b32 %k, %me, 31; setp.lt.u32 %q, %k, 16; mov.u32 %v, 0;
        @%q bra LOW;
        st.shared.u32 [%at], %idx; bar.warp.sync 0xffffffff; bra JOIN;
        LOW: add.u32 %v, %v, 1; setp.lt.u32 %z, %v, 9; @%z bra LOW;
        bar.warp.sync 0xffffffff;
        ld.shared.u32 %v, [%at+64];
        JOIN: mov.u32 %d, %v;""",
        lambda: np.where(IDX % 32 < 16, IDX + 16, 0).astype(U32),
    ),
    values(
        "tiles of a warp sync on their own",
        TILE
        + """and.b32 %k, %me, 24; mov.u32 %v, 0xff; shl.b32 %v, %v, %k;
        st.shared.u32 [%at], %idx; bar.warp.sync %v;
        xor.b32 %k, %me, 7; mad.lo.u32 %k, %k, 4, %base; ld.shared.u32 %d, [%k];""",
        lambda: IDX ^ 7,
    ),
    values(
        "nanosleep and clocks",
        """.reg .b64 %s, %e; .reg .b32 %t; .reg .pred %q;
        mov.u64 %s, %clock64; and.b32 %t, %idx, 3; mul.lo.u32 %t, %t, 100; nanosleep.u32 %t; nanosleep.u32 50;
        mov.u64 %e, %clock64; setp.ge.u64 %q, %e, %s; selp.u32 %d, 1, 0, %q;""",
        lambda: np.ones(N, U32),
    ),
    values(
        "fences and hints",
        """fence.sc.cta; fence.acq_rel.gpu; fence.acq_rel.cluster; fence.sc.sys; membar.cta; membar.gl; membar.sys;
        fence.proxy.alias; fence.proxy.async; fence.proxy.async.global; fence.proxy.async.shared::cta;
        fence.proxy.async.shared::cluster; fence.mbarrier_init.release.cluster; griddepcontrol.wait;
        fence.proxy.tensormap::generic.release.gpu; griddepcontrol.launch_dependents; mov.u32 %d, %idx;""",
        lambda: IDX,
    ),
]

CASES = [*REVERSE, *REDUCTIONS, *ROLES, *WARP]
test_cases = cases_test(CASES)


# ---------------------------------------------------------------- vgpu alone: policies, exits, errors, hangs
def launch(body, block=N, **options):
    """Outputs %d of a body on the virtual GPU."""
    from tensorladder import vgpu

    case = values("x", body, None, n=block, block=block, **{k: options.pop(k) for k in ("cluster",) if k in options})
    out = np.zeros(block * case.cluster, U32)
    vgpu.launch(ptx_of(case), "kernel", case.cluster, block, [out], cluster=case.cluster, **options)
    return out


def fails(body, *words, error="KernelError", **options):
    import pytest

    from tensorladder.core import errors

    with pytest.raises(getattr(errors, error)) as caught:
        launch(body, **options)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_every_case_under_every_schedule():
    for case in CASES:
        for policy in ("lazy", "timed", "random:1", "random:2", "random:3"):
            compare(case, run(case, policy=policy), expected(case), policy)


def test_exited_warps_and_lanes_do_not_count():
    body = TILE + "mov.u32 %d, 7; setp.ge.u32 %q, %me, 200;\n@%q exit;\nbar.sync 0;\n"
    assert (launch(body + _REVERSE.format(last=199).replace("ld.shared", "add.u32 %d, %d, 1; //"))[:200] == 8).all()
    body = TILE + "setp.ge.u32 %q, %me, 20; @%q bra SPIN; bar.sync 0; mov.u32 %d, 3; bra OUT;\nSPIN: mov.u32 %v, 0;\n"
    body += "AGAIN: add.u32 %v, %v, 1; setp.lt.u32 %z, %v, 50000; @%z bra AGAIN;\nexit;\nOUT:"
    assert (launch(body)[:20] == 3).all()
    body = TILE + "bar.arrive 3, 512; setp.ge.u32 %q, %me, 128; @%q exit;\nmov.u32 %d, 1;"
    fails(body, "barrier 3: thread count 512")


def test_cluster_barrier_without_those_that_have_exited():
    body = TILE + "setp.ge.u32 %q, %me, 100; @%q exit;\nbarrier.cluster.arrive;\nbarrier.cluster.wait;\nmov.u32 %d, 4;"
    assert (launch(body, cluster=2).reshape(2, N)[:, :100] == 4).all()
    body = (
        TILE
        + "barrier.cluster.arrive.relaxed; setp.ge.u32 %q, %me, 100; @%q exit;\nbarrier.cluster.wait;\nmov.u32 %d, 4;"
    )
    assert (launch(body, cluster=2).reshape(2, N)[:, :100] == 4).all()


def test_wrong_barriers():
    fails("bar.sync 16;", "barrier 16 does not exist")
    fails(".reg .b32 %k;\nmov.u32 %k, 99; bar.sync %k;", "barrier 99 does not exist", "lane 0")
    fails("bar.sync 1, 33;", "barrier 1: thread count 33")
    fails("bar.sync 1, 1024;", "barrier 1: thread count 1024")
    fails(TILE + "shr.u32 %k, %me, 5; mad.lo.u32 %k, %k, 32, 32; bar.sync 2, %k;", "barrier 2: thread count", "differs")
    fails(TILE + "and.b32 %k, %me, 1; bar.sync %k;", "different barriers", "(0 and 1)")
    fails("barrier.cluster.arrive; barrier.cluster.arrive;", "barrier.cluster.arrive twice")
    fails("barrier.cluster.wait;", "barrier.cluster.wait without barrier.cluster.arrive")
    fails("bar.warp.sync 0xfffffffe;", "member mask does not name it", "lane 0")
    fails("brkpt;", "breakpoint")


def test_refused_and_corrupt():
    fails("fence.proxy.generic::fabric.release.sys;", "fence.proxy.generic::fabric", error="Unsupported")
    fails("setmaxnreg.inc.sync.aligned.u32 100;", "setmaxnreg", "multiple of 8 from 24 to 256", error="UsageError")


def test_hangs_say_who_waits_on_what():
    half = TILE + "setp.lt.u32 %q, %me, {n};\n@%q bar.sync 1, 256;"
    fails(
        half.format(n=128),
        "hangs",
        "warps 0, 1, 2, 3 of CTA (0, 0, 0) wait at barrier 1 (128 of 256 threads",
        "PTX line",
    )
    fails(half.format(n=16), "hangs", "warp 0 of CTA (0, 0, 0) wait at barrier 1")
    half = TILE + "setp.lt.u32 %q, %me, {n};\n@%q bar.sync 1;\nbar.sync 2;"
    fails(half.format(n=128), "barrier 1 (128 of 256", "barrier 2 (128 of 256")
    fails(half.format(n=16), "barrier 1 for the other lanes of the warp", "lanes 0xffff)", "barrier 2")
    one = TILE + "setp.eq.u32 %q, %me, 5;\n@%q bra OUT;\n{wait}\nOUT: bar.sync 0;"
    fails(one.format(wait="bar.warp.sync -1;"), "wait for lanes 0xffffffff to come to a bar.warp.sync")
    fails(one.format(wait="barrier.cluster.arrive; barrier.cluster.wait;"), "barrier.cluster")


_SPIN = """.shared .align 8 .b64 full; .reg .b32 %b, %v; .reg .b64 %c; .reg .pred %q, %z; mov.u32 %b, full;
    setp.eq.u32 %q, %idx, 0; @%q mbarrier.init.shared.b64 [%b], 2; bar.sync 0;
    @%q mbarrier.arrive.shared.b64 _, [%b]; mov.u64 %c, 0;
    WAIT: """


def test_loops_that_wait_and_sleep_are_seen_to_hang():
    wait = "mbarrier.{}.parity.shared.b64 %z, [%b], 0; "
    loops = {
        wait.format("try_wait") + "@!%z bra WAIT;": "wait on the mbarrier at shared+0x400",
        wait.format("try_wait") + "nanosleep.u32 100; @!%z bra WAIT;": "still owed: 1 arrivals",
        wait.format("test_wait") + "@!%z bra WAIT;": "spin at mbarrier.test_wait",
        wait.format("test_wait") + "nanosleep.u32 100; @!%z bra WAIT;": "spin with nanosleep.u32 (PTX line",
        "add.u64 %c, %c, 1; and.b64 %c, %c, 7; bra WAIT;": "spin at add.u64",
    }
    for policy in ("eager", "timed", "random:3"):
        for loop, message in loops.items():
            fails(_SPIN + loop, "hangs", message, block=64, policy=policy, timeout=60)


def test_loops_that_end_by_themselves_are_no_hang():
    clock = "mov.u64 %c, %clock64; setp.lt.u64 %z, %c, 3000000; @%z bra WAIT;\nmov.u32 %d, 5;"
    sleeper = """
        .shared .align 4 .b32 flag; .reg .b32 %v; .reg .pred %q, %z;
        st.shared.u32 [flag], 0; bar.sync 0; setp.lt.u32 %q, %idx, 32; @%q bra SLEEP;
        WAIT: ld.volatile.shared.u32 %v, [flag]; {pause} setp.eq.u32 %z, %v, 0; @%z bra WAIT;
        bra OUT; SLEEP: nanosleep.u32 500000; nanosleep.u32 500000; st.volatile.shared.u32 [flag], 1;
        OUT: mov.u32 %d, 5;"""
    for policy in ("eager", "lazy", "timed", "random:3"):
        for body in (_SPIN + clock, sleeper.format(pause="nanosleep.u32 50;"), sleeper.format(pause="")):
            assert (launch(body, block=64, policy=policy, timeout=60) == 5).all(), policy


def test_the_checked_variant_records_arrivals_waits_and_fences():
    from tensorladder import vgpu
    from tensorladder.vgpu.codegen import sync
    from tensorladder.vgpu.machine.hooks import EVENT_ARRIVE, EVENT_FENCE, EVENT_WAIT

    body = """bar.sync 3; fence.acq_rel.gpu; fence.proxy.async.shared::cta; fence.mbarrier_init.release.cluster;
        barrier.cluster.arrive.relaxed; barrier.cluster.wait; mov.u32 %d, 1;"""
    case = values("x", body, None, n=64, block=64)
    events = vgpu.launch(ptx_of(case), "kernel", 1, 64, [np.zeros(64, U32)], checked=True).events[0]
    fences = [int(a) for what, a in zip(events[:, 0], events[:, 6], strict=True) if what == EVENT_FENCE]
    proxy = sync.FENCE_PROXY + 1
    assert sorted(fences) == sorted(2 * [2 << 4 | 3 << 8, proxy | 2 << 12, sync.FENCE_MBARRIER_INIT | 4 << 4 | 2 << 8])
    arrivals = [int(a) & 0xFF for what, a in zip(events[:, 0], events[:, 6], strict=True) if what == EVENT_ARRIVE]
    assert sorted(arrivals) == [3, 3, 16, 16]
    assert (events[:, 0] == EVENT_WAIT).sum() == 2
    assert set(events[:, 5]) == {0xFFFFFFFF}
