"""mbarrier: counts, phases, tokens, transactions and remote arrivals against a model, on silicon too; misuse; hangs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vgpu.ptx_kernels import Case, cases_test

N = 128


def _ints(seed: int, low: int, high: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, N).astype(np.uint32)


class Model:
    """An mbarrier a thread, as the ISA describes it (arrays of N)."""

    def __init__(self, count: np.ndarray):
        self.pending = count.astype(np.int64)
        self.expected, self.tx, self.phase = self.pending.copy(), self.pending * 0, self.pending * 0

    def settle(self) -> None:
        done = (self.pending == 0) & (self.tx == 0)
        self.phase = np.where(done, self.phase ^ 1, self.phase)
        self.pending = np.where(done, self.expected, self.pending)

    def arrive(self, count: np.ndarray | int = 1, tx: np.ndarray | int = 0, drop: bool = False) -> tuple:
        """(phase, pending count) of the state that the arrival returns."""
        state = (self.phase, self.pending)
        self.tx = self.tx + tx
        self.expected = self.expected - (count if drop else 0)
        self.pending = self.pending - count
        self.settle()
        return state

    def complete(self, tx: np.ndarray | int) -> None:
        self.tx = self.tx - tx
        self.settle()


_BEGIN = """
  .reg .b32 %bar, %t; .reg .b64 %s0, %s1, %s2; .reg .pred %w;
  .shared .align 8 .b8 barriers[2048];
  mov.u32 %bar, barriers; mov.u32 %t, %tid.x; shl.b32 %t, %t, 3; add.u32 %bar, %bar, %t;
"""
_CASES = []


def _case(name: str, body: str, outputs: dict[str, str], reference, **inputs: np.ndarray) -> None:
    drawn = {key: ("u32", array) for key, array in inputs.items()}
    _CASES.append(Case(name, _BEGIN + body, drawn, outputs, reference, draws=False))


def _tokens(count: np.ndarray, first: np.ndarray) -> tuple:
    m = Model(count)
    _, before = m.arrive(first)
    mid = m.phase.copy()
    _, rest = m.arrive(count - first)
    return before, mid != 0, m.phase != 0, rest


_case(
    "arrive.count",
    """
  mbarrier.init.shared.b64 [%bar], %count;
  mbarrier.arrive.shared.b64 %s0, [%bar], %first;
  mbarrier.test_wait.shared.b64 %mid, [%bar], %s0;
  sub.u32 %t, %count, %first;
  mbarrier.arrive.shared::cta.b64 %s1, [%bar], %t;
  mbarrier.test_wait.shared.b64 %done, [%bar], %s0;
  mbarrier.pending_count.b64 %before, %s0;
  mbarrier.pending_count.b64 %rest, %s1;
""",
    {"before": "u32", "mid": "pred", "done": "pred", "rest": "u32"}, _tokens,
    count=_ints(1, 2, 1 << 20), first=np.ones(N, np.uint32),
)  # fmt: skip


def _parities(count: np.ndarray, extra: np.ndarray) -> tuple:
    m = Model(count)
    found = []
    for arrivals in (0, count, count - extra):
        if np.any(arrivals):
            m.arrive(arrivals)
        found += [m.phase != 0, m.phase != 1]
    return tuple(found)


_case(
    "wait.parity",
    """
  mbarrier.init.shared.b64 [%bar], %count;
  mbarrier.test_wait.parity.shared.b64 %a0, [%bar], 0;
  mbarrier.test_wait.parity.shared.b64 %a1, [%bar], 1;
  mbarrier.arrive.release.cta.shared::cta.b64 _, [%bar], %count;
  mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 %b0, [%bar], 0;
  mbarrier.try_wait.parity.shared.b64 %b1, [%bar], 1, 10;
  sub.u32 %t, %count, %extra;
  mbarrier.arrive.shared.b64 _, [%bar], %t;
  mbarrier.try_wait.parity.shared.b64 %c0, [%bar], 0;
  mbarrier.test_wait.parity.shared.b64 %c1, [%bar], 1;
""",
    dict.fromkeys(("a0", "a1", "b0", "b1", "c0", "c1"), "pred"), _parities,
    count=_ints(2, 10, 100), extra=_ints(3, 0, 2),
)  # fmt: skip


def _transactions(count: np.ndarray, early: np.ndarray, late: np.ndarray) -> tuple:
    m = Model(count)
    m.complete(early)  # a copy may report before anyone expects it
    m.arrive(count - 1)
    m.arrive(1, early + late)
    before = m.phase != 0
    m.tx = m.tx + 7
    m.complete(late)
    mid = m.phase != 0
    m.complete(7)
    return before, mid, m.phase != 0


_case(
    "transactions",
    """
  mbarrier.init.shared.b64 [%bar], %count;
  mbarrier.complete_tx.relaxed.cta.shared.b64 [%bar], %early;
  sub.u32 %t, %count, 1;
  mbarrier.arrive.shared.b64 _, [%bar], %t;
  add.u32 %t, %early, %late;
  mbarrier.arrive.expect_tx.shared.b64 %s0, [%bar], %t;
  mbarrier.test_wait.shared.b64 %before, [%bar], %s0;
  mbarrier.expect_tx.relaxed.cta.shared.b64 [%bar], 7;
  mbarrier.complete_tx.relaxed.cta.shared.b64 [%bar], %late;
  mbarrier.test_wait.shared.b64 %mid, [%bar], %s0;
  mbarrier.complete_tx.relaxed.cta.shared.b64 [%bar], 7;
  mbarrier.test_wait.shared.b64 %done, [%bar], %s0;
""",
    {"before": "pred", "mid": "pred", "done": "pred"}, _transactions,
    count=_ints(4, 2, 1000), early=_ints(5, 0, 500000), late=_ints(6, 1, 500000),
)  # fmt: skip


def _drops(count: np.ndarray, drop: np.ndarray) -> tuple:
    m = Model(count)
    m.arrive(drop, drop=True)
    m.arrive(count - drop)
    first = m.phase != 0
    m.arrive(count - drop - 1)
    second = m.phase != 0
    _, before = m.arrive(1)
    return first, second, before, m.phase != 0


_case(
    "arrive_drop",
    """
  mbarrier.init.shared.b64 [%bar], %count;
  mbarrier.arrive_drop.shared.b64 %s0, [%bar], %drop;
  sub.u32 %t, %count, %drop;
  mbarrier.arrive.noComplete.shared.b64 %s1, [%bar], 1;
  sub.u32 %t, %t, 1;
  mbarrier.arrive.shared.b64 _, [%bar], %t;
  mbarrier.test_wait.parity.shared.b64 %first, [%bar], 0;
  mbarrier.arrive.shared.b64 _, [%bar], %t;
  mbarrier.test_wait.parity.shared.b64 %second, [%bar], 0;
  mbarrier.arrive.shared.b64 %s2, [%bar];
  mbarrier.pending_count.b64 %before, %s2;
  mbarrier.test_wait.parity.shared.b64 %third, [%bar], 0;
""",
    {"first": "pred", "second": "pred", "before": "u32", "third": "pred"}, _drops,
    count=_ints(7, 20, 1000), drop=_ints(8, 1, 10),
)  # fmt: skip

_case(
    "lanes",
    """
  mov.u32 %bar, barriers;
  .reg .pred %one; setp.eq.u32 %one, %idx, 0;
  @%one mbarrier.init.shared.b64 [%bar], 128;
  bar.sync 0;
  mbarrier.arrive.shared.b64 %s0, [%bar];
LOOP:
  mbarrier.try_wait.shared.b64 %w, [%bar], %s0, 1000;
  @!%w bra LOOP;
  mbarrier.test_wait.parity.shared.b64 %done, [%bar], 0;
  bar.sync 0;
  @%one mbarrier.inval.shared.b64 [%bar];
""",
    {"done": "pred"}, lambda x: np.ones(N, bool), x=_ints(9, 0, 2),
)  # fmt: skip

_REMOTE = """
  .reg .b32 %bar, %peer, %rank, %v; .reg .pred %one, %w;
  .shared .align 8 .b8 barrier[8];
  mov.u32 %bar, barrier; mov.u32 %rank, %cluster_ctarank; xor.b32 %peer, %rank, 1;
  mapa.shared::cluster.u32 %peer, %bar, %peer;
  mov.u32 %v, %tid.x; setp.eq.u32 %one, %v, 0;
  @%one mbarrier.init.shared.b64 [%bar], 65;
  fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%peer];
  @%one mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%peer], 16;
  @%one mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%peer], 16;
LOOP:
  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %w, [%bar], 0;
  @!%w bra LOOP;
  mov.u32 %rank_out, %rank;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""
_CASES.append(
    Case(
        "cluster.remote_arrive", _REMOTE, {"x": ("u32", _ints(10, 0, 2))}, {"rank_out": "u32"},
        lambda x: np.repeat([0, 1], 64), block=64, cluster=2, draws=False,
    )
)  # fmt: skip

CASES = _CASES
test_cases = cases_test(CASES)


# ---------------------------------------------------------------- errors and hangs
def _fails(body: str, threads: int = 32, **options) -> str:
    from tensorladder.core.errors import TensorladderError
    from tests.vgpu.ptx_kernels import run

    case = Case("error", _BEGIN + body, {"x": ("u32", np.zeros(threads, np.uint32))}, {}, block=threads, **options)
    with pytest.raises(TensorladderError) as caught:
        run(case)
    text = str(caught.value)
    assert "\n" not in text
    return text


_ONE = "  .reg .pred %one; setp.eq.u32 %one, %idx, 0;\n"
_INIT = _ONE + "  mov.u32 %bar, barriers;\n  @%one mbarrier.init.shared.b64 [%bar], 1;\n  bar.sync 0;\n"
_WAIT = "LOOP:\n  mbarrier.try_wait.parity.shared.b64 %w, [%bar], {parity};\n  @!%w bra LOOP;\n"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("  mbarrier.arrive.shared.b64 %s0, [%bar];\n", "shared address 0x400 is used before mbarrier.init"),
        (_INIT + "  @%one mbarrier.inval.shared.b64 [%bar];\n  @%one mbarrier.arrive.shared.b64 _, [%bar];\n",
         "is used before mbarrier.init"),
        ("  mbarrier.init.shared.b64 [%bar], 0;\n", "count 0 must be 1 to 2**20 - 1"),
        ("  mbarrier.init.shared.b64 [%bar], 1048576;\n", "count 1048576 must be"),
        (_INIT + "  @%one mbarrier.arrive.shared.b64 _, [%bar], 2;\n", "2 arrivals where this phase still expects 1"),
        (_INIT + "  @%one mbarrier.arrive.noComplete.shared.b64 %s0, [%bar], 1;\n", "completes the phase"),
        (_INIT + "  @%one mbarrier.expect_tx.relaxed.cta.shared.b64 [%bar], 1048576;\n", "count to 1048576"),
        ("  add.u32 %bar, %bar, 4;\n  mbarrier.init.shared.b64 [%bar], 1;\n", "misaligned: 8 bytes at shared address"),
        ("  mov.u64 %s0, 4096;\n  mbarrier.init.b64 [%s0], 1;\n", "is not in the state space"),
        ("  or.b32 %bar, %bar, 0x5000000;\n  mbarrier.arrive.shared::cluster.b64 _, [%bar];\n", "to no CTA of this"),
    ],
)  # fmt: skip
def test_misuse_is_named(body: str, words: str) -> None:
    text = _fails(body)
    assert words in text and "mbarrier." in text and "PTX line" in text, text


@pytest.mark.parametrize("policy", ["eager", "lazy", "timed", "random:5"])
@pytest.mark.parametrize(
    ("body", "words", "last"),
    [
        (_INIT + _WAIT.replace("{parity}", "0"), "still owed: 1 arrivals, 0 bytes", "; nobody has arrived there"),
        (_INIT + "  @%one mbarrier.arrive.expect_tx.shared.b64 _, [%bar], 48;\n"
         "  @%one mbarrier.complete_tx.relaxed.cta.shared.b64 [%bar], 32;\n" + _WAIT.replace("{parity}", "0"),
         "still owed: 0 arrivals, 16 bytes",
         "last arrival there: warp 0, mbarrier.complete_tx.relaxed.cta.shared.b64 (PTX line"),
        (_INIT + "  @%one mbarrier.arrive.shared.b64 _, [%bar];\n  bar.sync 0;\n" + _WAIT.replace("{parity}", "1"),
         "for phase parity 1 (it is in phase 1; still owed: 1 arrivals",
         "last arrival there: warp 0, mbarrier.arrive.shared.b64 (PTX line"),
    ],
)  # fmt: skip
def test_a_hang_says_who_waits_and_what_is_owed(body: str, words: str, last: str, policy: str) -> None:
    text = _fails(body, 64, policy=policy)
    assert "hangs: warps 0, 1 of CTA (0, 0, 0) wait on the mbarrier at shared+0x400" in text, text
    assert words in text and last in text and "mbarrier.try_wait" in text, text


def test_what_is_not_modelled_is_refused_by_name() -> None:
    text = _fails("  mbarrier.test_wait.parity.phase_type::conditional.shared.b64 %w, [%bar], 0;\n")
    assert "mbarrier.test_wait.parity.phase_type::conditional.shared.b64" in text
