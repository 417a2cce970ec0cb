"""The real GPU's side, as far as it can be checked without one; with one (`--on gpu`), the ladder itself."""

from __future__ import annotations

import ctypes
import json

import numpy as np
import pytest

from tensorladder.core.errors import MissingExtra, UsageError
from tensorladder.core.program import Launch, Module
from tensorladder.measure.run import requests
from tensorladder.rungs.rung import catalog
from tensorladder.silicon import disassemble, driver, target


def launch(**more):
    return Launch(Module("", "sm_90a"), "k", (2, 3, 4), (128, 1, 1), b"\0" * 8, **more)


def test_structures_have_the_drivers_sizes():
    # CUDA driver API, cuda.h: CUlaunchAttribute is 72 bytes (value at 8), CUlaunchConfig 56 on 64-bit systems.
    assert ctypes.sizeof(driver._Attribute) == 72 and driver._Attribute.value.offset == 8
    assert ctypes.sizeof(driver._Config) == 56
    assert driver._Config.stream.offset == 32 and driver._Config.attributes.offset == 40


def test_launch_attributes():
    made = driver.launch_attributes(launch(cluster=(2, 1, 1), attributes={"cooperative": True}))
    assert [one.id for one in made] == [4, 2]
    assert list(made[0].value.dims) == [2, 1, 1] and made[1].value.flag == 1
    assert len(driver.launch_attributes(launch(attributes={"cooperative": False}))) == 0
    with pytest.raises(UsageError, match="priority"):
        driver.launch_attributes(launch(attributes={"priority": 1}))


@pytest.mark.parametrize(
    ("arch", "have", "runs"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 6), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("sm_90a", (9, 0), True),
        ("sm_100a", (10, 0), True),
        ("sm_100a", (10, 3), False),
        ("sm_100f", (10, 3), True),
        ("sm_120a", (12, 0), True),
    ],
)
def test_which_machine_code_runs_where(arch, have, runs):
    assert driver.runs_on(arch, have) is runs


def test_arch_is_chosen_for_the_gpu_that_is_there(monkeypatch):
    monkeypatch.setattr(driver, "capability", lambda device=0: (9, 0))
    assert target.arch_for(("sm_80", "sm_90a", "sm_100a")) == "sm_90a"
    with pytest.raises(UsageError, match="sm_90,"):
        target.arch_for(("sm_80", "sm_100a"))


def test_climb_leaves_out_what_the_gpu_cannot_run(monkeypatch):
    monkeypatch.setattr(driver, "capability", lambda device=0: (8, 6))
    infos = catalog()
    asked = list(requests(infos, on="gpu"))
    assert {one.arch for one in asked} <= {"sm_80", "sm_86"}
    assert {one.info.name for one in asked} == {info.name for info in infos if "sm_80" in info.archs}
    archs = {one.arch for one in requests(infos, on="gpu", all_archs=True)}
    assert archs == {"sm_80", "sm_86"}


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_keep_their_strides_and_bits(order):
    torch = pytest.importorskip("torch")
    array = np.arange(12, dtype=np.float16).reshape(3, 4).copy(order=order)
    on_cpu = target._bytes(array)
    tensor = torch.from_numpy(on_cpu.copy()).view(torch.float16)
    strides = [stride // array.itemsize for stride in array.strides]
    assert np.array_equal(tensor.as_strided(array.shape, strides).numpy(), array)
    back = np.zeros_like(array)
    target.download(torch, tensor.as_strided(array.shape, strides), back)
    assert np.array_equal(back, array)
    with pytest.raises(UsageError, match="dense"):
        target._bytes(np.zeros((4, 4))[:, ::2])


def test_no_nvdisasm_is_a_missing_extra(monkeypatch):
    monkeypatch.setattr(disassemble, "find_nvdisasm", lambda: None)
    with pytest.raises(MissingExtra, match=r"\[cuda\]"):
        disassemble.sass(b"")


@pytest.mark.gpu
@pytest.mark.parametrize("info", catalog(), ids=lambda info: info.name)
def test_rung_is_right_on_the_gpu_here(ask, info):
    try:
        arch = target.arch_for(info.archs)
    except UsageError as error:
        pytest.skip(str(error))
    said = ask("run", info.name, "--on", "gpu", "--json")
    record = json.loads(said.out)
    assert said.code == 0 and record["ok"] and record["arch"] == arch
