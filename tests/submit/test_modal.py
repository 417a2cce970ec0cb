"""The app for Modal is built here with no account and no network. That it runs there was not tried.

Skipped where Modal is not installed: pip install 'tensorladder[modal]'.
"""

from __future__ import annotations

import socket

import pytest

modal = pytest.importorskip("modal", reason="needs the modal extra: pip install 'tensorladder[modal]'")

from tensorladder.submit import Job, on_modal  # noqa: E402


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    def refused(*_):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(tmp_path / "none.toml"))
    for name in ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def asked(monkeypatch):
    """Everything that the app asks Modal for, by the name of the call; the real calls are made."""
    found = {}

    def spy(owner, name):
        real = getattr(owner, name)

        def call(*args, **options):
            found[name] = (args, options)
            return real(*args, **options)

        monkeypatch.setattr(owner, name, call)

    spy(modal.App, "function")
    spy(modal.Image, "pip_install")
    spy(modal.Image, "add_local_dir")
    return found


@pytest.mark.parametrize(("gpus", "gpu", "want"), [(0, "H200", None), (1, "B200", "B200:1"), (2, "H100", "H100:2")])
def test_the_graph_is_an_app_a_function_and_its_image(asked, gpus, gpu, want):
    app, function = on_modal.app(Job(("run", "c2"), gpus=gpus), gpu)
    assert isinstance(app, modal.App) and app.name == "tensorladder" and isinstance(function, modal.Function)
    options = asked["function"][1]
    assert options["gpu"] == want and options["retries"].max_retries == 3 and options["cpu"] == 1
    assert isinstance(options["image"], modal.Image)
    packages = asked["pip_install"][0][1:]
    names = [package.split(">")[0].split("[")[0].split("<")[0] for package in packages]
    assert {"numpy", "typer", "nvidia-cutlass-dsl", "llvmlite", "numba"} <= set(names)
    assert ("torch" in names) == bool(gpus)
    _, folder, there = asked["add_local_dir"][0]
    assert (folder / "submit" / "call.py").is_file() and there == "/root/tensorladder"


def test_an_image_wants_the_list_of_what_it_needs(ask, monkeypatch):
    monkeypatch.setattr(on_modal, "declared", lambda extra: [])
    said = ask("submit", "--on", "modal", "--", "list")
    assert said.code == 2 and "pip install ." in said.err


def test_half_a_gpu_is_refused(ask):
    said = ask("submit", "--on", "modal", "--gpus", "0.5", "--", "list")
    assert said.code == 2 and "--gpus 0.5" in said.err and said.err.count("\n") == 1


def test_the_entry_is_the_same_call():
    _, function = on_modal.app(Job(("list",)))
    place, outcome = function.local(("list", "--series", "z"))
    assert place["pid"] and outcome["exit"] == 0
    assert {line["series"] for line in outcome["lines"]} == {"z"}


def test_what_is_lost_there_is_incomplete():
    event = on_modal._done(("list",), RuntimeError("container died"))["done"]
    assert event["exit"] is None and "container died" in event["said"]
    assert event["records"][0]["ok"] is False
