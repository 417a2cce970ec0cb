"""Which product a kernel with an epilogue computes. Imports no DSL, so that a call can be planned without one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    """What a product computes, and on what: element types, majors, and the parts of the epilogue.

    C = act(alpha p q acc + beta R + bias), acc = A B^T; gated: act(alpha p q acc) * (alpha p q A U^T) + beta R.

    dtype: of A and B. out, residual, bias: element types of C, R and the bias; "" where there is no such operand (C
    always is). a_major, b_major: the extent that is contiguous, "k" or "mn". activation: "none", "relu", "gelu"
    (by erf) or "silu". scaled: with fp32 factors p of A's rows and q of B's rows (columns of C). gated: with a second
    right operand U, of B's shape, strides and type: the gate is B's product, and there is no bias.

    c_tma: C is stored by TMA, which wants its base, its pitches and N to be multiples of 16 bytes (a row then ends
    where a piece of 16 bytes does), and those of R and the bias's base with them. False: N is any, and so are the
    pitches of C and R and their base addresses and the bias's (of whole elements); the stores take longer.

    ragged: groups of different sizes along "m" or "k", whose ends are data (`c9-grouped` alone, which says what it
    takes); "" for none.

    Kernels of a form take A (M, K, L), B (N, K, L), U (as B), C (M, N, L), R (M, N, L), bias (N,), S (2,), p (M,) and
    q (N,) in this order, None for what the form lacks. L: independent products (1: an ordinary one). S is (alpha, beta)
    in fp32. p and q may have stride 0: one factor for all.
    """

    dtype: str
    out: str
    residual: str = ""
    bias: str = ""
    a_major: str = "k"
    b_major: str = "k"
    activation: str = "none"
    scaled: bool = False
    gated: bool = False
    c_tma: bool = True
    ragged: str = ""
