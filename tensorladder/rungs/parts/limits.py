"""What the knobs of a Hopper kernel must fulfil: UsageError, in one line, for what the hardware or the DSL refuses."""

from __future__ import annotations

from typing import Any

from tensorladder.core import arch as archs
from tensorladder.problems import dtype_named
from tensorladder.rungs.parts.form import Form
from tensorladder.rungs.rung import Rung

WARPGROUP = 128  # threads
PAD = 4  # floats after a column of partial sums, so that neighbouring columns begin in different banks
OF_SMS = {1: 1.0, 2: 1.0, 3: 0.88, 4: 0.91, 5: 0.83, 8: 0.91}  # that clusters of so many CTAs reach, of an H200's
CHUNK_ROWS = 64  # of C that a warpgroup stores at a time
INPUTS = ("fp16", "bf16", "e4m3", "e5m2")
OUTPUTS = ("fp16", "bf16", "fp32")


def check_form(rung: Rung, form: Form) -> None:
    """Element types, majors and parts that go together."""
    rung.require(form.dtype in INPUTS, f"dtype={form.dtype}: operands are {', '.join(INPUTS)}")
    for name in ("out", "residual", "bias"):
        dtype = getattr(form, name)
        rung.require(dtype in OUTPUTS or not (dtype or name == "out"), f"{name}={dtype}: {', '.join(OUTPUTS)}")
    majors = (form.a_major, form.b_major)
    fits = majors == ("k", "k") or dtype_named(form.dtype).bits == 16
    rung.require(fits, f"a_major={majors[0]}, b_major={majors[1]}: WGMMA takes {form.dtype} with K contiguous alone")
    rung.require(not (form.gated and form.bias), f"bias={form.bias}: a gated product has none")


def check_tile(rung: Rung, form: Form, tile: tuple[int, int, int], halves: tuple[int, int] = (1, 1)) -> None:
    """The tile, (M, N, K): WGMMA, TMA and the swizzles cover it evenly. halves: into how many parts warpgroups cut it,
    along M and N."""
    bM, bN, bK = tile
    rung.require(min(tile) > 0, f"tile={tile}: extents are positive")
    rung.require(bM % (64 * halves[0]) == 0, f"tile={tile}: M must be a multiple of {64 * halves[0]}")
    rung.require(bK % 64 == 0, f"tile={tile}: K must be a multiple of 64 (128 bytes)")
    rung.require(max(tile) <= 256, f"tile={tile}: a TMA box and WGMMA have at most 256 rows")
    step, why = (64, "B's N is contiguous") if form.b_major == "mn" else (8, "as WGMMA's")
    if halves[1] > 1:
        step, why = halves[1] * step, f"two warpgroups have half of it each, {why}"
        rung.require(not form.gated, "split=n: a gated product's tile is cut along M alone")
    if form.gated:
        step, why = 2 * step, f"half of it is U's, {why}"
        rung.require(bK == 64, f"tile={tile}: K must be 64 where B and U share a stage")
    rung.require(bN % step == 0, f"tile={tile}: N must be a multiple of {step} ({why})")


def check_cluster(rung: Rung, form: Form, config: Any, whole: bool = False) -> None:
    """cluster_m, cluster_n: CTAs that share a tile cut it into whole rows of the swizzle. whole: or in clusters of a
    column each asks for all of B's in its turn, if K is contiguous. (With rows besides, a CTA could release a stage
    to its column a second time before others have once: what it waits for would not come from all of them.)"""
    bM, bN, _ = config.tile
    shared = {
        "cluster_m": (config.cluster_m, bN // (2 if form.gated else 1), form.b_major),
        "cluster_n": (config.cluster_n, bM, form.a_major),
    }
    for name, (ctas, rows, major) in shared.items():
        step = 64 if major == "mn" and ctas > 1 else 8
        in_turns = whole and (name, major, config.cluster_n) == ("cluster_m", "k", 1)
        fits = ctas > 0 and (rows % (step * ctas) == 0 or in_turns)
        rung.require(fits, f"{name}={ctas}: must cut {rows} rows of a tile into parts of whole {step}")
    ctas = config.cluster_m * config.cluster_n
    most = archs.PORTABLE_CLUSTER
    rung.require(ctas <= most, f"cluster_m * cluster_n: {ctas} CTAs, a cluster has at most {most}")
    resident = config.sm_count * config.ctas_per_sm
    rung.require(resident >= ctas, f"sm_count={config.sm_count}: a cluster of {ctas} must fit")


def check_registers(rung: Rung, config: Any, groups: int, accumulators: int) -> None:
    """`accumulators` of a consumer thread fit, and what consumers gain by setmaxnreg producers give: else it hangs."""
    consumers, producers = WARPGROUP * groups, WARPGROUP
    rung.require(1 <= config.ctas_per_sm <= 8, f"ctas_per_sm={config.ctas_per_sm}: 1 to 8")
    for name in ("producer_registers", "consumer_registers"):
        count = getattr(config, name)
        rung.require(count in range(24, 257, 8), f"{name}={count}: setmaxnreg takes multiples of 8 from 24 to 256")
    registers = min(config.consumer_registers, 255)
    fits = accumulators + 40 <= registers
    rung.require(fits, f"tile={config.tile}: {accumulators} accumulators a thread, which has {registers} registers")
    at_launch = min(65536 // config.ctas_per_sm // (consumers + producers) // 8 * 8, 255)
    used = consumers * config.consumer_registers + producers * config.producer_registers
    fits = used <= at_launch * (consumers + producers)
    rung.require(fits, f"consumer_registers={config.consumer_registers}: a CTA starts with {at_launch} a thread")


def check_smem(rung: Rung, arch: str, form: Form, config: Any, groups: int, columns: int) -> None:
    """The ring of K tiles and the buffers of C fit into a CTA's shared memory. columns: of C, a warpgroup's."""
    bM, bN, bK = config.tile
    rung.require(config.raster > 0, f"raster={config.raster}: at least 1 row of tiles")
    rung.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    rung.require(config.c_stages > 0, f"c_stages={config.c_stages}: at least 1")
    row = chunk_bytes(form, columns)
    smem = 2 * config.stages * (bM + bN) * bK + groups * config.c_stages * CHUNK_ROWS * row + 1024
    limit = archs.find(arch).smem_per_cta
    stages = f"stages={config.stages}, c_stages={config.c_stages}"
    rung.require(smem <= limit, f"{stages}: {smem} bytes of shared memory, {arch} has {limit}")


def chunk_bytes(form: Form, columns: int) -> int:
    """Of a row of C that is stored at a time, of a tile's `columns`: 128, or 64 where that alone divides them."""
    row = columns * dtype_named(form.out).bits // 8
    return 64 if row % 128 == 64 else 128


def clusters_at_once(places: int, ctas: int) -> int:
    """How many clusters of so many CTAs a persistent grid may have where `places` CTAs fit, at least 1.

    Clusters lie within a GPC, and GPCs are of different sizes: of an H200's 132 SMs 39 clusters of 3 find room, 30 of
    4, 15 of 7 or 8 (cuOccupancyMaxActiveClusters). One too many would wait until another has done all its tiles.
    """
    return max(1, int(places * OF_SMS.get(ctas, 0.8)) // ctas)


def check_split(rung: Rung, arch: str, form: Form, config: Any) -> None:
    """Knobs of a kernel that splits K over a cluster: WGMMA, TMA and the cluster cut the tile (N, M, K) evenly, and it,
    the sums and the stages fit into a CTA."""
    (bN, bM, bK), groups = config.tile, config.warpgroups
    rung.require(1 <= groups <= 4, f"warpgroups={groups}: 1 to 4")
    rung.require(min(config.tile) > 0 and max(bN, bM) <= 256, f"tile={config.tile}: rows of 1 to 256")
    rung.require(bN % (64 * groups) == 0, f"tile={config.tile}: N must be a multiple of {64 * groups}")
    rung.require(bK % 64 == 0, f"tile={config.tile}: K must be a multiple of 64 (128 bytes)")
    fits = form.b_major == "k" or bN // (1 + form.gated) % 64 == 0
    rung.require(fits, f"tile={config.tile}: N must give B and U multiples of 64 rows where those are contiguous")
    for name, number, rows in (("passes", config.passes, 8), ("share", config.share, 8 if form.a_major == "k" else 64)):
        fits = number > 0 and bM % (rows * number) == 0
        rung.require(fits, f"{name}={number}: must cut the tile's {bM} rows of A into parts of whole {rows}")
    ctas = config.split * config.share
    rung.require(1 <= ctas <= archs.PORTABLE_CLUSTER, f"split * share: {ctas} CTAs, a cluster has 1 to 8")
    rung.require(config.stages >= 2, f"stages={config.stages}: at least 2, one to fill and one to multiply")
    rung.require(1 <= config.ctas_per_sm <= 8, f"ctas_per_sm={config.ctas_per_sm}: 1 to 8")
    resident = config.sm_count * config.ctas_per_sm
    rung.require(resident >= ctas, f"sm_count={config.sm_count}: a cluster of {ctas} must fit")
    threads = WARPGROUP * groups
    accumulators, registers = bN * bM // threads, min(65536 // config.ctas_per_sm // (threads + 32) // 8 * 8, 255)
    fits = accumulators + 48 <= registers
    rung.require(fits, f"tile={config.tile}: {accumulators} accumulators a thread, which has {registers} registers")
    sums = (2 * config.split - 1) * -(-bM // config.passes // config.split) * (bN + PAD) * 4
    ring = 2 * config.stages * (bM + bN) * bK
    smem = ring + sums + 2048
    limit = (archs.find(arch).smem_per_cta + 1024) // config.ctas_per_sm - 1024
    rung.require(smem <= limit, f"stages={config.stages}: {smem} bytes of shared memory, there are {limit}")
