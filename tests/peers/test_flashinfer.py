"""FlashInfer's attention for decoding on Blackwell (CuTe DSL), run as the scripts that its files are.

Each compares with torch and raises on a difference. They take their masks from FlashInfer, whose package wants its
compiled parts: a package with what they import stands beside them.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.peers import checked

pytestmark = pytest.mark.peers

HOME = "flashinfer/cute_dsl/attention"
SMALL = "--d 128 --h_q 16 --h_k 2 --b 2 --iterations 0 --warmups 0"
#: script, arguments
SCRIPTS = [
    ("gqa_decode", f"{SMALL} --p 1 --s 700 --kv_splits 1 --reduction none"),
    ("gqa_decode", f"{SMALL} --p 1 --s 700 --kv_splits 2 --reduction atomic"),
    ("gqa_decode", f"{SMALL} --p 2 --s 700 --kv_splits 3 --reduction kernel --window_left 200"),
    ("gqa_decode_paged", f"{SMALL} --p 1 --s 700 --kv_splits 2 --reduction kernel"),
]


@pytest.mark.parametrize(("name", "arguments"), SCRIPTS, ids=lambda value: value.removeprefix(SMALL).strip())
def test_decode(checkout, tmp_path, name, arguments) -> None:
    script = checkout("flashinfer", f"{HOME}/{name}.py")
    package = tmp_path / HOME
    package.mkdir(parents=True)
    for needed in ("fusion", "gqa_decode.py"):
        (package / needed).symlink_to(script.parent / needed)
    path = [str(tmp_path), str(checked.HOME), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    command = checked.exec_command(script, "sm_100a", "eager", arguments.split())
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, cwd=tmp_path)
    if "atomic" in arguments:  # at fault (tests.peers.checked): odd CTAs of a cluster free what they still read
        assert "are not all allocated to this CTA; tcgen05.ld" in done.stderr, (done.stdout + done.stderr)[-2000:]
    else:
        assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
