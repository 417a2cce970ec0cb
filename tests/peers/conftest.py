"""Checkouts of other projects: `make peers PEERS=folder` names the folder that holds them.

Nothing of theirs is in this project: a test reads a file from the checkout, lets the project's front ends or its own
compiler make PTX of it, and runs that on the virtual GPU. A checkout is found by its own name (`cutlass`), by
`owner/name`, or by `owner+name`; a test whose checkout is absent is skipped and says which one it wants.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.peers import checked

OWNERS = {
    "cutlass": "NVIDIA",
    "cuda-samples": "NVIDIA",
    "DeepGEMM": "deepseek-ai",
    "FlashMLA": "deepseek-ai",
    "flash-attention": "Dao-AILab",
    "flashinfer": "flashinfer-ai",
    "learn-cutedsl": "luongthecong123",
    "quack": "Dao-AILab",
    "modern-gpu-programming-for-mlsys": "mlc-ai",
    "triton": "triton-lang",
}


#: files that the running test asked for
_FILES: list[str] = []
_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call) -> Iterator[None]:
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.fixture(scope="session")
def checkout() -> Callable[[str, str], Path]:
    """checkout(project, file): the path of a file in a project's checkout; skips where it is absent."""

    def find(project: str, file: str) -> Path:
        folder = os.environ.get("TENSORLADDER_PEERS", "")
        if not folder:
            pytest.skip("run as `make peers PEERS=folder`")
        owner = OWNERS[project]
        for name in (project, f"{owner}/{project}", f"{owner}+{project}"):
            path = Path(folder) / name / file
            if path.exists():
                _FILES.append(f"{owner}/{project}/{file}")
                return path
        pytest.skip(f"no {owner}/{project} with {file} in {folder}")

    return find


@pytest.fixture(autouse=True)
def checked_kernels(request, monkeypatch, tmp_path_factory) -> Iterator[None]:
    """Under TENSORLADDER_PEERS_CHECKED=F.jsonl: kernels run under the hazard checker, an unknown error fails."""
    records = os.environ.get(checked.RECORDS)
    if not records:
        yield
        return
    from tensorladder.vgpu import Checker, Device

    findings = tmp_path_factory.mktemp("checked") / "findings.jsonl"
    monkeypatch.setenv(checked.FINDINGS, str(findings))
    make, checkers = Device.__init__, []

    def checked_device(self, arch="sm_90a", *args, checker=None, **options) -> None:
        checker = checker or Checker()
        make(self, arch, *args, checker=checker, **options)
        checkers.append((checker, self.arch.name))

    monkeypatch.setattr(Device, "__init__", checked_device)
    _FILES.clear()
    begin = time.perf_counter()
    yield
    for checker, arch in checkers:
        checked.write(findings, checked.found_by(checker), arch)
    found = checked.read(findings)
    test = f"{request.path.name}::{request.node.name}"
    failed = request.node.stash[_FAILED]
    line = checked.record(test, _FILES, found, failed) | {"seconds": round(time.perf_counter() - begin, 1)}
    with open(records, "a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
    errors = checked.unexplained(test, found)
    assert not errors, "\n".join(" ".join(str(f.get(k)) for k in ("kind", "message", "where", "other")) for f in errors)
