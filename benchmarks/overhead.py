"""What a call costs the host, on a GPU: `python -m benchmarks.overhead [--json]`.

Calls of `tensorladder.matmul` and of torch are queued in turns, batches of them while the GPU is idle, and the host's
time is taken; products are so small that the GPU keeps up. Where no DSL is installed, TENSORLADDER_PACK names the
kernels; `--forms` prints what to pack. Ends with 1 where a warm call takes more than it may.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from tensorladder.core.errors import TensorladderError
from tensorladder.core.pipes import piped
from tensorladder.silicon.driver import facts
from tensorladder.silicon.target import cuda_torch

MOST_US = 8.0  # of a warm call
HELD = re.compile(r"matmul[^,]*|swiglu")  # which calls: ours, but for those that make a graph for gradients
BATCH, ROUNDS, WARM = 100, 60, 10
M, N, K = 128, 256, 128
#: what is called here, as `tensorladder pack --form` has it
FORMS = ("bf16", "bf16,b_major=mn", "bf16,a_major=mn,b_major=mn", "bf16,bias=bf16", "bf16,bias=bf16,activation=gelu",
         "bf16,residual=bf16", "bf16,activation=silu,gated=true")  # fmt: skip

Call = Callable[[], Any]


def calls(torch: Any) -> dict[str, Call]:
    """Calls by name; `HELD` names those of ours that may take `MOST_US`."""
    import tensorladder
    from tensorladder.ops import fast

    def normal(*shape: int) -> Any:
        return torch.randn(shape, device="cuda").bfloat16()

    a, b, weight, bias, out, residual = (
        normal(M, K), normal(K, N), normal(N, K), normal(N), normal(M, N), normal(M, N)
    )  # fmt: skip
    wide, apart, wanting = normal(N, K), normal(K, 2 * N), normal(M, K).requires_grad_()
    matmul, swiglu, linear = tensorladder.matmul, tensorladder.swiglu, torch.nn.functional.linear
    transposed, halves = weight.t(), wide.t()
    operator = torch.ops.tensorladder.matmul.default
    fast.forget()
    with mock.patch.object(fast, "remember", wraps=fast.remember) as remember:
        matmul(a, transposed)
        launcher = remember.call_args.args[-1]
    stream = torch.cuda.current_stream().cuda_stream
    addresses = [a.data_ptr(), transposed.data_ptr(), out.data_ptr(), launcher.factors.find(1.0, 0.0)[0]]
    return {
        "torch.mm": lambda: torch.mm(a, b),
        "torch.mm out": lambda: torch.mm(a, b, out=out),
        "torch linear bias": lambda: linear(a, weight, bias),
        "launch alone": lambda: launcher.launches[0].launch(stream, addresses),
        "matmul": lambda: matmul(a, transposed),
        "matmul b (K, N)": lambda: matmul(a, apart),
        "matmul out": lambda: matmul(a, transposed, out=out),
        "matmul bias": lambda: matmul(a, transposed, bias=bias),
        "matmul bias gelu": lambda: matmul(a, transposed, bias=bias, activation="gelu"),
        "matmul residual": lambda: matmul(a, transposed, residual=residual, beta=1.0),
        "swiglu": lambda: swiglu(a, halves),
        "w.t()": lambda: weight.t(),
        "matmul, with a graph for gradients": lambda: matmul(wanting, transposed),
        "torch.mm, with a graph for gradients": lambda: torch.mm(wanting, transposed),
        "operator: tensorladder::matmul": lambda: operator(
            a, transposed, None, None, None, None, "", "none", 1.0, 0.0, None, False
        ),
    }  # fmt: skip


def compiled_calls(torch: Any) -> dict[str, Call]:
    """The same product in functions that torch.compile made."""
    import tensorladder

    a, weight = torch.randn((M, K), device="cuda").bfloat16(), torch.randn((N, K), device="cuda").bfloat16()
    b = weight.t().contiguous()
    ours = torch.compile(lambda x, w: tensorladder.matmul(x, w.t()))
    torchs = torch.compile(lambda x, y: torch.mm(x, y))
    return {"compiled matmul": lambda: ours(a, weight), "compiled torch.mm": lambda: torchs(a, b)}


def measure(torch: Any, timed: dict[str, Call]) -> dict[str, list[float]]:
    """Microseconds a call, one number a round, the calls in turns."""
    found: dict[str, list[float]] = {name: [] for name in timed}
    for number in range(WARM + ROUNDS):
        for name, call in timed.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(BATCH):
                call()
            if number >= WARM:
                found[name].append((time.perf_counter() - start) / BATCH * 1e6)
    return found


def first_calls(torch: Any) -> dict[str, float]:
    """Milliseconds: importing torch's side of the package, a first call, and one with extents that are new."""
    a, b = torch.zeros(M, K, device="cuda").bfloat16(), torch.zeros(N, K, device="cuda").bfloat16().t()
    found = {}

    def timed(name: str, call: Call) -> None:
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        found[name] = (time.perf_counter() - start) * 1e3

    def load() -> None:
        import tensorladder

        tensorladder.matmul  # noqa: B018 (imports it)

    timed("import", load)
    import tensorladder

    timed("first call", lambda: tensorladder.matmul(a, b))
    timed("second call", lambda: tensorladder.matmul(a, b))
    timed("new extents", lambda: tensorladder.matmul(a[:100], b))
    return found


def main() -> int:
    """Print a table, or with --json an object a line. 1 where a warm call takes more than `MOST_US`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--forms", action="store_true", help="print the options of `tensorladder pack` and end")
    args = parser.parse_args()
    if args.forms:
        print(" ".join(f"--form {one}" for one in FORMS), f"--shape {M},{N},{K}")
        return 0
    say = (lambda row: print(json.dumps(row), flush=True)) if args.json else _print
    slow = []
    try:
        torch = cuda_torch()
        say({"machine": facts()["gpu"], "python": sys.version.split()[0], "torch": torch.__version__})
        for name, ms in first_calls(torch).items():
            say({"call": name, "ms": ms})
        for group in (calls, compiled_calls):
            for name, rounds in measure(torch, group(torch)).items():
                low, *_, high = statistics.quantiles(rounds, n=10)
                say({"call": name, "us": statistics.median(rounds), "p10": low, "p90": high})
                if HELD.fullmatch(name) and statistics.median(rounds) > MOST_US:
                    slow.append(name)
    except TensorladderError as error:
        print(f"overhead: {error}", file=sys.stderr)
        return error.exit_code
    if slow:
        print(f"overhead: more than {MOST_US} us: {', '.join(slow)}", file=sys.stderr)
    return bool(slow)


def _print(row: dict[str, Any]) -> None:
    """A line of the table."""
    if "call" not in row:
        print(*row.values(), flush=True)
        return
    unit = "us" if "us" in row else "ms"
    spread = f"   ({row['p10']:.2f} to {row['p90']:.2f})" if "p10" in row else ""
    print(f"{row['call']:<40}{row[unit]:8.2f} {unit}{spread}", flush=True)


if __name__ == "__main__":
    sys.exit(piped(main))
