"""A compiled module: native code of its kernels, kept on disk, and its module variables."""

from __future__ import annotations

import hashlib
import pickle
import platform
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from tensorladder.core import cache
from tensorladder.core.errors import UsageError
from tensorladder.vgpu.machine.native import runtime, source_hash, target_machine
from tensorladder.vgpu.ptx.nodes import Instr, PtxModule, Variable

if TYPE_CHECKING:
    from tensorladder.vgpu.codegen.kernel import Lowered


@dataclass
class Compiled:
    """One kernel ready to run: `address` of the code, `low` what the code generator said of it."""

    low: object
    address: int
    engine: object
    variables: dict[str, Variable]
    files: dict[int, str]
    target: str


def _level(low: Lowered, checked: bool) -> int:
    """LLVM's level for machine code.

    Kernels with matrix instructions, and checked ones, spend their time in the runtime: level 0 takes less than half of
    the time to compile and runs them 5 to 11 % slower. Elsewhere than on x86-64 that level has another instruction
    selector.
    """
    return 0 if (checked or low.multiplies) and platform.machine() in ("x86_64", "AMD64") else 1


def _optimised_object(ir: str, level: int) -> bytes:
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(ir)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(target_machine(), options)
    manager = llvm.create_new_function_pass_manager()
    manager.add_simplify_cfg_pass()
    manager.add_instruction_combine_pass()
    for function in module.functions:
        if not function.is_declaration:
            manager.run(function, builder)
    return target_machine(level).emit_object(module)


def _build(text: str, kernel: str, checked: bool, places: tuple | None = None) -> tuple:
    from tensorladder.vgpu.codegen.kernel import lower
    from tensorladder.vgpu.ptx import parse

    module: PtxModule = parse(text)
    if kernel not in module.kernels:
        names = ", ".join(sorted(module.kernels)) or "none"
        raise UsageError(f"kernel {kernel!r} is not in the PTX module (it has: {names})")
    low = lower(module, kernel, checked, wanted=places)
    called = set(re.findall(r"@(tl_\w+)\(", low.ir))
    if missing := called.difference(runtime().symbols):  # would be a call to address 0
        raise AssertionError(f"the runtime has no {', '.join(sorted(missing))}: is its module in native.MODULES?")
    try:
        obj = _optimised_object(low.ir, _level(low, checked))
    except RuntimeError as e:  # IR that LLVM does not take: some instruction has operands of a wrong kind
        raise _refused(text, kernel, checked) from e
    low.ir = ""
    return low, obj, module.variables, module.files, module.target


def _refused(text: str, kernel: str, checked: bool) -> UsageError:
    """Which instruction of a kernel LLVM does not take the code of, by bisection."""
    import llvmlite.binding as llvm

    from tensorladder.vgpu.codegen.kernel import lower
    from tensorladder.vgpu.codegen.malformed import malformed
    from tensorladder.vgpu.ptx import parse
    from tensorladder.vgpu.ptx.inline import inline

    def taken(upto: int) -> bool:
        try:
            llvm.parse_assembly(lower(parse(text), kernel, checked, upto).ir).verify()
        except RuntimeError:
            return False
        return True

    module = parse(text)
    body = inline(module, module.kernels[kernel]).body
    good, bad = -1, len(body)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if taken(middle) else (good, middle)
    if bad < len(body) and isinstance(body[bad], Instr):
        return malformed(body[bad])
    return UsageError(f"kernel {kernel}: LLVM does not take the code generated for it: is the PTX text whole?")


@lru_cache(maxsize=256)
def compile_kernel(text: str, kernel: str, checked: bool = False, places: tuple | None = None) -> Compiled:
    """Native code for a kernel of a PTX module, from the disk cache where it is there.

    places: of breakpoints (codegen.points.Place), or None. Raises UsageError for text that is not PTX and for an
    unknown kernel name.
    """
    import llvmlite.binding as llvm

    runtime()
    variant = f"{checked}" if places is None else f"{checked} {[tuple(place) for place in places]}"
    key = hashlib.sha256(f"{source_hash()}\0{kernel}\0{variant}\0{text}".encode()).hexdigest()[:32]
    name = f"kernels/{key}.bin"
    data = cache.read(name)
    parts = None
    if data is not None:
        try:
            parts = pickle.loads(data)
        except Exception:  # a damaged cache file is built anew
            parts = None
    if parts is None:
        parts = _build(text, kernel, checked, places)
        cache.write(name, pickle.dumps(parts))
    low, obj, variables, files, target = parts
    # an engine owns its target machine and frees it, so the cached one must not be given to it
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine.__wrapped__(1))
    engine.add_object_file(llvm.ObjectFileRef.from_data(obj))
    engine.finalize_object()
    return Compiled(low, engine.get_function_address("kernel"), engine, variables, files, target)
