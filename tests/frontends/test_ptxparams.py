"""Parameter blocks from PTX heads: every spelling, and the same as the virtual GPU's own reader finds."""

import pytest

from tensorladder.core.errors import UsageError
from tensorladder.frontends.ptxparams import Param, entries, entry

PTX = """
.version 8.0
.target sm_90a
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
// .entry commented(.param .u32 x)
.visible .entry plain(
    .param .u64 .ptr .global .align 16 plain_0,
    .param .u8 plain_1,
    .param .align 64 .b8 plain_2[128], /* a tensor map */
    .param .f32 plain_3,
    .param .b16 plain_4[3]
)
.maxntid 256, 1, 1
.reqnctapercluster 2, 1, 1
{ ret; }
.entry none()
{ ret; }
.entry bare
{ ret; }
"""


def test_offsets_sizes_and_alignments():
    found = entries(PTX)
    assert list(found) == ["plain", "none", "bare"]
    assert found["plain"].params == (
        Param(0, 8, 8),
        Param(8, 1, 1),
        Param(64, 128, 64),
        Param(192, 4, 4),
        Param(196, 6, 2),
    )
    assert (found["plain"].size, found["plain"].cluster) == (202, (2, 1, 1))
    assert (found["none"].size, found["none"].cluster, found["bare"].params) == (0, None, ())


def test_unknown_kernel_is_one_line():
    with pytest.raises(UsageError, match="kernel other is not in the PTX: it has plain, none, bare"):
        entry(PTX, "other")
    with pytest.raises(UsageError, match=r"it has no \.entry"):
        entry(".version 8.0", "f")


def test_the_virtual_gpu_reads_the_same():
    from tensorladder.vgpu.ptx import parse

    for name, kernel in parse(PTX).kernels.items():
        ours = [(p.offset, p.size) for p in entry(PTX, name).params]
        assert [(p.offset, p.size) for p in kernel.params] == ours, name
