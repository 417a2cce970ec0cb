"""st.async and red.async: values in a peer CTA's shared memory, counted by its mbarrier."""

from __future__ import annotations

import re

import numpy as np

from tests.vgpu.ptx_kernels import Case, cases_test, ints, ptx_of

BLOCK = 64
N = 2 * BLOCK
IDX = np.arange(N)
PEER = (IDX + BLOCK) % N
U32 = np.uint32
_DOT = "shared::cluster.mbarrier::complete_tx::bytes"


def exchange(name, send, receive, bytes_, inputs, outputs, reference, zero=False, target=""):
    """Each CTA sends to the other one; both wait for `bytes_` a thread. %to: the thread's place in the peer's tile."""
    body = f""".shared .align 16 .b8 tile[1024]; .shared .align 8 .b64 full;
        .reg .b32 %rank, %peer, %tile, %bar, %to, %at, %rbar, %t, %zero; .reg .pred %first, %done;
        mov.u32 %rank, %cluster_ctarank; xor.b32 %peer, %rank, 1; mov.u32 %tile, tile; mov.u32 %bar, full;
        mov.u32 %t, %tid.x; setp.eq.u32 %first, %t, 0; mad.lo.u32 %at, %t, 16, %tile; mov.u32 %zero, {int(zero)};
        st.shared.v4.u32 [%at], {{%zero, %zero, %zero, %zero}};
        @%first mbarrier.init.shared.b64 [%bar], 1; @%first fence.mbarrier_init.release.cluster;
        @%first mbarrier.arrive.expect_tx.shared.b64 _, [%bar], {bytes_ * BLOCK};
        barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
        mapa.shared::cluster.u32 %to, {target or "%at"}, %peer; mapa.shared::cluster.u32 %rbar, %bar, %peer;
        {send}
        WAIT: mbarrier.try_wait.parity.shared.b64 %done, [%bar], 0; @!%done bra WAIT;
        {receive}
        barrier.cluster.arrive; barrier.cluster.wait;"""
    return Case(name, body, inputs, outputs, reference, block=BLOCK, cluster=2, version="8.1", draws=False)


_A, _B, _W = ints("b32", N, 1), ints("b32", N, 2), ints("b64", N, 3)


def reduced(op, fn, ty="u32", start=1):
    """All threads of a CTA reduce into one place of the other CTA's tile, with one value where the order matters."""
    a = ints(ty, N, 4)
    start |= start << 32 if a.itemsize == 8 else 0
    if op in ("inc", "dec"):
        a = np.full(N, 50, a.dtype)

    def reference(a):
        result = []
        for half in (a[BLOCK:], a[:BLOCK]):
            total = np.array([start], a.dtype)
            for x in half:
                total = fn(total, x).astype(a.dtype)
            result.append(np.repeat(total, BLOCK))
        return np.concatenate(result)

    return exchange(
        f"red.async.{op}.{ty}",
        f"red.async.relaxed.cluster.{_DOT}.{op}.{ty} [%to], %a, [%rbar];",
        f"ld.shared.{ty} %d, [%tile];",
        a.itemsize,
        {"a": (ty, a)},
        {"d": ty},
        reference,
        zero=True,
        target="%tile",
    )


CASES = [
    exchange(
        "st.async.b32",
        f"st.async.weak.{_DOT}.b32 [%to], %a, [%rbar];",
        "ld.shared.b32 %d, [%at];",
        4,
        {"a": ("b32", _A)},
        {"d": "b32"},
        lambda a: a[PEER],
    ),
    exchange(
        "st.async.v2.b32",
        f"st.async.weak.{_DOT}.v2.b32 [%to], {{%a, %b}}, [%rbar];",
        "ld.shared.v2.b32 {%d, %e}, [%at];",
        8,
        {"a": ("b32", _A), "b": ("b32", _B)},
        {"d": "b32", "e": "b32"},
        lambda a, b: (a[PEER], b[PEER]),
    ),
    exchange(
        "st.async.v2.b64",
        f"st.async.weak.{_DOT}.v2.b64 [%to], {{%a, %a}}, [%rbar];",
        "ld.shared.v2.b64 {%d, %e}, [%at];",
        16,
        {"a": ("b64", _W)},
        {"d": "b64", "e": "b64"},
        lambda a: (a[PEER], a[PEER]),
    ),
    exchange(
        "st.async.v4.b32",
        f"st.async.weak.{_DOT}.v4.b32 [%to], {{%a, %b, %b, %a}}, [%rbar];",
        "ld.shared.v4.b32 {%d, %e, %f, %g}, [%at];",
        16,
        {"a": ("b32", _A), "b": ("b32", _B)},
        dict.fromkeys("defg", "b32"),
        lambda a, b: (a[PEER], b[PEER], b[PEER], a[PEER]),
    ),
    exchange(
        "st.async.f64",
        f"st.async.weak.{_DOT}.f64 [%to], %a, [%rbar];",
        "ld.shared.f64 %d, [%at];",
        8,
        {"a": ("f64", _W.view(np.float64))},
        {"d": "f64"},
        lambda a: a[PEER],
    ),
    reduced("inc", lambda x, y: np.where(x >= y, 0, x + np.uint32(1))),
    reduced("dec", lambda x, y: np.where((x == 0) | (x > y), y, x - np.uint32(1))),
    reduced("add", lambda x, y: x + y, "u64"),
    reduced("or", lambda x, y: x | y, "b32"),
    reduced("add", lambda x, y: x + y),
    reduced("max", np.maximum, "s32"),
    reduced("min", np.minimum),
    reduced("xor", lambda x, y: x ^ y, "b32"),
    reduced("and", lambda x, y: x & y, "b32"),
]
test_cases = cases_test(CASES)


def launch(case, policy, body=None):
    from dataclasses import replace

    from tensorladder import vgpu

    case = replace(case, body=body or case.body)
    out = [np.zeros(N, U32) for _ in case.outputs]
    inputs = [np.ascontiguousarray(a) for _, a in case.inputs.values()]
    vgpu.launch(ptx_of(case), "kernel", 2, BLOCK, [*inputs, *out], cluster=2, policy=policy)
    return out[0]


def test_every_policy_and_a_wait_that_is_missing():
    import pytest

    from tensorladder.core.errors import KernelError

    case = CASES[0]
    for policy in ("lazy", "timed", "random:1", "random:2"):
        assert (launch(case, policy) == _A[PEER]).all(), policy
    hasty = re.sub("WAIT:.*WAIT;", "", case.body)
    with pytest.raises(KernelError, match=r"CTA [01] of this cluster, which has exited; st.async"):
        launch(case, "lazy", hasty)


def test_errors_and_refusals():
    import pytest

    from tensorladder.core.errors import KernelError, Unsupported

    case = CASES[0]
    with pytest.raises(KernelError, match="misaligned: 4 bytes at shared address"):
        launch(case, "eager", case.body.replace("[%to]", "[%to+2]"))
    with pytest.raises(KernelError, match=r"used before mbarrier\.init"):
        launch(case, "eager", case.body.replace("[%rbar]", "[%rbar+-8]"))
    with pytest.raises(Unsupported, match=r"st\.async\.release\.gpu\.global"):
        launch(
            case,
            "eager",
            case.body.replace(
                f"st.async.weak.{_DOT}.b32 [%to], %a, [%rbar]", "st.async.release.gpu.global.b32 [%a], %a"
            ),
        )
