"""When WGMMA reads and writes: what is not waited for is wrong under some policy, what is, right under all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from tensorladder.core.errors import KernelError, Unsupported, UsageError
from tensorladder.vgpu import Device, launch
from tests.vgpu.ptx_kernels import Case, ptx_of, run
from tests.vgpu.wgmma_kernels import Mma, decode

POLICIES = ["eager", "lazy", "timed", *(f"random:{seed}" for seed in range(20))]
FEW = ["eager", "lazy", "timed", "random:1"]
M = Mma(16)
WAIT = "wgmma.wait_group.sync.aligned 0;"
COMMIT = "wgmma.commit_group.sync.aligned;"
OVERWRITE = "bar.sync 0; st.shared.v4.b32 [%sb], {%x0, %x0, %x0, %x0}; bar.sync 0;"


def _d(case: Case, policy: str) -> np.ndarray:
    return run(case, policy=policy)["d"]


def _want(again: int = 0, mma: Mma = M) -> np.ndarray:
    return mma.fragment(mma.product(again))


def _start(mma: Mma = M) -> np.ndarray:
    return mma.fragment(mma.matrices()[2])


# ---------------------------------------------------------------- accumulators
def test_accumulators_read_before_the_wait_are_stale() -> None:
    case = M.case(before_wait="bar.sync 0;", wait="")  # at the barrier all warps have issued
    assert np.array_equal(_d(case, "eager"), _want())
    assert np.array_equal(_d(case, "lazy"), _start())
    assert any(not np.array_equal(_d(case, f"random:{seed}"), _want()) for seed in range(4))


def test_arithmetic_on_an_accumulator_in_flight_sees_the_old_value() -> None:
    """Also where the kernel waits before it uses the sum."""
    case = M.case(before_wait="add.s32 %x0, %d0, 0;", wait=WAIT + " mov.b32 %d0, %x0;")
    got = _d(case, "lazy")
    assert np.array_equal(got[0], _start()[0]) and np.array_equal(got[1:], _want()[1:])


@pytest.mark.parametrize("policy", POLICIES)
def test_plain_moves_of_an_accumulator_in_flight_give_its_final_value(policy: str) -> None:
    case = M.case(before_wait="mov.b32 %x0, %d0; mov.b32 %x1, %x0;", wait=WAIT + " mov.b32 %d1, %x1;")
    got = _d(case, policy)
    assert np.array_equal(got[0], _want()[0]) and np.array_equal(got[1], _want()[0])


@pytest.mark.parametrize("policy", POLICIES)
def test_an_accumulator_in_flight_that_is_written_keeps_what_is_written(policy: str) -> None:
    """Under every policy, as ptxas completes the operation first; no other register is touched."""
    got = _d(M.case(before_wait="mov.b32 %d0, 77; add.s32 %d1, %x0, %x0;", before="mov.b32 %x0, 4;"), policy)
    assert (got[0] == 77).all() and (got[1] == 8).all() and np.array_equal(got[2:], _want()[2:])


@pytest.mark.parametrize("policy", FEW)
def test_thousands_of_operations_before_the_wait(policy: str) -> None:
    """More than the pool holds: a warp that is far ahead of its warpgroup lets the others come."""
    mma = Mma(8, d="s32", a="s8", b="s8")
    loop = """.reg .b32 %i; .reg .pred %next; mov.b32 %i, 0;
    LOOP: {mma} add.u32 %i, %i, 1; setp.lt.u32 %next, %i, 3000; @%next bra LOOP;"""
    got = _d(mma.case(before_wait=loop + COMMIT), policy)
    assert np.array_equal(got, _want(3000, mma))


@pytest.mark.parametrize("policy", FEW)
def test_a_loop_that_swaps_accumulators_in_flight(policy: str) -> None:
    """As nvcc compiles it: at most one group pending, then two sets of accumulators change names."""
    n = M.d_count
    loop = f""".reg .b32 %e<{n}>, %i, %t; .reg .pred %next; mov.b32 %i, 0;
    {" ".join(f"mov.b32 %e{r}, 0;" for r in range(n))}
    wgmma.wait_group.sync.aligned 0;
    LOOP: wgmma.fence.sync.aligned; {{mma}} {COMMIT} wgmma.wait_group.sync.aligned 1;
    {" ".join(f"mov.b32 %t, %d{r}; mov.b32 %d{r}, %e{r}; mov.b32 %e{r}, %t;" for r in range(n))}
    add.u32 %i, %i, 1; setp.lt.u32 %next, %i, 3; @%next bra LOOP; wgmma.wait_group.sync.aligned 0;"""
    got = _d(M.case(before_wait=loop), policy)  # the first and the third turn go into e, the second into d
    a, b, _ = M.matrices()
    last = slice(M.k * (M.count - 1), None)
    part = decode(a[:, last], "f16") @ decode(b[:, last], "f16").T
    assert np.array_equal(got, M.fragment(part.astype(np.float32).view(np.uint32)))


@pytest.mark.parametrize("policy", FEW)
def test_an_operation_may_go_on_with_moved_accumulators(policy: str) -> None:
    """Between operations that are all in flight."""
    n = M.d_count
    there = " ".join(f"mov.b32 %e{r}, %d{r};" for r in range(n))
    back = " ".join(f"mov.b32 %d{r}, %e{r};" for r in range(n))
    inside = f".reg .b32 %e<{n}>; {there} {{mma:%e}}"
    assert np.array_equal(_d(M.case(inside=inside, before_wait=back), policy), _want(1))


@pytest.mark.parametrize("policy", FEW)
def test_a_moved_accumulator_is_done_with_the_group_that_makes_it(policy: str) -> None:
    """The second group is still pending then."""
    inside = f"{COMMIT} mov.b32 %x0, %d0; {{mma}}"
    wait = "wgmma.wait_group.sync.aligned 1; add.s32 %x1, %x0, 0;" + WAIT + "mov.b32 %d0, %x1;"
    got = _d(M.case(inside=inside, wait=wait), policy)
    assert np.array_equal(got[0], _want()[0]) and np.array_equal(got[1:], _want(1)[1:])


# ---------------------------------------------------------------- operands
def test_shared_memory_overwritten_before_the_wait_is_what_is_multiplied() -> None:
    late, right = M.case(before_wait=OVERWRITE), M.case(wait=WAIT + OVERWRITE)
    assert np.array_equal(_d(late, "eager"), _want())
    assert not np.array_equal(_d(late, "lazy"), _want())
    assert any(not np.array_equal(_d(late, f"random:{seed}"), _want()) for seed in range(4))
    for policy in FEW:
        assert np.array_equal(_d(right, policy), _want())


def test_registers_of_a_overwritten_before_the_wait_are_what_is_multiplied() -> None:
    m = replace(M, registers=True)
    late, right = (m.case(**{where: text}) for where, text in (
        ("before_wait", "bar.sync 0; mov.b32 %f0, 0;"), ("wait", WAIT + "mov.b32 %f0, 0;"),
    ))  # fmt: skip
    assert np.array_equal(_d(late, "eager"), _want(mma=m))
    assert not np.array_equal(_d(late, "lazy"), _want(mma=m))
    for policy in FEW:
        assert np.array_equal(_d(right, policy), _want(mma=m))


# ---------------------------------------------------------------- groups
def test_a_group_that_is_not_waited_for_is_pending() -> None:
    case = M.case(inside=f"{COMMIT} {{mma}}", wait="wgmma.wait_group.sync.aligned 1;")
    assert np.array_equal(_d(case, "eager"), _want(1))
    assert np.array_equal(_d(case, "lazy"), _want())


@pytest.mark.parametrize("policy", POLICIES)
def test_groups_in_a_row_have_the_same_bits_under_every_policy(policy: str) -> None:
    m = replace(M, values="normal")
    case = m.case(inside=f"{COMMIT} {{mma}} {COMMIT} {{mma}}", wait="wgmma.wait_group.sync.aligned 1;" + WAIT)
    assert np.array_equal(_d(case, policy), _d(case, "eager"))


def test_what_is_not_committed_is_not_waited_for() -> None:
    text = ptx_of(M.case()).replace(COMMIT, "")
    got = M.fragment(M.matrices()[2])
    device = Device("sm_90a", "lazy", timeout=30)
    launch(text, "kernel", 1, 128, [*(M.case().buffers[k] for k in "ab"), got], device=device)
    assert np.array_equal(got, _start())


@pytest.mark.parametrize("policy", POLICIES)
def test_two_warpgroups_of_a_cta_work_apart(policy: str) -> None:
    """The second one runs the same on the same shared memory, after a detour; both store what they find."""
    case = replace(M, n=40).case(before=".reg .pred %w; setp.ge.u32 %w, %_tid, 128; @%w nanosleep.u32 3000;")
    text = ptx_of(case).replace("%_ctaid, %_ntid, %_tid;", "%_ctaid, %_ntid, %_tid; and.b32 %idx, %idx, 127;")
    arrays = [array.copy() for array in case.buffers.values()]
    launch(text, "kernel", 1, 256, arrays, device=Device("sm_90a", policy, timeout=60))
    assert np.array_equal(arrays[2], _want(mma=replace(M, n=40)))


# ---------------------------------------------------------------- numerics
def test_f64_numerics_round_once_an_instruction() -> None:
    m = replace(M, values="normal", steps=1, n=64)
    a, b, c = m.matrices()
    exact = decode(a, "f16") @ decode(b, "f16").T + decode(c, "f32")
    got = m.fragment(c)
    arrays = [m.case().buffers[k] for k in "ab"]
    launch(ptx_of(m.case()), "kernel", 1, 128, [*arrays, got], device=Device("sm_90a", numerics="f64"))
    want = m.fragment(exact.astype(np.float32).view(np.uint32))
    assert np.array_equal(got, want) and not np.array_equal(_d(m.case(), "eager"), want)


# ---------------------------------------------------------------- errors
_WARP0 = ".reg .pred %w0; setp.lt.u32 %w0, %idx, 32;"
_LANE0 = ".reg .pred %w0; .reg .b32 %lane; and.b32 %lane, %idx, 31; setp.eq.u32 %w0, %lane, 0;"


@pytest.mark.parametrize("policy", ["eager", "lazy"])
@pytest.mark.parametrize(
    ("before", "words"),
    [
        (f"{_WARP0} @%w0 add.u64 %da, %da, 2;", "the warps of a warpgroup differ in the descriptor of A"),
        (f"{_LANE0} @%w0 add.u64 %db, %db, 2;", "the lanes of a warp differ in the descriptor of B"),
        (f"{_WARP0} @%w0 setp.eq.u32 %keep, 0, 1;", "the warps of a warpgroup differ in scale-d"),
        (f"{_LANE0} @%w0 setp.eq.u32 %keep, 0, 1;", "the lanes of a warp differ in scale-d"),
        ("or.b64 %da, %da, 0x10000000000000;", "has bits that no descriptor has (0x10000000000000)"),
        ("mov.b64 %da, 0;", "tile of 64 rows at shared address 0x0 leaves the CTA's shared memory"),
        ("or.b64 %db, %db, 0x3f00;", "tile of 16 rows at shared address 0x3f400 leaves the CTA's shared memory"),
        (f"{_LANE0} @%w0 bra HERE; ret; HERE:", "wgmma is executed by lanes 0x1 of the warp only"),
        (f"{_WARP0} @%w0 bra AWAY;", "of warps 0 to 3, only 1, 2, 3 issued an operation"),
        (f"{_WARP0} @%w0 bra OTHER; bra GO; OTHER: {{mma}} GO:", "the warps of a warpgroup differ in the instruction"),
    ],
)
def test_a_warpgroup_that_does_not_agree_stops(before: str, words: str, policy: str) -> None:
    case = M.case(before=before, wait=WAIT + " AWAY:")
    with pytest.raises(KernelError) as caught:
        run(case, policy=policy)
    assert words in str(caught.value) and "wgmma." in str(caught.value) and "PTX line" in str(caught.value)


def test_a_warpgroup_needs_four_warps() -> None:
    text, arrays = ptx_of(M.case()), [a.copy() for a in M.case().buffers.values()]
    with pytest.raises(KernelError, match="wgmma by warp 0 of a warpgroup whose other warps the CTA of 3"):
        launch(text, "kernel", 1, 96, arrays, device=Device("sm_90a"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("m64n16k16", "sp.m64n16k32"), ("m64n16k16.f32.f16.f16", "m64n16k256.s32.b1.b1.and.popc"),
        ("m64n16k16", "m64n12k16"), ("m64n16k16", "m64n16k8"), ("m64n16k16.f32", "m64n16k16.satfinite.f32"),
        ("f32.f16.f16", "f32.f16.bf16"), ("f32.f16.f16", "f16.bf16.bf16"), (", %keep, 1, 1, 0, 0", ", %keep, 1, 1, 0"),
        (", %keep, 1, 1, 0, 0", ", %keep, 1, 2, 0, 0"), (", %keep, 1, 1, 0, 0", ", %keep, 1, 1, 0, 2"),
        ("{%d0, %d1,", "{%d1, %d1,"), ("{%d0, %d1,", "{%d1,"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_or_not_in_the_isa_is_refused(old: str, new: str) -> None:
    case = M.case()
    text = ptx_of(case).replace(old, new)
    assert text != ptx_of(case)
    with pytest.raises((Unsupported, UsageError), match="wgmma"):
        launch(text, "kernel", 1, 128, [a.copy() for a in case.buffers.values()], device=Device("sm_90a"))
