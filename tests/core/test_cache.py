"""The disk cache: what is kept comes back whole or not at all."""

import os
import threading
import time
import warnings

import pytest

from tensorladder.core import cache


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORLADDER_CACHE", str(tmp_path / "a cache"))
    cache._warn_once.cache_clear()
    return tmp_path / "a cache"


def test_what_is_written_is_read_and_built_once(folder):
    built = []

    def build():
        built.append(1)
        return b"code" * 100

    assert cache.read("kernels/x") is None
    assert cache.cached_bytes("kernels/x", build) == cache.cached_bytes("kernels/x", build) == cache.read("kernels/x")
    assert built == [1]
    cache.write("empty", b"")
    assert cache.read("empty") == b""


@pytest.mark.parametrize(
    "damage",
    [lambda b: b"", lambda b: b[:10], lambda b: b[:-1], lambda b: b + b"x", lambda b: b[:40] + b"?" + b[41:]],
    ids=["empty", "stub", "short", "long", "flipped"],
)
def test_a_damaged_file_is_built_anew(folder, damage):
    cache.write("x", b"code" * 100)
    file = folder / "x"
    file.write_bytes(damage(file.read_bytes()))
    assert cache.read("x") is None
    assert cache.cached_bytes("x", lambda: b"new") == b"new" == cache.read("x")


def test_a_write_that_fails_leaves_nothing_behind_and_warns_once(folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    cache.write("x", b"old")
    monkeypatch.setattr(os, "replace", full)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        cache.write("x", b"new")
        cache.write("y", b"new")
    assert [p.name for p in folder.iterdir()] == ["x"] and cache.read("x") == b"old"
    assert len(seen) == 1 and "No space left" in str(seen[0].message)


def test_one_builds_and_the_others_wait(folder):
    built, started = [], threading.Event()

    def build():
        started.set()
        built.append(1)
        time.sleep(0.05)
        return b"data"

    found = []
    first = threading.Thread(target=lambda: found.append(cache.cached_bytes("one", build)))
    first.start()
    started.wait()
    found.append(cache.cached_bytes("one", build))
    first.join()
    assert found == [b"data"] * 2 and built == [1]
    assert [path.name for path in folder.iterdir()] == ["one"]
