"""Raw PTX: what is taken, and one line for what is not."""

import pytest

from tensorladder.core.errors import UsageError
from tensorladder.frontends.raw import load_ptx

GOOD = "// note: .version 1.0\n.version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry f()\n{\nret;\n}\n"


def test_text_and_file(tmp_path):
    path = tmp_path / "kernel.ptx"
    path.write_text(GOOD)
    module = load_ptx(path)
    assert (module.ptx, module.arch, module.name, module.cubin) == (GOOD, "sm_90a", "kernel", None)
    assert load_ptx(str(path)) == module
    assert load_ptx(GOOD).arch == "sm_90a"
    assert load_ptx(GOOD, arch="sm_100a").arch == "sm_100a"


@pytest.mark.parametrize(
    "content, words",
    [
        (GOOD.replace(".version", ".ver"), "no .version"),
        (GOOD.replace(".target", "//.target"), "no .target"),
        (GOOD.replace(".entry", ".func"), "no .entry"),
        (GOOD.replace("sm_90a", "sm_33"), "no such architecture"),
        ("", "no .version"),
        (b"\x7fELF\2\1\1", "compiled binary"),
        (b"\xff\xfe\0", "no text"),
    ],
)
def test_refusals_are_one_line(tmp_path, content, words):
    path = tmp_path / "bad.ptx"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=words) as caught:
        load_ptx(path)
    assert "\n" not in str(caught.value)


def test_missing_file():
    with pytest.raises(UsageError, match=r"cannot read nowhere\.ptx: No such file"):
        load_ptx("./nowhere.ptx")
