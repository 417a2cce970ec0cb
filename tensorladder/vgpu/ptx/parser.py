"""PTX text to `PtxModule`. Reads what CuTe DSL, nvcc, NVRTC, TIRx and Triton emit (PTX ISA, "Syntax", "Directives").

Registers, variables and labels declared inside nested `{ }` get names of their own, so that inline assembly that
repeats them is read right.
"""

from __future__ import annotations

import re
import struct
from typing import Any

from tensorladder.core.errors import UsageError
from tensorladder.vgpu.ptx.lexer import inline_lines, tokenize
from tensorladder.vgpu.ptx.nodes import (
    TYPE_BITS,
    Function,
    Group,
    Imm,
    Instr,
    Label,
    Mem,
    Neg,
    Pair,
    Param,
    Part,
    PtxModule,
    Reg,
    Sink,
    Special,
    Sym,
    Variable,
    Vec,
    as_float,
    declared,
)

_PART = re.compile(r"b[0-7]{1,4}|h[0-3]{1,2}")
_MOST_REGISTERS, _MOST_BYTES = 1 << 20, 1 << 36  # of a declaration
_LINKING = {".visible", ".extern", ".weak", ".common"}
_SPACES = {".global", ".const", ".shared", ".local", ".param", ".tex"}
_SPECIALS = (
    "%tid", "%ntid", "%laneid", "%warpid", "%nwarpid", "%ctaid", "%nctaid", "%smid", "%nsmid", "%gridid",
    "%is_explicit", "%clusterid", "%nclusterid", "%cluster_", "%lanemask_", "%clock", "%pm", "%globaltimer",
    "%reserved_smem", "%total_smem", "%aggr_smem", "%dynamic_smem", "%current_graph", "%envreg",
)  # fmt: skip


def parse(text: str) -> PtxModule:
    """Parse a PTX module. Raises UsageError with the line for text that is not PTX."""
    if not isinstance(text, str):
        raise UsageError(f"PTX is text (str), {type(text).__name__} given")
    parser = _Parser(text)
    try:
        return parser.module()
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError) as e:
        parser.pos = min(parser.pos, len(parser.toks) - 1)
        raise parser.fail("cannot be read") from e


class _Parser:
    def __init__(self, text: str):
        self.lines = text.split("\n")
        self.toks = tokenize(text)
        self.toks.append(("eof", "", len(self.lines)))
        self.pos = 0
        self.functions: dict[str, Function] = {}
        self.variables: dict[str, Variable] = {}
        self.files: dict[int, str] = {}
        self.fn: Any = None  # the Function that is being read
        self.loc = (0, 0, 0)
        self.inline = inline_lines(self.lines)

    # -- token helpers
    def fail(self, what: str) -> UsageError:
        line = self.toks[self.pos][2]
        return UsageError(f"PTX line {line}: {what}: {self.lines[line - 1].strip()[:120]!r}")

    def peek(self) -> str:
        return self.toks[self.pos][1]

    def next(self) -> str:
        tok = self.toks[self.pos]
        if tok[0] == "eof":
            raise self.fail("the text ends in the middle of a statement")
        self.pos += 1
        return tok[1]

    def accept(self, text: str) -> bool:
        if self.toks[self.pos][1] == text and self.toks[self.pos][0] != "str":
            self.pos += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.fail(f"expected {text!r}, found {self.peek()!r}")

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        kind, text, _ = self.toks[self.pos]
        if kind != "num":
            raise self.fail(f"expected a number, found {text!r}")
        self.pos += 1
        return sign * _int(text)

    def skip_line(self) -> None:
        line = self.toks[self.pos - 1][2]
        while self.toks[self.pos][2] == line and self.toks[self.pos][0] != "eof":
            self.pos += 1

    # -- module level
    def module(self) -> PtxModule:
        version = target = ""
        address_size = 64
        while self.toks[self.pos][0] != "eof":
            word = self.next()
            if word == ".version":
                version = self.next()
            elif word == ".target":
                target = self.next()
                while self.accept(","):
                    self.next()
            elif word == ".address_size":
                address_size = self.integer()
            elif word == ".file":
                self.file_directive()
            elif word == ".section":
                self.skip_section()
            elif word == ".pragma" or word == ".alias":
                while self.next() != ";":
                    pass
            elif word in (".entry", ".func"):
                self.function(word == ".entry")
            elif word in _SPACES:
                self.variable(word[1:], self.variables, "")
            elif word in _LINKING:
                if self.peek() not in (".entry", ".func") and self.peek() not in _SPACES:
                    raise self.fail(f"expected a declaration after {word}")
                word2 = self.next()
                if word2 in _SPACES:
                    self.variable(word2[1:], self.variables, "", extern=word == ".extern")
                else:
                    self.function(word2 == ".entry")
            elif word == ";":
                continue
            else:
                self.pos -= 1
                raise self.fail(f"{word!r} is no PTX directive")
        if not version or not target:
            raise UsageError("not a PTX module: it has no .version and .target directive")
        if address_size != 64:
            raise UsageError(f"PTX: .address_size {address_size} is not supported, only 64")
        return PtxModule(version, target, address_size, self.functions, self.variables, self.files, self.lines)

    def file_directive(self) -> None:
        number = self.integer()
        self.files[number] = self.next().strip('"')
        self.skip_line()

    def skip_section(self) -> None:
        while self.next() != "{":
            pass
        depth = 1
        while depth:
            tok = self.next()
            depth += (tok == "{") - (tok == "}")

    # -- variables
    def variable(self, space: str, table: dict[str, Variable], suffix: str, extern: bool = False) -> list[Variable]:
        align, vector, ty = 0, 1, None
        made = []
        while self.peek().startswith("."):
            word = self.next()
            if word == ".align":
                align = self.integer()
            elif word in (".v2", ".v4"):
                vector = int(word[2:])
            elif word == ".ptr":
                self.pointer_attributes()
            elif word[1:] in TYPE_BITS:
                ty = word[1:]
            elif word == ".attribute":
                self.skip_parens()
            else:
                raise self.fail(f"unexpected {word} in a declaration")
        if ty is None:
            raise self.fail("a declaration without a type")
        while True:
            name = self.next()
            count, unsized = vector, False
            while self.accept("["):
                if self.accept("]"):
                    unsized = True
                else:
                    count *= self.integer()
                    self.expect("]")
            width = max(TYPE_BITS[ty], 8) // 8
            size = 0 if unsized else count * width
            if not 0 <= size <= _MOST_BYTES:
                raise self.fail(f"variable {name} of {size} bytes")
            init = None
            relocs: list[tuple[int, str, int]] = []
            if self.accept("="):
                init, relocs = self.initializer(width, ty)
                if unsized:
                    size = len(init)
                init = init.ljust(size, b"\0")
            var = Variable(name + suffix, space, size, align or width * vector, init, relocs, extern or unsized)
            table[var.name] = var
            made.append(var)
            if not self.accept(","):
                break
        self.expect(";")
        return made

    def pointer_attributes(self) -> None:
        while self.peek() in (".global", ".const", ".shared", ".local", ".align", ".generic"):
            if self.next() == ".align":
                self.integer()

    def skip_parens(self) -> None:
        self.expect("(")
        while not self.accept(")"):
            self.next()

    def initializer(self, width: int, ty: str) -> tuple[bytes, list]:
        data, relocs = bytearray(), []

        def item() -> None:
            if self.accept("{"):
                while not self.accept("}"):
                    item()
                    self.accept(",")
                return
            kind, text, _ = self.toks[self.pos]
            if kind == "id":
                self.pos += 1
                if text == "generic" and self.accept("("):
                    text = self.next()
                    self.expect(")")
                addend = self.integer() if self.accept("+") else 0
                relocs.append((len(data), text, addend))
                data.extend(bytes(width))
                return
            data.extend(self.constant(ty, width))

        item()
        return bytes(data), relocs

    def constant(self, ty: str, width: int) -> bytes:
        sign = -1 if self.accept("-") else 1
        imm = _number(self.next())
        if ty == "f32" or ty == "f64":
            return struct.pack("<f" if ty == "f32" else "<d", as_float(imm) * sign)
        return ((imm.value * sign) & ((1 << (8 * width)) - 1)).to_bytes(width, "little")

    # -- functions
    def function(self, is_entry: bool) -> None:
        line = self.toks[self.pos][2]
        returns: list[Param] = []
        while self.peek() == ".attribute":
            self.next()
            self.skip_parens()
        if not is_entry and self.peek() == "(":
            returns = self.param_list()
        name = self.next()
        params = self.param_list() if self.peek() == "(" else []
        fn = Function(name, is_entry, params, returns, line)
        while self.peek().startswith("."):
            word = self.next()[1:]
            values = []
            while self.toks[self.pos][0] == "num":
                values.append(self.integer())
                self.accept(",")
            if self.toks[self.pos][0] == "str":
                self.next()
            if word == "pragma":
                self.expect(";")
            fn.directives[word] = tuple(values)
        if self.accept(";"):
            fn.declared_only = True
            self.functions.setdefault(name, fn)
            return
        self.expect("{")
        self.body(fn)
        self.functions[name] = fn

    def param_list(self) -> list[Param]:
        self.expect("(")
        params, offset = [], 0
        while not self.accept(")"):
            if self.next() not in (".param", ".reg"):
                raise self.fail("expected .param")
            align, ty = 0, "b32"
            while self.peek().startswith("."):
                word = self.next()
                if word == ".align":
                    align = self.integer()
                elif word == ".ptr":
                    self.pointer_attributes()
                elif word[1:] in TYPE_BITS:
                    ty = word[1:]
                else:
                    raise self.fail(f"unexpected {word} in a parameter")
            name = self.next()
            width = max(TYPE_BITS[ty], 8) // 8
            size = width
            while self.accept("["):
                size *= self.integer()
                self.expect("]")
            align = align or width
            offset = -(-offset // align) * align
            params.append(Param(name, ty, size, align, offset))
            offset += size
            self.accept(",")
        return params

    def body(self, fn: Function) -> None:
        self.fn = fn
        self.loc = (0, 0, 0)
        self.scope_count = 0
        # a scope: registers, variables, labels by source name, and branch operands that wait for their label
        self.scopes: list[tuple[dict, dict, dict, list, str]] = []
        self.reg_list: list[Reg] = []
        self.open_scope()
        while self.scopes:
            self.statement()
        fn.regs = {f"{r.name}.{r.index}": r for r in self.reg_list}  # scopes may repeat a name
        self.fn = None

    def open_scope(self) -> None:
        suffix = f"@{self.scope_count}" if self.scopes else ""
        self.scopes.append(({}, {}, {}, [], suffix))
        self.scope_count += 1

    def close_scope(self) -> None:
        _, _, labels, waiting, _ = self.scopes.pop()
        for name, line, put in waiting:
            if name in labels:
                put(labels[name])
            elif self.scopes:
                self.scopes[-1][3].append((name, line, put))
            else:
                raise UsageError(f"PTX line {line}: branch to the undefined label {name!r}")

    def statement(self) -> None:
        kind, text, _ = self.toks[self.pos]
        if kind == "dir":
            self.pos += 1
            self.directive(text)
        elif text == "{":
            self.pos += 1
            self.open_scope()
        elif text == "}":
            self.pos += 1
            self.close_scope()
        elif text == ";":
            self.pos += 1
        elif text == "@":
            self.pos += 1
            negated = self.accept("!")
            guard = self.register(self.next())
            self.instruction(guard, negated)
        elif kind == "id" and self.toks[self.pos + 1][1] == ":":
            self.pos += 2
            self.label(text)
        elif kind == "id":
            self.instruction(None, False)
        else:
            raise self.fail(f"unexpected {text!r}" if kind != "eof" else "the text ends inside a function")

    def directive(self, word: str) -> None:
        if word == ".loc":
            line = self.toks[self.pos][2]
            loc = (self.integer(), self.integer(), self.integer())
            if line not in self.inline:
                self.loc = loc
            self.skip_line()
        elif word == ".reg":
            self.declare_registers()
        elif word == ".pragma":
            while self.next() != ";":
                pass
        elif word == ".file":
            self.file_directive()
        elif word[1:] in ("local", "shared", "param", "const", "global"):
            suffix = self.scopes[-1][4]
            for var in self.variable(word[1:], self.fn.variables, suffix):
                self.scopes[-1][1][var.name.removesuffix(suffix)] = var.name
        else:
            raise self.fail(f"unexpected directive {word} in a function")

    def declare_registers(self) -> None:
        word, width = self.next(), 1
        if word in (".v2", ".v4"):
            word, width = self.next(), int(word[2:])
        if word[1:] not in TYPE_BITS:
            raise self.fail(f"registers of type {word} are not supported")
        ty = word[1:]
        table = self.scopes[-1][0]
        while True:
            name = self.next()
            names = [name]
            if self.accept("<"):
                if not 0 <= (count := self.integer()) <= _MOST_REGISTERS:
                    raise self.fail(f"{count} registers {name}")
                names = [f"{name}{i}" for i in range(count)]
                self.expect(">")
            for n in names:
                registers, meanings = declared(n, ty, width, len(self.reg_list))
                table.update(meanings)
                self.reg_list += registers
            if not self.accept(","):
                break
        self.expect(";")

    def label(self, name: str) -> None:
        unique = name + self.scopes[-1][4]
        if self.toks[self.pos][1] == ".branchtargets":
            self.pos += 1
            targets: list[str] = []
            self.fn.branch_targets[unique] = targets
            while True:
                self.want_label(self.next(), targets.append)
                if not self.accept(","):
                    break
            self.expect(";")
        elif self.toks[self.pos][1] == ".callprototype":
            while self.next() != ";":
                pass
            self.fn.prototypes[unique] = ()
        else:
            self.fn.body.append(Label(unique))
        self.scopes[-1][2][name] = unique

    def want_label(self, name: str, put) -> None:
        self.scopes[-1][3].append((name, self.toks[self.pos - 1][2], put))

    def find(self, name: str, which: int):
        for scope in reversed(self.scopes):
            if name in scope[which]:
                return scope[which][name]
        return None

    def register(self, name: str) -> Reg:
        reg = self.find(name, 0)
        if reg is None:
            self.pos -= 1
            raise self.fail(f"register {name} is not declared")
        return reg

    # -- instructions
    def instruction(self, guard: Reg | None, negated: bool) -> None:
        kind, text, line = self.toks[self.pos]
        if kind != "id" or text[0] in "%$":
            raise self.fail(f"expected an instruction, found {text!r}")
        self.pos += 1
        while self.toks[self.pos][0] == "dir":  # `bar .sync` and the like: white space inside an opcode
            text += self.next()
        parts = text.split(".")
        instr = Instr(parts[0], tuple(parts[1:]), [], line, self.loc, guard, negated)
        targets = parts[0] in ("bra", "brx", "call")
        if not self.accept(";"):
            while True:
                if targets and self.toks[self.pos][0] == "id" and self.is_label(parts[0], self.peek()):
                    self.label_operand(instr)
                else:
                    instr.operands.append(self.operand())
                if self.accept(","):
                    continue
                self.expect(";")
                break
        instr.index = len(self.fn.body)
        self.fn.body.append(instr)

    def is_label(self, op: str, name: str) -> bool:
        if self.find(name, 0) is not None or name.startswith("%"):
            return False
        return op != "call" or (name not in self.functions and self.find(name, 2) is not None)

    def label_operand(self, instr: Instr) -> None:
        slot = len(instr.operands)
        instr.operands.append(None)

        def put(unique: str) -> None:
            instr.operands[slot] = Label(unique)

        self.want_label(self.next(), put)

    def operand(self):
        kind, text, _ = self.toks[self.pos]
        if text == "{":
            self.pos += 1
            items = []
            while not self.accept("}"):
                items.append(self.operand())
                self.accept(",")
            first: Any = Vec(tuple(items))
        elif text == "[":
            self.pos += 1
            return self.memory()
        elif text == "(":
            self.pos += 1
            items = []
            while not self.accept(")"):
                items.append(self.operand())
                self.accept(",")
            return Group(tuple(items))
        elif text == "!":
            self.pos += 1
            return Neg(self.operand())
        elif text == "-" or text == "~" or text == "+":
            self.pos += 1
            inner = self.operand()
            if not isinstance(inner, Imm):
                return Neg(inner)
            if inner.float_bits:
                return Imm(
                    inner.value ^ (1 << (inner.float_bits - 1)) if text == "-" else inner.value, inner.float_bits
                )
            return Imm({"-": -inner.value, "~": ~inner.value, "+": inner.value}[text])
        elif kind == "num":
            self.pos += 1
            return _number(text)
        elif kind == "id":
            self.pos += 1
            first = self.name(text)
            if isinstance(first, Sym) and self.peek() in "+-" and self.toks[self.pos][0] == "punct":
                sign = -1 if self.next() == "-" else 1
                first = Sym(first.name, sign * self.integer())
        else:
            raise self.fail(f"unexpected {text!r} as an operand")
        if self.accept("|"):
            return Pair(first, self.operand())
        return first

    def name(self, text: str):
        reg = self.find(text, 0)
        if reg is not None:
            return reg
        if text == "_":
            return Sink()
        base, _, part = text.rpartition(".")
        if _PART.fullmatch(part) and self.find(base, 0) is not None:
            return Part(self.find(base, 0), part)
        if text == "WARP_SZ":
            return Special(text)
        if text[0] == "%":
            if text.startswith(_SPECIALS):
                return Special(text)
            base = text.rpartition(".")[0]
            hint = "register" if not base else "vector component or register"
            self.pos -= 1
            raise self.fail(f"{hint} {text} is not declared")
        return Sym(self.find(text, 1) or text)

    def memory(self) -> Mem:
        kind, text, _ = self.toks[self.pos]
        base: Any
        if kind == "num":
            base = Imm(self.integer())
        else:
            self.pos += 1
            base = self.name(text)
            if isinstance(base, Vec):
                raise self.fail(f"the vector {text} is no address")
        offset = 0
        while self.peek() in ("+", "-") and self.toks[self.pos][0] == "punct":
            sign = -1 if self.next() == "-" else 1
            offset += sign * self.integer()
        extra = []
        while self.accept(","):
            extra.append(self.operand())
        self.expect("]")
        if isinstance(base, Sym):
            base, offset = Sym(base.name, 0), offset + base.offset
        return Mem(base, offset, tuple(extra))


def _int(text: str) -> int:
    text = text.rstrip("U")
    if text[:2].lower() in ("0x", "0b"):
        return int(text, 0)
    if len(text) > 1 and text[0] == "0" and text.isdigit():
        return int(text, 8)
    return int(text)


def _number(text: str) -> Imm:
    if text[:2] in ("0f", "0F"):
        return Imm(int(text[2:], 16), 32)
    if text[:2] in ("0d", "0D"):
        return Imm(int(text[2:], 16), 64)
    if text[:2] not in ("0x", "0X") and any(c in text for c in ".eE"):
        return Imm(struct.unpack("<Q", struct.pack("<d", float(text)))[0], 64)
    try:
        return Imm(_int(text))
    except ValueError:
        raise UsageError(f"{text!r} is not a PTX number") from None
