"""A kernel to LLVM IR: one function that runs a warp until it blocks, yields or exits.

Every block is emitted twice. The *converged* form (`c`) runs when all live lanes are together: register writes need no
mask and straight-line code runs through meetings. The *diverged* form (`d`) runs a lane group under a mask; at each
join it goes back to `tl_pick`, which runs the group with the lowest block number, so that groups meet again at
post-dominators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tensorladder.core.errors import Unsupported, UsageError
from tensorladder.vgpu.codegen import in_flight, loads, passing, points, table, traits, wgmma
from tensorladder.vgpu.codegen.control import reserve_stack
from tensorladder.vgpu.codegen.emit import Emitter
from tensorladder.vgpu.codegen.malformed import reading
from tensorladder.vgpu.codegen.undefined import Undefined
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.ptx import isa
from tensorladder.vgpu.ptx.cfg import Block, Graph
from tensorladder.vgpu.ptx.inline import inline
from tensorladder.vgpu.ptx.nodes import Function, Instr, PtxModule, Reg


@dataclass
class Lowered:
    """LLVM IR of one kernel with what the machine needs to know about it."""

    name: str
    ir: str
    frame_bytes: int
    local_bytes: int
    static_shared: int  # bytes after the reserved part
    dynamic_shared: int  # offset in the window of the dynamic part
    symbols: list[str]  # module variables, in table order
    lines: list[tuple[str, int, int, int, int]]  # per instruction: text, PTX line, file, line, column
    directives: dict = field(default_factory=dict)
    params: list = field(default_factory=list)
    param_bytes: int = 0
    ordered: bool = False  # holds instructions that see other CTAs: one scheduler for all
    clocked: bool = False  # reads a clock
    triggers: bool = False  # lets dependent launches start before its end
    allocates: bool = False  # allocates tensor memory
    moves_registers: bool = False  # executes setmaxnreg
    shadowed: bool = False  # local memory has shadows behind it
    multiplies: bool = False  # holds matrix multiplications
    unsupported: list = field(default_factory=list)
    block_iids: list[int] = field(default_factory=list)  # first instruction of each block, by PC
    points: points.Points | None = None  # breakpoints, where some are asked for


def lower(
    module: PtxModule, name: str, checked: bool = False, upto: int | None = None,
    wanted: Sequence[points.Place] | None = None,
) -> Lowered:  # fmt: skip
    """Generate IR for kernel `name`. What is not modelled becomes a stop at run time, by name.

    upto: emit instructions with this index or a lower one only, to find one whose code LLVM does not take.
    wanted: where breakpoints are to be; None: the code knows of none.
    UsageError with the PTX line for instructions whose operands do not fit, or that the module's target does not have.
    """
    table.load()
    fn = inline(module, module.kernels[name])
    for item in fn.body:
        if isinstance(item, Instr):
            isa.check_target(item.text, module.target, item.line)
    reserve_stack(fn)
    fn = in_flight.settle(fn)
    graph = Graph(fn, table.classify, table.results)
    framed = wgmma.registers_of(fn)
    symbols, globals_, places = _symbols(module, fn)
    undefined = Undefined(graph, places["local"] > 0) if checked else None
    if undefined is not None:
        framed |= set(undefined.of(framed))
    slots, frame_bytes = _frame(graph, framed | undefined.framed if undefined is not None else framed)
    breakpoints = None
    if wanted is not None:
        breakpoints = points.find(graph, fn, module.files, wanted, frame_bytes, slots, symbols)
        frame_bytes += breakpoints.bytes
    e = Emitter(slots, symbols, checked)
    e.framed, e.undefined = framed, undefined
    if checked and framed:
        e.watched, e.changed = in_flight.watched(fn), in_flight.changed(fn)
    builder = _Builder(e, graph, name, upto, breakpoints)
    ir = builder.build()
    for point in builder.points.values():
        point.live.clear()  # of the code generator alone
    lines = [("", 0, 0, 0, 0)] * len(fn.body)
    for item in fn.body:
        if isinstance(item, Instr):
            lines[item.index] = (item.text, item.line, *item.loc)
    return Lowered(
        name, ir, frame_bytes, places["local"], places["static"], places["dynamic"], globals_, lines,
        dict(fn.directives), list(fn.params), fn.param_bytes, traits.ordered(fn), traits.clocked(fn),
        traits.holds(fn, "griddepcontrol", "launch_dependents"),
        traits.holds(fn, "tcgen05", "alloc"),
        any(isinstance(i, Instr) and i.op == "setmaxnreg" for i in fn.body),
        checked,
        traits.multiplies(fn),
        builder.unsupported,
        [_first_iid(b) for b in graph.blocks],
        breakpoints,
    )  # fmt: skip


def _frame(graph: Graph, framed: set[Reg]) -> tuple[dict[Reg, int], int]:
    """Frame offsets of registers that live across blocks, or that units use: 64-byte aligned lane vectors."""
    live: dict[Reg, None] = dict.fromkeys(sorted(framed, key=lambda r: r.index))
    for b in graph.blocks:
        for reg in sorted(b.live_in, key=lambda r: r.index):
            live[reg] = None
    slots, offset = {}, 0
    for reg in sorted(live, key=lambda r: (r.bits == 1, r.index)):
        size = 4 if reg.bits == 1 else max(64, reg.bits // 8 * 32)
        slots[reg] = offset
        offset += size
    return slots, max(64, -(-offset // 64) * 64)


def _align(value: int, to: int) -> int:
    return -(-value // to) * to


def _symbols(module: PtxModule, fn: Function):
    """Places of variables: shared in the window, local per thread, params by offset, module variables by index."""
    symbols: dict[str, tuple[str, int]] = {}
    globals_: list[str] = []
    shared, local = L.SHARED_RESERVED, 0
    used = _used_names(fn)
    dynamic = []
    for var in [*module.variables.values(), *fn.variables.values()]:
        if var.space == "shared":
            if var.extern:
                dynamic.append(var)
            elif var.name in used:
                shared = _align(shared, var.align)
                symbols[var.name] = ("shared", shared)
                shared += var.size
        elif var.space in ("local", "param"):
            local = _align(local, max(var.align, 8))
            symbols[var.name] = ("local", local)
            local += var.size
        else:
            symbols[var.name] = ("global", len(globals_))
            globals_.append(var.name)
    static = shared - L.SHARED_RESERVED
    # a dynamic base at a 1024-byte boundary is what compiled TMA code is right with, whatever it declares
    base = _align(shared, 1024) if dynamic or static == 0 else _align(shared, 16)
    for var in dynamic:
        symbols[var.name] = ("shared", base)
    for p in fn.params:
        symbols[p.name] = ("param", p.offset)
    return symbols, globals_, {"local": _align(local, 16), "static": static, "dynamic": base}


def _used_names(fn: Function) -> set[str]:
    names: set[str] = set()

    def visit(o) -> None:
        if hasattr(o, "name") and not isinstance(o, Reg):
            names.add(o.name)
        for attr in ("items", "extra"):
            for x in getattr(o, attr, ()):
                visit(x)
        for attr in ("base", "operand", "first", "second"):
            if hasattr(o, attr):
                visit(getattr(o, attr))

    for item in fn.body:
        if isinstance(item, Instr):
            for o in item.operands:
                visit(o)
    names.update(v.name for v in fn.variables.values() if v.space == "shared")
    return names


def _first_iid(b: Block) -> int:
    if b.instrs:
        return b.instrs[0].index
    return b.term.index if b.term is not None else -1


class _Builder:
    def __init__(
        self, e: Emitter, graph: Graph, name: str, upto: int | None = None, breakpoints: points.Points | None = None
    ):
        self.e, self.graph, self.name, self.upto = e, graph, name, upto
        self.points = breakpoints.by_instruction() if breakpoints is not None else {}
        self.unsupported: list[tuple[int, str]] = []
        self.back_edges = [(b.number, s) for b in graph.blocks for s in b.succs if s <= b.number]
        self.passed = passing.tables(graph) if e.checked else {}
        self.diverges = any(len(set(b.succs)) > 1 or _partial_exit(b) for b in graph.blocks)

    def build(self) -> str:
        e = self.e
        heads = self.heads
        for n in heads:
            self.converged(n)
        if self.diverges:
            for b in self.graph.blocks:
                self.diverged(b)
        cases = []
        for b in self.graph.blocks:
            if b.number in heads:
                cases.append(f"i64 {2 * b.number}, label %c{b.number}")
            elif self.diverges:
                cases.append(f"i64 {2 * b.number}, label %d{b.number}")
            if self.diverges:
                cases.append(f"i64 {2 * b.number + 1}, label %d{b.number}")
        e.declare("declare i64 @tl_pick(i64)")
        body = "\n".join(e.lines)
        nl = "\n    "
        return f"""{chr(10).join(e.declared)}
define i64 @"kernel"(i64 %w) {{
entry:
  %warp = inttoptr i64 %w to ptr
  %fp = getelementptr i8, ptr %warp, i64 {L.W_FRAME}
  %frame = load ptr, ptr %fp
  br label %dispatch
dispatch:
  %pc = call i64 @tl_pick(i64 %w)
  switch i64 %pc, label %out [
    {nl.join(cases)}
  ]
out:
  %code = sub i64 -1, %pc
  ret i64 %code
failed:
  ret i64 {L.RET_ERROR}
yielded:
  ret i64 {L.RET_YIELD}
{body}
}}
"""

    @cached_property
    def heads(self) -> dict[int, None]:
        """Blocks where converged code can start: all but meetings that are only fallen into."""
        blocks = self.graph.blocks
        heads: dict[int, None] = {}
        for b in blocks:
            alone = b.number > 0 and len(b.preds) == 1 and blocks[b.preds[0]].term is None
            if not (b.meeting and alone and b.preds[0] < b.number):
                heads[b.number] = None
        return heads

    # ------------------------------------------------------------ bodies
    def instr(self, i: Instr) -> None:
        if self.upto is not None and i.index > self.upto:
            return
        e = self.e
        e.instr = i
        e.guard = None
        if i.pred is not None:
            e.guard = e.reg(i.pred)
            if i.pred_neg:
                e.guard = e.op(f"xor <32 x i1> {e.guard}, splat (i1 true)")
        entry = table.TABLE.get(i.op)
        try:
            if entry is None:
                raise Unsupported(i.text)
            with reading(i):
                wgmma.watch(e, i)
                self.all_here(i)
                if e.undefined is None:
                    entry.emit(e, i)
                else:
                    e.undefined.emit(e, i, entry)
        except Unsupported as u:
            self.not_modelled(i, u)
            e.call("tl_fail", L.ERR_UNSUPPORTED, i.index, e.active(), fallible=True)
        e.guard = None

    def all_here(self, i: Instr) -> None:
        """For the checked variant: all lanes execute an .aligned instruction, or some a collective."""
        e = self.e
        if e.checked and "aligned" in i.mods:
            e.line(f"store i64 1, ptr {e.warp_ptr(L.W_ALIGNED)}")
        elif e.checked and "sync" in i.mods and i.op in ("shfl", "vote", "redux", "match"):
            lanes = e.op(f"or i64 {e.warp_field(L.W_ALIGNED)}, {e.op(f'shl i64 {e.active()}, 8')}")
            e.line(f"store i64 {lanes}, ptr {e.warp_ptr(L.W_ALIGNED)}")

    def not_modelled(self, i: Instr, why: Unsupported) -> None:
        """Remember what will stop the run; UsageError where the ISA has no such instruction: the text is corrupt."""
        refused = isa.refusal(i.text, f"PTX line {i.line}")
        if isinstance(refused, UsageError):
            raise refused from why
        self.unsupported.append((i.index, str(why)))

    def instrs(self, b: Block, before: int = 0) -> None:
        """The instructions of a block, `before` since the clock was set; hooks and breakpoints want every access by
        itself."""
        self.e.runs = {} if self.e.checked or self.points else loads.find(b.instrs)
        for i in b.instrs:
            self.stop_at(i, before)
            self.instr(i)
            before += 1

    def stop_at(self, i: Instr, before: int) -> None:
        """Where a breakpoint stands at an instruction: keep the registers, and leave if the launch is to stop."""
        point = self.points.get(i.index)
        if point is None or points.is_put_in(i):
            return
        e = self.e
        e.instr = i
        if i.pred is not None and i.op not in _PLAIN_ENDS:  # a lane that a guard leaves out does not come there
            value = e.reg(i.pred)
            e.guard = e.op(f"xor <32 x i1> {value}, splat (i1 true)") if i.pred_neg else value
        lanes = e.active()
        e.guard = None
        cached = dict(e.cache)
        for reg, shown in zip(point.live, point.registers, strict=True):
            e.store_at(reg, shown.offset)
        e.cache = cached
        stop = e.op(f"icmp ne i64 {e.call('tl_break', point.number, before, lanes, i.index)}, 0")
        e.count += 1
        e.line(f"br i1 {stop}, label %failed, label %b{e.count}")
        e.label(f"b{e.count}")

    def clock(self, count: int) -> None:
        e = self.e
        clock = e.op(f"add i64 {e.warp_field(L.W_CLOCK)}, {count}")
        e.line(f"store i64 {clock}, ptr {e.warp_ptr(L.W_CLOCK)}")

    def check(self) -> None:
        """Leave if a runtime call of this block failed."""
        e = self.e
        if not e.fallible:
            return
        error = e.warp_field(L.W_ERROR)
        bad = e.op(f"icmp ne i64 {error}, 0")
        e.count += 1
        e.line(f"br i1 {bad}, label %failed, label %ok{e.count}")
        e.label(f"ok{e.count}")
        e.fallible = False

    def converged(self, head: int) -> None:
        e, blocks = self.e, self.graph.blocks
        e.label(f"c{head}")
        e.begin_block(False)
        b = blocks[head]
        count = 0
        while True:
            self.instrs(b, count)
            count += len(b.instrs) + (b.term is not None)
            if b.term is None and b.succs[0] not in self.heads:
                b = blocks[b.succs[0]]
                continue
            break
        self.clock(count)
        self.terminate(b, False)

    def diverged(self, b: Block) -> None:
        e = self.e
        e.label(f"d{b.number}")
        e.begin_block(True)
        if e.checked:
            passing.look(e, b, self.passed.get(b.number))
        if b.meeting:
            self.meet(b)
        self.instrs(b)
        self.clock(len(b.instrs) + (b.term is not None))
        self.terminate(b, True)

    def meet(self, b: Block) -> None:
        """Wait until all lanes that the collective names are here; the lane group is then all of them."""
        from tensorladder.vgpu.codegen.warp import member_mask

        e = self.e
        e.instr = b.instrs[0]
        with reading(b.instrs[0]):
            masks = e.spill(member_mask(e, b.instrs[0]), "<32 x i32>", 0)
        go = e.call("tl_meet", b.number, masks, b.instrs[0].index)
        stop = e.op(f"icmp eq i64 {go}, 0")
        e.count += 1
        e.line(f"br i1 {stop}, label %dispatch, label %met{e.count}")
        e.label(f"met{e.count}")
        e.begin_block(True)  # the mask may have grown

    # ------------------------------------------------------------ ends
    def set_pc(self, target: int, mask: str | None = None) -> None:
        """PC of the group's lanes (or of `mask`, <32 x i1>)."""
        e = self.e
        p = e.warp_ptr(L.W_PC)
        value = e.splat("<32 x i32>", target)
        if mask is None and not e.masked:
            e.line(f"store <32 x i32> {value}, ptr {p}, align 64")
            return
        old = e.op(f"load <32 x i32>, ptr {p}, align 64")
        mask = mask or e.lanes_vector()
        new = e.op(f"select <32 x i1> {mask}, <32 x i32> {value}, <32 x i32> {old}")
        e.line(f"store <32 x i32> {new}, ptr {p}, align 64")

    def terminate(self, b: Block, masked: bool) -> None:
        e, t = self.e, b.term
        e.instr = t
        if t is not None:
            self.stop_at(t, -1)
        if t is not None and e.undefined is not None:
            with reading(t):
                e.undefined.judge(e, t)
        if t is not None and t.op not in _PLAIN_ENDS:
            self.blocking(b, masked)
            return
        if t is not None and t.pred is not None:
            cond = e.reg(t.pred)
            if t.pred_neg:
                cond = e.op(f"xor <32 x i1> {cond}, splat (i1 true)")
        else:
            cond = None
        if t is not None and t.op == "brx":
            with reading(t):
                index = e.value(t.operands[0], "u32")
        e.flush(b.live_out)
        self.check()
        if t is None or (t.op == "bra" and cond is None):
            self.jump(b, b.succs[0], masked)
        elif t.op == "bra":
            self.branch(b, cond, masked)
        elif t.op == "brx":
            self.indexed(b, index, masked)
        else:
            self.leave(b, cond, masked)

    def jump(self, b: Block, target: int, masked: bool) -> None:
        e = self.e
        if not masked:
            if target > b.number:
                e.line(f"br label %c{target}")
                return
            # a back-edge: yield when the slice is used up
            e.count += 1
            n = e.count
            late = e.op(f"icmp sge i64 {e.warp_field(L.W_CLOCK)}, {e.warp_field(L.W_LIMIT)}")
            e.line(f"br i1 {late}, label %y{n}, label %c{target}")
            e.label(f"y{n}")
            e.block_values.clear()
            self.set_pc(target)
            e.call("tl_yield")
            e.line("br label %yielded")
            return
        if self.alone(b.number, target):
            e.line(f"br label %d{target}")
            return
        self.set_pc(target)
        e.line("br label %dispatch")

    def alone(self, source: int, target: int) -> bool:
        """Whether no lanes can be waiting at `target` when a group goes there from `source`, its only predecessor.

        Lanes that left `source` for `target` before wait there when the others come round a loop that lies before it.
        """
        if len(self.graph.blocks[target].preds) != 1 or target <= source:
            return False
        return not any(head <= source <= latch < target for latch, head in self.back_edges)

    def branch(self, b: Block, cond: str, masked: bool) -> None:
        e = self.e
        taken, fall = b.succs
        if taken == fall:
            self.jump(b, taken, masked)
            return
        lanes = e.lanes()
        bits = e.op(f"bitcast <32 x i1> {cond} to i32")
        hit = e.op(f"and i32 {bits}, {lanes}")
        e.count += 1
        n = e.count
        none = e.op(f"icmp eq i32 {hit}, 0")
        e.line(f"br i1 {none}, label %f{n}, label %t{n}")
        e.label(f"t{n}")
        e.block_values = dict(e.block_values)
        saved = dict(e.block_values)
        every = e.op(f"icmp eq i32 {hit}, {lanes}")
        e.line(f"br i1 {every}, label %a{n}, label %s{n}")
        e.label(f"a{n}")
        self.jump(b, taken, masked)
        e.label(f"f{n}")
        e.block_values = dict(saved)
        self.jump(b, fall, masked)
        e.label(f"s{n}")
        e.block_values = dict(saved)
        self.set_pc(fall)
        mask = e.op(f"bitcast i32 {hit} to <32 x i1>")
        self.set_pc(taken, mask)
        e.line("br label %dispatch")

    def indexed(self, b: Block, index: str, masked: bool) -> None:
        """brx.idx: each lane's PC from the table of targets."""
        e = self.e
        p = e.warp_ptr(L.W_PC)
        pc = e.splat("<32 x i32>", b.succs[-1])
        for k, target in enumerate(b.succs[:-1]):
            hit = e.op(f"icmp eq <32 x i32> {index}, {e.splat('<32 x i32>', k)}")
            pc = e.op(f"select <32 x i1> {hit}, <32 x i32> {e.splat('<32 x i32>', target)}, <32 x i32> {pc}")
        if masked:
            old = e.op(f"load <32 x i32>, ptr {p}, align 64")
            pc = e.op(f"select <32 x i1> {e.lanes_vector()}, <32 x i32> {pc}, <32 x i32> {old}")
        e.line(f"store <32 x i32> {pc}, ptr {p}, align 64")
        e.line("br label %dispatch")

    def leave(self, b: Block, cond: str | None, masked: bool) -> None:
        """ret, exit or trap of the group, or of the lanes where the guard holds."""
        e, t = self.e, b.term
        lanes = e.lanes()
        if cond is not None:
            bits = e.op(f"bitcast <32 x i1> {cond} to i32")
            lanes = e.op(f"and i32 {lanes}, {bits}")
        mask = e.op(f"zext i32 {lanes} to i64")
        if t.op == "trap":
            e.call("tl_fail", L.ERR_TRAP, t.index, mask, fallible=True)
            self.check()
        else:
            e.call("tl_exit", mask)
        if b.succs:
            self.set_pc(b.succs[0])
        e.line("br label %dispatch")

    def blocking(self, b: Block, masked: bool) -> None:
        """An instruction on which the group may wait. Its emitter gives an i1: true to go on now."""
        e, t = self.e, b.term
        entry = table.TABLE[t.op]
        e.guard = None
        nxt = b.succs[0]
        if self.upto is not None and t.index > self.upto:
            e.line("br label %failed")
            return
        try:
            with reading(t):
                self.all_here(t)
                go, again = entry.emit(e, t)
                if e.undefined is not None:
                    e.undefined.define(e, t)
        except Unsupported as u:
            self.not_modelled(t, u)
            e.call("tl_fail", L.ERR_UNSUPPORTED, t.index, e.active())
            e.line("br label %failed")
            return
        e.flush(b.live_out | (b.live_in if again else set()))
        self.check()
        e.count += 1
        n = e.count
        e.line(f"br i1 {go}, label %g{n}, label %w{n}")
        e.label(f"w{n}")
        saved = dict(e.block_values)
        if again and t.index in self.points:
            e.call("tl_retry", e.active())
        self.set_pc(b.number if again else nxt)
        e.line("br label %dispatch")
        e.label(f"g{n}")
        e.block_values = saved
        self.jump(b, nxt, masked)


_PLAIN_ENDS = {"bra", "brx", "ret", "exit", "trap"}


def _partial_exit(b: Block) -> bool:
    return b.term is not None and b.term.op in ("ret", "exit") and b.term.pred is not None
