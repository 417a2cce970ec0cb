"""Host part of a TIRx program: the host function's TIR, turned into plain Python once and run at each call.

TVM would compile that function to native code that asks a driver for tensor maps and launches. What it does is little
and all in its TIR: check the arguments, encode tensor maps, launch (tvm/tirx/builtin.h: tvm_struct_get,
tensormap_encode_tiled, call_ffi_kernel). So it is evaluated here as it stands, its checks and their messages included,
with no driver. Variables of one name are common in it: they are told apart by identity.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core import dlpack
from ..core.arch import check_launch, find
from ..core.errors import Unsupported, UsageError
from ..core.program import Launch, Module, Stream
from ..core.tensormap import encode, from_driver_call
from .cudacpp import pack
from .ptxparams import entry


@dataclass
class _Call:
    """One call of the host function: its arguments, what its variables hold, where launches go."""

    host: HostPart
    stream: Stream
    variables: dict[int, Any] = field(default_factory=dict)


class _TensorMap:
    """What `tvm_stack_alloca("tensormap", 1)` gives: room for a map that is encoded later."""

    data = b""


Code = Callable[[_Call], Any]
"""Of an expression its value; of a statement whether the function has returned."""


class HostPart:
    """A program's host part: called with a stream and arrays or numbers, it checks them and enqueues the launches."""

    def __init__(self, function: Any, module: Module, name: str):
        self.module = module
        self.name = name
        self._params = [_identity(param) for param in function.params]
        self._body = _statement(function.body)

    def __call__(self, stream: Stream, *args: Any) -> None:
        call = _Call(self, stream)
        values = tuple(arg if isinstance(arg, int | float) else dlpack.view(arg) for arg in args)
        # The packed signature of TVM FFI: (self, arguments, their number, result).
        call.variables.update(zip(self._params, (None, values, len(values), None)))
        self._body(call)


def _identity(node: Any) -> int:
    """A number that two Python wrappers of one TIR object share."""
    return int(node.__chandle__())


# ----------------------------------------------------------------------------------------------------- statements


def _statement(node: Any) -> Code:
    return _dispatch(_STATEMENTS, node)


def _expression(node: Any) -> Code:
    return _dispatch(_EXPRESSIONS, node)


def _dispatch(table: Mapping[str, Callable[[Any], Code]], node: Any) -> Code:
    kind = type(node).__name__
    if kind not in table:
        raise Unsupported(f"TIRx host code: {kind} is not modelled: {str(node).splitlines()[0]:.80}")
    return table[kind](node)


def _sequence(node: Any) -> Code:
    steps = [_statement(step) for step in node.seq]
    return lambda call: any(step(call) for step in steps)


def _assertion(node: Any) -> Code:
    holds = _expression(node.condition)
    message = " ".join("".join(part.value for part in node.message_parts).split())

    def run(call: _Call) -> bool:
        if not holds(call):
            raise UsageError(f"{call.host.name}: {message}")
        return False

    return run


def _binding(variable: Any, value: Any) -> Code:
    target, value = _identity(variable), _expression(value)

    def run(call: _Call) -> bool:
        call.variables[target] = value(call)
        return False

    return run


def _branch(node: Any) -> Code:
    condition, then = _expression(node.condition), _statement(node.then_case)
    other = _statement(node.else_case) if node.else_case is not None else lambda call: False
    return lambda call: (then if condition(call) else other)(call)


def _evaluation(node: Any) -> Code:
    value = _expression(node.value)

    def run(call: _Call) -> bool:
        value(call)
        return False

    return run


_STATEMENTS: dict[str, Callable[[Any], Code]] = {
    "SeqStmt": _sequence,
    "AssertStmt": _assertion,
    "Bind": lambda node: _binding(node.var, node.value),
    "DeclBuffer": lambda node: _binding(node.buffer, node.data),
    "AttrStmt": lambda node: _statement(node.body),
    "IfThenElse": _branch,
    "Evaluate": _evaluation,
    "Return": lambda node: lambda call: True,
}

# ---------------------------------------------------------------------------------------------------- expressions


def _constant(node: Any) -> Code:
    value = node.value
    return lambda call: value


def _variable(node: Any) -> Code:
    key = _identity(node)
    return lambda call: call.variables[key]


def _binary(apply: Callable[[Any, Any], Any]) -> Callable[[Any], Code]:
    def translate(node: Any) -> Code:
        a, b = _expression(node.a), _expression(node.b)
        return lambda call: apply(a(call), b(call))

    return translate


def _both(node: Any) -> Code:
    a, b = _expression(node.a), _expression(node.b)
    return lambda call: a(call) and b(call)


def _either(node: Any) -> Code:
    a, b = _expression(node.a), _expression(node.b)
    return lambda call: a(call) or b(call)


def _negation(node: Any) -> Code:
    a = _expression(node.a)
    return lambda call: not a(call)


def _cast(node: Any) -> Code:
    value, convert = _expression(node.value), float if "float" in str(node.ty) else int
    return lambda call: convert(value(call))


def _select(condition: Any, then: Any, other: Any) -> Code:
    condition, then, other = _expression(condition), _expression(then), _expression(other)
    return lambda call: (then if condition(call) else other)(call)


def _intrinsic(node: Any) -> Code:
    name = node.op.name
    if name not in _INTRINSICS:
        raise Unsupported(f"TIRx host code: {name} is not modelled: {str(node).splitlines()[0]:.80}")
    return _INTRINSICS[name](node)


_EXPRESSIONS: dict[str, Callable[[Any], Code]] = {
    **dict.fromkeys(("IntImm", "FloatImm", "StringImm"), _constant),
    "Var": _variable,
    "Cast": _cast,
    "Select": lambda node: _select(node.condition, node.true_value, node.false_value),
    "And": _both,
    "Or": _either,
    "Not": _negation,
    "Call": _intrinsic,
    "Add": _binary(operator.add),
    "Sub": _binary(operator.sub),
    "Mul": _binary(operator.mul),
    "FloorDiv": _binary(operator.floordiv),
    "FloorMod": _binary(operator.mod),
    "Min": _binary(min),
    "Max": _binary(max),
    "EQ": _binary(operator.eq),
    "NE": _binary(operator.ne),
    "LT": _binary(operator.lt),
    "LE": _binary(operator.le),
    "GT": _binary(operator.gt),
    "GE": _binary(operator.ge),
    "LShift": _binary(operator.lshift),
    "RShift": _binary(operator.rshift),
    "BitwiseAnd": _binary(operator.and_),
    "BitwiseOr": _binary(operator.or_),
    "BitwiseXor": _binary(operator.xor),
}

# ----------------------------------------------------------------------------------------------------- intrinsics

_NONE, _INTEGER, _FLOAT, _TENSOR = 0, 1, 3, 7
"""TVM FFI type indices; 7 is a DLTensor pointer, which an array is for host code."""

# TVMStructFieldKind, tvm/tirx/builtin.h
_TYPE_INDEX, _VALUE, _ELEMENT = 13, 15, 17
_FIELDS: dict[int, Callable[[dlpack.View], Any]] = {
    1: lambda view: view.data,
    2: lambda view: view.shape,
    3: lambda view: view.strides,
    4: lambda view: len(view.shape),
    5: lambda view: dlpack.DTYPES[view.dtype][0],
    6: lambda view: dlpack.DTYPES[view.dtype][1],
    7: lambda view: 1,  # lanes
    8: lambda view: 0,  # byte offset: `data` is past it
    9: lambda view: 0,  # device id
    10: lambda view: dlpack.CUDA,  # arrays are the machine's that the stream belongs to
}


def _type_index(value: Any) -> int:
    if value is None:
        return _NONE
    if isinstance(value, dlpack.View):
        return _TENSOR
    return _FLOAT if isinstance(value, float) else _INTEGER


def _field(node: Any) -> Code:
    """tvm_struct_get(object, index, kind): a field of an argument, of a tensor, or an element of its shape."""
    of, index, kind = _expression(node.args[0]), int(node.args[1].value), int(node.args[2].value)
    if kind == _TYPE_INDEX:
        return lambda call: _type_index(of(call)[index])
    if kind in (_VALUE, _ELEMENT):
        return lambda call: of(call)[index]
    if kind not in _FIELDS:
        raise Unsupported(f"TIRx host code: field {kind} of a tensor is not modelled: {node}")
    read = _FIELDS[kind]
    return lambda call: read(of(call))


def _is_null(node: Any) -> Code:
    value = _expression(node.args[0])
    # A tensor of no elements has no address; host code means absent ones.
    return lambda call: value(call) is None


def _offset(node: Any) -> Code:
    address, by = _expression(node.args[0]), _expression(node.args[1])
    return lambda call: address(call) + by(call)


def _stack(node: Any) -> Code:
    if node.args[0].value != "tensormap" or int(node.args[1].value) != 1:
        raise Unsupported(f"TIRx host code: {node} is not modelled: one tensor map a time is")
    return lambda call: _TensorMap()


def _packed(node: Any) -> Code:
    if node.args[0].value != "__tvm_set_device":
        raise Unsupported(f"TIRx host code: a call of {node.args[0].value} is not modelled")
    return lambda call: 0


# CUtensorMapDataType of the element types of TVM (CUDA driver API, "Tensor Map Object Management").
_DRIVER_TYPES = {
    "uint8": 0, "int8": 0, "float8_e4m3fn": 0, "float8_e5m2": 0, "uint16": 1, "uint32": 2, "int32": 3, "uint64": 4,
    "int64": 5, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, "float4_e2m1fn": 14,
}  # fmt: skip


def _encoding(node: Any) -> Code:
    """tensormap_encode_tiled(map, address, extents, byte strides, box, element strides): the driver's encoder."""
    how = node.attrs
    rank = int(how.rank)
    forced, name = int(how.force_cu_dtype), str(how.descriptor_dtype)
    if forced < 0 and name not in _DRIVER_TYPES:
        raise Unsupported(f"TIRx host code: a tensor map of {name} is not modelled")
    driver_type = forced if forced >= 0 else _DRIVER_TYPES[name]
    modes = [int(mode) for mode in (how.interleave, how.swizzle, how.l2_promotion, how.oob_fill)]
    target, address, *numbers = (_expression(arg) for arg in node.args)
    ends = (rank, 2 * rank - 1, 3 * rank - 1, 4 * rank - 1)

    def run(call: _Call) -> int:
        given = [number(call) for number in numbers]
        extents, strides, box, steps = (given[start:end] for start, end in zip((0, *ends), ends))
        capability = find(call.host.module.arch).compute_capability
        made = from_driver_call(
            driver_type, address(call), extents, strides, box, steps, *modes, compute_capability=capability
        )
        target(call).data = encode(made)
        return 0

    return run


_AXES = {axis: at for at, axis in enumerate("xyz")}
_EXTENTS = {"blockIdx": "grid", "threadIdx": "block", "clusterCtaIdx": "cluster"}
_SMEM = "tirx.use_dyn_shared_memory"
# Tags that say something by being there: they bring no argument.
_FLAGS = {
    "tirx.use_programtic_dependent_launch": "programmatic_stream_serialization",
    "tirx.use_cooperative_launch": "cooperative",
}


def _launch(node: Any) -> Code:
    """call_ffi_kernel(kernel, its parameters, launch values): the values belong to the tags of `launch_params`."""
    kernel, tags = node.args[0].value, [str(tag) for tag in node.attrs.launch_params]
    valued = [tag for tag in tags if tag not in _FLAGS]
    for tag in valued:
        if tag != _SMEM and tag.partition(".")[0] not in _EXTENTS:
            raise Unsupported(f"TIRx host code: launch parameter {tag} is not modelled")
    attributes = {_FLAGS[tag]: True for tag in tags if tag in _FLAGS}
    values = [_expression(arg) for arg in list(node.args)[1:]]
    split = len(values) - len(valued)

    def run(call: _Call) -> int:
        params = tuple(_parameter(value(call)) for value in values[:split])
        given = {tag: int(value(call)) for tag, value in zip(valued, values[split:])}
        call.stream.enqueue(_made(call.host, kernel, params, given, attributes))
        return 0

    return run


def _parameter(value: Any) -> int | float | bytes:
    return value.data if isinstance(value, _TensorMap) else value


def _made(
    host: HostPart, kernel: str, params: tuple[Any, ...], given: dict[str, int], attributes: dict[str, bool]
) -> Launch:
    shapes = {name: [1, 1, 1] for name in _EXTENTS.values()}
    for tag, value in given.items():
        what, _, axis = tag.partition(".")
        if what in _EXTENTS:
            shapes[_EXTENTS[what]][_AXES[axis]] = value
    grid, block, cluster = (tuple(shape) for shape in shapes.values())
    smem = given.get(_SMEM, 0)
    check_launch(find(host.module.arch), grid, block, cluster, smem, name=host.name)
    data = pack(entry(host.module.ptx, kernel), params, host.name)
    return Launch(host.module, kernel, grid, block, data, smem, cluster, attributes)  # type: ignore[arg-type]


_INTRINSICS: dict[str, Callable[[Any], Code]] = {
    "tirx.tvm_struct_get": _field,
    "prim.if_then_else": lambda node: _select(*node.args),
    "tirx.isnullptr": _is_null,
    "tirx.reinterpret": lambda node: _expression(node.args[0]),
    "tirx.buffer_data": lambda node: _expression(node.args[0]),
    "tirx.handle_add_byte_offset": _offset,
    "tirx.tvm_stack_alloca": _stack,
    "tirx.tvm_call_packed": _packed,
    "tirx.tensormap_encode_tiled": _encoding,
    "tirx.call_ffi_kernel": _launch,
}
