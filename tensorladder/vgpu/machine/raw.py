"""Loads and stores by address, for functions that numba compiles. All values are int64, as numba mixes types badly."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I64 = ir.IntType(64)


def _loader(bits: int, signed: bool):
    @intrinsic
    def load(typing, address):
        def codegen(context, builder, sig, args):
            value = builder.load(builder.inttoptr(args[0], ir.IntType(bits).as_pointer()), align=1)
            if bits == 64:
                return value
            return (builder.sext if signed else builder.zext)(value, _I64)

        return types.int64(types.int64), codegen

    return load


def _storer(bits: int):
    @intrinsic
    def store(typing, address, value):
        def codegen(context, builder, sig, args):
            value = args[1] if bits == 64 else builder.trunc(args[1], ir.IntType(bits))
            builder.store(value, builder.inttoptr(args[0], ir.IntType(bits).as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return store


ld8, ld16, ld32, ld64 = _loader(8, False), _loader(16, False), _loader(32, False), _loader(64, False)
lds8, lds16, lds32 = _loader(8, True), _loader(16, True), _loader(32, True)
st8, st16, st32, st64 = _storer(8), _storer(16), _storer(32), _storer(64)


def _float_loader(ty, nb, bits: int):
    @intrinsic
    def load(typing, address):
        def codegen(context, builder, sig, args):
            return builder.load(builder.inttoptr(args[0], ty.as_pointer()), align=bits // 8)

        return nb(types.int64), codegen

    return load


def _float_storer(ty, nb, bits: int):
    @intrinsic
    def store(typing, address, value):
        def codegen(context, builder, sig, args):
            builder.store(args[1], builder.inttoptr(args[0], ty.as_pointer()), align=bits // 8)
            return context.get_dummy_value()

        return types.void(types.int64, nb), codegen

    return store


ldf32, stf32 = _float_loader(ir.FloatType(), types.float32, 32), _float_storer(ir.FloatType(), types.float32, 32)
ldf64, stf64 = _float_loader(ir.DoubleType(), types.float64, 64), _float_storer(ir.DoubleType(), types.float64, 64)


@intrinsic
def bits_f32(typing, value):
    """The low 32 bits of an int64 as a float32."""

    def codegen(context, builder, sig, args):
        return builder.bitcast(builder.trunc(args[0], ir.IntType(32)), ir.FloatType())

    return types.float32(types.int64), codegen


@intrinsic
def f32_bits(typing, value):
    """A float32's bits as an int64 (zero-extended)."""

    def codegen(context, builder, sig, args):
        return builder.zext(builder.bitcast(args[0], ir.IntType(32)), _I64)

    return types.int64(types.float32), codegen


@intrinsic
def bits_f64(typing, value):
    """An int64 as a float64."""

    def codegen(context, builder, sig, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@intrinsic
def f64_bits(typing, value):
    """A float64's bits as an int64."""

    def codegen(context, builder, sig, args):
        return builder.bitcast(args[0], _I64)

    return types.int64(types.float64), codegen


@intrinsic
def f16_to_f32(typing, value):
    """The low 16 bits, an f16, as float32."""

    def codegen(context, builder, sig, args):
        half = builder.bitcast(builder.trunc(args[0], ir.IntType(16)), ir.HalfType())
        return builder.fpext(half, ir.FloatType())

    return types.float32(types.int64), codegen


@intrinsic
def f32_to_f16(typing, value):
    """A float32 rounded to nearest even f16, as bits."""

    def codegen(context, builder, sig, args):
        half = builder.fptrunc(args[0], ir.HalfType())
        return builder.zext(builder.bitcast(half, ir.IntType(16)), _I64)

    return types.int64(types.float32), codegen


@intrinsic
def popcount(typing, value):
    """Number of set bits."""

    def codegen(context, builder, sig, args):
        return builder.ctpop(args[0])

    return types.int64(types.int64), codegen


@intrinsic
def trailing_zeros(typing, value):
    """Number of the lowest set bit (64 for zero)."""

    def codegen(context, builder, sig, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), codegen


@intrinsic
def copy_bytes(typing, dst, src, size):
    """memcpy."""

    def codegen(context, builder, sig, args):
        ptr = ir.IntType(8).as_pointer()
        fn = builder.module.declare_intrinsic("llvm.memcpy", [ptr, ptr, _I64])
        d, s = builder.inttoptr(args[0], ptr), builder.inttoptr(args[1], ptr)
        builder.call(fn, [d, s, args[2], ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def move16(typing, dst, src):
    """Copy 16 bytes, at any alignment."""

    def codegen(context, builder, sig, args):
        ty = ir.VectorType(_I64, 2).as_pointer()
        value = builder.load(builder.inttoptr(args[1], ty), align=1)
        builder.store(value, builder.inttoptr(args[0], ty), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def fill_bytes(typing, dst, value, size):
    """memset."""

    def codegen(context, builder, sig, args):
        ptr = ir.IntType(8).as_pointer()
        fn = builder.module.declare_intrinsic("llvm.memset", [ptr, _I64])
        byte = builder.trunc(args[1], ir.IntType(8))
        builder.call(fn, [builder.inttoptr(args[0], ptr), byte, args[2], ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def run_warp(typing, kernel, warp):
    """Call a compiled kernel: i64 kernel(i64 warp)."""

    def codegen(context, builder, sig, args):
        fn = builder.inttoptr(args[0], ir.FunctionType(_I64, [_I64]).as_pointer())
        return builder.call(fn, [args[1]])

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def call_hook(typing, function, subject, what, a, b, c, lanes, iid):
    """Call i64 function(i64 x 7) by its address."""

    def codegen(context, builder, sig, args):
        fn = builder.inttoptr(args[0], ir.FunctionType(_I64, [_I64] * 7).as_pointer())
        return builder.call(fn, args[1:])

    return types.int64(*[types.int64] * 8), codegen


@intrinsic
def fetch_add(typing, address, value):
    """Atomic add on a 64-bit word; gives the old value."""

    def codegen(context, builder, sig, args):
        ptr = builder.inttoptr(args[0], _I64.as_pointer())
        return builder.atomic_rmw("add", ptr, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def compare_swap(typing, address, expected, value):
    """Atomic compare-and-swap on a 64-bit word; gives the old value."""

    def codegen(context, builder, sig, args):
        ptr = builder.inttoptr(args[0], _I64.as_pointer())
        pair = builder.cmpxchg(ptr, args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 0)

    return types.int64(types.int64, types.int64, types.int64), codegen


@intrinsic
def unsigned_less(typing, a, b):
    """Whether a < b as unsigned 64-bit numbers."""

    def codegen(context, builder, sig, args):
        return builder.icmp_unsigned("<", args[0], args[1])

    return types.boolean(types.int64, types.int64), codegen


#: what a process that gets no more memory says, before it ends with the status of what cannot be done here
_NO_MEMORY = (
    "tensorladder: the virtual GPU wants more memory than this process may have (ulimit -v): run a smaller shape, or "
    "without checks\n"
)
_NOT_HERE = 3


@intrinsic
def allocate(typing, size):
    """malloc; gives the address. Where there is no more memory the process ends with one line: what asks for it is deep
    in generated code, which could only write to address 0."""

    def codegen(context, builder, sig, args):
        def call(name: str, result: ir.Type, *values: ir.Value) -> ir.Value:
            signature = ir.FunctionType(result, [value.type for value in values])
            return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), values)

        address = call("malloc", _I64, args[0])
        with builder.if_then(builder.icmp_unsigned("==", address, ir.Constant(_I64, 0)), likely=False):
            text = builder.ptrtoint(context.insert_const_string(builder.module, _NO_MEMORY), _I64)
            call("write", _I64, ir.Constant(ir.IntType(32), 2), text, ir.Constant(_I64, len(_NO_MEMORY)))
            call("_exit", ir.VoidType(), ir.Constant(ir.IntType(32), _NOT_HERE))
        return address

    return types.int64(types.int64), codegen


@intrinsic
def free_bytes(typing, address):
    """free."""

    def codegen(context, builder, sig, args):
        fn = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), [_I64]), "free")
        builder.call(fn, [args[0]])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def default_float_environment(typing):
    """This thread's rounding mode to nearest, with subnormal numbers: threads inherit what the process has set."""

    def codegen(context, builder, sig, args):
        fn = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), []), "llvm.reset.fpenv")
        builder.call(fn, [])
        return context.get_dummy_value()

    return types.void(), codegen
