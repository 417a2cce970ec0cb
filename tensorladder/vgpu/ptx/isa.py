"""The instructions of the PTX ISA, as data: every family with its legal spellings.

Two readers use it. The PTX reader tells a corrupt text (no such instruction, or a modifier that no form of it
takes: UsageError) from an instruction that is real but not modelled (Unsupported), see `refusal`. SUPPORTED.md
lists every family here beside the forms that run.

Source: PTX ISA, chapter "Instruction Set", sections 9.7.1 to 9.7.21 as numbered in version 9.4. A form's `since`
is the PTX version that brought it and `target` the lowest architecture. Both are advisory, because a few forms were
widened to older targets by later versions of the document; `check_target` only refuses what no form of a family allows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from tensorladder.core.errors import TensorladderError, Unsupported, UsageError
from tensorladder.vgpu.ptx import isa_arithmetic, isa_machine


@dataclass(frozen=True)
class Form:
    """One legal spelling. `pattern` holds the modifiers in order: `a|b` one of, `?` may be left out, `$x` in SETS."""

    pattern: str
    since: str
    target: str

    def matches(self, modifiers: str) -> bool:
        """Whether `modifiers` (with the leading dot, or empty) is spelled by this form."""
        return _regex(self.pattern).fullmatch(modifiers) is not None


@dataclass(frozen=True)
class Family:
    """An instruction of the ISA: `name` is its fixed part (`add`, `cp.async.bulk.tensor`), the rest are modifiers."""

    name: str
    section: str
    title: str
    forms: tuple[Form, ...]

    @property
    def since(self) -> str:
        """The PTX version that brought the family."""
        return min((form.since for form in self.forms), key=_version)

    @property
    def target(self) -> str:
        """The lowest architecture of any form."""
        return min((form.target for form in self.forms), key=_sm)


SETS = {
    "int": "u16|u32|u64|s16|s32|s64",
    "bits": "b16|b32|b64",
    "rnd": "rn|rz|rm|rp",
    "half": "f16|f16x2|bf16|bf16x2",
    "cmpi": "eq|ne|lt|le|gt|ge|lo|ls|hi|hs",
    "cmpf": "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan",
    "cmp": "eq|ne|lt|le|gt|ge|lo|ls|hi|hs|equ|neu|ltu|leu|gtu|geu|num|nan",
    "bool": "and|or|xor",
    "any": "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64",
    "mem": "b8|u8|s8|b16|u16|s16|b32|u32|s32|b64|u64|s64|f32|f64",
    "scope": "cta|cluster|gpu|sys",
    "smem": "shared|shared::cta|shared::cluster",
    "l1": "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate",
    "l2": "L2::evict_first|L2::evict_last|L2::evict_normal",
    "pre": "L2::64B|L2::128B|L2::256B",
    "cvt": "u8|u16|u32|u64|s8|s16|s32|s64|bf16|f16|f32|f64",
    "dim": "1d|2d|3d|4d|5d",
    "tx": "mbarrier::complete_tx::bytes",
    "mc": "multicast::cluster|multicast::cluster::16b|multicast::cluster::32b",
    "pair": "cta_group::1|cta_group::2",
    "report": r"mbarrier::report::[a-z0-9_:]+",
    "load": "tile|tile::gather4|im2col|im2col::w|im2col::w::128",
    "override": r"override::global_address|override::global_dim|override::global_dim_stride",
    "red": "add|min|max|inc|dec|and|or|xor",
    "coll": r"collector::(?:a|b|b[0-3])::(?:fill|use|lastuse|discard)",
    "video": "u32|s32",
    "geom": "1d|2d|3d|a1d|a2d|cube|acube|2dms|a2dms",
    "map_field": "global_address|rank|box_dim|global_dim|global_stride|element_stride|elemtype|interleave_layout"
    "|swizzle_mode|swizzle_atomicity|fill_mode|alloc_class",
    "texture_query": "width|height|depth|channel_data_type|channel_order|normalized_coords|array_size"
    "|num_mipmap_levels|num_samples|force_unnormalized_coords|filter_mode|addr_mode_[012]",
    "mma_shape": r"m\d+n\d+k\d+",
    "elem": r"f16|bf16|tf32|f32|f64|e4m3|e5m2|e3m2|e2m3|e2m1|s32|u8|s8|u4|s4|b1",
}  # fmt: skip


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _sm(target: str) -> int:
    return int(re.sub(r"\D", "", target))


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    parts = []
    for token in pattern.split():
        optional = token.endswith("?")
        names = re.sub(r"\$(\w+)", lambda m: SETS[m.group(1)], token.rstrip("?"))
        parts.append(rf"(?:\.(?:{names}))" + ("?" if optional else ""))
    return re.compile("".join(parts))


def _read(tables: dict[str, tuple[str, str]]) -> dict[str, Family]:
    """Families from the tables: a line is `name; since; target; modifiers`, and a name's later lines add forms."""
    families: dict[str, Family] = {}
    for section, (title, text) in tables.items():
        for line in re.sub(r"\n(?=[^;\n]*(\n|$))", " ", text.strip()).splitlines():
            name, since, target, pattern = (part.strip() for part in line.split(";"))
            old = families.get(name)
            forms = (*(old.forms if old else ()), Form(pattern, since, target))
            families[name] = Family(name, old.section if old else section, old.title if old else title, forms)
    return families


FAMILIES: dict[str, Family] = _read(isa_arithmetic.TABLES | isa_machine.TABLES)
"""Every family by name, in the document's order."""

MNEMONICS = frozenset(name.split(".")[0].split("::")[0] for name in FAMILIES)
"""First words of all instructions."""


#: what one line of architectures has for itself: its numbers. Their names end in `a`, or in `f` for a family's part
_OWN = {"wgmma": (90,), "tcgen05": (100, 101, 103, 107, 110)}


@cache
def _lacks(opcode: str, target: str) -> str:
    """What target an instruction needs, if `target` does not have it; else nothing."""
    families = families_of(opcode)
    number = _sm(target) if re.search(r"\d", target) else 0
    own = _OWN.get(re.split(r"\.|::", opcode)[0])
    if own is not None:
        return "" if number in own and target[-1] in "af" else " or ".join(f"sm_{n}a" for n in own)
    if not families or _sm(families[0].target) < 90 or number >= _sm(families[0].target):
        return ""
    return f"{families[0].target} or later"


def check_target(opcode: str, target: str, line: int) -> None:
    """UsageError where no architecture like a module's target has an instruction, as ptxas says it.

    Only what came with sm_90 or later is looked at, and of each family the oldest form.
    """
    needed = _lacks(opcode, target)
    if needed:
        raise UsageError(f"PTX line {line}: {opcode} needs .target {needed}; this module says {target}")


@cache
def families_of(opcode: str) -> tuple[Family, ...]:
    """The families whose name begins `opcode` (`cp.async.bulk.tensor.2d...`), the longest name first."""
    return tuple(
        FAMILIES[name]
        for name in sorted(FAMILIES, key=len, reverse=True)
        if opcode == name or opcode.startswith((name + ".", name + "::"))
    )


def find(opcode: str) -> tuple[Family, Form] | None:
    """The family and form that spell `opcode`, or None if the ISA has no such spelling."""
    for family in families_of(opcode):
        modifiers = opcode[len(family.name) :]
        for form in family.forms:
            if form.matches(modifiers):
                return family, form
    return None


def refusal(opcode: str, where: str) -> TensorladderError:
    """Why `opcode` does not run, as the error to raise; `where` names the PTX line and the source line.

    UsageError: the ISA has no such instruction, or none that takes one of these modifiers, so the text is corrupt.
    Unsupported: the ISA has it (or an order of modifiers that this table does not know), and it is not modelled.
    """
    word = re.split(r"\.|::", opcode)[0]
    if word not in MNEMONICS:
        return UsageError(f"{where}: `{opcode}` is not a PTX instruction: is the PTX text whole?")
    stray = _stray_modifier(opcode, word)
    if stray:
        return UsageError(f"{where}: no form of `{word}` takes `.{stray}` (in `{opcode}`): is the PTX text whole?")
    found = find(opcode)
    about = f" (PTX ISA {found[0].section}, {found[0].title})" if found else ""
    return Unsupported(f"{where}: `{opcode}` is not modelled{about}; SUPPORTED.md lists what is")


def _stray_modifier(opcode: str, word: str) -> str | None:
    """The first modifier of `opcode` that no family beginning with `word` takes anywhere."""
    known = _modifiers_of(word)
    for token in opcode.split(".")[1:]:
        if not known.fullmatch(token):
            return token
    return None


@cache
def _modifiers_of(word: str) -> re.Pattern[str]:
    tokens: set[str] = set()
    for name, family in FAMILIES.items():
        if re.split(r"\.|::", name)[0] != word:
            continue
        tokens.update(re.escape(part) for part in name.split("."))
        for form in family.forms:
            for token in form.pattern.split():
                tokens.add(re.sub(r"\$(\w+)", lambda m: SETS[m.group(1)], token.rstrip("?")))
    return re.compile("|".join(sorted(tokens, key=len, reverse=True)) or "(?!)")
