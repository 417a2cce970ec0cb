"""Lanes that go apart: every lane computes what it would alone, groups meet again, collectives wait, hangs are seen."""

from __future__ import annotations

import numpy as np

from tests.vgpu.ptx_kernels import Case, cases_test, ptx_of, run

N = 256
U32 = np.uint32
IDX = np.arange(N, dtype=U32)
LANE = IDX % 32


def values(name, body, want, outputs=None, **options):
    """A case without inputs; `want` is the array of %d, or a function without arguments."""
    options = {"n": N, "block": N} | options
    return Case(name, body, {}, outputs or {"d": "u32"}, want if callable(want) else lambda: want, **options)


def lanes_of(condition):
    """The mask of the lanes of a thread's warp for which a condition (an array) holds."""
    rows = np.asarray(condition).reshape(-1, 32)
    return np.repeat((rows << np.arange(32, dtype=np.uint64)).sum(axis=1), 32).astype(U32)


def collatz():
    steps = np.zeros(N, U32)
    for k in range(N):
        x = k + 1
        while x != 1:
            x = x // 2 if x % 2 == 0 else 3 * x + 1
            steps[k] += 1
    return steps


_NESTED = """
    .reg .b32 %k; .reg .pred %p, %q;
    and.b32 %k, %idx, 1; setp.eq.u32 %p, %k, 0; and.b32 %k, %idx, 6; setp.lt.u32 %q, %k, 4;
    mov.u32 %d, 1;
    @%p bra EVEN;
    add.u32 %d, %d, 10;
    @%q bra OL; add.u32 %d, %d, 100; bra OJ; OL: add.u32 %d, %d, 200; OJ: mul.lo.u32 %d, %d, 3; bra JOIN;
    EVEN: @!%q bra EJ; add.u32 %d, %d, 1000; EJ: add.u32 %d, %d, 5;
    JOIN: activemask.b32 %k; add.u32 %d, %d, %k;"""


def nested():
    low = IDX & 6 < 4
    odd = (11 + np.where(low, 200, 100)) * 3
    even = 6 + np.where(low, 1000, 0)
    return (np.where(IDX & 1, odd, even).astype(np.uint64) + 0xFFFFFFFF).astype(U32)


_SWITCH = """
    .reg .b32 %k; rem.u32 %k, %idx, 5; mov.u32 %d, 0;
    TABLE: .branchtargets A, B, C, B, D;
    brx.idx %k, TABLE;
    A: add.u32 %d, %d, 1; bra JOIN;
    B: add.u32 %d, %d, 10;
    C: add.u32 %d, %d, 100; bra JOIN;
    D: add.u32 %d, %d, 1000;
    JOIN: add.u32 %d, %d, %idx;"""

_TRIPS = """
    .reg .b32 %i, %j, %v; .reg .pred %p;
    mov.u32 %d, 0; and.b32 %i, %idx, 15;
    OUTER: setp.eq.u32 %p, %i, 0; @%p bra DONE;
    mov.u32 %j, %i;
    INNER: add.u32 %d, %d, %j; sub.u32 %j, %j, 1; setp.ne.u32 %p, %j, 0; @%p bra INNER;
    sub.u32 %i, %i, 1; bra OUTER;
    DONE: activemask.b32 %v; popc.b32 %v, %v; add.u32 %d, %d, %v;"""


def trips():
    n = (IDX & 15).astype(np.int64)
    return n * (n + 1) * (n + 2) // 6 + 32


_COLLATZ = """
    .reg .b32 %x, %k; .reg .pred %p; mov.u32 %d, 0; add.u32 %x, %idx, 1;
    LOOP: setp.eq.u32 %p, %x, 1; @%p bra DONE;
    add.u32 %d, %d, 1; and.b32 %k, %x, 1; setp.eq.u32 %p, %k, 0; @%p bra HALF;
    mad.lo.u32 %x, %x, 3, 1; bra LOOP;
    HALF: shr.u32 %x, %x, 1; bra LOOP;
    DONE:"""

_BREAKS = """
    .reg .b32 %i, %k; .reg .pred %p; mov.u32 %d, 0; mov.u32 %i, 0;
    LOOP: add.u32 %i, %i, 1; and.b32 %k, %i, 3; setp.eq.u32 %p, %k, 1; @%p bra NEXT;
    add.u32 %d, %d, %i;
    setp.gt.u32 %p, %d, %idx; @%p bra OUT;
    NEXT: setp.lt.u32 %p, %i, 20; @%p bra LOOP;
    add.u32 %d, %d, 10000;
    OUT:"""


def breaks():
    result = []
    for idx in range(N):
        d = 0
        for i in range(1, 21):
            if i & 3 == 1:
                continue
            d += i
            if d > idx:
                break
        else:
            d += 10000
        result.append(d)
    return np.array(result, U32)


_EXITS = """
    .reg .b32 %k, %m; .reg .pred %p; mov.u32 %k, %laneid;
    setp.lt.u32 %p, %k, 7; @%p exit;
    mov.b32 %m, 0xffffff80;
    setp.ge.u32 %p, %k, 30; @%p bra LATE;
    vote.sync.ballot.b32 %d, %p, -1; add.u32 %d, %d, 1; bra OUT;
    LATE: vote.sync.ballot.b32 %d, %p, 0xC0000000;
    exit;
    OUT:"""

_FUNCTION = """
.func (.param .b32 r) sum_to(.param .b32 n)
{ .reg .b32 %n, %s; .reg .pred %p;
  ld.param.b32 %n, [n]; mov.u32 %s, 0;
  setp.gt.u32 %p, %n, 60; @%p bra EARLY;
  LOOP: setp.eq.u32 %p, %n, 0; @%p bra DONE; add.u32 %s, %s, %n; sub.u32 %n, %n, 1; bra LOOP;
  DONE: st.param.b32 [r], %s; ret;
  EARLY: st.param.b32 [r], 7; ret; }
.func (.param .b32 r) twice(.param .b32 n)
{ .reg .b32 %n, %s;
  ld.param.b32 %n, [n]; { .param .b32 a; .param .b32 b; st.param.b32 [a], %n; call (b), sum_to, (a);
  ld.param.b32 %s, [b]; } shl.b32 %s, %s, 1; st.param.b32 [r], %s; ret; }"""
_CALLS = """
    .reg .b32 %k; .reg .pred %p; and.b32 %k, %idx, 3; setp.eq.u32 %p, %k, 0; mov.u32 %d, 0;
    @%p bra SKIP;
    { .param .b32 a; .param .b32 b; and.b32 %k, %idx, 63; st.param.b32 [a], %k;
    call (b), twice, (a); ld.param.b32 %d, [b]; }
    SKIP: { .param .b32 a; .param .b32 b; st.param.b32 [a], %idx; call (b), sum_to, (a);
    ld.param.b32 %k, [b]; } add.u32 %d, %d, %k;"""


def calls():
    def sum_to(n):
        return np.where(n > 60, 7, n * (n + 1) // 2)

    n = IDX.astype(np.int64)
    return np.where(n % 4 == 0, 0, 2 * sum_to(n & 63)) + sum_to(n)


_LOCAL = """
    .local .align 4 .b32 stack[16];
    .reg .b64 %p, %q, %g; .reg .b32 %i, %k, %v; .reg .pred %c;
    mov.u64 %p, stack; cvta.local.u64 %g, %p; and.b32 %k, %idx, 15; mov.u32 %i, 0;
    FILL: mul.wide.u32 %q, %i, 4; add.u64 %q, %q, %p; mad.lo.u32 %v, %i, 1000, %idx; st.local.u32 [%q], %v;
    add.u32 %i, %i, 1; setp.le.u32 %c, %i, %k; @%c bra FILL;
    mul.wide.u32 %q, %k, 4; add.u64 %q, %q, %g; ld.u32 %d, [%q];"""

_TILES = """
    .reg .b32 %l, %m, %v, %s; .reg .pred %p, %q;
    mov.u32 %l, %laneid; setp.lt.u32 %p, %l, 8; mov.u32 %v, %idx; mov.u32 %s, 0;
    @%p bra LOW;
    shfl.sync.bfly.b32 %v, %v, 8, 31, 0xffffff00;
    redux.sync.add.u32 %d, %v, 0xffffff00; bra JOIN;
    LOW: mov.u32 %m, 0xff;
    SPIN: add.u32 %s, %s, 1; setp.lt.u32 %q, %s, %l; @%q bra SPIN;
    vote.sync.ballot.b32 %d, %q, %m; shfl.sync.idx.b32 %v, %s, 7, 31, %m; add.u32 %d, %d, %v;
    JOIN: bar.warp.sync -1; shfl.sync.down.b32 %v, %d, 16, 31, -1; setp.ge.u32 %q, %l, 16; @%q mov.u32 %v, 0;
    add.u32 %d, %d, %v;"""


def tiles():
    rows = IDX.reshape(-1, 32).astype(np.int64)
    high = np.zeros_like(rows)
    for r, row in zip(high, rows, strict=True):
        moved = [row[k ^ 8] if (k ^ 8) >= 8 else None for k in range(8, 32)]
        r[8:] = sum(x for x in moved if x is not None) + sum(0xFFFFFFFF for x in moved if x is None)
        r[:8] = 7
    low16 = high.copy()
    low16[:, :16] += high[:, 16:]
    return low16.reshape(-1).astype(U32)


_LOCK = """
    .reg .b32 %old, %v; .reg .pred %q; .reg .b64 %cell; mov.u32 %d, %idx; add.u64 %cell, %lock, 4;
    AGAIN: atom.global.cas.b32 %old, [%lock], 0, 1; setp.ne.u32 %q, %old, 0; @%q bra AGAIN;
    ld.global.u32 %v, [%cell]; add.u32 %v, %v, 1; st.global.u32 [%cell], %v; membar.gl;
    st.global.u32 [%lock], 0;"""

_FLAG = """
    .reg .b32 %l, %v; .reg .pred %p; .reg .b64 %cell; mov.u32 %l, %laneid; setp.eq.u32 %p, %l, 31;
    mul.wide.u32 %cell, %idx, 0; add.u64 %cell, %cell, %flags;
    @%p bra SET;
    WAIT: ld.volatile.global.u32 %v, [%cell]; setp.eq.u32 %p, %v, 0; @%p bra WAIT;
    mov.u32 %d, %v; bra OUT;
    SET: st.volatile.global.u32 [%cell], 9; mov.u32 %d, 1;
    OUT:"""


# ---------------------------------------------------------------- any control flow at all
def random_flow(seed, blocks=10, steps=40):
    """Text of blocks that jump to each other by a lane's own hash, and the same in numpy.

    Each block mixes its number into %d; %n counts down so that every lane ends.
    """
    rng = np.random.default_rng(seed)
    text = [f".reg .b32 %n, %h, %t; .reg .pred %p, %q; mad.lo.u32 %d, %idx, 2654435761, 12345; mov.u32 %n, {steps};"]
    plan = []
    for k in range(blocks):
        kind = rng.choice(["branch", "branch", "jump", "fall", "switch", "guard"])
        targets = rng.integers(0, blocks, 4 if kind == "switch" else 1)
        bit = int(rng.integers(3, 20))
        plan.append((kind, targets, bit))
        text.append(f"B{k}: setp.eq.u32 %p, %n, 0; @%p bra END; sub.u32 %n, %n, 1;")
        text.append(f"mad.lo.u32 %d, %d, 31, {k + 1}; shr.u32 %t, %d, 7; xor.b32 %d, %d, %t;")
        text.append(f"shr.u32 %h, %d, {bit};")
        if kind == "switch":
            text.append(
                f"and.b32 %h, %h, 3; T{k}: .branchtargets {', '.join(f'B{t}' for t in targets)}; brx.idx %h, T{k};"
            )
            continue
        text.append("and.b32 %h, %h, 1; setp.ne.u32 %q, %h, 0;")
        if kind == "branch":
            text.append(f"@%q bra B{targets[0]};")
        elif kind == "jump":
            text.append(f"bra B{targets[0]};")
        elif kind == "guard":
            text.append("@!%q add.u32 %d, %d, 77;")
    text.append("END:")

    def run():
        result = np.zeros(N, U32)
        for idx in range(N):
            d, n, k = (idx * 2654435761 + 12345) & 0xFFFFFFFF, steps, 0
            while k < blocks and n:
                n -= 1
                d = (d * 31 + k + 1) & 0xFFFFFFFF
                d ^= d >> 7
                kind, targets, bit = plan[k]
                hit = d >> bit & 1
                if kind == "guard" and not hit:
                    d = (d + 77) & 0xFFFFFFFF
                if kind == "switch":
                    k = int(targets[d >> bit & 3])
                elif kind == "jump" or (kind == "branch" and hit):
                    k = int(targets[0])
                else:
                    k += 1
            result[idx] = d
        return result

    return values(f"flow {seed}", "\n".join(text), run)


CASES = [
    values("nested branches", _NESTED, nested),
    values("lane-dependent trip counts", _TRIPS, lambda: trips().astype(U32)),
    values("loop with a branch in it", _COLLATZ, collatz),
    values("continue and break", _BREAKS, breaks),
    values("switch that falls through", _SWITCH, lambda: np.array([1, 110, 100, 110, 1000], U32)[IDX % 5] + IDX),
    values("early exits", _EXITS, np.where((LANE >= 7) & (LANE < 30), 1, 0).astype(U32), silicon=False),
    values("functions called by some lanes", _CALLS, lambda: calls().astype(U32), module=_FUNCTION),
    values("local arrays with lane-dependent index", _LOCAL, (IDX & 15) * 1000 + IDX),
    values("collectives of part of a warp", _TILES, tiles, silicon=False, version="8.6"),
    values(
        "lock between lanes of a warp",
        _LOCK,
        lambda lock: {"d": IDX, "lock": np.array([0, N], U32)},
        buffers={"lock": np.zeros(2, U32)},
    ),
    values(
        "lanes that wait for a later lane",
        _FLAG,
        lambda flags: {"d": np.where(LANE == 31, 1, 9).astype(U32), "flags": np.array([9], U32)},
        buffers={"flags": np.zeros(1, U32)},
    ),
]
CASES += [
    values(f"{case.name}, {n} threads", case.body, case.reference()[:n], n=n, block=n, module=case.module)
    for case in CASES[:4]
    for n in (1, 33, 100)
    if case.name not in ("nested branches", "lane-dependent trip counts")
]
CASES += [random_flow(seed) for seed in range(12)]
test_cases = cases_test(CASES)


def test_any_flow_under_any_schedule():
    case = random_flow(99, blocks=14)
    for policy in ("timed", "lazy", "random:5", "random:6"):
        assert (run(case, policy=policy)["d"] == case.reference()).all(), policy


# ---------------------------------------------------------------- hangs
def launch(body, block=64, buffers=(), **options):
    from tensorladder import vgpu

    case = values("x", body, None, n=block, block=block, buffers={k: np.zeros(64, U32) for k in buffers})
    out = np.zeros(block, U32)
    vgpu.launch(ptx_of(case), "kernel", 1, block, [*case.buffers.values(), out], **options)
    return out


def hang(body, *words, **options):
    import pytest

    from tensorladder.core.errors import KernelError

    with pytest.raises(KernelError) as caught:
        launch(body, **options)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_hangs_are_told_apart():
    hang(_FLAG.replace("31;", "99;"), "hangs", "spin at", "ld.volatile.global.u32 (PTX line", buffers=["flags"])
    hang(
        ".reg .b32 %l; .reg .pred %p; mov.u32 %l, %laneid; setp.lt.u32 %p, %l, 4;\n@%p bra OUT;\n"
        "shfl.sync.idx.b32 %d, %l, 0, 31, -1;\nWAIT: bra WAIT;\nOUT: bar.sync 1, 64;",
        "wait for lanes 0xffffffff to come to shfl.sync.idx.b32",
        "barrier 1",
        "(lanes 0xf)",
    )
    lock = _LOCK.replace("st.global.u32 [%lock], 0;", "")
    hang(lock, "hangs", "spin at atom.global.cas.b32", buffers=["lock"])
    for policy in ("lazy", "timed", "random:3"):
        hang(_FLAG.replace("31;", "99;"), "spin at", buffers=["flags"], policy=policy)


def test_time_out_says_where():
    import time

    endless = ".reg .b32 %n; mov.u32 %n, 0;\nLOOP: add.u32 %n, %n, 1; bra LOOP;"
    start = time.monotonic()
    hang(endless, "stopped after the time-out of 0.3 s", timeout=0.3)
    assert time.monotonic() - start < 60


def test_divergence_in_a_lane_left_out_of_its_mask():
    hang(
        ".reg .b32 %l; .reg .pred %p; mov.u32 %l, %laneid; setp.lt.u32 %p, %l, 4;\n"
        "@%p bra LOW;\nmov.u32 %l, 1;\nLOW: mov.u32 %d, 0xff; vote.sync.ballot.b32 %d, %p, %d;",
        "member mask does not name it",
        "lane 8",
    )
