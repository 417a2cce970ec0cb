"""`python older_dsl.py SCRIPT ARGS`: runs a script of an older CuTe DSL, with the names that it needs put back.

mapa: until 4.7, `cute.arch.mapa(pointer, rank)` gave the LLVM pointer of another CTA's shared memory.
"""

import runpy
import sys
import types

import cutlass.cute as cute
from cutlass._mlir.dialects import llvm, nvvm
from cutlass.cutlass_dsl import dsl_user_op


@dsl_user_op
def mapa(pointer, rank, *, loc=None, ip=None):
    there = llvm.PointerType.get(int(cute.AddressSpace.dsmem))
    return nvvm.mapa(there, pointer.to_llvm_ptr(loc=loc, ip=ip), rank.ir_value(loc=loc, ip=ip), loc=loc, ip=ip)


def red(*args, shared_space=None, **kwargs):
    """The pointer's address space says it now."""
    return _red(*args, **kwargs)


if not hasattr(cute.arch, "mapa"):
    cute.arch.mapa = mapa
_red = nvvm.red
nvvm.red = red
if not hasattr(nvvm, "SharedSpace"):
    nvvm.SharedSpace = types.SimpleNamespace(shared_cluster=None)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
