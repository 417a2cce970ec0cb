"""Values that nobody wrote, followed through registers to where they matter: for the checked variant.

Each register that may hold such a value has a shadow, a register of the same type with a one for each undefined bit. To
read what nobody wrote is no error, neither is to move it about; it is one when it decides something (an address, a
branch, an operand of a machine instruction) or leaves the CTA (a store to global memory). Which registers have a shadow
is found without running: those that depend on loads, on shuffles, on registers that some way writes nothing to. What
moves bits (mov, shifts, prmt, selp, shfl) is done once more with the shadows in place of the values; arithmetic makes
all bits of a result undefined that depends on an undefined one.

Memory's part is the checker's: it says after a load whether a byte of it is undefined (W_UNDEFINED), and keeps what is
stored (check.values).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from tensorladder.vgpu.codegen import carry, table
from tensorladder.vgpu.codegen.carry import READ_CARRY
from tensorladder.vgpu.codegen.emit import Emitter, ivec
from tensorladder.vgpu.codegen.in_flight import SETTLE
from tensorladder.vgpu.codegen.value_forms import (
    ACROSS,
    access_of,
    depends,
    follows,
    fragments_of,
    items_of,
    space_of,
    tensor_form,
    type_of,
    written,
)
from tensorladder.vgpu.machine import layout as L
from tensorladder.vgpu.machine import tmem as T
from tensorladder.vgpu.ptx.cfg import Graph, registers
from tensorladder.vgpu.ptx.nodes import TYPE_BITS, Imm, Instr, Mem, Neg, Pair, Reg, Sink, Vec

#: how an undefined value matters (tl_undefined, check.values)
STORED, ADDRESS, BRANCH, OPERAND = range(4)

#: what moves bits: the places of the operands that are moved; others (amounts, selectors) stay what they are
_MOVES = {"mov": (1,), "shl": (1,), "shr": (1,), "shf": (1, 2), "prmt": (1, 2), "bfe": (1,), "bfi": (1, 2),
          "brev": (1,), "selp": (1, 2), "shfl": (1,), "movmatrix": (1,)}  # fmt: skip
#: vector instructions that are done in parts of so many bits
_PARTS = {"f16x2": 16, "bf16x2": 16, "u16x2": 16, "s16x2": 16, "f32x2": 32}
_FLOATS = ("f", "b", "e", "t")


class Undefined:
    """The shadows of one kernel. local: it has memory of its own a thread."""

    def __init__(self, graph: Graph, local: bool):
        self.local = local
        self.shadows: dict[Reg, Reg] = {}
        self.carry = False  # whether CC.CF may be undefined
        self._find(graph)
        fragments = (r for b in graph.blocks for i in b.instrs for r in fragments_of(i))
        self.framed = set(self.of(fragments))  # shadows that the runtime works on in the frame
        for b in graph.blocks:  # a shadow lives as long as its register
            for live in (b.live_in, b.live_out):
                live.update([self.shadows[r] for r in live if r in self.shadows])

    def of(self, regs: Iterable[Reg]) -> list[Reg]:
        """The shadows of those that have one."""
        return [self.shadows[r] for r in regs if r in self.shadows]

    def has(self, *operands: object) -> bool:
        """Whether an operand may be undefined."""
        return any(r in self.shadows for o in operands for r in registers(o))

    # ------------------------------------------------------------ which registers
    def _find(self, graph: Graph) -> None:
        instrs = [i for b in graph.blocks for i in (*b.instrs, *([b.term] if b.term else []))]
        users: dict[Reg, list[Instr]] = {}
        work: list[Reg] = sorted(graph.blocks[0].live_in, key=lambda r: r.index)
        for i in instrs:
            count = table.results(i)
            if depends(i):
                for r in (r for o in i.operands[count:] for r in registers(o)):
                    users.setdefault(r, []).append(i)
                if i.pred is not None:
                    users.setdefault(i.pred, []).append(i)
            if self._source(i):
                work += [r for o in written(i) for r in registers(o)]
        while work:
            reg = work.pop()
            if reg in self.shadows:
                continue
            self.shadows[reg] = Reg(f"{reg.name}?", reg.type, -1 - reg.index)
            for i in users.get(reg, ()):
                work += [r for o in written(i) for r in registers(o) if r not in self.shadows]
                if "cc" in i.mods and not self.carry:
                    self.carry = True
                    work += [r for i in instrs if i.op in READ_CARRY for r in registers(i.operands[0])]

    def _source(self, i: Instr) -> bool:
        """Whether an instruction may give what nobody wrote."""
        if i.op in ("ld", "ldu"):
            return space_of(i) in ("shared", "generic") or (self.local and space_of(i) == "local")
        if i.op == "wgmma" and i.mods[:1] == ("mma_async",):
            return True
        if i.op == "atom":
            return space_of(i) != "global" and "exch" not in i.mods and isinstance(i.operands[0], Reg)
        if i.op == "wmma":
            return i.mods[:1] == ("load",) and "global" not in i.mods
        return i.op in ("ldmatrix", "shfl") or (i.op == "tcgen05" and "ld" in i.mods[:1])

    # ------------------------------------------------------------ code
    def emit(self, e: Emitter, i: Instr, entry: table.Entry) -> None:
        """The instruction with its shadows: judged, done, followed."""
        if not self.has(*i.operands, i.pred) and not self._keeps_all(i) and not self._has_carry(i):
            entry.emit(e, i)
            return
        after = self._before(e, i, entry)
        entry.emit(e, i)
        if after is not None:
            after()

    def judge(self, e: Emitter, t: Instr) -> None:
        """Before a branch, or an instruction that may block: what it decides by must be known."""
        e.guard = None
        if t.pred is not None:
            self._must(e, t.pred, BRANCH)
        if t.op == "brx":
            self._must(e, t.operands[0], BRANCH)
        elif t.op not in ("bra", "ret", "exit", "trap") and t.mods != (SETTLE,):  # that one only waits for registers
            for o in t.operands[table.results(t) :]:
                self._must(e, o, OPERAND)

    def define(self, e: Emitter, t: Instr) -> None:
        """After an instruction that may block: its results are known."""
        self._set_all(e, t, None)

    def _before(self, e: Emitter, i: Instr, entry: table.Entry) -> Callable[[], None] | None:
        """Judge an instruction and work out its shadows; gives what is left to do after it."""
        if i.pred is not None and not follows(i):
            with _unguarded(e):
                self._must(e, i.pred, BRANCH)
        for o in i.operands:
            if isinstance(o, Mem):
                self._must(e, o, ADDRESS)
        if i.op in ("ld", "ldu"):
            return lambda: self._loaded(e, i)
        if i.op == "st" or (i.op == "red" and "async" in i.mods):
            return self._stored(e, i)
        if i.op == "ldmatrix":
            return lambda: self._loaded(e, i)
        if i.op == "stmatrix" and "b16" in i.mods:
            return self._stored(e, i)
        if i.op == "tcgen05" and i.mods[0] in ("ld", "st"):
            self._must(e, i.operands[0 if i.mods[0] == "st" else 1], ADDRESS)
            return (lambda: self._loaded(e, i)) if i.mods[0] == "ld" else self._stored(e, i)
        if i.op == "wgmma":
            self._wgmma(e, i)
            return None
        if i.op in ("atom", "red"):
            self._judge_operands(e, i, STORED)
            return lambda: self._loaded(e, i) if self._source(i) else self._set_all(e, i, None)
        if i.op == "wmma":  # fragments whose layout is the machine's own business: it does its shadows itself
            for o in i.operands[2:] if i.mods[0] != "mma" else ():
                self._must(e, o, ADDRESS)
            return None
        if follows(i):
            self._follow(e, i, entry)
            return None
        self._judge_operands(e, i, OPERAND)
        return lambda: self._set_all(e, i, None)

    def _judge_operands(self, e: Emitter, i: Instr, how: int) -> None:
        for o in i.operands[table.results(i) :]:
            if not isinstance(o, Mem):
                self._must(e, o, how)

    def _must(self, e: Emitter, operand: object, how: int) -> None:
        """Tell the checker of active lanes in which an operand is undefined."""
        lanes = self._any(e, registers(operand))
        if lanes is not None:
            bits = e.op(f"zext i32 {e.op(f'bitcast <32 x i1> {lanes} to i32')} to i64")
            e.call("tl_undefined", how, e.op(f"and i64 {bits}, {e.active()}"), e.iid)

    def _any(self, e: Emitter, regs: Iterable[Reg]) -> str | None:
        """<32 x i1>: lanes in which one of the registers has an undefined bit; None where that cannot be."""
        total = None
        for shadow in self.of(dict.fromkeys(regs)):
            one = self._some(e, shadow)
            total = one if total is None else e.op(f"or <32 x i1> {total}, {one}")
        return total

    def _some(self, e: Emitter, shadow: Reg) -> str:
        """<32 x i1>: lanes in which a shadow has a bit."""
        value = e.reg(shadow)
        if shadow.bits == 1:
            return value
        return e.once(f"some {value}", lambda: e.op(f"icmp ne {ivec(shadow.bits)} {value}, zeroinitializer"))

    def _set_all(self, e: Emitter, i: Instr, lanes: str | None) -> None:
        """All bits of the results are undefined in these lanes, and defined in the others."""
        for reg in (r for o in written(i) for r in registers(o)):
            if reg in self.shadows:
                e.write(self.shadows[reg], _spread(e, lanes, reg.bits))

    # ------------------------------------------------------------ through registers
    def _follow(self, e: Emitter, i: Instr, entry: table.Entry) -> None:
        """Shadows of what works on values, before it is done."""
        if i.op == "mma":
            self._product(e, i)
            return
        sources = [r for o in i.operands[table.results(i) :] for r in registers(o)]
        moves = self._moved(i)
        if moves is not None:
            had = self._any(e, registers(i.operands[1])) if i.op == "shfl" else None
            entry.emit(e, self._shadowed(i, moves))
            if isinstance(i.operands[0], Pair):  # whether a lane was in range hangs on no value
                for valid in self.of(registers(i.operands[0].second)):
                    e.write(valid, e.splat("<32 x i1>", 0))
            if i.op == "shfl":
                self._shuffled(e, i, had)
            control = [r for n, o in enumerate(i.operands) if n and n not in moves for r in registers(o)]
            self._spoil(e, i, [*control, *([i.pred] if i.pred else [])])
        elif i.op in ("and", "or", "lop3") and not isinstance(i.operands[0], Pair):
            self._logic(e, i)
            self._spoil(e, i, [i.pred] if i.pred else [])
        elif i.op in ("xor", "not") and isinstance(i.operands[0], Reg) and i.operands[0] in self.shadows:
            whole = self._union(e, sources, i.operands[0].bits)
            e.write(self.shadows[i.operands[0]], whole)
            self._spoil(e, i, [i.pred] if i.pred else [])
        elif i.op in ACROSS:
            self._across(e, i, sources)
        else:
            self._compute(e, i, [*sources, *([i.pred] if i.pred else [])])

    def _shuffled(self, e: Emitter, i: Instr, had: str | None) -> None:
        """Lanes that get what an absent lane has, where no present one had anything undefined: it comes from here."""
        d = i.operands[0].first if isinstance(i.operands[0], Pair) else i.operands[0]
        got = self._any(e, registers(d))
        if got is None:
            return
        bits = e.op(f"bitcast <32 x i1> {got} to i32")
        if had is not None:
            some = e.op(f"and i32 {e.op(f'bitcast <32 x i1> {had} to i32')}, {e.lanes()}")
            none = e.op(f"sext i1 {e.op(f'icmp eq i32 {some}, 0')} to i32")
            bits = e.op(f"and i32 {bits}, {none}")
        e.call("tl_undefined_origin", e.op(f"and i64 {e.op(f'zext i32 {bits} to i64')}, {e.active()}"), e.iid)

    def _moved(self, i: Instr) -> tuple[int, ...] | None:
        """Places of the operands whose bits an instruction moves, None where it does more."""
        if i.op == "cvt":
            types = [m for m in i.mods if m in TYPE_BITS]
            plain = len(types) == 2 and not any(t[0] in _FLOATS for t in types) and "sat" not in i.mods
            return (1,) if plain else None
        if i.op == "mov" and not isinstance(i.operands[1], Reg | Vec):
            return None
        return _MOVES.get(i.op)

    def _shadowed(self, i: Instr, moves: tuple[int, ...]) -> Instr:
        """The instruction on shadows: moves those of its values, and writes that of its result."""
        operands = [self._shadow(o) if n in moves else o for n, o in enumerate(i.operands)]
        d = i.operands[0]
        if isinstance(d, Pair):
            d = d.first
        operands[0] = Vec(tuple(self._target(r) for r in d.items)) if isinstance(d, Vec) else self._target(d)
        return replace(i, operands=operands)

    def _target(self, d: object) -> object:
        return self.shadows.get(d, Sink()) if isinstance(d, Reg) else Sink()

    def _shadow(self, o: object) -> object:
        if isinstance(o, Vec):
            return Vec(tuple(self._shadow(x) for x in o.items))
        if isinstance(o, Neg):
            return self._shadow(o.operand)
        return self.shadows.get(o, Imm(0)) if isinstance(o, Reg) else Imm(0)

    def _spoil(self, e: Emitter, i: Instr, control: list[Reg]) -> None:
        """Results are undefined where what chose them is."""
        with _unguarded(e, i):
            lanes = self._any(e, control)
            if lanes is None:
                return
            for reg in (r for o in written(i) for r in registers(o)):
                if reg in self.shadows:
                    shadow = self.shadows[reg]
                    value = e.op(f"or {ivec(reg.bits)} {e.reg(shadow)}, {_spread(e, lanes, reg.bits)}")
                    e.write(shadow, value)

    def _union(self, e: Emitter, sources: list[Reg], bits: int) -> str:
        """Bits that are undefined in one of the sources."""
        total = None
        for shadow in self.of(dict.fromkeys(sources)):
            value = e.resize((e.reg(shadow), shadow.bits), f"b{bits}" if bits > 1 else "pred")
            total = value if total is None else e.op(f"or {ivec(bits)} {total}, {value}")
        return total or e.splat(ivec(bits), 0)

    def _logic(self, e: Emitter, i: Instr) -> None:
        """and, or, lop3: a bit is undefined when the undefined bits of the inputs can change it."""
        d = i.operands[0]
        if not isinstance(d, Reg) or d not in self.shadows:
            return
        ty = i.mods[-1]
        llvm = ivec(d.bits)
        tables = {"and": 0b1000, "or": 0b1110}
        inputs = i.operands[1:4] if i.op == "lop3" else i.operands[1:3]
        truth = i.operands[4].value & 0xFF if i.op == "lop3" else tables[i.op]
        pairs = [(e.value(o, ty), e.value(self._shadow(o), ty)) for o in inputs]
        total = None
        for n in range(1 << len(pairs)):  # one term a row of the truth table and what it can turn into
            for m in range(n):
                if (truth >> n ^ truth >> m) & 1:
                    term = _turns(e, llvm, pairs, n, m)
                    total = term if total is None else e.op(f"or {llvm} {total}, {term}")
        e.write(self.shadows[d], total or e.splat(llvm, 0))

    def _across(self, e: Emitter, i: Instr, sources: list[Reg]) -> None:
        """vote, redux, match: undefined when a lane's value is."""
        lanes = self._any(e, sources[:1])
        if lanes is None:
            self._set_all(e, i, None)
            return
        here = e.op(f"and i32 {e.op(f'bitcast <32 x i1> {lanes} to i32')}, {e.lanes()}")
        d = i.operands[0]
        if i.op == "vote" and "ballot" in i.mods:
            if d in self.shadows:
                e.write(self.shadows[d], e.broadcast("i32", here))
            return
        some = e.broadcast("i1", e.op(f"icmp ne i32 {here}, 0"))
        self._set_all(e, i, some)

    def _compute(self, e: Emitter, i: Instr, sources: list[Reg]) -> None:
        """Arithmetic: all bits of a result (of its part, for vectors of small numbers) depend on all of its inputs."""
        part = next((_PARTS[m] for m in reversed(i.mods) if m in _PARTS), 0)
        d = i.operands[0] if i.operands else None
        if part and isinstance(d, Reg) and d in self.shadows and i.pred is None and self._by_part(e, i, d, part):
            return
        lanes = self._any(e, sources)
        if self.carry and i.op in READ_CARRY:
            before = carry.read(e, L.W_CARRY_UNDEFINED)
            lanes = before if lanes is None else e.op(f"or <32 x i1> {lanes}, {before}")
        self._set_all(e, i, lanes)
        if self.carry and "cc" in i.mods:
            carry.write(e, lanes or e.splat("<32 x i1>", 0), L.W_CARRY_UNDEFINED)

    def _has_carry(self, i: Instr) -> bool:
        """Whether it reads or writes a carry that may be undefined."""
        return self.carry and (i.op in READ_CARRY or "cc" in i.mods)

    def _by_part(self, e: Emitter, i: Instr, d: Reg, part: int) -> bool:
        llvm, shadow = ivec(d.bits), self.shadows[d]
        ones = (1 << part) - 1
        if i.op == "cvt" and len(i.operands) >= 3:  # the first is the upper part
            halves = [self._any(e, registers(o)) for o in i.operands[1:3]]
            masks = [ones << (d.bits // 2), ones]
        else:
            regs = [r for o in i.operands[1:] for r in registers(o)]
            if any(r.bits != d.bits for r in regs if r in self.shadows):
                return False
            whole = self._union(e, regs, d.bits)
            masks = [ones << at for at in range(0, d.bits, part)]
            halves = []
            for mask in masks:
                cut = e.op(f"and {llvm} {whole}, {e.splat(llvm, mask)}")
                halves.append(e.op(f"icmp ne {llvm} {cut}, zeroinitializer"))
        total = e.splat(llvm, 0)
        for lanes, mask in zip(halves, masks, strict=True):
            if lanes is not None:
                bits = e.op(f"and {llvm} {_spread(e, lanes, d.bits)}, {e.splat(llvm, mask)}")
                total = e.op(f"or {llvm} {total}, {bits}")
        e.write(shadow, total)
        return True

    # ------------------------------------------------------------ fragments: their shadows are in the frame
    def _product(self, e: Emitter, i: Instr) -> None:
        """mma.sync, by the runtime: its registers are many, and shadows nearly always zeros."""
        fragments = [items_of(o) for o in i.operands[:4]]
        both = "f16" in i.mods[3:6] and len(fragments[0]) == 2 and len(fragments[1]) > 1
        self.product(e, fragments, both, f"{i.index}")

    def product(self, e: Emitter, fragments: list[tuple], both: bool, name: str) -> None:
        """Shadows of D from those of A, B and C; both: a register of D has two columns. name: a table's, of its own."""
        regs = [r for fragment in fragments for r in fragment]
        if not self.has(*regs):
            return
        e.to_frame(self.of(r for r in regs if isinstance(r, Reg)))
        counts = [len(fragment) for fragment in fragments]
        wide = any(isinstance(r, Reg) and r.bits == 64 for r in regs)
        form = counts[0] | counts[1] << 8 | counts[2] << 16 | both << 24 | wide << 25
        e.call("tl_shadow_mma", self._places(e, name, regs), form)
        self._forget(e, fragments[0])

    def _places(self, e: Emitter, name: str, regs: Iterable[object]) -> str:
        """Address of the places of shadows in the frame, as i32; -1: there is none."""
        known = [self.shadows.get(r) if isinstance(r, Reg) else None for r in regs]
        places = [-1 if shadow is None else e.slots[shadow] for shadow in known]
        words = ", ".join(f"i32 {place}" for place in places)
        e.declare(f"@undefined_{name} = private constant [{len(places)} x i32] [{words}]")
        return e.op(f"ptrtoint ptr @undefined_{name} to i64")

    def _forget(self, e: Emitter, regs: Iterable[object]) -> None:
        """Shadows that the runtime has changed are read from the frame anew."""
        for shadow in self.of(r for r in regs if isinstance(r, Reg)):
            e.cache.pop(shadow, None)
            e.dirty.pop(shadow, None)

    def _wgmma(self, e: Emitter, i: Instr) -> None:
        """The unit works on registers in the frame, the checker on their shadows there."""
        if i.mods[:1] == ("mma_async",):
            e.to_frame(self.of([*registers(i.operands[0]), *registers(i.operands[1])]))
            for o in i.operands[1:4]:
                if isinstance(o, Reg):
                    self._must(e, o, OPERAND)

    # ------------------------------------------------------------ memory
    def _loaded(self, e: Emitter, i: Instr) -> None:
        """Shadows of what was loaded: nearly always zeros."""
        targets = items_of(i.operands[0])
        if not any(isinstance(r, Reg) and r in self.shadows for r in targets):
            return
        if i.op in ("ld", "ldu") and space_of(i) == "global":
            self._set_all(e, i, None)
            return
        if i.op not in ("ld", "ldu", "atom"):
            self._fragments_loaded(e, i, targets)
            return
        always = space_of(i) == "local" or (self.local and space_of(i) == "generic")
        e.count += 1
        n = e.count
        asked = "true" if always else e.op(f"icmp ne i64 {e.warp_field(L.W_UNDEFINED)}, 0")
        bits = max(TYPE_BITS[type_of(i)], 8)
        llvm = ivec(min(bits, 64))
        e.line(f"br label %ub{n}")
        e.label(f"ub{n}")
        count = len(targets) * (2 if bits == 128 else 1)
        pointers = [e.scratch_ptr(1 + k) for k in range(count)]  # of the block that both ways start from
        e.line(f"br i1 {asked}, label %us{n}, label %uj{n}")
        e.label(f"us{n}")
        with _apart(e):
            form = access_of(i)
            e.call("tl_shadow_ld", e.scratch_address(0), e.active(), e.scratch_address(1), *form, e.iid)
            loaded = [e.op(f"load {llvm}, ptr {p}, align 64") for p in pointers]
        e.line(f"br label %ue{n}")
        e.label(f"ue{n}")
        e.line(f"br label %uj{n}")
        e.label(f"uj{n}")
        values = [e.op(f"phi {llvm} [ zeroinitializer, %ub{n} ], [ {v}, %ue{n} ]") for v in loaded]
        self._place(e, i, targets, values)

    def _fragments_loaded(self, e: Emitter, i: Instr, targets: tuple) -> None:
        """ldmatrix and tcgen05.ld: the runtime puts the shadows in the frame; addresses are in scratch still."""
        places = self._places(e, f"{i.index}", targets)
        if i.op == "tcgen05":
            e.call("tl_shadow_tmem_ld", *tensor_form(i), places, e.active(), e.iid)
        else:
            e.call("tl_shadow_ldmatrix", e.scratch_address(0), len(targets), int("trans" in i.mods), places, e.iid)
        self._forget(e, targets)

    def _place(self, e: Emitter, i: Instr, targets: tuple, values: list[str]) -> None:
        ty = type_of(i)
        bits = max(TYPE_BITS[ty], 8)
        signed = ty.startswith("s")
        for n, target in enumerate(targets):
            if not isinstance(target, Reg) or target not in self.shadows:
                continue
            if bits == 128:
                from tensorladder.vgpu.codegen.memory import combine128

                value = combine128(e, values[2 * n], values[2 * n + 1])
            else:
                value = values[n]
            e.set(self.shadows[target], value, f"{'s' if signed else 'b'}{bits}")

    def _keeps_all(self, i: Instr) -> bool:
        """Whether a store may be to local memory, whose shadows say of each byte whether it was written."""
        return self.local and i.op == "st" and "async" not in i.mods and space_of(i) in ("local", "generic")

    def _stored(self, e: Emitter, i: Instr) -> Callable[[], None] | None:
        """What is stored undefined stays so, or is an error; before the store its shadows are taken."""
        source = i.operands[-1] if i.op == "tcgen05" else i.operands[1]
        items = items_of(source)
        always = self._keeps_all(i)
        if not self.has(source) and not always:
            return None
        ty = type_of(i) if i.op in ("st", "red") else "b32"
        bits = max(TYPE_BITS[ty], 8)
        values = [e.value(self._shadow(o), f"b{bits}" if bits > 8 else "b8") for o in items]
        lanes = None if always else self._any(e, [r for o in items for r in registers(o)])
        return lambda: self._keep(e, i, values, bits, lanes)

    def _keep(self, e: Emitter, i: Instr, values: list[str], bits: int, lanes: str | None) -> None:
        e.count += 1
        n = e.count
        if lanes is not None:
            some = e.op(f"and i32 {e.op(f'bitcast <32 x i1> {lanes} to i32')}, {e.lanes()}")
            active = e.active()
            e.line(f"br i1 {e.op(f'icmp ne i32 {some}, 0')}, label %uk{n}, label %ud{n}")
        else:
            active = e.active()
            e.line(f"br label %uk{n}")
        e.label(f"uk{n}")
        with _apart(e):
            first = T.SCRATCH_REGISTERS if i.op == "tcgen05" else 1
            self._spill(e, values, bits, first)
            if i.op == "tcgen05":
                shape, count, step = tensor_form(i)
                e.call("tl_shadow_tmem_st", shape, count, step, active, e.iid)
            elif i.op == "stmatrix":
                e.call("tl_shadow_stmatrix", e.scratch_address(0), len(values), int("trans" in i.mods),
                       e.scratch_address(1), e.iid)  # fmt: skip
            else:
                size, count = access_of(i)
                name = "tl_shadow_remote" if "async" in i.mods else "tl_shadow_st"
                e.call(name, e.scratch_address(0), active, e.scratch_address(1), size, count, e.iid)
        e.line(f"br label %ud{n}")
        e.label(f"ud{n}")

    def _spill(self, e: Emitter, values: list[str], bits: int, first: int) -> None:
        if bits == 128:
            from tensorladder.vgpu.codegen.memory import split128

            values = [half for v in values for half in split128(e, v)]
        for n, value in enumerate(values):
            e.spill(value, ivec(min(bits, 64)), first + n)


# ---------------------------------------------------------------- small pieces of code
def _spread(e: Emitter, lanes: str | None, bits: int) -> str:
    """All bits of a register in some lanes."""
    if lanes is None:
        return e.splat(ivec(bits), 0)
    return lanes if bits == 1 else e.op(f"sext <32 x i1> {lanes} to {ivec(bits)}")


def _turns(e: Emitter, llvm: str, pairs: list[tuple[str, str]], n: int, m: int) -> str:
    """Bits at which the inputs are as in row n or m of a truth table, and could be as in the other."""
    total = None
    for k, (value, shadow) in enumerate(pairs):
        at = len(pairs) - 1 - k
        if (n >> at ^ m >> at) & 1:
            term = shadow
        else:  # as in both rows, or undefined
            same = value if n >> at & 1 else e.op(f"xor {llvm} {value}, {e.splat(llvm, -1)}")
            term = e.op(f"or {llvm} {same}, {shadow}")
        total = term if total is None else e.op(f"and {llvm} {total}, {term}")
    assert total is not None
    return total


@contextmanager
def _unguarded(e: Emitter, i: Instr | None = None) -> Iterator[None]:
    """Code for all lanes of the group; the guard itself may be undefined."""
    guard, e.guard = e.guard, None
    try:
        yield
    finally:
        e.guard = guard


@contextmanager
def _apart(e: Emitter) -> Iterator[None]:
    """Code of a way that is not always gone: what it computes is not there after it."""
    cache, values = dict(e.cache), dict(e.block_values)
    try:
        yield
    finally:
        e.cache, e.block_values = cache, values
