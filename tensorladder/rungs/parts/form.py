"""Which product a kernel with an epilogue computes. Imports no DSL, so that a call can be planned without one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    """What a product computes, and on what: element types, majors, and the parts of the epilogue.

    dtype: of A and B. out, residual, bias: element types of C, R and the bias; "" where there is no such operand (C
    always is). a_major, b_major: the extent that is contiguous, "k" or "mn". activation: "none", "relu", "gelu"
    (by erf) or "silu".
    """

    dtype: str
    out: str
    residual: str = ""
    bias: str = ""
    a_major: str = "k"
    b_major: str = "k"
    activation: str = "none"
