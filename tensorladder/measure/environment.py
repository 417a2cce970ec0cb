"""What is installed here, what the machine has, and so what would work: `tensorladder doctor`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tensorladder import __version__
from tensorladder.core.cache import cache_dir
from tensorladder.core.errors import TensorladderError

PYTHONS = ((3, 10), (3, 13))
_REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
# Extras that a person runs kernels with, in the order they are met; `docs` and `dev` are for this project's own work.
EXTRAS = ("climb", "torch", "tirx", "cuda", "ray", "modal")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. ok: it is there and would work. detail: version, or what to do."""

    name: str
    ok: bool
    detail: str

    def record(self) -> dict[str, Any]:
        """The check as a JSON object."""
        return asdict(self)


def examine() -> list[Check]:
    """Everything that decides what works on this machine, base first. Imports nothing heavy."""
    base = [_python(), Check("tensorladder", True, __version__), *_packages(None)]
    extras = {extra: _extra(extra) for extra in EXTRAS}
    machine = [_nvdisasm(), _gpu(), _cache()]
    return [*base, *extras.values(), *machine, *_works(extras, {check.name: check.ok for check in machine})]


def requirements(extra: str | None) -> list[str]:
    """Names of the packages that `extra` brings (None: the base), as the installed package declares them."""
    return [match.group(1) for match in map(_REQUIREMENT.match, declared(extra)) if match]


def declared(extra: str | None) -> list[str]:
    """What `extra` (None: the base) asks of an installer, such as "numpy>=2.0"; empty for a package not installed."""
    try:
        lines = importlib.metadata.requires("tensorladder") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    extras = [_EXTRA.search(line) for line in lines]
    return [line.partition(";")[0].strip() for line, of in zip(lines, extras) if (of and of.group(1)) == extra]


def _python() -> Check:
    version = sys.version_info[:2]
    ok = PYTHONS[0] <= version <= PYTHONS[1]
    where = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return Check("python", ok, where if ok else f"{where}: needs 3.10 to 3.13")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages(extra: str | None) -> Iterator[Check]:
    for name in requirements(extra):
        version = _version(name)
        yield Check(name, version is not None, version or "not installed")


def _extra(extra: str) -> Check:
    needed = requirements(extra)
    found = {name: _version(name) for name in needed}
    missing = [name for name, version in found.items() if version is None]
    if missing or not needed:
        lack = f"lacks {', '.join(missing)}" if missing else "tensorladder itself is not installed"
        return Check(f"extra {extra}", False, f"{lack}: pip install 'tensorladder[{extra}]'")
    return Check(f"extra {extra}", True, ", ".join(f"{name} {version}" for name, version in found.items()))


def _nvdisasm() -> Check:
    from tensorladder.silicon.disassemble import find_nvdisasm

    found = find_nvdisasm()
    return Check("nvdisasm", found is not None, found or "not found: pip install 'tensorladder[cuda]'")


def _gpu() -> Check:
    from tensorladder.silicon.driver import describe

    try:
        return Check("gpu", True, describe())
    except TensorladderError as error:
        return Check("gpu", False, str(error))


def _cache() -> Check:
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        effect = "kernels are compiled anew each time (TENSORLADDER_CACHE moves it)"
        return Check("cache", False, f"{folder}: {error.strerror or error}; {effect}")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Check("cache", True, f"{folder}, {size / 1e6:.1f} MB")


def _works(extras: dict[str, Check], machine: dict[str, bool]) -> Iterator[Check]:
    """What would work here, verb by verb."""
    climb, torch = extras["climb"].ok, extras["torch"].ok
    gpu, sass = machine["gpu"], machine["nvdisasm"]
    yield _verb("list, show", True, "")
    yield _verb("run, climb", climb, "the climb extra")
    yield _verb("run --on gpu", climb and torch and gpu, "a GPU, the climb and torch extras")
    yield _verb("pack", climb, "the climb extra")
    yield _verb("bench --pack", torch and gpu, "a GPU and the torch extra")
    yield _verb("exec", climb and torch, "the climb and torch extras")
    yield _verb("submit --on ray", extras["ray"].ok, "the ray extra")
    yield _verb("submit --on modal", extras["modal"].ok, "the modal extra, and an account")
    yield _verb("show --sass", climb and sass, "the climb extra and nvdisasm (the cuda extra)")


def _verb(name: str, ok: bool, needs: str) -> Check:
    return Check(f"works: {name}", ok, "yes" if ok else f"needs {needs}")
