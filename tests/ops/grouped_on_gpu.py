"""What only a GPU shows of `grouped_matmul`. Run by test_gpu.py, or alone, where there is no pytest:
`python -m tests.ops.grouped_on_gpu`, with TENSORLADDER_PACK where there is no DSL.

The forms that are called: bf16, ragged=m with b of either major and with bias and silu, ragged=k with both mn.
"""

from __future__ import annotations

import itertools
import sys

import tensorladder
from tests.ops.on_gpu import main, normal

OFFS = ((0, 37, 37, 700, 1000), (1000,) * 5, (1,) * 5, (7, 8, 9, 10, 999))


def ends(*values):
    import torch

    return torch.tensor(values, device="cuda", dtype=torch.int32)


def exact(a, b, offs, bias=None):
    """In float64, groups of rows or of K."""
    import torch

    a, b, cuts = a.double(), b.double(), [0, *offs.tolist()]
    spans = list(itertools.pairwise(cuts))
    if b.dim() == 2:
        return torch.stack([a[:, i:j] @ b[i:j] for i, j in spans])
    parts = [a[i:j] @ b[g] for g, (i, j) in enumerate(spans)]
    return torch.cat(parts if bias is None else [part + row for part, row in zip(parts, bias.double())])


def right(got, want):
    return bool((got.double() - want).norm() <= 4e-3 * want.norm())


def groups_of_all_kinds():
    """Empty ones, all in one, few rows; results that reach past the last one are zero there."""
    import torch

    for cuts in OFFS:
        offs, a, c, last = ends(*cuts), normal(1000, 512), normal(1000, 384), cuts[-1]
        for b in (normal(5, 512, 384), normal(5, 384, 512).mT):
            for _ in range(2):  # cold and warm
                got = tensorladder.grouped_matmul(a, b, offs)
                assert right(got[:last], exact(a, b, offs)) and not got[last:].any()
        assert right(tensorladder.grouped_matmul(a.mT, c, offs), exact(a.mT, c, offs))
        bias = normal(5, 384)
        got = tensorladder.grouped_matmul(a, b, offs, bias=bias, activation="silu")
        assert right(got[:last], torch.nn.functional.silu(exact(a, b, offs, bias)))


def gradients_of_experts():
    """Of tokens and of weights of either layout."""
    offs, a, grad = ends(*OFFS[0]), normal(1000, 512).requires_grad_(), normal(1000, 384)
    for b in (normal(5, 512, 384), normal(5, 384, 512).mT):
        b, a.grad = b.requires_grad_(), None
        tensorladder.grouped_matmul(a, b, offs).backward(grad)
        left, weights = (x.detach().double().requires_grad_() for x in (a, b))
        exact(left, weights, offs).backward(grad.double())
        assert right(a.grad, left.grad) and right(b.grad, weights.grad)


def a_graph_whose_groups_change():
    """Ends are data: a graph that was captured with some is right with others."""
    import torch

    a, b, offs = normal(1000, 512), normal(5, 384, 512).mT, ends(*OFFS[0])
    tensorladder.grouped_matmul(a, b, offs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = tensorladder.grouped_matmul(a, b, offs)
    for cuts in (OFFS[3], OFFS[0], (300, 300, 500, 500, 900)):
        offs.copy_(ends(*cuts))
        graph.replay()
        torch.cuda.synchronize()
        assert right(got[: cuts[-1]], exact(a, b, offs)) and not got[cuts[-1] :].any()


CHECKS = (groups_of_all_kinds, gradients_of_experts, a_graph_whose_groups_change)

if __name__ == "__main__":
    sys.exit(main(CHECKS))
