"""The README's figures and the pictures are made of the kept results."""

from __future__ import annotations

from benchmarks import tables

HOST = {
    "suite": "llm", "on": "gpu", "gpu": "NVIDIA H200", "power_limit_w": 700.0, "cublas": "13.1", "torch": "2.11",
    "quack": "0.6.5", "when": "2026-11-30 02:00 UTC", "not_measured": ["sm_100a"],
}  # fmt: skip


def row(shape, baseline, ratio, **more):
    return {
        "rung": "matmul", "shape": list(shape), "dtype": "bf16", "ok": True, "median_us": 10.0, "tflops": 700.0,
        "baseline": baseline, "ratio": ratio, "best_ratio": 0.9, "kernel": "c7", "host_us": 7.5, **more,
    }  # fmt: skip


LLM = [
    row((1, 6144, 4096), "cublas", 1.2),
    row((1, 6144, 4096), "quack", 0.9, baseline_host_bound=True),
    row((5, 5, 5), None, None, ok=False, median_us=None, tflops=None, best_ratio=None),
]


def test_what_is_shown_is_made_of_the_kept_results():
    readme = (tables.ROOT / "README.md").read_text(encoding="utf-8")
    for path, text in tables.outputs(tables.read(), readme).items():
        assert path.exists() and path.read_text(encoding="utf-8") == text, (
            f"{path.relative_to(tables.ROOT)} is not what the kept results say: run `python -m benchmarks.tables`"
        )


def test_a_call_has_its_means_and_every_shape_with_the_losses():
    kept = {"llm-h200": (HOST, LLM)}
    shown = tables.summary(kept)
    assert "| [llm](llm-h200.svg) | matmul | cublas | 1 | **1.200** | 1.20 | 1.20 | 0 |" in shown
    assert "| matmul | best of them | 1 | **0.900** | 0.90 | 0.90 | 1 |" in shown
    told = tables.details(kept)
    assert "| 1, 6144, 4096 | Llama-3-8B qkv, decode of 1 | c7 | 10.0 | 7.5 | 700 | 1.200 | 0.900 (h) |" in told
    assert "| matmul | 5, 5, 5 |  | c7 | wrong |" in told and "QuACK 0.6.5" in told and "(h): the GPU waited" in told
    assert "2 of its 31 shapes: the GPU's time was up." in told
    assert "](benchmarks/results/llm-h200.svg)" in tables.linked(shown)


def test_what_each_takes_alone_is_shown_where_the_results_have_it():
    rows = [{**LLM[0], "alone_ratio": 1.1}, LLM[1], row((64, 14336, 4096), "cublas", 1.4), *LLM[2:]]
    kept = {"llm-h200": (HOST, rows)}
    shown, told = tables.summary(kept), tables.details(kept)
    assert "| 1.40 | 0 | 1.100 of 1 |" in shown and "| slower | each alone |" in shown
    assert "| over cublas (alone) | over quack (alone) |" in told and "| 1.200 (1.100) | 0.900 (h) |" in told
    ladder = [{**rows[0], "rung": "c5", "shape": [4096] * 3, "dtype": "fp16"}]
    shown = tables.summary({"ladder-h200": ({**HOST, "suite": "ladder"}, ladder)})
    assert "| over cuBLAS (alone) |" in shown and "| c5 | 700 | 1.20 (1.10) |" in shown and tables.ALONE in shown


def test_what_says_more_of_the_baseline_is_left_out_of_a_second_mean():
    usual = row((64, 14336, 4096), "cublas", 1.1, alone_ratio=1.0)
    rows = [row((512, 50257, 1600), "cublas", 8.0, alone_ratio=5.0), usual]
    words = "Suite llm without the shape at which cublas is slowest (8.00): 1.100, alone 1.000."
    assert words in tables.summary({"llm-h200": (HOST, rows)})
    assert "is slowest" not in tables.summary({"llm-h200": (HOST, rows[:1])})  # nothing is left
    assert "is slowest" not in tables.summary({"llm-h200": (HOST, [usual])})


def test_the_ladder_has_the_published_kernels_and_the_tensor_pipe_beside_it():
    def at(rung, side, **more):
        return {**row((side, side, side), "cublas", 1.04, **more), "rung": rung, "dtype": "fp16"}

    ladder = [at("c5-ping-pong", 4096, tensor_pipe=93.2), at("c5-ping-pong", 8192), at("a1", 4096, tflops=2.0)]
    published = [
        {"rung": "c5-ping-pong", "shape": [8192] * 3, "baseline_tflops": 514.2, "baseline_ok": False},
    ]
    kept = {
        "ladder-h200": ({**HOST, "suite": "ladder"}, ladder),
        "published-h200": ({**HOST, "suite": "published"}, published),
    }
    shown = tables.summary(kept)
    assert "| c5-ping-pong | 700 | 1.04 | 93 % |  | 700 | 1.04 |  | 514, wrong result |" in shown
    assert "| a1 |" not in shown and "Not measured: sm_100a" in shown


def test_how_much_faster_than_its_parent_a_rung_is():
    def row(rung, parent, side, ratio, dtype="fp16"):
        return {"rung": rung, "baseline": parent, "shape": [side] * 3, "dtype": dtype, "ratio": ratio}

    rows = [row("c2", "c1", 4096, 1.012), row("c4", "c3", 4096, 1.0), row("c2", "c1", 8192, 1.0204)]
    rows += [row("c4", "c3", 8192, 0.999), row("c4", "c3", 5000, 1.2), row("c4", "c3", 8192, 1.01, "e4m3")]
    shown = tables.summary({"steps-h200": ({**HOST, "suite": "steps"}, rows)})
    assert "| rung | parent | 4096 | 8192 | elsewhere |" in shown and "| c2 | c1 | 1.012 | 1.020 |  |" in shown
    assert "| c4 | c3 | 1.000 | 0.999 | 5000: 1.200, 8192 in e4m3: 1.010 |" in shown and "alone" not in shown
    shown = tables.summary({"steps-h200": ({**HOST, "suite": "steps"}, [{**one, "alone_ratio": 0.98} for one in rows])})
    assert "in turns, in brackets each alone (" in shown and "| c2 | c1 | 1.012 (0.980) | 1.020 (0.980) |  |" in shown


def test_what_the_sanitizer_found_is_a_sentence():
    clean = {"rung": "b5", "tool": "memcheck", "ok": True, "message": ""}
    kept = {"sanitizer-h200": ({**HOST, "suite": "sanitizer"}, [clean, {**clean, "rung": "c5"}])}
    assert "(memcheck; 2 rungs and calls): no finding." in tables.summary(kept)
    bad = {**clean, "ok": False, "message": "Invalid read"}
    kept = {"sanitizer-h200": ({**HOST, "suite": "sanitizer"}, [bad])}
    assert "b5, memcheck: Invalid read" in tables.summary(kept)


def test_what_a_call_costs_the_host_is_a_sentence():
    rows = [{"call": "import", "ms": 900.0}, {"call": "matmul", "us": 7.94}, {"call": "torch.mm", "us": 16.0}]
    shown = tables.summary({"overhead-h200": ({**HOST, "suite": "overhead"}, rows)})
    assert "`matmul` 7.9, `torch.mm` 16.0." in shown and "import" not in shown
