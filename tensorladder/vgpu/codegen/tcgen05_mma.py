"""tcgen05.mma (PTX ISA 9.7.16.10.9.1): operands and modifiers; the descriptors are read when it runs."""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.mbarrier import wide
from tensorladder.vgpu.codegen.modifiers import PAIR, pair_of, pick
from tensorladder.vgpu.machine import tcmma as M
from tensorladder.vgpu.machine import tcmma_check as C
from tensorladder.vgpu.machine import tcmma_issue as I
from tensorladder.vgpu.ptx.nodes import Imm, Instr, Mem, Vec

FORMS = (
    "mma of kinds f16, tf32, f8f6f4, i8, mxf8f6f4, mxf4, mxf4nvf4: A in shared or tensor memory, cta_group::1 and ::2, "
    "block scales (.scale_vec, .block16, .block32), disable-output-lane, scale-input-d, collector hints"
)
REFUSED = "mma.sp, mma.ws, .ashift, .kind::ti16, K = 96, decompression by table"

_KINDS = tuple(f"kind::{name}" for name in C.KINDS)
#: hints that allow the hardware to keep A in its collector buffer; its source may not change meanwhile
_COLLECTOR = tuple(f"collector::a::{use}" for use in ("fill", "use", "lastuse", "discard"))
#: scale factors a row of A (PTX ISA, "Valid combinations of scale_vectorsize"); "": the default
_VECTORS = {
    "mxf8f6f4": {"": 1, "scale_vec::1X": 1, "block32": 1},
    "mxf4": {"": 2, "scale_vec::2X": 2, "block32": 2},
    "mxf4nvf4": {"scale_vec::2X": 2, "block32": 2, "scale_vec::4X": 4, "block16": 4},
}


def mma(e: Emitter, i: Instr) -> None:
    """Every active lane issues an instruction."""
    what, group, kind, scaled, size, _ = pick(
        i, ("mma",), PAIR, _KINDS, ("block_scale",),
        ("scale_vec::1X", "scale_vec::2X", "scale_vec::4X", "block16", "block32"), _COLLECTOR,
    )  # fmt: skip
    name = kind.removeprefix("kind::")
    vectors = _VECTORS.get(name)
    if not (what and group and kind) or bool(scaled) != (vectors is not None) or (size and not scaled):
        raise Unsupported(i.text)
    if vectors is not None and size not in vectors:
        raise Unsupported(f"{i.text} (.{size})" if size else f"{i.text} without a scale vector size")
    flags = C.KINDS.index(name) | (M.FLAG_PAIR if pair_of(e, i, group) else 0)
    d, a, b, idesc, *rest = i.operands
    base = e.spill(e.address(d), "<32 x i64>", I.D)
    if isinstance(a, Mem):
        flags |= M.FLAG_A_TMEM
        e.spill(e.address(a), "<32 x i64>", I.A)
    else:
        wide(e, a, "b64", I.A)
    wide(e, b, "b64", I.B)
    wide(e, idesc, "b32", I.IDESC)
    zero = "zeroinitializer"
    scale_d = 0
    if vectors is not None:
        sfa, sfb, enable = rest
        flags |= vectors[size] << M.FLAG_VECTOR
        e.spill(e.address(sfa), "<32 x i64>", I.SFA)
        e.spill(e.address(sfb), "<32 x i64>", I.SFB)
    else:
        e.spill(zero, "<32 x i64>", I.SFA)
        e.spill(zero, "<32 x i64>", I.SFB)
        if isinstance(rest[0], Vec):
            flags |= _masks(e, i, rest.pop(0), group)
        enable, *more = rest
        if more:
            scale_d = _scale(i, name, more)
    on = e.op(f"zext <32 x i1> {e.value(enable, 'pred')} to <32 x i64>")
    e.spill(on, "<32 x i64>", I.ENABLE)
    e.call("tl_tc_mma", base, e.active(), flags, scale_d, e.iid, fallible=True)


def _masks(e: Emitter, i: Instr, masks: Vec, group: str) -> int:
    """disable-output-lane: a word for each 32 lanes, of both CTAs with cta_group::2. Nothing to do when all are 0."""
    if len(masks.items) != (8 if group == "cta_group::2" else 4):
        raise Unsupported(f"{i.text} with {len(masks.items)} words of disable-output-lane")
    if all(isinstance(m, Imm) and m.value == 0 for m in masks.items):
        return 0
    for k, m in enumerate(masks.items):
        wide(e, m, "b32", I.MASKS + k)
    return M.FLAG_MASKED


def _scale(i: Instr, name: str, more: list) -> int:
    """scale-input-d: an immediate from 0 to 15, of kinds f16 and tf32."""
    if len(more) != 1 or not isinstance(more[0], Imm) or not 0 <= more[0].value <= 15 or name not in ("f16", "tf32"):
        raise Unsupported(f"{i.text} with this scale-input-d")
    return more[0].value
