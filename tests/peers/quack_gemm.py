"""`python quack_gemm.py CHECKOUT TILE_N CLUSTER_M [pingpong]`: QuACK's GEMM against torch, bf16, 256 x 256 x 128.

Its autotuner imports triton, whose LLVM may not share a process with CuTe DSL's; the GEMM does not need it.
"""

import os
import sys
import types

os.environ["QUACK_CACHE_ENABLED"] = "0"  # code from its cache would be loaded into a driver
sys.path.insert(0, sys.argv[1])
sys.modules["quack.autotuner"] = tuner = types.ModuleType("quack.autotuner")
tuner.autotune = lambda *_, **__: lambda function: function
tuner.AutotuneConfig = lambda *_, **__: None

import torch  # noqa: E402
from quack.gemm import gemm  # noqa: E402

tile, cluster, pingpong = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["pingpong"]
torch.manual_seed(0)
a, b = (torch.randn(1, 256, 128, device="cuda", dtype=torch.bfloat16) for _ in "ab")
d = torch.empty(1, 256, 256, device="cuda", dtype=torch.bfloat16)
gemm(a, b, d, None, None, tile_M=128, tile_N=tile, cluster_M=cluster, cluster_N=1, pingpong=pingpong, persistent=True)
torch.testing.assert_close(d.float(), torch.einsum("lmk,lnk->lmn", a.float(), b.float()), atol=1e-1, rtol=2e-2)
print("PASS")
