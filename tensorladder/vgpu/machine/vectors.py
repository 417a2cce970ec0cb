"""A value a lane, 32 side by side in memory, handled as one vector: for the scheduler's bookkeeping in numba functions.

Masks are int64 with a bit a lane. Addresses point at 32 words of 32 or 64 bits.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I1, _I32, _I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
_LANES = 32


def _splat(builder, value, element):
    vector = ir.VectorType(element, _LANES)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(
        one, ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(_I32, _LANES), None)
    )


def _load(builder, address, element):
    return builder.load(builder.inttoptr(address, ir.VectorType(element, _LANES).as_pointer()), align=4)


def _mask(builder, mask):
    return builder.bitcast(builder.trunc(mask, _I32), ir.VectorType(_I1, _LANES))


def _bits(builder, lanes):
    return builder.zext(builder.bitcast(lanes, _I32), _I64)


def _equal(element: ir.IntType):
    @intrinsic
    def equal(typing, address, value):
        """Lanes whose word has this value (its low bits)."""

        def codegen(context, builder, sig, args):
            value = args[1] if element is _I64 else builder.trunc(args[1], element)
            lanes = builder.icmp_unsigned("==", _load(builder, args[0], element), _splat(builder, value, element))
            return _bits(builder, lanes)

        return types.int64(types.int64, types.int64), codegen

    return equal


def _put(element: ir.IntType):
    @intrinsic
    def put(typing, address, mask, value):
        """Set the words of the lanes in a mask."""

        def codegen(context, builder, sig, args):
            value = args[2] if element is _I64 else builder.trunc(args[2], element)
            old = _load(builder, args[0], element)
            new = builder.select(_mask(builder, args[1]), _splat(builder, value, element), old)
            builder.store(new, builder.inttoptr(args[0], new.type.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), codegen

    return put


lanes_equal32, lanes_equal64 = _equal(_I32), _equal(_I64)
put_lanes32, put_lanes64 = _put(_I32), _put(_I64)


@intrinsic
def least_above(typing, address, mask, bound):
    """The smallest 32-bit word of the lanes in a mask that is larger than `bound`; 2**32 - 1 for none."""

    def codegen(context, builder, sig, args):
        vector = ir.VectorType(_I32, _LANES)
        words = _load(builder, args[0], _I32)
        above = builder.icmp_signed(">", words, _splat(builder, builder.trunc(args[2], _I32), _I32))
        chosen = builder.and_(above, _mask(builder, args[1]))
        kept = builder.select(chosen, words, _splat(builder, ir.Constant(_I32, -1), _I32))
        name = "llvm.vector.reduce.umin.v32i32"
        fn = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I32, [vector]), name)
        return builder.zext(builder.call(fn, [kept]), _I64)

    return types.int64(types.int64, types.int64, types.int64), codegen
