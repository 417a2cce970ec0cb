"""Issue of tcgen05.mma: what generated code calls. One lane issues a whole instruction (PTX ISA 9.7.16.10.9.1).

Operands come as lane vectors of 64-bit values, 256 bytes apart from `base` on: D's address, A (descriptor or address),
B's descriptor, instruction descriptor, enable-input-d, scale factors of A and B, then the words of
disable-output-lane.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine import mma_rules as R
from tensorladder.vgpu.machine import tcmma as M
from tensorladder.vgpu.machine import tcmma_check as C
from tensorladder.vgpu.machine.effects import begin
from tensorladder.vgpu.machine.lanes import fail
from tensorladder.vgpu.machine.native import export, helper
from tensorladder.vgpu.machine.raw import ld64, st64
from tensorladder.vgpu.machine.tcgen05_issue import issue, queue_of

#: places of the operands in scratch
D, A, B, IDESC, ENABLE, SFA, SFB, MASKS = range(8)


@helper
def operand(base, which, lane):
    """A lane's value of an operand."""
    return ld64(base + 256 * which + 8 * lane)


@helper
def good_descriptor(w, desc, ty, transposed, which, iid, lane):
    """Whether a matrix descriptor is valid; else the error is recorded."""
    rule = C.desc_rule(desc, ty, transposed)
    if rule != 0:
        fail(w, L.ERR_MMA_DESC, iid, lane, desc, rule, which)
        return False
    return True


@helper
def good_lanes(w, d, a, half_used, a_in_tmem, iid, lane):
    """Whether D (and A) start at a lane that the layout allows; else the error is recorded."""
    at = d >> 16
    if at != 0 and not (half_used and at == 16):
        fail(w, L.ERR_MMA_LANE, iid, lane, d, 1 if half_used else 0, R.OPERAND_D)
        return False
    if a_in_tmem != 0 and a >> 16 != at:
        fail(w, L.ERR_MMA_LANES_DIFFER, iid, lane, a, d, 0)
        return False
    return True


@helper
def good_operands(w, base, flags, iid, lane):
    """Whether an instruction's operands are valid; else the error is recorded."""
    kind = flags & 0xFF
    idesc = operand(base, IDESC, lane)
    rule, value = C.idesc_rule(kind, idesc, flags & M.FLAG_PAIR, flags & M.FLAG_A_TMEM, flags >> M.FLAG_VECTOR)
    if rule != 0:
        fail(w, L.ERR_MMA_IDESC, iid, lane, idesc, rule, value)
        return False
    a = operand(base, A, lane)
    in_tmem = flags & M.FLAG_A_TMEM
    if in_tmem == 0 and not good_descriptor(
        w, a, C.a_type(kind, idesc), (idesc >> 15) & 1, R.OPERAND_A, iid, lane
    ):
        return False
    b = operand(base, B, lane)
    if not good_descriptor(w, b, C.b_type(kind, idesc), (idesc >> 16) & 1, R.OPERAND_B, iid, lane):
        return False
    return good_lanes(w, operand(base, D, lane), a, C.shape_m(kind, idesc) == 64, in_tmem, iid, lane)


@export
def tl_tc_mma(w, base, mask, flags, scale_d, iid):
    """tcgen05.mma of every active lane; flags: tcmma.FLAG_* and the kind, scale_d: the immediate scale-input-d."""
    words = 8 if flags & M.FLAG_PAIR else 4
    queue = queue_of(w, flags & M.FLAG_PAIR, iid)
    if queue == 0:
        return 0
    for lane in range(L.LANES):
        if (mask >> lane) & 1 == 0:
            continue
        if not good_operands(w, base, flags, iid, lane):
            return 0
        op = begin(w, L.OP_TC_MMA, 1 << lane, iid)
        if op == 0:
            return 0
        idesc = operand(base, IDESC, lane)
        own = flags | (M.FLAG_ACCUMULATE if operand(base, ENABLE, lane) & 1 else 0)
        any_masked = 0
        for i in range(8):
            word = operand(base, MASKS + i, lane) if flags & M.FLAG_MASKED and i < words else 0
            any_masked |= word
            st64(op + M.A_MASKS + 8 * i, word)
        if any_masked == 0:
            own &= ~M.FLAG_MASKED
        st64(op + L.A_FLAGS, own)
        st64(op + L.A_DST, operand(base, D, lane))
        st64(op + L.A_SRC, operand(base, A, lane))
        st64(op + M.A_B, operand(base, B, lane))
        st64(op + M.A_IDESC, idesc)
        st64(op + M.A_SFA, operand(base, SFA, lane) & 0x3FFFFFFF)
        st64(op + M.A_SFB, operand(base, SFB, lane) & 0x3FFFFFFF)
        st64(op + M.A_SCALE_D, scale_d)
        # as f16 multiply-adds of one SM: narrower elements go as fast a byte
        work = C.shape_m(flags & 0xFF, idesc) * C.shape_n(idesc) * 16
        issue(w, op, queue, work // 2 if flags & M.FLAG_PAIR else work)
    return 1
