"""cp.async and the bulk copies without tensor maps: data, sizes, groups, mbarriers, reductions, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vgpu.ptx_kernels import Case, cases_test, run

N = 128
WORDS = 4 * N


def _words(seed: int, count: int = WORDS) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 32, count, np.uint64).astype(np.uint32)


def _ints(seed: int, low: int, high: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, N).astype(np.uint32)


# ---------------------------------------------------------------- cp.async
_SETUP = """
  .reg .b32 %s, %o; .reg .b64 %g; .reg .pred %p;
  .shared .align 16 .b8 data[2048];
  mov.u32 %s, data; mov.u32 %o, %tid.x; shl.b32 %o, %o, 4; add.u32 %s, %s, %o;
  cvt.u64.u32 %g, %o; add.u64 %g, %src, %g;
  st.shared.v4.b32 [%s], {-1, -1, -1, -1};
"""
_BACK = "  ld.shared.v4.b32 {%w0, %w1, %w2, %w3}, [%s];\n"
_OUT = dict.fromkeys(("w0", "w1", "w2", "w3"), "u32")


def _small(name: str, copy: str, taken, size: int, **inputs: np.ndarray) -> Case:
    """A cp.async of `size` bytes a thread; taken(inputs) are the bytes that each thread reads."""

    def reference(src: np.ndarray, **drawn: np.ndarray) -> tuple[np.ndarray, ...]:
        want = np.full((N, 16), 0xFF, np.uint8)
        read = np.broadcast_to(np.asarray(taken(**drawn)), (N,))[:, None]
        byte = np.arange(16)[None, :]
        want = np.where(byte < size, np.where(byte < read, src.view(np.uint8).reshape(N, 16), 0), want)
        return tuple(np.ascontiguousarray(want.astype(np.uint8)).view(np.uint32).T)

    drawn = {"n": ("u32", _ints(1, 0, 2))} if not inputs else {k: ("u32", v) for k, v in inputs.items()}
    body = _SETUP + copy + "  cp.async.commit_group;\n  cp.async.wait_group 0;\n" + _BACK
    return Case(name, body, drawn, _OUT, reference, {"src": _words(size)}, draws=False)


_COPIES = [
    _small("ca.4", "  cp.async.ca.shared.global [%s], [%g], 4;\n", lambda **_: 16, 4),
    _small("ca.8", "  cp.async.ca.shared::cta.global [%s], [%g], 8, 8;\n", lambda **_: 16, 8),
    _small("ca.16.hint", "  cp.async.ca.shared.global.L2::128B [%s], [%g], 16;\n", lambda **_: 16, 16),
    _small("cg.16", "  cp.async.cg.shared.global.L2::256B [%s], [%g], 0x10, 16;\n", lambda **_: 16, 16),
    *(
        _small(f"source_size.{size}", f"  cp.async.ca.shared.global [%s], [%g], {size}, %n;\n", lambda n: n, size,
               n=_ints(size + 2, 0, size + 1))
        for size in (4, 8, 16)
    ),
    _small("source_size.zero_or_all", "  cp.async.cg.shared.global [%s], [%g], 16, %n;\n", lambda n: n, 16,
           n=_ints(3, 0, 2) * 16),
    _small("ignore_src", "  setp.ne.u32 %p, %n, 0;\n  cp.async.cg.shared.global [%s], [%g], 16, %p;\n",
           lambda n: np.where(n, 0, 16), 16, n=_ints(4, 0, 2)),
    _small("wait_all", "  cp.async.cg.shared.global [%s], [%g], 16;\n  cp.async.wait_all;\n", lambda **_: 16, 16),
    _small("guarded", "  setp.ne.u32 %p, %n, 0;\n  st.shared.v4.b32 [%s], {0, 0, 0, 0};\n"
           "  @%p cp.async.cg.shared.global [%s], [%g], 16;\n", lambda n: 16 * n, 16, n=_ints(5, 0, 2)),
]  # fmt: skip

#: three groups; after each wait the group that must be there is read
_PIPELINE = """
  .reg .b32 %s, %o; .reg .b64 %g;
  .shared .align 16 .b8 data[6144];
  mov.u32 %s, data; mov.u32 %o, %tid.x; shl.b32 %o, %o, 4; add.u32 %s, %s, %o;
  cvt.u64.u32 %g, %o; add.u64 %g, %src, %g;
  cp.async.cg.shared.global [%s], [%g], 16;
  cp.async.commit_group;
  cp.async.cg.shared.global [%s+2048], [%g+2048], 16;
  cp.async.commit_group;
  cp.async.commit_group;
  cp.async.cg.shared.global [%s+4096], [%g+4096], 16;
  cp.async.commit_group;
  cp.async.wait_group 3;
  ld.shared.b32 %a, [%s];
  cp.async.wait_group 1;
  ld.shared.b32 %b, [%s+2048];
  cp.async.wait_group 0;
  ld.shared.b32 %c, [%s+4096];
"""
#: a barrier instead of a wait: neighbours read each other's copies
_ARRIVE = """
  .reg .b32 %s, %o, %bar; .reg .b64 %g; .reg .pred %one, %w;
  .shared .align 16 .b8 data[2048];
  .shared .align 8 .b8 barrier[8];
  mov.u32 %bar, barrier; setp.eq.u32 %one, %idx, 0;
  @%one mbarrier.init.shared.b64 [%bar], 128;
  bar.sync 0;
  mov.u32 %s, data; mov.u32 %o, %tid.x; shl.b32 %o, %o, 4; add.u32 %s, %s, %o;
  cvt.u64.u32 %g, %o; add.u64 %g, %src, %g;
  cp.async.cg.shared.global [%s], [%g], 16;
  {arrive}
LOOP:
  mbarrier.try_wait.parity.shared.b64 %w, [%bar], 0;
  @!%w bra LOOP;
  xor.b32 %o, %o, 1040; mov.u32 %s, data; add.u32 %s, %s, %o;
  ld.shared.b32 %a, [%s];
"""


def _arrivals(name: str, arrive: str) -> Case:
    other = (np.arange(N) * 16 ^ 1040) // 4
    body = _ARRIVE.replace("{arrive}", arrive)
    x = {"x": ("u32", _ints(6, 0, 2))}
    return Case(name, body, x, {"a": "u32"}, lambda src, x: src[other], {"src": _words(7)}, draws=False)


_GROUPS = [
    Case(
        "groups", _PIPELINE, {"x": ("u32", _ints(6, 0, 2))}, {"a": "u32", "b": "u32", "c": "u32"},
        lambda src, x: tuple(src.reshape(3, N, 4)[:, :, 0]), {"src": _words(8, 3 * WORDS)}, draws=False,
    ),
    _arrivals("mbarrier.noinc", "cp.async.mbarrier.arrive.noinc.shared.b64 [%bar];"),
    _arrivals("mbarrier.inc", "cp.async.mbarrier.arrive.shared.b64 [%bar];\n  mbarrier.arrive.shared.b64 _, [%bar];"),
]  # fmt: skip

# ---------------------------------------------------------------- bulk copies
_BULK = """
  .reg .b32 %s, %o, %bar, %t, %peer; .reg .b64 %g, %h; .reg .pred %one, %w; .reg .b16 %m;
  .shared .align 16 .b8 data[4096];
  .shared .align 8 .b8 barrier[8];
  mov.u32 %bar, barrier; mov.u32 %s, data;
  mov.u32 %t, %tid.x; setp.eq.u32 %one, %t, 0;
  @%one mbarrier.init.shared.b64 [%bar], 1;
  @%one fence.mbarrier_init.release.cluster;
  shl.b32 %o, %t, 4; add.u32 %t, %s, %o;
  cvt.u64.u32 %h, %o; add.u64 %g, %into, %h; add.u64 %h, %src, %h;
"""
_FILL = """
  .reg .b32 %f<4>;
  ld.global.v4.b32 {%f0, %f1, %f2, %f3}, [%h]; st.shared.v4.b32 [%t], {%f0, %f1, %f2, %f3};
  ld.global.v4.b32 {%f0, %f1, %f2, %f3}, [%g]; st.shared.v4.b32 [%t+2048], {%f0, %f1, %f2, %f3};
  fence.proxy.async;
  bar.sync 0;
"""
_WAIT = "LOOP:\n  mbarrier.try_wait.parity.shared.b64 %w, [%bar], 0;\n  @!%w bra LOOP;\n"
_DRAIN = "  @%one cp.async.bulk.commit_group;\n  @%one cp.async.bulk.wait_group 0;\n"


def _bulk(name: str, body: str, reference, into: np.ndarray | None = None, **options) -> Case:
    buffers = {"src": options.pop("src", _words(9)), "into": np.zeros(WORDS, np.uint32) if into is None else into}
    x = {"x": ("u32", _ints(6, 0, 2))}
    return Case(name, _BULK + body, x, {}, reference, buffers, draws=False, **options)


def _numbers(seed: int, dtype: str) -> np.ndarray:
    """WORDS words that hold numbers of a type."""
    rng = np.random.default_rng(seed)
    if dtype == "bf16":
        return (rng.standard_normal(2 * WORDS).astype(np.float32).view(np.uint32) >> 16).astype("u2").view(np.uint32)
    if dtype.startswith("f"):
        size = int(dtype[1:]) // 8
        return rng.standard_normal(4 * WORDS // size).astype(f"f{size}").view(np.uint32)
    words = _words(seed)
    words[::3] %= 5
    return words


def _combine(op: str, dtype: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Words of a op b, element by element in a type."""
    if dtype == "bf16":
        x, y = ((w.view(np.uint16).astype(np.uint32) << 16).view(np.float32) for w in (a, b))
        bits = {"add": np.add, "min": np.minimum, "max": np.maximum}[op](x, y).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(np.uint32)
    kind = {"b": "u"}.get(dtype[0], dtype[0]).replace("s", "i")
    x, y = (w.view(f"{kind}{int(dtype[1:]) // 8}") for w in (a, b))
    table = {
        "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
        "xor": np.bitwise_xor, "inc": lambda p, q: np.where(p >= q, 0, p + 1).astype(p.dtype),
        "dec": lambda p, q: np.where((p == 0) | (p > q), q, p - 1).astype(p.dtype),
    }  # fmt: skip
    return np.ascontiguousarray(table[op](x, y)).view(np.uint32)


def _to_global(op: str, dtype: str) -> Case:
    noftz = ".noftz" if op == "add" and dtype in ("f16", "bf16") else ""
    copy = f"  @%one cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}{noftz}.{dtype} [%into], [%s], 2048;\n"
    return _bulk(
        f"reduce.global.{op}.{dtype}", _FILL + copy + _DRAIN,
        lambda src, into, x: {"into": _combine(op, dtype, into, src)}, _numbers(11, dtype), src=_numbers(12, dtype),
    )  # fmt: skip


#: CTA 0 reduces its first 2048 bytes into the second ones of CTA 1 (an H200 refuses to do so within one CTA)
_REMOTE = (
    _FILL
    + """
  .reg .pred %first, %send; .reg .b32 %rank, %far;
  mov.u32 %rank, %cluster_ctarank; setp.eq.u32 %first, %rank, 0; and.pred %send, %first, %one;
  @%one mbarrier.arrive.expect_tx.shared.b64 _, [%bar], 2048;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  add.u32 %peer, %s, 2048; mapa.shared::cluster.u32 %peer, %peer, 1; mapa.shared::cluster.u32 %far, %bar, 1;
  @%send cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{op} [%peer], [%s], 2048, [%far];
  @%first bra SENT;
LOOP:
  mbarrier.try_wait.parity.shared.b64 %w, [%bar], 0;
  @!%w bra LOOP;
  ld.shared.v4.b32 {%f0, %f1, %f2, %f3}, [%t+2048]; st.global.v4.b32 [%g], {%f0, %f1, %f2, %f3};
SENT:
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""
)


def _to_shared(op: str, dtype: str) -> Case:
    return _bulk(
        f"reduce.shared.{op}.{dtype}", _REMOTE.replace("{op}", f"{op}.{dtype}"),
        lambda src, into, x: {"into": _combine(op, dtype, into, src)}, _numbers(13, dtype), src=_numbers(14, dtype),
        cluster=2, n=2 * N,
    )  # fmt: skip


_LOADED = """
  bar.sync 0;
  @%one mbarrier.arrive.expect_tx.shared.b64 _, [%bar], {size};
  @%one cp.async.bulk.prefetch.L2.global [%src], 64;
  @%one cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%s], [%src], {size}, [%bar];
"""
_COPY_OUT = """
  .reg .b32 %f<4>;
  ld.shared.v4.b32 {%f0, %f1, %f2, %f3}, [%t]; st.global.v4.b32 [%g], {%f0, %f1, %f2, %f3};
"""
_ZERO = "  st.shared.v4.b32 [%t], {0, 0, 0, 0};\n  fence.proxy.async;\n"
#: CTA 0 sends its shared memory to CTA 1, which has zeros
_SEND = """
  .reg .pred %first, %send; .reg .b32 %rank, %far, %f<4>;
  mov.u32 %rank, %cluster_ctarank; setp.eq.u32 %first, %rank, 0;
  cvt.u64.u32 %g, %o; add.u64 %h, %src, %g; add.u64 %g, %into, %g;
  st.shared.v4.b32 [%t], {0, 0, 0, 0};
  @%first ld.global.v4.b32 {%f0, %f1, %f2, %f3}, [%h];
  @%first st.shared.v4.b32 [%t], {%f0, %f1, %f2, %f3};
  fence.proxy.async;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  and.pred %send, %first, %one;
  mapa.shared::cluster.u32 %peer, %s, 1; mapa.shared::cluster.u32 %far, %bar, 1;
  @%one mbarrier.arrive.expect_tx.shared.b64 _, [%bar], 1024;
  @%send add.u32 %peer, %peer, 512;
  @%send cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%peer], [%s], 1024, [%far];
  @%first bra SENT;
""" + _WAIT + """
  ld.shared.v4.b32 {%f0, %f1, %f2, %f3}, [%t]; st.global.v4.b32 [%g], {%f0, %f1, %f2, %f3};
SENT:
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""  # fmt: skip
_MULTICAST = """
  .reg .b32 %rank; .reg .pred %send; .reg .b64 %far;
  mov.u32 %rank, %cluster_ctarank; setp.eq.u32 %send, %rank, 1; and.pred %send, %send, %one;
  mov.b16 %m, 3;
  @%one mbarrier.arrive.expect_tx.shared.b64 _, [%bar], 2048;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  @%send cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
    [%s], [%src], 2048, [%bar], %m;
""" + _WAIT + """
  .reg .b32 %f<4>;
  ld.shared.v4.b32 {%f0, %f1, %f2, %f3}, [%t]; mul.wide.u32 %far, %rank, 2048; add.u64 %g, %g, %far;
  st.global.v4.b32 [%g], {%f0, %f1, %f2, %f3};
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""  # fmt: skip


def _head(size: int):
    return lambda src, into, x: {"into": np.where(np.arange(WORDS) < size // 4, src, 0).astype(np.uint32)}


def _sent(src: np.ndarray, into: np.ndarray, x: np.ndarray) -> dict[str, np.ndarray]:
    want = np.zeros(WORDS, np.uint32)
    want[128:384] = src[:256]
    return {"into": want}


_REDUCTIONS = [("add", t) for t in ("u32", "s32", "u64", "f16", "bf16", "f32", "f64")]
_REDUCTIONS += [(op, t) for op in ("min", "max") for t in ("u32", "s32", "u64", "s64", "f16", "bf16")]
_REDUCTIONS += [("inc", "u32"), ("dec", "u32"), ("and", "b32"), ("or", "b64"), ("xor", "b32")]
_BULKS = [
    *(_bulk(f"load.{size}", _ZERO + _LOADED.replace("{size}", str(size)) + _WAIT + _COPY_OUT, _head(size))
      for size in (16, 1040, 2048)),
    *(_bulk(f"store.{size}", _FILL + f"  @%one cp.async.bulk.global.shared::cta.bulk_group [%into], [%s], {size};\n"
            + _DRAIN, _head(size)) for size in (16, 1040, 2048)),
    _bulk("store.read", _FILL + "  @%one cp.async.bulk.global.shared::cta.bulk_group [%into], [%s], 2048;\n"
          "  @%one cp.async.bulk.commit_group;\n  @%one cp.async.bulk.wait_group.read 0;\n  bar.sync 0;\n" + _ZERO,
          _head(2048)),
    _bulk("store.cp_mask", _FILL + "  mov.b16 %m, 0x8421;\n  @%one cp.async.bulk.global.shared::cta.bulk_group.cp_mask"
          " [%into], [%s], 2048, %m;\n" + _DRAIN,
          lambda src, into, x: {"into": src & np.tile(np.uint32([0xFF, 0xFF00, 0xFF0000, 0xFF000000]), N)},
          silicon=False, target="sm_100a", version="8.6"),
    _bulk("shared_to_shared", _SEND, _sent, cluster=2, n=2 * N),
    _bulk("multicast", _MULTICAST, lambda src, into, x: {"into": np.concatenate([src, src])},
          np.zeros(2 * WORDS, np.uint32), cluster=2, n=2 * N),
    *(_to_global(op, ty) for op, ty in _REDUCTIONS),
    *(_to_shared(op, ty) for op, ty in (("add", "u32"), ("min", "s32"), ("max", "u32"), ("inc", "u32"), ("dec", "u32"),
                                        ("and", "b32"), ("or", "b32"), ("xor", "b32"), ("add", "u64"))),
]  # fmt: skip
for _case in _BULKS:
    if _case.cluster == 2:
        _case.inputs["x"] = ("u32", np.zeros(2 * N, np.uint32))

CASES = [*_COPIES, *_GROUPS, *_BULKS]
test_cases = cases_test(CASES)


# ---------------------------------------------------------------- errors
def _fails(body: str, source: np.ndarray, **options) -> str:
    from tensorladder.core.errors import TensorladderError

    case = Case("error", body, {"n": ("u32", _ints(1, 0, 2))}, {}, buffers={"src": source}, **options)
    with pytest.raises(TensorladderError) as caught:
        run(case)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("policy", ["eager", "lazy"])
@pytest.mark.parametrize(
    ("copy", "words"),
    [
        ("cp.async.cg.shared.global [%s], [%g+2048], 16;", "out of bounds: 16 bytes at 16 bytes past the end"),
        ("cp.async.ca.shared.global [%s], [%g+4], 16;", "misaligned: 16 bytes"),
        ("cp.async.ca.shared.global [%s+4], [%g], 8;", "misaligned: 8 bytes"),
        ("add.u32 %n, %n, 16;\n  cp.async.ca.shared.global [%s], [%g], 8, %n;", "more than its copy size 8"),
        ("cp.async.cg.shared.global [%s], [%g], 8;", "not modelled: cp.async.cg.shared.global with cp-size 8"),
        ("cp.async.bulk.global.shared::cta.bulk_group [%g], [%s], 24;", "bulk copy of 24 bytes"),
        ("cp.async.bulk.global.shared::cta.bulk_group [%g], [%s+8], 16;", "not aligned to 16 bytes"),
        ("cp.async.bulk.global.shared::cta.bulk_group [%g+4], [%s], 16;", "misaligned: 16 bytes"),
        ("cp.async.bulk.global.shared::cta.bulk_group [%g+4096], [%s], 16;", "out of bounds: 16 bytes"),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.b32 [%g], [%s], 16;", "not modelled: cp.reduce"),
    ],
)  # fmt: skip
def test_misuse_is_named(copy: str, words: str, policy: str) -> None:
    text = _fails(_SETUP + "  " + copy + "\n  cp.async.wait_all;\n", _words(1), policy=policy)
    assert words in text and "PTX line" in text, text


def test_a_source_that_is_not_read_may_lie_anywhere() -> None:
    """Source size 0 is how ragged edges are written: the address is not touched."""
    body = _SETUP + "  cp.async.cg.shared.global [%s], [%g+1048576], 16, 0;\n  cp.async.wait_all;\n" + _BACK
    got = run(Case("zero", body, {"n": ("u32", _ints(1, 0, 2))}, _OUT, buffers={"src": _words(1)}))
    assert not any(got[name].any() for name in _OUT)
