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


@intrinsic
def settle(typing, addresses, mask, base, keep):
    """64-bit words: lanes outside the mask get `base`, and all of them keep only the bits in `keep`."""

    def codegen(context, builder, sig, args):
        old = _load(builder, args[0], _I64)
        chosen = builder.select(_mask(builder, args[1]), old, _splat(builder, args[2], _I64))
        new = builder.and_(chosen, _splat(builder, args[3], _I64))
        builder.store(new, builder.inttoptr(args[0], new.type.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), codegen


@intrinsic
def add_lanes(typing, addresses, delta):
    """Add to 64-bit words."""

    def codegen(context, builder, sig, args):
        new = builder.add(_load(builder, args[0], _I64), _splat(builder, args[1], _I64))
        builder.store(new, builder.inttoptr(args[0], new.type.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def _reduce(operation: str):
    @intrinsic
    def reduced(typing, addresses):
        """All 64-bit words of the lanes combined."""

        def codegen(context, builder, sig, args):
            words = _load(builder, args[0], _I64)
            name = f"llvm.vector.reduce.{operation}.v32i64"
            fn = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I64, [words.type]), name)
            return builder.call(fn, [words])

        return types.int64(types.int64), codegen

    return reduced


least, greatest, all_bits = _reduce("smin"), _reduce("smax"), _reduce("or")


#: interleavings of two vectors of 16 words within each quarter of 4 words: low and high words, low and high pairs
_LOW_WORDS = [q + i for q in range(0, 16, 4) for i in (0, 16, 1, 17)]
_HIGH_WORDS = [q + i for q in range(0, 16, 4) for i in (2, 18, 3, 19)]
_LOW_PAIRS = [q + i for q in range(0, 16, 4) for i in (0, 1, 16, 17)]
_HIGH_PAIRS = [q + i for q in range(0, 16, 4) for i in (2, 3, 18, 19)]


def _shuffle(builder, a, b, picks: list[int]):
    mask = ir.Constant(ir.VectorType(_I32, len(picks)), picks)
    return builder.shuffle_vector(a, b, mask)


def _concat(builder, parts: list):
    """Vectors of equal length, a power of two of them, end to end."""
    while len(parts) > 1:
        joined = list(range(2 * parts[0].type.count))
        parts = [_shuffle(builder, a, b, joined) for a, b in zip(parts[::2], parts[1::2])]
    return parts[0]


@intrinsic
def load_four_words(typing, addresses, offset, vectors):
    """Four consecutive 32-bit words a lane, `offset` from its 64-bit address, to four vectors 256 bytes apart.

    16 lanes at a time: word quarters of lanes i, i + 4, i + 8, i + 12 make up vector i, and a 4 by 4 transposition
    within quarters then brings each word of all lanes together, in order.
    """

    def codegen(context, builder, sig, args):
        def at(address, add: int):
            return builder.add(address, ir.Constant(_I64, add))

        def quarter(lane: int):
            place = builder.inttoptr(at(args[0], 8 * lane), _I64.as_pointer())
            host = builder.add(builder.load(place, align=8), args[1])
            return builder.load(builder.inttoptr(host, ir.VectorType(_I32, 4).as_pointer()), align=4)

        for first in range(0, _LANES, 16):
            a, b, c, d = (_concat(builder, [quarter(first + i + 4 * q) for q in range(4)]) for i in range(4))
            ab, cd = _shuffle(builder, a, b, _LOW_WORDS), _shuffle(builder, c, d, _LOW_WORDS)
            ef, gh = _shuffle(builder, a, b, _HIGH_WORDS), _shuffle(builder, c, d, _HIGH_WORDS)
            words = [_shuffle(builder, x, y, p) for x, y in ((ab, cd), (ef, gh)) for p in (_LOW_PAIRS, _HIGH_PAIRS)]
            for j, word in enumerate(words):
                place = builder.inttoptr(at(args[2], 256 * j + 4 * first), word.type.as_pointer())
                builder.store(word, place, align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen
