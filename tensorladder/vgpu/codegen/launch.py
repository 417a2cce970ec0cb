"""What kernels say about launches (PTX ISA, "griddepcontrol", "clusterlaunchcontrol.try_cancel", ".query_cancel")."""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.ints import I32
from tensorladder.vgpu.codegen.modifiers import pick
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.machine.grids import CANCELED
from tensorladder.vgpu.machine.layout import SPACE_GENERIC, SPACE_SHARED
from tensorladder.vgpu.ptx.nodes import Instr, Vec

_I128 = "<32 x i128>"
_TX = "mbarrier::complete_tx::bytes"
#: word of the response that a form of query_cancel reads
_AXES = {"get_first_ctaid::x": 0, "get_first_ctaid::y": 1, "get_first_ctaid::z": 2}


@instruction("griddepcontrol", results=0, kind="block", forms=".launch_dependents, .wait")
def griddepcontrol(e: Emitter, i: Instr):
    """Let dependent launches start, or wait for the launch before."""
    (what,) = pick(i, ("launch_dependents", "wait"))
    if not what:
        raise Unsupported(i.text)
    go = e.call("tl_grid_wait" if what == "wait" else "tl_launch_dependents", e.active(), i.index)
    return e.op(f"icmp ne i64 {go}, 0"), False


@instruction("clusterlaunchcontrol", results=lambda i: int("query_cancel" in i.mods),
             forms="try_cancel, with and without .multicast::cluster::all; query_cancel: .is_canceled, "
                   ".get_first_ctaid, ::x, ::y, ::z")  # fmt: skip
def clusterlaunchcontrol(e: Emitter, i: Instr) -> None:
    """Ask for the next cluster that has not started, or read the response."""
    if "query_cancel" in i.mods:
        _query(e, i)
        return
    what, mode, space, tx, every, ty = pick(
        i, ("try_cancel",), ("async",), ("shared::cta",), (_TX,), ("multicast::cluster::all",), ("b128",)
    )
    if not (what and mode and tx and ty):
        raise Unsupported(i.text)
    response = e.spill(e.address(i.operands[0]), "<32 x i64>", 0)
    barrier = e.spill(e.address(i.operands[1]), "<32 x i64>", 1)
    place = SPACE_SHARED if space else SPACE_GENERIC
    e.call("tl_try_cancel", place, response, barrier, int(bool(every)), e.active(), i.index, fallible=True)


def _word(e: Emitter, response: str, n: int) -> str:
    """A 32-bit word of the responses."""
    shifted = e.op(f"lshr {_I128} {response}, splat (i128 {32 * n})") if n else response
    return e.op(f"trunc {_I128} {shifted} to {I32}")


def _query(e: Emitter, i: Instr) -> None:
    _, what, vector, result, _ = pick(
        i, ("query_cancel",), ("is_canceled", "get_first_ctaid", *_AXES), ("v4",), ("pred", "b32"), ("b128",)
    )
    response = e.value(i.operands[1], "b128")
    if (what, vector, result) == ("is_canceled", "", "pred"):
        hit = e.op(f"icmp eq {I32} {_word(e, response, 3)}, {e.splat(I32, CANCELED)}")
        e.set(i.operands[0], hit, "pred")
        bits = e.op(f"xor i32 {e.op(f'bitcast <32 x i1> {hit} to i32')}, -1")
        e.call("tl_cancel_failed", e.op(f"and i64 {e.op(f'zext i32 {bits} to i64')}, {e.active()}"))
    elif what in _AXES and (vector, result) == ("", "b32"):
        e.set(i.operands[0], _word(e, response, _AXES[what]), "b32")
    elif (what, vector, result) == ("get_first_ctaid", "v4", "b32") and isinstance(i.operands[0], Vec):
        for n, item in enumerate(i.operands[0].items):
            e.set(item, _word(e, response, n), "b32")
    else:
        raise Unsupported(i.text)
