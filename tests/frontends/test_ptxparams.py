"""Parameter blocks from PTX heads: every spelling, and the same as the virtual GPU's own reader finds."""

import pytest

from tensorladder.core.errors import UsageError
from tensorladder.frontends.ptxparams import Param, entries, entry, heads, unread

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


def test_heads_hold_all_that_is_read_of_a_text():
    text = """.version 8.0
.target sm_90a
.visible .entry one( .param .align 64 .b8 a[128], .param .u32 b ) .reqnctapercluster 2, 1, 1 { ret; } // .entry no(
.visible .entry two { .reg .b32 %r<4>; mov.b32 %r1, 0; ret; }
"""
    assert entries(heads(text)) == entries(text)
    assert "mov" not in heads(text)


def test_bytes_that_no_instruction_reads_are_known():
    text = """.visible .entry k( .param .align 8 .b8 k_param_0[40], .param .align 64 .b8 k_param_1[128],
 .param .u32 k_param_10, .param .align 8 .b8 k_param_2[16] )
{ ld.param.b64 %rd1, [k_param_0]; ld.param.v2.b32 {%r1, %r2}, [k_param_0+8]; ld.param.u32 %r3, [k_param_0+16];
  ld.param.v2.u64 {%rd2, %rd3}, [k_param_0+24]; mov.b64 %rd4, k_param_1; ld.param.b32 %r4, [k_param_10]; ret; }
.visible .entry other( .param .u32 k_param_2 ) { ld.param.u32 %r1, [k_param_2]; ret; }
"""
    # k_param_0: 20 to 23 is padding; k_param_1 begins at 64, after a gap; k_param_2, at 200, is not used in k.
    assert unread(text, "k") == ((20, 4), (40, 24), (196, 20))
    assert unread(text, "other") == ()
