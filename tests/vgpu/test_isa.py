"""The table of PTX instructions: what it knows, what it calls corrupt, what it calls not modelled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tensorladder.core.errors import Unsupported, UsageError
from tensorladder.vgpu.ptx import isa

REAL = """
add.s32 add.sat.s32 add.f32x2 add.rn.ftz.sat.f32 add.cc.u32 addc.cc.u32 mad.lo.cc.u32 madc.hi.u32 mul.wide.u16
min.relu.s16x2 fma.rn.relu.bf16x2 fma.rn.f64 div.full.f32 rcp.approx.ftz.f64 sin.approx.ftz.f32 tanh.approx.f16x2
setp.lt.and.ftz.f32 set.gt.u32.f32 selp.b16 slct.u32.f32 lop3.b32 shf.l.wrap.b32 mov.b128 prmt.b32.f4e
ld.param.v4.b32 ld.global.nc.L1::no_allocate.L2::256B.v4.f32 ld.volatile.shared.u32 ld.relaxed.gpu.global.v2.u64
ld.global.v8.f32 st.global.cs.v4.u32 st.release.sys.u32 cvta.to.shared::cluster.u64 cvt.rni.ftz.f32.f32
cvt.rn.satfinite.relu.e4m3x2.f32 cvt.rn.f16x2.e5m2x2 cvt.rna.tf32.f32 cp.async.ca.shared.global.L2::128B
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint
cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group cp.async.bulk.wait_group.read
atom.global.add.f64 atom.add.acquire.cta.u32 atom.global.sys.cas.b32 red.relaxed.gpu.global.add.noftz.f16x2
bar.sync bar.red.popc.u32 barrier.cluster.arrive.relaxed.aligned fence.proxy.tensormap::generic.acquire.gpu
mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 mbarrier.arrive.expect_tx.shared::cluster.b64 elect.sync
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32
wmma.load.a.sync.aligned.row.m16n16k16.global.f16 wmma.mma.sync.aligned.row.col.m8n8k4.f64.f64.f64.f64.rn
wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 tcgen05.wait::ld.sync.aligned tcgen05.fence::before_thread_sync
tcgen05.mma.cta_group::1.kind::f16.collector::a::discard brx.idx.uni call.uni ret exit trap brkpt nanosleep.u32
tex.2d.v4.f32.f32 sust.b.2d.v4.b32.trap vadd2.s32.s32.s32.sat setmaxnreg.dec.sync.aligned.u32
"""


@pytest.mark.parametrize("opcode", REAL.split())
def test_real_spellings_are_found(opcode: str) -> None:
    found = isa.find(opcode)
    assert found is not None
    assert opcode.startswith(found[0].name)


@pytest.mark.parametrize(
    "opcode",
    ["add", "add.f32.sat", "mul.f32.f32", "ld.global", "cp.async.bulk.tensor.6d", "mma.sync.aligned.row.col.f32"],
)
def test_wrong_spellings_are_not(opcode: str) -> None:
    assert isa.find(opcode) is None


def test_refusal_tells_corrupt_text_from_what_is_not_modelled() -> None:
    corrupt = isa.refusal("frobnicate.b32", "PTX line 7")
    assert isinstance(corrupt, UsageError)
    assert "PTX line 7" in str(corrupt)
    stray = isa.refusal("add.f99", "PTX line 8")
    assert isinstance(stray, UsageError)
    assert ".f99" in str(stray)
    real = isa.refusal("tex.2d.v4.f32.f32", "PTX line 9 (kernel.cu:12)")
    assert isinstance(real, Unsupported)
    assert "9.7.12" in str(real)
    assert "kernel.cu:12" in str(real)


def test_an_order_of_modifiers_that_the_table_lacks_is_not_called_corrupt() -> None:
    assert isinstance(isa.refusal("add.f32.sat", "PTX line 1"), Unsupported)


def test_the_longest_name_wins() -> None:
    names = [family.name for family in isa.families_of("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group")]
    assert names == ["cp.async.bulk.tensor", "cp.async.bulk", "cp.async"]


def test_every_line_of_the_table_is_well_formed() -> None:
    for family in isa.FAMILIES.values():
        assert re.fullmatch(r"9\.7\.\d+", family.section)
        assert family.title
        for form in family.forms:
            assert re.fullmatch(r"\d\.\d", form.since)
            assert re.fullmatch(r"sm_\d+[af]?", form.target)
            form.matches("")  # the pattern compiles
            assert set(re.findall(r"\$(\w+)", form.pattern)) <= set(isa.SETS)


@pytest.mark.parametrize("name", ["cutedsl", "cutlass", "tirx"])
def test_instructions_that_compilers_emit_are_known(name: str) -> None:
    """The opcode lists recorded from front ends, where the checkout has them."""
    path = Path(__file__).parents[3] / "shared" / "data" / f"ptx_ops_{name}.txt"
    if not path.exists():
        pytest.skip("the recorded opcode lists are not here")
    lines = [line.split() for line in path.read_text().splitlines()]
    opcodes = [word for family, *words in lines for word in words[1:] if word.split(".")[0] == family]
    unknown = [word for word in opcodes if isa.find(word) is None and not word.endswith(".ct")]
    assert opcodes
    assert not unknown
