"""The DSL's own cubin of every Blackwell rung holds the machine instructions that the rung is about.

The virtual GPU runs the PTX; what a B200 runs is the cubin, and a compiler could have taken another way. Needs nvdisasm
(PATH, or the package nvidia-cuda-nvdisasm).
"""

from __future__ import annotations

import re

import pytest

from tensorladder.rungs.parts.form import Form
from tensorladder.rungs.rung import catalog, find, load
from tensorladder.silicon.disassemble import find_nvdisasm, sass

pytest.importorskip("cutlass")
pytestmark = pytest.mark.skipif(find_nvdisasm() is None, reason="no nvdisasm here")

# UTCHMMA, UTCQMMA, UTCOMMA: tcgen05.mma of 16, 8 and 4 bits. UTCCP: tcgen05.cp. UTCBAR: tcgen05.commit. LDTM, STTM:
# tcgen05.ld, st. UTMALDG, UTMASTG: TMA. UTCATOMSWS: alloc and dealloc. UCGABAR: the cluster barrier.
ALLOC = [r"UTCATOMSWS\S*FIND_AND_SET", r"UTCATOMSWS\.AND"]
MMA = [*ALLOC, r"UTCHMMA ", r"UTCBAR "]
ONE = [*MMA, r"UTMALDG\.2D "]
PAIR = [*ALLOC, r"UTCHMMA\.2CTA", r"UTCBAR\.2CTA\.MULTICAST", r"UTMALDG\.2D\.2CTA", r"UCGABAR_ARV", r"UCGABAR_WAIT"]
TWO = [*PAIR, r"UTMALDG\.2D\.MULTICAST\.2CTA"]
DSA = [*MMA, r"LDGSTS\.E\.BYPASS\S*128", r"LDTM\.16dp256bit\.x2", r"STTM\.16dp256bit\.x8", r"LDTM\.x64"]
DSA += [r"STSM\.16\.MT88\.4"]
CLAIMS = {
    "d1-tcgen05": [*ONE, r"LDTM\.x128"],
    "d1-tcgen05-subtiles": [*ONE, r"LDTM\.x32"],
    "d2-warp-specialized": [*ONE, r"LDTM\.x32"],
    "d3-two-cta": [*TWO, r"LDTM\.x32"],
    "d4-persistent": [*PAIR, r"LDTM\.x64", r"UTMASTG\.2D", r"STS\.128"],
    "d4-block-scaled": [*ALLOC, r"UTCQMMA\.2CTA", r"UTCCP", r"UTCBAR\.2CTA", r"UTMALDG\.3D\.2CTA", r"UTMASTG\.2D"],
    "d5-epilogue": [*PAIR, r"LDTM\.x32", r"UTMASTG\.2D", r"STS\.128", r"LDG\.E\.128"],
    "fused-dsa-tcgen05": [*DSA, r"DEPBAR\.LE SB0, 0x0"],
    "fused-dsa-pipelined": [*DSA, r"ARRIVES\.LDGSTSBAR"],
    "v1-one-tile": [*MMA, r"LDTM\.x128", r"STS\.128", r"\bSTG\.E\.128"],
    "v2-k-loop": [*MMA, r"LDTM\.x128", r"STS\.128", r"\bSTG\.E\.128"],
    "v3-grid": [*MMA, r"LDTM\.x128", r"STS\.128", r"\bSTG\.E\.128"],
    "v4-tma": [*ONE, r"LDTM\.x128", r"UTMASTG\.2D"],
    "v5-pipeline": [*ONE, r"LDTM\.x128", r"UTMASTG\.2D"],
    "v6-persistent": [*ONE, r"LDTM\.x128", r"UTMASTG\.2D"],
    "v7-warp-specialized": [*ONE, r"LDTM\.x128", r"UTMASTG\.2D", r"BAR\.SYNC\S* 0x1"],
    "v8-two-cta": [*PAIR, r"LDTM\.x128", r"UTMASTG\.2D"],
    "v9-two-consumers": [*PAIR, r"LDTM\.x64", r"UTMASTG\.2D"],
    "z2-tmem-lifecycle": [*ALLOC, r"STTM\.x32", r"LDTM\.x32"],
}
BLACKWELL = [
    pytest.param(info, id=info.name)
    for info in catalog()
    if info.path.parent.name == "blackwell" or "tmem" in info.name or info.name in CLAIMS
]


@pytest.mark.parametrize("info", BLACKWELL)
def test_machine_code_holds_what_the_rung_claims(info):
    (module,) = load(info).compile("sm_100a", info.default_shape, info.dtypes[0]).modules
    text = sass(module.cubin)
    missing = [claim for claim in CLAIMS[info.name] if not re.search(claim, text)]
    assert not missing
    # A warp MMA or a spill to local memory would be another kernel than the docstring's.
    assert not re.search(r"\b(HMMA|LDL|STL)\b", text)


@pytest.mark.parametrize(
    ("form", "instruction"),
    [
        (Form("bf16", "bf16", "bf16", a_major="mn", b_major="mn", activation="gelu"), "UTCHMMA.2CTA"),
        (Form("bf16", "fp32", activation="silu", gated=True), "UTCHMMA.2CTA"),
        (Form("e5m2", "bf16", "bf16", "fp32", scaled=True), "UTCQMMA.2CTA"),
    ],
    ids=str,
)
def test_forms_for_blackwell_are_tcgen05_too(form, instruction):
    rung = load(find("d5-epilogue"))
    (module,) = rung.build("sm_100a", form, rung.RUNG.config()).modules
    text = sass(module.cubin)
    assert {instruction, "UTMALDG.3D.2CTA", "UTMASTG.3D"} <= set(re.findall(r"UT[CM]\S+", text))
    assert not re.search(r"\b(HMMA|LDL|STL)\b", text)


@pytest.mark.parametrize("arch", ["sm_80", "sm_120a"])
def test_forms_for_ampere_are_warp_mma_without_spills(arch):
    rung = load(find("b9-epilogue"))
    form = Form("bf16", "bf16", "bf16", a_major="mn", activation="silu", scaled=True, gated=True)
    (module,) = rung.build(arch, form, rung.RUNG.config()).modules
    text = sass(module.cubin)
    wanted = [r"HMMA\.16816\.F32\.BF16", r"LDGSTS\.E\.BYPASS\S*128\S*ZFILL", r"LDSM\.16\.MT88\.4", r"STG\.E\.128"]
    assert not [one for one in wanted if not re.search(one, text)]
    assert not re.search(r"\b(LDL|STL)\b", text)


@pytest.mark.parametrize(
    ("name", "dtype", "instruction"),
    [("d4-persistent", "fp8", "UTCQMMA.2CTA"), ("d4-block-scaled", "nvfp4", "UTCOMMA.2CTA.4X")],
)
def test_narrow_types_have_instructions_of_their_own(name, dtype, instruction):
    (module,) = load(find(name)).compile("sm_100a", (256, 256, 256), dtype).modules
    text = sass(module.cubin)
    assert instruction in text and "UTCHMMA" not in text
