"""Sets of problems to time: the whole ladder at two sizes, squares, and the matrix products of language models.

The shapes of `llm` are (M tokens, N, K) of linear layers, from the configurations that the models' makers publish
(config.json: hidden_size, intermediate_size, heads, vocab_size). N of "qkv" is (heads + 2 key-value heads) times the
head's size, that of "gate up" twice the intermediate size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensorladder.core.errors import UsageError
from tensorladder.rungs.rung import RungInfo

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Suite:
    """Shapes (M, N, K) with what they are, the element type they are timed in, and which rungs by default.

    every_rung: all there are; else those that no other rung of the architecture builds on. rungs: these alone.
    ops: calls of the op (`calls.CALLS`) that it times instead of rungs.
    """

    name: str
    summary: str
    dtype: str
    shapes: dict[Shape, str]
    every_rung: bool = False
    rungs: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()


def _cubes(*sides: int) -> dict[Shape, str]:
    return {(side, side, side): "square" for side in sides}


# What QuACK's kernels were first compared on, decode to prefill.
_COMPARED: dict[Shape, str] = {
    (4096, 4096, 4096): "square",
    (8192, 8192, 8192): "square",
    (2048, 2048, 2048): "square",
    (1024, 1024, 1024): "square",
    (16384, 16384, 1024): "short K",
    (8192, 1024, 8192): "Llama-3-70B k or v, prefill",
    (4096, 14336, 4096): "Llama-3-8B gate, prefill",
    (4096, 4096, 14336): "Llama-3-8B down, prefill",
    (512, 8192, 8192): "Llama-3-70B o, 512 tokens",
    (128, 8192, 8192): "Llama-3-70B o, decode of 128",
    (64, 14336, 4096): "Llama-3-8B gate, decode of 64",
    (5000, 5000, 5000): "odd square",
    (4096, 4224, 4096): "a wave and a little",
}

_MODELS: dict[Shape, str] = {
    (1, 6144, 4096): "Llama-3-8B qkv, decode of 1",
    (8, 28672, 4096): "Llama-3-8B gate up, decode of 8",
    (16, 4096, 14336): "Llama-3-8B down, decode of 16",
    (32, 10240, 8192): "Llama-3-70B qkv, decode of 32",
    (64, 8192, 28672): "Llama-3-70B down, decode of 64",
    (128, 57344, 8192): "Llama-3-70B gate up, decode of 128",
    (2048, 10240, 8192): "Llama-3-70B qkv, prefill of 2048",
    (256, 4608, 3584): "Qwen2.5-7B qkv, 256 tokens",
    (1024, 37888, 3584): "Qwen2.5-7B gate up, prefill of 1024",
    (1024, 3584, 18944): "Qwen2.5-7B down, prefill of 1024",
    (2048, 51200, 5120): "Qwen3-32B gate up, prefill of 2048",
    (128, 2112, 7168): "DeepSeek-V3 q and kv down-projection, decode of 128",
    (4096, 7168, 16384): "DeepSeek-V3 o, prefill of 4096",
    (512, 4096, 7168): "DeepSeek-V3 expert gate up, 512 tokens",
    (1000, 2880, 4096): "gpt-oss-20b o, 1000 tokens",
    (777, 6400, 1600): "GPT-2 XL mlp, 777 tokens",
    (512, 50257, 1600): "GPT-2 XL head, its vocabulary unpadded",
    (32, 128256, 4096): "Llama-3-8B head, decode of 32",
}

#: Of both, from many rows to a few: what is timed with an epilogue, and in fp8.
_FEW: dict[Shape, str] = {
    shape: {**_COMPARED, **_MODELS}[shape]
    for shape in (
        (4096, 14336, 4096),
        (4096, 4096, 14336),
        (2048, 10240, 8192),
        (1000, 2880, 4096),
        (777, 6400, 1600),
        (512, 8192, 8192),
        (64, 14336, 4096),
        (16, 4096, 14336),
    )
}
_EXPERTS: dict[Shape, str] = {
    (8192, 14336, 4096): "Mixtral 8x7B gate, 4096 tokens to two experts each",
    (16384, 4096, 7168): "DeepSeek-V3 gate up, 16384 tokens of all experts",
    (8192, 5760, 2880): "gpt-oss-20b gate up",
    (4096, 2048, 768): "Qwen3-30B-A3B down",
    (512, 1536, 2048): "Qwen3-30B-A3B gate up, decode",
}
_THREE = dict(list(_FEW.items())[:6:2])

#: Rungs in CUDA C++, and their twins in CuTe DSL ("": none, that is the language's own step).
TWINS = (
    ("cuda-a1-naive", "a1-naive-cuda-like"),
    ("cuda-a2-smem", "a2-smem-padded"),
    ("cuda-a3-register-tile", "a2-smem-swizzled"),
    ("cuda-b1-wmma", ""),
    ("cuda-b1-wmma-smem", ""),
    ("cuda-b1-wmma-vectorized", ""),
    ("cuda-b2-vectorized-2d", "b2-warp-mma"),
    ("cuda-c1-wgmma", "c1-wgmma"),
    ("cuda-d1-tcgen05", "d1-tcgen05"),
)

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite("ladder", "every rung at 4096 and 8192", "fp16", _cubes(4096, 8192), every_rung=True),
        Suite(
            "square",
            "M = N = K from 512 to 16384",
            "bf16",
            _cubes(512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384),
        ),
        Suite("llm", "linear layers of language models, decode and prefill", "bf16", {**_COMPARED, **_MODELS}),
        Suite("fused", "the op with bias and gelu, at eight of those shapes", "bf16", _FEW, ops=("bias-gelu",)),
        Suite(
            "epilogues",
            "the op with its other epilogues, at three of them (torch.compile takes 12 s for each)",
            "bf16",
            _THREE,
            ops=("bias-silu", "bias-residual", "swiglu"),
        ),
        Suite(
            "grouped",
            "experts' layers, tokens in 8, 32 or 128 uneven groups",
            "bf16",
            _EXPERTS,
            ops=("grouped-8", "grouped-32", "grouped-128"),
        ),
        Suite("fp8", "the op on e4m3, scales by tensor and by row", "e4m3", _FEW, ops=("fp8", "fp8-rows")),
        Suite(
            "twins",
            "rungs in CUDA C++ and their twins in CuTe DSL",
            "fp16",
            _cubes(2048),
            rungs=tuple(name for pair in TWINS for name in pair if name),
        ),
    )
}


def find(name: str) -> Suite:
    """The suite of that name; UsageError with the names there are for any other."""
    try:
        return SUITES[name]
    except KeyError:
        raise UsageError(f"--suite {name!r} is not known: use one of {', '.join(SUITES)}") from None


def only(suite: Suite, shapes: Sequence[tuple[int, ...]]) -> Suite:
    """The suite with these shapes alone, of it or not. UsageError for one that is no (M, N, K)."""
    for shape in shapes:
        if len(shape) != 3:
            raise UsageError(f"--shape {','.join(map(str, shape))}: a suite's are M,N,K")
    return replace(suite, shapes={(m, n, k): suite.shapes.get((m, n, k), "") for m, n, k in shapes})


PRODUCTS = ("gemm", "gemm_colwise_scale")
"""Problems that are one product of extents (M, N, K), which is what suites ask for."""


def takes(info: RungInfo) -> bool:
    """Whether a rung computes what suites ask for."""
    return info.rung.problem in PRODUCTS


def rungs_of(suite: Suite, infos: tuple[RungInfo, ...], arch: str) -> tuple[RungInfo, ...]:
    """The rungs that a suite times for an architecture unless told: its own, all, or the tops of it."""
    fits = [info for info in infos if arch in info.archs and takes(info)]
    if suite.rungs:
        return tuple(info for info in fits if info.name in suite.rungs)
    if suite.every_rung:
        return tuple(fits)
    # Of the languages that the ladder is told in, the first alone: twins would only be timed twice.
    products = [info for info in fits if info.rung.problem == "gemm" and len(info.series) == 1]
    parents = {info.parent for info in products}
    tops = [info for info in products if info.name not in parents]
    # Series a and b lead up to the architecture's own; what ends there (b8 over b7) is no top where there are others.
    return tuple([info for info in tops if info.series > "b"] or tops)


def dtype_for(suite: Suite, info: RungInfo) -> str:
    """The suite's element type, or the rung's first where it does not take that."""
    return suite.dtype if suite.dtype in info.dtypes else info.dtypes[0]
