"""Calls of device functions, inlined at PTX level: one body, one control-flow graph, one set of registers.

The parameters of a call are `.param` variables of the caller, kept per thread like local memory, so binding a
parameter is a renaming. Recursion and calls through a register are refused by name when they are reached.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorladder.core.errors import Unsupported, UsageError
from tensorladder.vgpu.ptx.nodes import (
    Function,
    Group,
    Instr,
    Label,
    Mem,
    Neg,
    Pair,
    Part,
    PtxModule,
    Reg,
    Sym,
    Variable,
    Vec,
)

#: functions that the machine itself provides
INTRINSICS = {"vprintf", "__assertfail"}
_DEPTH = 32


def inline(module: PtxModule, kernel: Function) -> Function:
    """`kernel` with every direct call of a function with a body replaced by that body."""
    if not any(isinstance(i, Instr) and i.op == "call" for i in kernel.body):
        return kernel
    out = Function(kernel.name, True, kernel.params, kernel.returns, kernel.line)
    out.directives, out.prototypes = kernel.directives, kernel.prototypes
    out.variables = dict(kernel.variables)
    out.branch_targets = dict(kernel.branch_targets)
    out.regs = dict(kernel.regs)
    state = _Inliner(module, out)
    state.copy(kernel, {}, (), kernel.name)
    return out


class _Inliner:
    def __init__(self, module: PtxModule, out: Function):
        self.module, self.out, self.count = module, out, 0

    def copy(self, fn: Function, syms: dict[str, str], stack: tuple[str, ...], name: str) -> None:
        """Append `fn.body` to the output, with calls inlined; `syms` renames its variables and parameters."""
        for item in fn.body:
            if isinstance(item, Instr) and item.op == "call":
                callee = self.callee(item)
                if callee is not None:
                    self.call(item, callee, (*stack, name))
                    continue
            self.append(item)

    def append(self, item: Instr | Label) -> None:
        if isinstance(item, Instr):
            item.index = len(self.out.body)
        self.out.body.append(item)

    def callee(self, item: Instr) -> Function | None:
        for operand in item.operands:
            if isinstance(operand, Sym):
                fn = self.module.functions.get(operand.name)
                return fn if fn is not None and not fn.declared_only else None
        return None

    def call(self, item: Instr, callee: Function, stack: tuple[str, ...]) -> None:
        if callee.name in stack:
            raise Unsupported(f"recursive call of {callee.name} (PTX line {item.line})")
        if len(stack) > _DEPTH:
            raise Unsupported(f"call of {callee.name} (PTX line {item.line}), more than {_DEPTH} calls deep")
        self.count += 1
        tag = f"#{self.count}"
        names = [o for o in item.operands if isinstance(o, Sym)]
        before = item.operands.index(names[0])
        groups = [(i, o) for i, o in enumerate(item.operands) if isinstance(o, Group)]
        returns = next((g.items for i, g in groups if i < before), ())
        args = next((g.items for i, g in groups if i > before), ())
        if len(args) != len(callee.params) or len(returns) > len(callee.returns):
            raise UsageError(
                f"PTX line {item.line}: call of {callee.name} with {len(args)} arguments and {len(returns)} results; "
                f"it takes {len(callee.params)} and gives {len(callee.returns)}"
            )
        syms = {p.name: _param_name(a, item) for p, a in zip(callee.params, args, strict=True)}
        syms |= {p.name: _param_name(a, item) for p, a in zip(callee.returns, returns, strict=False)}
        for p in callee.returns[len(returns) :]:  # a result that nobody takes
            self.out.variables[p.name + tag] = Variable(p.name + tag, "param", p.size, p.align)
            syms[p.name] = p.name + tag
        for var in callee.variables.values():
            if var.space in ("local", "param"):
                syms[var.name] = var.name + tag
                self.out.variables[var.name + tag] = Variable(var.name + tag, var.space, var.size, var.align)
            else:
                self.out.variables.setdefault(var.name, var)
        regs = {}
        for reg in callee.regs.values():
            new = Reg(reg.name + tag, reg.type, len(self.out.regs))
            self.out.regs[f"{new.name}.{new.index}"] = new
            regs[reg] = new
        for table, targets in callee.branch_targets.items():
            self.out.branch_targets[table + tag] = [t + tag for t in targets]
        end = Label(f"$return{tag}")
        body = Function(callee.name, False, [], [], callee.line)
        body.body = list(_renamed(callee.body, regs, syms, tag, end))
        if item.pred is not None:
            self.append(Instr("bra", (), [end], item.line, item.loc, item.pred, not item.pred_neg))
        self.copy(body, syms, stack, callee.name)
        self.append(end)


def _param_name(operand: object, item: Instr) -> str:
    if isinstance(operand, Sym):
        return operand.name
    raise Unsupported(f"call with a register as parameter (PTX line {item.line})")


def _renamed(body: list, regs: dict, syms: dict, tag: str, end: Label) -> Iterator[Instr | Label]:
    def sub(o):
        if isinstance(o, Reg):
            return regs[o]
        if isinstance(o, Sym):
            return Sym(syms.get(o.name, o.name), o.offset)
        if isinstance(o, Label):
            return Label(o.name + tag)
        if isinstance(o, Mem):
            return Mem(sub(o.base), o.offset, tuple(sub(e) for e in o.extra))
        if isinstance(o, Vec):
            return Vec(tuple(sub(e) for e in o.items))
        if isinstance(o, Group):
            return Group(tuple(sub(e) for e in o.items))
        if isinstance(o, Pair):
            return Pair(sub(o.first), sub(o.second))
        if isinstance(o, Neg):
            return Neg(sub(o.operand))
        if isinstance(o, Part):
            return Part(regs[o.reg], o.name)
        return o

    for item in body:
        if isinstance(item, Label):
            yield Label(item.name + tag)
        elif item.op == "ret":
            yield Instr("bra", ("uni",), [end], item.line, item.loc, regs.get(item.pred), item.pred_neg)
        else:
            pred = regs[item.pred] if item.pred is not None else None
            yield Instr(item.op, item.mods, [sub(o) for o in item.operands], item.line, item.loc, pred, item.pred_neg)
