"""Stand-ins for the arguments of a `Form`'s kernel, as `cute.compile` takes them: extents and pitches are symbols."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute

from tensorladder.rungs.parts.form import Form
from tensorladder.rungs.parts.tensors import ELEMENT_TYPES, row_major

ALIGN = 16  # bytes, of base addresses and of pitches, where TMA moves a matrix


def matrix(dtype: str, shape: tuple[Any, ...], major: str = "k", aligned: bool = True) -> Any:
    """(rows, columns) or (rows, columns, products): the columns contiguous ("k") or the rows ("mn").

    aligned: the base and all other strides are multiples of 16 bytes; else of an element.
    """
    element = ELEMENT_TYPES[dtype]
    size = element.width // 8
    step = ALIGN // size if aligned else 1
    pitch, *rest = (cute.sym_int64(divisibility=step) for _ in shape[1:])
    strides = (pitch, 1, *rest) if major == "k" else (1, pitch, *rest)
    return cute.runtime.make_fake_tensor(element, shape, strides, assumed_align=ALIGN if aligned else size)


def arguments(form: Form) -> list[Any]:
    """A, B, U, C, R, bias, S, p and q of a form, None for those that it lacks, with no extent 0.

    Base addresses and pitches of A, B and U are multiples of 16 bytes, and with C stored by TMA those of C and R too,
    and a row of C and the bias's address; else N, and the pitches and addresses of C, R and bias are any. p and q are
    fp32, of any stride.
    """
    step = 8 * ALIGN // ELEMENT_TYPES[form.out].width if form.c_tma else 1
    m, n, k, l = cute.sym_int(), cute.sym_int(divisibility=step), cute.sym_int(), cute.sym_int()
    right = matrix(form.dtype, (n, k, l), form.b_major)
    bias_align = ALIGN if form.c_tma else ELEMENT_TYPES[form.bias].width // 8 if form.bias else 0
    return [
        matrix(form.dtype, (m, k, l), form.a_major),
        right,
        matrix(form.dtype, (n, k, l), form.b_major) if form.gated else None,
        matrix(form.out, (m, n, l), aligned=form.c_tma),
        matrix(form.residual, (m, n, l), aligned=form.c_tma) if form.residual else None,
        row_major(form.bias, (n,), align=bias_align) if form.bias else None,
        row_major("fp32", (2,), align=4),
        *(factors(extent) if form.scaled else None for extent in (m, n)),
    ]


def factors(extent: Any) -> Any:
    """A vector of factors, or with stride 0 one for all."""
    return cute.runtime.make_fake_tensor(ELEMENT_TYPES["fp32"], (extent,), (cute.sym_int64(),), assumed_align=4)
