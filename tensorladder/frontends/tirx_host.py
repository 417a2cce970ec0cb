"""Host part of a TIRx program: the host function's TIR as a plan of plain data, and what runs such a plan.

TVM would compile that function to native code that asks a driver for tensor maps and launches. What it does is little
and all in its TIR: check the arguments, encode tensor maps, launch (tvm/tirx/builtin.h: tvm_struct_get,
tensormap_encode_tiled, call_ffi_kernel; packed calls before TVM 0.27). So it is evaluated here as it stands, its checks
and their messages included, with no driver. A plan is lists, numbers and strings, a tag first, so that it can be kept
as JSON; it needs no TVM. Variables of one name are common in TIR: they are told apart by identity, and are numbers in a
plan.
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

Plan = list[Any]

# ------------------------------------------------------------------------------------------------- from TIR to a plan


def plan(function: Any, kernels: Mapping[str, list[str]]) -> Plan:
    """A host function (`tvm.tirx.PrimFunc`, packed signature) as plain data: [its parameters, its body].

    kernels: the launch parameters of each kernel (its attribute tirx.kernel_launch_params), by name. Unsupported, in
    one line, for what is not modelled.
    """
    translate = _Translator({}, kernels)
    return [[translate.number(param) for param in function.params], translate(function.body)]


@dataclass
class _Translator:
    """Turns TIR nodes into plain data. numbers: of the variables met, by identity."""

    numbers: dict[int, int]
    kernels: Mapping[str, list[str]]

    def number(self, variable: Any) -> int:
        # two Python wrappers of one TIR object share its handle
        return self.numbers.setdefault(int(variable.__chandle__()), len(self.numbers))

    def __call__(self, node: Any) -> Plan:
        kind = type(node).__name__
        if kind in _BINARY:
            return [kind, self(node.a), self(node.b)]
        if kind not in _NODES:
            raise Unsupported(f"TIRx host code: {kind} is not modelled: {_first_line(node)}")
        return _NODES[kind](self, node)

    def all(self, nodes: Any) -> list[Plan]:
        return [self(node) for node in nodes]


def _first_line(node: Any) -> str:
    return f"{str(node).splitlines()[0]:.80}"


def _assertion(to: _Translator, node: Any) -> Plan:
    message = "".join(part.value for part in node.message_parts)
    return ["assert", to(node.condition), " ".join(message.split())]


def _branch(to: _Translator, node: Any) -> Plan:
    return ["if", to(node.condition), to(node.then_case), to(node.else_case) if node.else_case is not None else ["seq"]]


def _intrinsic(to: _Translator, node: Any) -> Plan:
    name = node.op.name
    if name not in _INTRINSICS:
        raise Unsupported(f"TIRx host code: {name} is not modelled: {_first_line(node)}")
    return _INTRINSICS[name](to, node)


_NODES: dict[str, Callable[[_Translator, Any], Plan]] = {
    "SeqStmt": lambda to, node: ["seq", *to.all(node.seq)],
    "AssertStmt": _assertion,
    "Bind": lambda to, node: ["set", to.number(node.var), to(node.value)],
    "DeclBuffer": lambda to, node: ["set", to.number(node.buffer), to(node.data)],
    "AttrStmt": lambda to, node: to(node.body),
    "IfThenElse": _branch,
    "Evaluate": lambda to, node: ["do", to(node.value)],
    "Return": lambda to, node: ["return"],
    "IntImm": lambda to, node: ["constant", int(node.value)],
    "FloatImm": lambda to, node: ["constant", float(node.value)],
    "StringImm": lambda to, node: ["constant", str(node.value)],
    "Var": lambda to, node: ["get", to.number(node)],
    "Cast": lambda to, node: ["float" if "float" in str(node.ty) else "int", to(node.value)],
    "Select": lambda to, node: ["select", *to.all((node.condition, node.true_value, node.false_value))],
    "Not": lambda to, node: ["not", to(node.a)],
    "Call": _intrinsic,
}

# TVMStructFieldKind, tvm/tirx/builtin.h
_TYPE_INDEX, _VALUE, _ELEMENT = 13, 15, 17


def _field(to: _Translator, node: Any) -> Plan:
    """tvm_struct_get(object, index, kind): a field of an argument, of a tensor, or an element of its shape."""
    of, index, kind = to(node.args[0]), int(node.args[1].value), int(node.args[2].value)
    if kind == _TYPE_INDEX:
        return ["type", of, index]
    if kind in (_VALUE, _ELEMENT):
        return ["item", of, index]
    if kind not in _FIELDS:
        raise Unsupported(f"TIRx host code: field {kind} of a tensor is not modelled: {_first_line(node)}")
    return ["field", of, kind]


def _stack(to: _Translator, node: Any) -> Plan:
    if node.args[0].value != "tensormap" or int(node.args[1].value) != 1:
        raise Unsupported(f"TIRx host code: {_first_line(node)} is not modelled: one tensor map a time is")
    return ["room"]


def _packed(to: _Translator, node: Any) -> Plan:
    name, *args = node.args
    if name.value == "__tvm_set_device":
        return ["constant", 0]
    if name.value in to.kernels:
        return _launch(name.value, to.kernels[name.value], to.all(args))
    if name.value == "runtime.cuTensorMapEncodeTiled":
        target, element, rank, address, *numbers = args
        modes = [int(mode.value) for mode in numbers[-4:]]
        return _encoding(to, (target, address, *numbers[:-4]), element.value, int(rank.value), modes)
    raise Unsupported(f"TIRx host code: a call of {name.value} is not modelled")


# CUtensorMapDataType of the element types of TVM (CUDA driver API, "Tensor Map Object Management").
_DRIVER_TYPES = {
    "uint8": 0, "int8": 0, "float8_e4m3fn": 0, "float8_e5m2": 0, "uint16": 1, "uint32": 2, "int32": 3, "uint64": 4,
    "int64": 5, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, "float4_e2m1fn": 14,
}  # fmt: skip


def _encode_tiled(to: _Translator, node: Any) -> Plan:
    how = node.attrs
    modes = [int(mode) for mode in (how.interleave, how.swizzle, how.l2_promotion, how.oob_fill)]
    return _encoding(to, node.args, str(how.descriptor_dtype), int(how.rank), modes, int(how.force_cu_dtype))


def _encoding(to: _Translator, args: Any, element: str, rank: int, modes: list[int], forced: int = -1) -> Plan:
    """The driver's encoder of (map, address, extents, byte strides, box, element strides).

    modes: interleave, swizzle, L2 promotion, fill. forced: a CUtensorMapDataType in place of the element's, from 0 on.
    """
    if forced < 0 and element not in _DRIVER_TYPES:
        raise Unsupported(f"TIRx host code: a tensor map of {element} is not modelled")
    target, address, *numbers = to.all(args)
    return ["encode", target, address, forced if forced >= 0 else _DRIVER_TYPES[element], rank, modes, numbers]


_AXES = {axis: at for at, axis in enumerate("xyz")}
_EXTENTS = {"blockIdx": 0, "threadIdx": 1, "clusterCtaIdx": 2}
_SMEM = "tirx.use_dyn_shared_memory"
# Tags that say something by being there: they bring no argument.
_FLAGS = {
    "tirx.use_programtic_dependent_launch": "programmatic_stream_serialization",
    "tirx.use_cooperative_launch": "cooperative",
}


def _call_kernel(to: _Translator, node: Any) -> Plan:
    name, *args = node.args
    return _launch(str(name.value), [str(tag) for tag in node.attrs.launch_params], to.all(args))


def _launch(kernel: str, tags: list[str], values: list[Plan]) -> Plan:
    """A launch with `values`, the kernel's parameters and then those that belong to the tags."""
    valued = [tag for tag in tags if tag not in _FLAGS]
    for tag in valued:
        if tag != _SMEM and tag.partition(".")[0] not in _EXTENTS:
            raise Unsupported(f"TIRx host code: launch parameter {tag} is not modelled")
    split = len(values) - len(valued)
    attributes = [_FLAGS[tag] for tag in tags if tag in _FLAGS]
    return ["launch", kernel, values[:split], [list(pair) for pair in zip(valued, values[split:])], attributes]


_INTRINSICS: dict[str, Callable[[_Translator, Any], Plan]] = {
    "tirx.tvm_struct_get": _field,
    **dict.fromkeys(("prim.if_then_else", "tirx.if_then_else"), lambda to, node: ["select", *to.all(node.args)]),
    "tirx.isnullptr": lambda to, node: ["absent", to(node.args[0])],
    "tirx.reinterpret": lambda to, node: to(node.args[0]),
    "tirx.buffer_data": lambda to, node: to(node.args[0]),
    "tirx.handle_add_byte_offset": lambda to, node: ["Add", *to.all(node.args)],
    "tirx.tvm_stack_alloca": _stack,
    "tirx.tvm_call_packed": _packed,
    "tirx.tensormap_encode_tiled": _encode_tiled,
    "tirx.call_ffi_kernel": _call_kernel,
}

# ----------------------------------------------------------------------------------------------------- running a plan


@dataclass
class _Call:
    """One call of the host function: what its variables hold, where launches go."""

    host: HostPart
    stream: Stream
    variables: dict[int, Any] = field(default_factory=dict)

    def __call__(self, node: Plan) -> Any:
        """Of an expression its value; of a statement whether the function has returned."""
        tag, *rest = node
        if tag in _BINARY:
            return _BINARY[tag](self(rest[0]), self(rest[1]))
        return _DOES[tag](self, *rest)


class _TensorMap:
    """Room for a map that is encoded later."""

    data = b""


class HostPart:
    """A program's host part: called with a stream and arrays or numbers, it checks them and enqueues the launches."""

    def __init__(self, made: Plan, module: Module, name: str):
        self.module = module
        self.name = name
        self._params, self._body = made

    def __call__(self, stream: Stream, *args: Any) -> None:
        values = tuple(arg if isinstance(arg, int | float) else dlpack.view(arg) for arg in args)
        # The packed signature of TVM FFI: (self, arguments, their number, result).
        call = _Call(self, stream, dict(zip(self._params, (None, values, len(values), None))))
        call(self._body)


def _check(call: _Call, condition: Plan, message: str) -> bool:
    if not call(condition):
        raise UsageError(f"{call.host.name}: {message}")
    return False


def _set(call: _Call, number: int, value: Plan) -> bool:
    call.variables[number] = call(value)
    return False


def _do(call: _Call, value: Plan) -> bool:
    call(value)
    return False


_INTEGER, _FLOAT, _TENSOR = 1, 3, 7
"""TVM FFI type indices; 7 is a DLTensor pointer, which an array is for host code."""

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


def _type_index(call: _Call, of: Plan, index: int) -> int:
    value = call(of)[index]
    if isinstance(value, dlpack.View):
        return _TENSOR
    return _FLOAT if isinstance(value, float) else _INTEGER


def _encode(
    call: _Call, target: Plan, address: Plan, element: int, rank: int, modes: list[int], numbers: list[Plan]
) -> None:
    given = [call(number) for number in numbers]
    ends = (rank, 2 * rank - 1, 3 * rank - 1, 4 * rank - 1)
    extents, strides, box, steps = (given[start:end] for start, end in zip((0, *ends), ends))
    capability = find(call.host.module.arch).compute_capability
    made = from_driver_call(element, call(address), extents, strides, box, steps, *modes, compute_capability=capability)
    call(target).data = encode(made)


def _enqueue(call: _Call, kernel: str, params: list[Plan], values: list[list[Any]], attributes: list[str]) -> None:
    shapes, smem = [[1, 1, 1], [1, 1, 1], [1, 1, 1]], 0
    for tag, value in values:
        what, _, axis = tag.partition(".")
        if tag == _SMEM:
            smem = int(call(value))
        else:
            shapes[_EXTENTS[what]][_AXES[axis]] = int(call(value))
    grid, block, cluster = ((x, y, z) for x, y, z in shapes)
    module, name = call.host.module, call.host.name
    check_launch(find(module.arch), grid, block, cluster, smem, name=name)
    given = tuple(_parameter(call(param)) for param in params)
    data = pack(entry(module.ptx, kernel), given, name)
    call.stream.enqueue(Launch(module, kernel, grid, block, data, smem, cluster, dict.fromkeys(attributes, True)))


def _parameter(value: Any) -> int | float | bytes:
    return value.data if isinstance(value, _TensorMap) else value


_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Min": min,
    "Max": max,
    "And": lambda a, b: a and b,
    "Or": lambda a, b: a or b,
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "LShift": operator.lshift,
    "RShift": operator.rshift,
    "BitwiseAnd": operator.and_,
    "BitwiseOr": operator.or_,
    "BitwiseXor": operator.xor,
}
_DOES: Mapping[str, Callable[..., Any]] = {
    "seq": lambda call, *steps: any(call(step) for step in steps),
    "assert": _check,
    "set": _set,
    "if": lambda call, condition, then, other: call(then if call(condition) else other),
    "do": _do,
    "return": lambda call: True,
    "constant": lambda call, value: value,
    "get": lambda call, number: call.variables[number],
    "int": lambda call, value: int(call(value)),
    "float": lambda call, value: float(call(value)),
    "select": lambda call, condition, then, other: call(then if call(condition) else other),
    "not": lambda call, value: not call(value),
    "type": _type_index,
    "item": lambda call, of, index: call(of)[index],
    "field": lambda call, of, kind: _FIELDS[kind](call(of)),
    # A tensor of no elements has no address; host code means absent ones.
    "absent": lambda call, value: call(value) is None,
    "room": lambda call: _TensorMap(),
    "encode": _encode,
    "launch": _enqueue,
}
