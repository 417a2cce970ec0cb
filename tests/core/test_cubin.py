"""Undefined symbols and cubin facts of files that are no such thing: nothing, and no exception."""

import pytest

from tensorladder.core import cubin, elf


@pytest.mark.parametrize("image", [b"", b"MZ", b"\x7fELF\x01" + b"\0" * 100])
def test_other_files_say_nothing(image):
    assert elf.undefined_symbols(image) == set()
    assert cubin.registers(image, "f") is None and cubin.static_shared_bytes(image, "f") == 0


def test_absent_cubin_says_nothing():
    assert cubin.registers(None, "f") is None and cubin.static_shared_bytes(None, "f") == 0
