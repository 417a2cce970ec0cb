"""When asynchronous effects happen: right kernels give the same bits under every policy, broken ones show under one."""

from __future__ import annotations

import numpy as np
import pytest

from tensorladder.core.errors import KernelError
from tensorladder.core.tensormap import TensorMap, encode, validate
from tensorladder.vgpu import Device, launch

POLICIES = ["eager", "lazy", "timed", *(f"random:{seed}" for seed in range(20))]
TILES = 6
TILE = 32 * 64  # 32 rows of 64 f16

_HEAD = """.version 8.3
.target sm_90a
.address_size 64
.visible .entry kernel(.param .align 64 .b8 from[128], .param .align 64 .b8 to[128], .param .u64 src, .param .u64 dst)
{
  .reg .b32 %t, %warp, %i, %row, %full, %empty, %in, %out, %a, %parity, %slot, %o, %k; .reg .b64 %m, %n, %g, %h;
  .reg .pred %p, %one, %go, %producer;
  .reg .f16 %x;
  .shared .align 1024 .b8 data[16384];
  .shared .align 8 .b8 bars[64];
  mov.u32 %t, %tid.x; shr.u32 %warp, %t, 5; setp.eq.u32 %one, %t, 0;
  mov.b64 %m, from; cvta.param.u64 %m, %m; mov.b64 %n, to; cvta.param.u64 %n, %n;
  ld.param.u64 %g, [src]; ld.param.u64 %h, [dst];
  mov.u32 %in, data; mov.u32 %full, bars; add.u32 %empty, %full, 16;
"""
#: warp 1 loads tiles into two slots, warp 0 doubles them in place and stores them
_PIPELINE = (
    _HEAD
    + """
  @!%one bra READY;
  mbarrier.init.shared.b64 [%full], 1; mbarrier.init.shared.b64 [%full+8], 1;
  mbarrier.init.shared.b64 [%empty], 1; mbarrier.init.shared.b64 [%empty+8], 1;
  fence.mbarrier_init.release.cluster;
READY:
  bar.sync 0;
  mov.u32 %i, 0;
  setp.eq.u32 %producer, %warp, 1;
  and.b32 %t, %t, 31; setp.eq.u32 %one, %t, 0;
  @%producer bra PRODUCE;
CONSUME:
  and.b32 %slot, %i, 1; shr.u32 %parity, %i, 1; and.b32 %parity, %parity, 1;
  shl.b32 %k, %slot, 3; add.u32 %a, %full, %k;
FULL:
  mbarrier.try_wait.parity.shared.b64 %go, [%a], %parity;
  @!%go bra FULL;
  shl.b32 %o, %slot, 12; add.u32 %out, %in, %o; shl.b32 %o, %t, 1; add.u32 %o, %out, %o;
  mov.u32 %k, 0;
DOUBLE:
  ld.shared.b16 %x, [%o]; add.f16 %x, %x, %x; st.shared.b16 [%o], %x;
  add.u32 %o, %o, 64; add.u32 %k, %k, 1; setp.lt.u32 %p, %k, 64;
  @%p bra DOUBLE;
  fence.proxy.async.shared::cta;
  bar.warp.sync -1;
  @!%one bra STORED;
  shl.b32 %row, %i, 5; mov.u32 %k, 0;
  cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%n, {%k, %row}], [%out];
  cp.async.bulk.commit_group;
  {read}
  shl.b32 %k, %slot, 3; add.u32 %a, %empty, %k;
  mbarrier.arrive.shared.b64 _, [%a];
STORED:
  add.u32 %i, %i, 1; setp.lt.u32 %p, %i, 6;
  @%p bra CONSUME;
  @%one cp.async.bulk.wait_group 0;
  ret;
PRODUCE:
  and.b32 %slot, %i, 1; shr.u32 %parity, %i, 1; and.b32 %parity, %parity, 1; xor.b32 %parity, %parity, 1;
  shl.b32 %k, %slot, 3; add.u32 %a, %empty, %k;
EMPTY:
  {acquire}
  add.u32 %a, %full, %k; shl.b32 %row, %i, 5; shl.b32 %o, %slot, 12; add.u32 %out, %in, %o; mov.u32 %k, 0;
  @!%one bra LOADED;
  mbarrier.arrive.expect_tx.shared.b64 _, [%a], {bytes};
  cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%out], [%m, {%k, %row}], [%a];
LOADED:
  bar.warp.sync -1;
  add.u32 %i, %i, 1; setp.lt.u32 %p, %i, 6;
  @%p bra PRODUCE;
  ret;
}
"""
)
_GOOD = {"{read}": "cp.async.bulk.wait_group.read 0;", "{bytes}": "4096",
         "{acquire}": "mbarrier.try_wait.parity.shared.b64 %go, [%a], %parity;\n  @!%go bra EMPTY;"}  # fmt: skip
#: every thread copies 16 bytes at a time through two slots of shared memory
_CP_ASYNC = (
    _HEAD
    + """
  shl.b32 %o, %t, 4; add.u32 %in, %in, %o; cvt.u64.u32 %n, %o; add.u64 %g, %g, %n; add.u64 %h, %h, %n;
  .reg .b32 %w<4>;
  cp.async.cg.shared.global [%in], [%g], 16; cp.async.commit_group;
  mov.u32 %i, 0;
NEXT:
  add.u32 %i, %i, 1; and.b32 %slot, %i, 1; shl.b32 %slot, %slot, 10; add.u32 %a, %in, %slot;
  mul.wide.u32 %m, %i, 1024; add.u64 %m, %g, %m;
  setp.lt.u32 %p, %i, 6;
  @%p cp.async.cg.shared.global [%a], [%m], 16;
  cp.async.commit_group;
  {wait}
  xor.b32 %slot, %slot, 1024; add.u32 %a, %in, %slot;
  ld.shared.v4.b32 {%w0, %w1, %w2, %w3}, [%a];
  sub.u32 %k, %i, 1; mul.wide.u32 %m, %k, 1024; add.u64 %m, %h, %m;
  st.global.v4.b32 [%m], {%w0, %w1, %w2, %w3};
  @%p bra NEXT;
  ret;
}
"""
)


def _arrays() -> tuple[np.ndarray, np.ndarray]:
    src = np.random.default_rng(5).standard_normal((TILES * 32, 64)).astype(np.float16)
    return src, np.zeros_like(src)


def _first(src: np.ndarray) -> np.ndarray:
    """What the cp.async kernel leaves: the first 3072 elements, zeros after them."""
    return np.where(np.arange(src.size).reshape(src.shape) < 3072, src, np.float16(0))


def _run(text: str, policy: str) -> tuple[np.ndarray, np.ndarray]:
    src, dst = _arrays()
    device = Device("sm_90a", policy, timeout=30)
    device.memory.attach("src", src)
    device.memory.attach("dst", dst)
    shape = (64, TILES * 32), (128,), (64, 32), (1, 1)
    maps = [encode(validate(TensorMap(a.ctypes.data, "f16", 2, *shape))) for a in (src, dst)]
    launch(text, "kernel", 1, 64, [*maps, src, dst], device=device)
    return src, dst


def _pipeline(**changes: str) -> str:
    text = _PIPELINE
    for key, value in {**_GOOD, **{f"{{{k}}}": v for k, v in changes.items()}}.items():
        text = text.replace(key, value)
    return text


@pytest.mark.parametrize("policy", POLICIES)
def test_a_right_pipeline_has_the_same_bits_under_every_policy(policy: str) -> None:
    src, dst = _run(_pipeline(), policy)
    assert np.array_equal(dst, src + src)


@pytest.mark.parametrize("policy", POLICIES)
def test_right_cp_async_groups_have_the_same_bits_under_every_policy(policy: str) -> None:
    src, dst = _run(_CP_ASYNC.replace("{wait}", "cp.async.wait_group 1;"), policy)
    assert np.array_equal(dst.view(np.uint16), _first(src).view(np.uint16))


def _wrong_somewhere(text: str, want) -> list[str]:
    found = []
    for policy in POLICIES:
        try:
            src, dst = _run(text, policy)
        except KernelError:
            found.append(policy)
            continue
        if not np.array_equal(dst, want(src)):
            found.append(policy)
    return found


def test_a_missing_cp_async_wait_shows() -> None:
    wrong = _wrong_somewhere(_CP_ASYNC.replace("{wait}", ""), _first)
    assert "lazy" in wrong and "eager" not in wrong


def test_a_wait_for_one_group_too_few_shows() -> None:
    text = _CP_ASYNC.replace("{wait}", "cp.async.wait_group 2;")
    assert "lazy" in _wrong_somewhere(text, _first)


def test_reusing_a_slot_before_its_store_has_read_it_shows() -> None:
    """The consumer frees the slot without waiting for the store's read."""
    wrong = _wrong_somewhere(_pipeline(read=""), lambda src: src + src)
    assert wrong and "eager" not in wrong


def test_a_producer_that_does_not_wait_for_free_slots_shows() -> None:
    assert _wrong_somewhere(_pipeline(acquire=""), lambda src: src + src)


@pytest.mark.parametrize("policy", ["eager", "lazy", "timed", "random:1"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bytes": "4112"}, "still owed: 0 arrivals, 16 bytes"),
        ({"acquire": "xor.b32 %parity, %parity, 1;\nEMPTY2:\n  "
          "mbarrier.try_wait.parity.shared.b64 %go, [%a], %parity;\n  @!%go bra EMPTY2;"},
         "still owed: 1 arrivals, 0 bytes"),
    ],
)  # fmt: skip
def test_a_broken_protocol_hangs_with_what_is_owed(changes: dict[str, str], words: str, policy: str) -> None:
    with pytest.raises(KernelError) as caught:
        _run(_pipeline(**changes), policy)
    text = str(caught.value)
    assert "hangs" in text and words in text and "mbarrier.try_wait" in text and "PTX line" in text, text


def test_a_lazy_store_reads_its_source_late() -> None:
    """Without wait_group.read, what overwrites the source is what gets stored."""
    text = (
        _HEAD
        + """
  st.shared.b32 [%in], 0x40004000;
  fence.proxy.async;
  bar.sync 0;
  mov.u32 %k, 0;
  @%one cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%n, {%k, %k}], [%in];
  @%one cp.async.bulk.commit_group;
  {wait}
  bar.sync 0;
  st.shared.b32 [%in], 0x3c003c00;
  @%one cp.async.bulk.wait_group 0;
  ret;
}
"""
    )
    first = {}
    for wait in ("", "@%one cp.async.bulk.wait_group.read 0;"):
        for policy in ("eager", "lazy"):
            first[wait != "", policy] = float(_run(text.replace("{wait}", wait), policy)[1][0, 0])
    assert first == {(False, "eager"): 2.0, (False, "lazy"): 1.0, (True, "eager"): 2.0, (True, "lazy"): 2.0}


def test_the_checked_variant_records_arrivals_issues_effects_and_waits() -> None:
    from tensorladder.vgpu.machine import hooks, layout

    src, dst = _arrays()
    device = Device("sm_90a", "lazy", timeout=30, checked=True)
    device.memory.attach("src", src)
    device.memory.attach("dst", dst)
    shape = (64, TILES * 32), (128,), (64, 32), (1, 1)
    maps = [encode(TensorMap(a.ctypes.data, "f16", 2, *shape)) for a in (src, dst)]
    launch(_pipeline(), "kernel", 1, 64, [*maps, src, dst], device=device)
    (events,) = device.events
    kinds = events[:, 0]
    assert (kinds == hooks.EVENT_ISSUE).sum() == 2 * TILES  # a load and a store a tile
    assert (kinds == hooks.EVENT_EFFECT).sum() == 2 * TILES
    assert (kinds == hooks.EVENT_ARRIVE).sum() >= 3 * TILES  # expect_tx, the bytes, the slot given back; and bar.sync
    assert (kinds == hooks.EVENT_WAIT).any()
    issued = events[kinds == hooks.EVENT_ISSUE]
    assert set(issued[:, 7]) == {layout.OP_TMA_LOAD, layout.OP_TMA_STORE}
    assert np.array_equal(dst, src + src)
