"""Architectures, occupancy, launch checks. launch_h200.json, occupancy_h200.json: answers of an H200's driver."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorladder.core.arch import ARCHS, KernelLimits, check_launch, find, occupancy, runs_on, warps_by_registers
from tensorladder.core.errors import KernelError, TensorladderError, UsageError

DATA = Path(__file__).parents[1] / "data"
H200 = find("sm_90a")
# The directives of the kernels that were launched for launch_h200.json.
DIRECTIVES = {
    "req128": {"reqntid": (128,)},
    "req8x4": {"reqntid": (8, 4, 2)},
    "max128": {"maxntid": (128,)},
    "max8x4": {"maxntid": (8, 4)},
    "max_min": {"maxntid": (256,)},
    "reqclu2": {"reqnctapercluster": (2,)},
    "explicit": {"explicitcluster": True},
    "maxclu4": {"maxclusterrank": 4},
}


def refused(call):
    limits = KernelLimits(call["static"], call["regs"], **DIRECTIVES.get(call["kernel"], {}))
    if call["smem"] > call["dynlimit"]:
        return None  # no opt-in to that much dynamic shared memory: not a question for check_launch
    try:
        check_launch(
            H200, call["grid"], call["block"], call["cluster"], call["smem"], limits,
            nonportable_cluster=call["nonport"],
        )  # fmt: skip
    except TensorladderError:
        return True
    return False


def test_launches_are_refused_as_the_driver_refuses_them():
    calls = json.loads((DATA / "launch_h200.json").read_text())
    answers = [(c, refused(c)) for c in calls]
    wrong = [c for c, answer in answers if answer is not None and answer != (c["code"] != 0)]
    assert not wrong
    assert sum(answer is not None for _, answer in answers) > 250


def test_occupancy_is_the_drivers():
    rows = json.loads((DATA / "occupancy_h200.json").read_text())
    wrong = [r for r in rows if occupancy(H200, r[2], r[0], r[1] + r[3]).ctas != r[4]]
    assert not wrong
    assert len(rows) > 2000


@pytest.mark.parametrize(
    ("name", "sms", "threads", "ctas", "smem", "cluster"),
    [
        ("sm_80", 108, 2048, 32, 166912, 1),
        ("sm_86", 82, 1536, 16, 101376, 1),
        ("sm_89", 128, 1536, 24, 101376, 1),
        ("sm_90a", 132, 2048, 32, 232448, 16),
        ("sm_100a", 148, 2048, 32, 232448, 16),
        ("sm_120a", 170, 1536, 24, 101376, 8),
    ],
)
def test_table(name, sms, threads, ctas, smem, cluster):
    a = find(name)
    assert (a.sm_count, a.max_threads_per_sm, a.max_ctas_per_sm, a.smem_per_cta, a.max_cluster) == (
        sms, threads, ctas, smem, cluster,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("feature", "has", "has_not"),
    [
        ("tma", ["sm_90", "sm_90a", "sm_100f", "sm_120"], ["sm_75", "sm_80", "sm_89"]),
        ("wgmma", ["sm_90a"], ["sm_90", "sm_100a", "sm_120a"]),
        ("tcgen05", ["sm_100a", "sm_100f", "sm_103a", "sm_110a"], ["sm_90a", "sm_100", "sm_120a"]),
        ("setmaxnreg", ["sm_90a", "sm_100a", "sm_120a"], ["sm_90", "sm_120", "sm_89"]),
        ("mbarrier", ["sm_80", "sm_120a"], ["sm_75"]),
        ("fp8", ["sm_89", "sm_90"], ["sm_80", "sm_86"]),
    ],
)
def test_features(feature, has, has_not):
    assert all(feature in find(a) for a in has)
    assert not any(feature in find(a) for a in has_not)


@pytest.mark.parametrize("name", ["sm_90a", "compute_90a", "90a", "9.0a", " SM_90A "])
def test_spellings(name):
    assert find(name) is H200


def test_cuda_12_name_of_thor():
    assert find("sm_101a") is find("sm_110a")


@pytest.mark.parametrize("name", ["", "sm_", "sm_91", "sm_90b", "sm_80a", "hopper", "sm_90a\n; rm", None])
def test_unknown_names_list_the_choices(name):
    with pytest.raises(UsageError, match="sm_90a") as caught:
        find(name)
    assert "\n" not in str(caught.value)


def test_which_targets_run_where():
    device = find("sm_103a")
    assert [n for n in ("sm_80", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_103a", "sm_120") if
            runs_on(find(n), device)] == ["sm_80", "sm_90", "sm_100", "sm_100f", "sm_103a"]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"grid": (0, 1, 1)}, UsageError, r"grid.x = 0"),
        ({"grid": (1, 65536, 1)}, UsageError, r"grid.y = 65536"),
        ({"grid": (4, 4)}, UsageError, "three numbers"),
        ({"block": (1, 1, 65)}, UsageError, r"block.z"),
        ({"block": (64, 32, 1)}, UsageError, "2048 threads"),
        ({"cluster": (3, 1, 1)}, UsageError, "no multiple"),
        ({"grid": (32, 1, 1), "cluster": (32, 1, 1)}, UsageError, "32 CTAs"),
        ({"arch": find("sm_80"), "cluster": (2, 1, 1)}, UsageError, "no clusters"),
        ({"dynamic_smem": 232449}, KernelError, "232448"),
        ({"dynamic_smem": 1, "kernel": KernelLimits(49153)}, KernelError, "49153"),
        ({"kernel": KernelLimits(reqntid=(64,))}, KernelError, "reqntid 64x1x1"),
        ({"kernel": KernelLimits(maxntid=(64,))}, KernelError, "maxntid"),
        ({"block": (512, 1, 1), "kernel": KernelLimits(registers=168)}, KernelError, "168 registers"),
    ],
)
def test_each_refusal_names_its_rule(change, error, says):
    good = {"arch": H200, "grid": (4, 1, 1), "block": (128, 1, 1), "cluster": None, "dynamic_smem": 0, "kernel": None}
    assert check_launch(**good) == (1, 1, 1)
    with pytest.raises(error, match=says) as caught:
        check_launch(**{**good, **change})
    assert "\n" not in str(caught.value)


def test_required_cluster_is_taken_from_the_kernel():
    assert check_launch(H200, (4, 1, 1), (32, 1, 1), None, 0, KernelLimits(reqnctapercluster=(2,))) == (2, 1, 1)


@given(st.sampled_from(sorted(ARCHS)), st.integers(1, 1024), st.integers(1, 255), st.integers(0, 233472))
def test_occupancy_fits_and_is_maximal(name, threads, registers, smem):
    a = find(name)
    got = occupancy(a, threads, registers, smem)
    warps = -(-threads // 32)
    assert got.ctas * warps <= a.max_warps_per_sm and got.ctas <= a.max_ctas_per_sm
    assert got.ctas * (smem + a.reserved_smem) <= a.smem_per_sm
    assert got.ctas * warps <= warps_by_registers(registers)
    assert got.ctas in (got.by_ctas, got.by_threads, got.by_registers, got.by_smem)
    assert got.limited_by


@given(st.integers(1, 1024), st.integers(1, 255), st.integers(0, 232448))
def test_what_cannot_be_resident_is_refused(threads, registers, smem):
    fits = occupancy(H200, threads, registers, smem).ctas > 0
    try:
        check_launch(H200, (1, 1, 1), (threads, 1, 1), None, smem, KernelLimits(registers=registers))
        launched = True
    except KernelError:
        launched = False
    assert launched == fits
