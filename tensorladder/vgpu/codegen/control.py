"""Calls of what the machine itself provides, and the dynamic stack (PTX ISA, "call", "Stack Manipulation").

Functions with a body have been inlined before (`ptx.inline`); branches and returns end blocks (`codegen.kernel`).
"""

from __future__ import annotations

from tensorladder.core.errors import Unsupported
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.modifiers import pick
from tensorladder.vgpu.codegen.table import instruction
from tensorladder.vgpu.machine.layout import SPACE_LOCAL
from tensorladder.vgpu.ptx.nodes import TYPE_BITS, Function, Group, Imm, Instr, Sym, Variable

#: variable in local memory that holds the stack pointer and, behind it, the stack of `alloca`
STACK = "$stack"
_STACK_BYTES = 16384
_HEAP = {"malloc", "free"}


@instruction("call", results=0, forms="functions of the module (inlined), vprintf, __assertfail",
             refused="malloc, free, other functions without a body; through a register; recursion")  # fmt: skip
def call(e: Emitter, i: Instr) -> None:
    """A call that was not inlined: one of the machine's functions, or refused by name."""
    pick(i, ("uni",))
    target = next((o for o in i.operands if not isinstance(o, Group)), None)
    if not isinstance(target, Sym):
        raise Unsupported("call through a register")
    before = i.operands.index(target)
    returns = [x for o in i.operands[:before] if isinstance(o, Group) for x in o.items]
    params = [x for o in i.operands[before + 1 :] if isinstance(o, Group) for x in o.items]
    if target.name == "vprintf" and len(params) == 2:
        _printf(e, i, returns, params)
    elif target.name == "__assertfail" and len(params) == 5:
        _assert(e, i, params)
    elif target.name in _HEAP:
        raise Unsupported(f"call of {target.name} (the device's heap)")
    else:
        raise Unsupported(f"call of {target.name}, which has no body in the module")


def _argument(e: Emitter, operand: object, ty: str) -> str:
    """An argument's value: a .param variable in local memory, or a register or immediate. Uses scratch 30 and 31."""
    if not isinstance(operand, Sym):
        return e.value(operand, ty)
    bits = TYPE_BITS[ty]
    size = bits // 8
    address = e.spill(e.symbol(operand), "<32 x i64>", 30)
    e.call("tl_ld", SPACE_LOCAL, address, e.active(), e.scratch_address(31), size, 1, size, e.iid, fallible=True)
    return e.reload(f"<32 x i{bits}>", 31)


def _printf(e: Emitter, i: Instr, returns: list, params: list) -> None:
    texts = e.spill(_argument(e, params[0], "b64"), "<32 x i64>", 0)
    blocks = e.spill(_argument(e, params[1], "b64"), "<32 x i64>", 1)
    place = -1
    if returns and isinstance(returns[0], Sym):
        place = e.symbols[returns[0].name][1]
    e.call("tl_printf", texts, blocks, place, e.active(), i.index, fallible=True)


def _assert(e: Emitter, i: Instr, params: list) -> None:
    texts = e.spill(_argument(e, params[0], "b64"), "<32 x i64>", 0)
    files = e.spill(_argument(e, params[1], "b64"), "<32 x i64>", 1)
    lines = e.spill(_argument(e, params[2], "b32"), "<32 x i32>", 2)
    e.call("tl_assert", texts, files, lines, e.active(), i.index, fallible=True)


# ---------------------------------------------------------------- dynamic stack
def reserve_stack(fn: Function) -> None:
    """Give a kernel that allocates on its stack the memory for it."""
    if any(isinstance(i, Instr) and i.op in ("alloca", "stacksave", "stackrestore") for i in fn.body):
        fn.variables[STACK] = Variable(STACK, "local", _STACK_BYTES, 16)


def _address_type(i: Instr) -> str:
    (ty,) = pick(i, ("u32", "u64"))
    if not ty:
        raise Unsupported(i.text)
    return ty


def _as_wide(e: Emitter, operand: object, ty: str) -> str:
    value = e.value(operand, ty)
    return value if ty == "u64" else e.op(f"zext <32 x i32> {value} to <32 x i64>")


def _set_address(e: Emitter, target: object, slot: int, ty: str) -> None:
    value = e.reload("<32 x i64>", slot)
    e.set(target, value if ty == "u64" else e.op(f"trunc <32 x i64> {value} to <32 x i32>"), ty)


@instruction("alloca", forms=f".u32, .u64, with alignment; {_STACK_BYTES // 1024} KB a thread, freed by stackrestore")
def alloca(e: Emitter, i: Instr) -> None:
    """Room on the stack, in local memory."""
    ty = _address_type(i)
    align = i.operands[2] if len(i.operands) > 2 else Imm(8)
    if not isinstance(align, Imm) or align.value <= 0 or align.value & (align.value - 1):
        raise Unsupported(f"{i.text} with this alignment")
    sizes = e.spill(_as_wide(e, i.operands[1], ty), "<32 x i64>", 0)
    base = e.symbols[STACK][1]
    e.call("tl_alloca", base, _STACK_BYTES, sizes, max(align.value, 8), e.active(), i.index, fallible=True)
    _set_address(e, i.operands[0], 0, ty)


@instruction("stacksave", forms=".u32, .u64")
def stacksave(e: Emitter, i: Instr) -> None:
    """The stack pointer."""
    ty = _address_type(i)
    e.call("tl_stack_save", e.symbols[STACK][1], _STACK_BYTES, e.scratch_address(0), e.active())
    _set_address(e, i.operands[0], 0, ty)


@instruction("stackrestore", results=0, forms=".u32, .u64")
def stackrestore(e: Emitter, i: Instr) -> None:
    """Set the stack pointer."""
    values = e.spill(_as_wide(e, i.operands[0], _address_type(i)), "<32 x i64>", 0)
    e.call("tl_stack_restore", e.symbols[STACK][1], _STACK_BYTES, values, e.active())
