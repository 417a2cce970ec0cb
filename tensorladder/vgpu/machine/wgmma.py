"""WGMMA: one operation of a warpgroup, that takes effect between its issue and the wait for its group.

Each of the four warps issues its part (wgmma_issue); they meet in one operation of the pool, held until the fourth has
come. Operations of a warpgroup take effect in order. At the effect, shared memory and A's registers are read and the
accumulators are read and written in the frames of the warps, as late as the policy says.
"""

from __future__ import annotations

from tensorladder.vgpu.machine import fragments as F
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine import operands as T
from tensorladder.vgpu.machine.hooks import EVENT_EFFECT, record
from tensorladder.vgpu.machine.lanes import fail
from tensorladder.vgpu.machine.matmul import transpose
from tensorladder.vgpu.machine.native import helper
from tensorladder.vgpu.machine.queue import pending_op
from tensorladder.vgpu.machine.raw import ld32, ld64, st64
from tensorladder.vgpu.machine.wgmma_exact import multiply_exact

# ---------------------------------------------------------------- an operation's fields (after those of layout.A_)
G_FRAMES = 256  # of the four warps, i64 each
G_GROUPS = 288  # the group that each warp had open
G_SEQ = 320  # number of the operation in its warpgroup
G_TABLE = 328  # address of the offsets (i32) of D's registers and, where A is in registers, of A's four
G_FORM = 336
G_DESC_A = 344
G_DESC_B = 352
G_KEEP = 360  # whether D is added to
G_ISSUED = L.A_SIZE  # warps that have issued it, a bit each

# ---------------------------------------------------------------- what is fixed in the instruction (G_FORM)
FORM_N = 0  # 9 bits
FORM_PRODUCT = 9  # fragments.F32, F16, S32 or S32_SAT
FORM_A = 12  # types, as in operands
FORM_B = 16
FORM_K = 20  # 6 bits
FORM_REGISTERS = 26  # A is in registers
FORM_MN_A = 27  # operands along M and N
FORM_MN_B = 28
FORM_NEGATE = 29  # the products' sign is changed

#: bits of a matrix descriptor that mean nothing (PTX ISA, "Matrix Descriptor Format" of wgmma)
_RESERVED = (3 << 14) | (3 << 30) | (7 << 46) | (0x3FF << 52)
_SIGN = 0x80000000


@helper
def swizzle_of(descriptor):
    """The descriptor's layout, as operands names them."""
    layout = (descriptor >> 62) & 3
    if layout == 1:
        return T.SW_128
    if layout == 2:
        return T.SW_64
    return T.SW_32 if layout == 3 else T.SW_NONE


@helper
def reserved_bits(descriptor):
    """Bits that are set where a matrix descriptor has none."""
    return descriptor & _RESERVED


@helper
def lines_of(w, descriptor, mn_major, rows, ty, k, buffer, iid):
    """An operand's tile as `k` lines of `rows` elements in the buffer's second part; bytes from line to line, or 0."""
    start = (descriptor & 0x3FFF) << 4
    leading = ((descriptor >> 16) & 0x3FFF) << 4
    stride = ((descriptor >> 32) & 0x3FFF) << 4
    base = (descriptor >> 49) & 7
    shared = ld64(w + L.W_SHARED)
    size = ld64(w + L.W_SHARED_SIZE)
    lines = buffer + L.MATRIX_TILE
    tile = lines if mn_major != 0 else buffer
    if not T.load_tile(shared, size, start, leading, stride, swizzle_of(descriptor), mn_major, rows, ty, k, tile, base):
        fail(w, L.ERR_WGMMA_BOUNDS, iid, 0, start, size, rows)
        return 0
    if mn_major != 0:
        return 4 * T.pitch_of(rows, k, mn_major)
    transpose(lines, 4 * rows, tile, 4 * k, rows, k)
    return 4 * rows


@helper
def spread_registers(ty, table, frames, dst, flip):
    """A's fragments from the four warps' registers."""
    if ty == T.F16:
        F._ra_f16(table, frames, dst, flip)
    elif ty == T.BF16:
        F._ra_bf16(table, frames, dst, flip)
    elif ty == T.TF32:
        F._ra_tf32(table, frames, dst, flip)
    elif ty == T.E4M3:
        F._ra_e4m3(table, frames, dst, flip)
    elif ty == T.E5M2:
        F._ra_e5m2(table, frames, dst, flip)
    elif ty == T.S8:
        F._ra_s8(table, frames, dst, flip)
    else:
        F._ra_u8(table, frames, dst, flip)


@helper
def multiply(product, table, frames, a, b, blocks, k, keep):
    """D = A B (+ D) on the fragments."""
    if product == F.F32:
        F._f32(table, frames, a, b, blocks, k, keep)
    elif product == F.F32_WIDE:
        F._f32_wide(table, frames, a, b, blocks, k, keep)
    elif product == F.F16:
        F._f16(table, frames, a, b, blocks, k, keep)
    elif product == F.F16_WIDE:
        F._f16_wide(table, frames, a, b, blocks, k, keep)
    elif product == F.S32:
        F._s32(table, frames, a, b, blocks, k, keep)
    else:
        F._s32_sat(table, frames, a, b, blocks, k, keep)


@helper
def accumulator_registers(form):
    """Registers of D a thread."""
    n = (form >> FORM_N) & 0x1FF
    return n // 4 if (form >> FORM_PRODUCT) & 7 == F.F16 else n // 2


@helper
def run_mma(u, op):
    """The effect of a wgmma.mma_async that all four warps have issued.

    The unit's buffer holds a tile as it comes, its lines along k, spread A and packed B.
    """
    w = ld64(op + L.A_WARP)
    iid = ld64(op + L.A_IID)
    form = ld64(op + G_FORM)
    table = ld64(op + G_TABLE)
    n = (form >> FORM_N) & 0x1FF
    k = (form >> FORM_K) & 0x3F
    frames = op + G_FRAMES
    buffer = ld64(u + L.U_MATRIX)
    lines = buffer + L.MATRIX_TILE
    spread = buffer + 2 * L.MATRIX_TILE
    packed = buffer + 3 * L.MATRIX_TILE
    flip = _SIGN if (form >> FORM_NEGATE) & 1 else 0
    ty = (form >> FORM_A) & 0xF
    if (form >> FORM_REGISTERS) & 1:
        spread_registers(ty, table + 4 * accumulator_registers(form), frames, spread, flip)
    else:
        pitch = lines_of(w, ld64(op + G_DESC_A), (form >> FORM_MN_A) & 1, 64, ty, k, buffer, iid)
        if pitch == 0:
            return
        F.spread_rows(spread, lines, pitch, k, flip)
    pitch = lines_of(w, ld64(op + G_DESC_B), (form >> FORM_MN_B) & 1, n, (form >> FORM_B) & 0xF, k, buffer, iid)
    if pitch == 0:
        return
    product = (form >> FORM_PRODUCT) & 7
    numerics = ld64(ld64(w + L.W_LAUNCH) + L.L_NUMERICS) if product < F.S32 else L.NUMERICS_F32
    if numerics == L.NUMERICS_EXACT:
        multiply_exact(product, ty, table, frames, spread, lines, pitch, n, k, ld64(op + G_KEEP), packed)
    else:
        F.pack_columns(packed, lines, pitch, k, n // 8)
        product += numerics  # the wide form comes after the plain one
        multiply(product, table, frames, spread, packed, n // 8, k, ld64(op + G_KEEP))
    record(w, EVENT_EFFECT, ld64(op + G_DESC_B) & 0x3FFF, L.OP_WGMMA, 0xFFFFFFFF, iid)


@helper
def run_wgmma(u, op):
    """An operation's time has come. One that a warp never issued is dropped (a CTA ended)."""
    if ld64(op + L.A_HELD) == 0:
        run_mma(u, op)
    return True


# ---------------------------------------------------------------- what is pending
@helper
def warpgroup_of(w):
    """Address of the first warp of a warp's warpgroup: the name of their queue."""
    return w - (ld64(w + L.W_WARPID) & 3) * L.W_BYTES


@helper
def groups_pending(w, group):
    """Whether something that this warp issued in a group up to `group` is pending."""
    u = ld64(w + L.W_UNIT)
    queue = warpgroup_of(w)
    slot = ld64(w + L.W_WARPID) & 3
    for position in range(ld64(u + L.U_COUNT)):
        op = pending_op(u, position)
        if ld64(op + L.A_QUEUE) == queue and (ld64(op + G_ISSUED) >> slot) & 1:  # noqa: SIM102
            if ld64(op + G_GROUPS + 8 * slot) <= group:
                return True
    return False


@helper
def joined(u, queue, seq):
    """The operation number `seq` of a warpgroup that other warps have issued already, or 0."""
    for position in range(ld64(u + L.U_COUNT)):
        op = pending_op(u, position)
        if ld64(op + L.A_QUEUE) == queue and ld64(op + G_SEQ) == seq:
            return op
    return 0


@helper
def writing_group(w, table, count):
    """The group of the last pending operation of this warp that will write one of `count` registers; -1 for none.

    table: offsets of the registers in the frame, i32.
    """
    u = ld64(w + L.W_UNIT)
    queue = warpgroup_of(w)
    slot = ld64(w + L.W_WARPID) & 3
    group = -1
    for position in range(ld64(u + L.U_COUNT)):
        op = pending_op(u, position)
        if ld64(op + L.A_QUEUE) != queue or (ld64(op + G_ISSUED) >> slot) & 1 == 0:
            continue
        written = ld64(op + G_TABLE)
        for r in range(accumulator_registers(ld64(op + G_FORM))):
            for k in range(count):
                if ld32(written + 4 * r) == ld32(table + 4 * k):
                    group = max(group, ld64(op + G_GROUPS + 8 * slot))
    return group


@helper
def position_of(u, op):
    """Where an operation stands among the pending ones, -1 for nowhere."""
    for position in range(ld64(u + L.U_COUNT)):
        if pending_op(u, position) == op:
            return position
    return -1


@helper
def start_fields(op, queue, seq):
    """Fields of a fresh operation of a warpgroup."""
    st64(op + L.A_QUEUE, queue)
    st64(op + G_SEQ, seq)
    st64(op + G_ISSUED, 0)
