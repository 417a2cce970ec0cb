"""Times of the candidates that the ops choose from, what is learnt of them, and how good the choice is.

`python -m benchmarks.choice pack DIR` compiles the candidates, with no GPU. `run DIR SHAPES --results FILE` times on a
GPU (`benchmarks.choice_times`) at the shapes of a text file (M N K a line, and a form as `pack --form` takes it, bf16
without): those that are expected to take up to 1.4 times the best; with --tune also what `tune=True` takes. `fit`
makes the package's trees (`ops.learnt`) anew from the kept times (needs catboost). `judge [FILE]` says what the choice
takes of the best time at the shapes of a file (the kept times without one), by the model alone and with the trees;
`judge --folds 5` with trees that have not seen the N and K of a shape (needs catboost). Of a file with times of kernels
alone, at their own clocks, it says what the choice takes alone and in turns, of torch's times.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tensorladder.core.errors import MissingExtra, TensorladderError
from tensorladder.core.pipes import piped
from tensorladder.measure import pack as packs
from tensorladder.ops import learnt, packing
from tensorladder.ops.choose import energy_counts, fitting, order, predicted, rank
from tensorladder.ops.kernels import Choice, Product, choice
from tensorladder.ops.learnt import answers, trees
from tensorladder.ops.models import MODELS, shared_traffic
from tensorladder.ops.packs import spell
from tensorladder.rungs.parts.form import Form

ARCH = "sm_90a"
SMS, PLAIN = learnt.SMS, learnt.PLAIN
KEPT = Path(__file__).parents[1] / "tests" / "data" / "silicon" / "choice_h200.jsonl"
FRESH = KEPT.with_name("choice_fresh_h200.jsonl")  # shapes that nothing is fitted to
ALONE = KEPT.with_name("choice_alone_h200.jsonl")  # large ones, with times of kernels alone
TREES = Path(learnt.__file__).with_name(learnt.FILE)
CANDIDATES = tuple(one for name in ("c7", "c8") for one in MODELS[name].candidates)
WORTH = 1.4  # times the best that is expected: what may take longer is not timed
SETTINGS = {"iterations": 1000, "learning_rate": 0.12, "depth": 6, "rsm": 0.5, "random_seed": 0, "thread_count": 1}
WEIGHT = 2.0  # in a fit, what takes x times the best counts x ** -WEIGHT: it will hardly be chosen
UNSURE = 0.5  # what was looked at only counts so much

Timed = Mapping[Choice, float]


class At(NamedTuple):
    """Microseconds at a product. us: of candidates that were timed in turns; first: of others, by a first look. tuned:
    what `tune=True` took, where that was asked. alone: of candidates at their own clocks; torch: of torch.mm in turns,
    and alone."""

    us: Timed
    first: Timed
    tuned: Choice | None
    alone: Timed
    torch: tuple[float, float] | None


Times = Mapping[Product, At]


def read(path: Path) -> Times:
    """A recording: after facts, a line a candidate, then a line a shape, with microseconds by candidates' numbers."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    made = [choice(one["kernel"], **_knobs(one["knobs"])) for one in lines if "kernel" in one]

    def by_choice(us: Mapping[str, float]) -> Timed:
        return {made[int(at)]: took for at, took in us.items()}

    return {
        _product(*one["shape"], one.get("form", "bf16")): At(
            by_choice(one["us"]), by_choice(one.get("first", {})), made[one["tuned"]] if "tuned" in one else None,
            by_choice(one.get("alone", {})), one.get("torch"),
        )
        for one in lines if "shape" in one
    }  # fmt: skip


def _knobs(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _product(m: int | str, n: int | str, k: int | str, form: str = "bf16") -> Product:
    return Product(int(m), int(n), int(k), 1, packing.parse_form(form))


def make(folder: Path, forms: Sequence[Form]) -> str:
    """Write the pack; a line on it."""
    wanted = [packing.Wanted(form, one, SMS) for form in forms for one in _fitting(form)]
    made = [packing.make(ARCH, one) for one in wanted]
    size = packing.write(folder, ARCH, made, packs.made_with())
    return f"{folder}: {len(made)} kernels, {size >> 10} KiB"


def _fitting(form: Form) -> list[Choice]:
    return [one for name in ("c7", "c8") for one in fitting(name, form)]


def record(folder: Path, products: Sequence[Product], tune: bool) -> Iterator[dict[str, Any]]:
    """The lines of a recording. tune: say what `tune=True` takes, too."""
    import torch

    from benchmarks import choice_times
    from tensorladder.ops import packs as packed
    from tensorladder.silicon import driver

    os.environ[packed.VARIABLE] = str(folder)
    torch.zeros(1, device="cuda")
    driver.use_context(0)
    known = torch.cuda.get_device_properties(0)
    yield {"gpu": known.name, "sms": known.multi_processor_count, "torch": torch.__version__}
    for one in CANDIDATES:
        yield {"kernel": one.kernel, "knobs": dict(one.knobs)}
    number = {one: at for at, one in enumerate(CANDIDATES)}
    for product in products:
        fits = _fitting(product.form)
        us = dict(zip(fits, predicted(fits, product, SMS)))
        worth = [one for one in sorted(us, key=us.__getitem__) if us[one] <= WORTH * min(us.values())]
        tuned = [choice_times.tuned(product)] if tune else []
        worth = list(dict.fromkeys([*worth, *tuned]))
        first, us = choice_times.times(product, worth, tuned)
        line: dict[str, Any] = {"shape": list(product[:3])}
        if product.form != PLAIN:
            line["form"] = spell(product.form)
        if tuned:
            line["tuned"] = number[tuned[0]]
        for name, took in (("us", us), ("first", first)):
            line[name] = {str(number[one]): _short(each) for one, each in took.items()}
        yield line


def _short(us: float) -> float:
    return float(f"{us:.4g}")


# --------------------------------------------------------------------------------------------------------- the trees


class Rows(NamedTuple):
    """What is known, a row a candidate at a product. product: its number. names: of x's columns, the features. off:
    logarithms of the times as long that it took, than the model says; slow: and than the fastest. sure: whether it was
    timed in turns. traffic: as `choose.order` takes it, alike where energy does not count."""

    product: np.ndarray
    names: tuple[str, ...]
    x: np.ndarray
    off: np.ndarray
    slow: np.ndarray
    sure: np.ndarray
    traffic: np.ndarray


def rows(times: Times) -> Rows:
    """All of a recording."""
    given, found = [], []
    for number, (product, at) in enumerate(times.items()):
        best = min(at.us.values())
        for one, took in {**at.first, **at.us}.items():
            work = MODELS[one.kernel].work(dict(one.knobs), product, SMS)
            given.append(learnt.features(one.knobs, product, work))
            traffic = shared_traffic(dict(one.knobs)) if energy_counts(product, SMS) else 1.0
            found.append((number, math.log(took / work.us), math.log(took / best), one in at.us, traffic))
    number, off, slow, sure, through = (np.array(column) for column in zip(*found))
    names = tuple(given[0])
    return Rows(number, names, learnt.table(given, names), off, slow, sure, through)


def fit(known: Rows, use: np.ndarray | slice = slice(None)) -> dict[str, Any]:
    """Trees as `learnt.made_of` reads them, of some rows. MissingExtra without CatBoost."""
    try:
        from catboost import CatBoostRegressor
    except ModuleNotFoundError:
        raise MissingExtra("catboost (fits the trees)", "fit") from None
    model = CatBoostRegressor(**SETTINGS, verbose=0, allow_writing_files=False)
    weights = np.exp(-WEIGHT * known.slow) * np.where(known.sure, 1.0, UNSURE)
    model.fit(known.x[use], known.off[use], sample_weight=weights[use])
    with tempfile.TemporaryDirectory() as folder:
        model.save_model(f"{folder}/trees.json", format="json")
        made = json.loads(Path(f"{folder}/trees.json").read_text())
    return {"features": known.names, "trees": list(_trees(made))}


def _trees(made: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Trees of as many levels each: a border that nothing is greater than where one has fewer."""
    scale, (bias,) = made["scale_and_bias"]
    levels = SETTINGS["depth"]
    for number, tree in enumerate(made["oblivious_trees"]):
        asked = [(one["float_feature_index"], float(f"{one['border']:.9g}")) for one in tree["splits"]]
        leaves = [round(learnt.PARTS * (scale * one + bias * (not number))) for one in tree["leaf_values"]]
        asked += [(0, learnt.NEVER)] * (levels - len(asked))
        yield {
            "number": [one for one, _ in asked], "border": [border for _, border in asked],
            "leaves": leaves + [0] * (2**levels - len(leaves)),
        }  # fmt: skip


# --------------------------------------------------------------------------------------------------------- judgement


def regrets(known: Rows, off: np.ndarray | float = 0.0) -> np.ndarray:
    """Times as long as the fastest of the candidates that were timed, that takes what would be chosen of them, a
    product. off: logarithms of what a row's model is corrected by."""
    model = known.slow - known.off  # less the logarithm of the fastest's time
    begins = np.flatnonzero(np.diff(known.product, prepend=-1))
    worth = np.minimum.reduceat(model, begins)[known.product] + math.log(learnt.WORTH)
    thought = np.where(model <= worth, np.exp(model + off), np.inf)
    rate = 2 ** (known.x[:, known.names.index("flops")] - known.x[:, known.names.index("us")]) / np.exp(off)
    first = []
    for begin, us in zip(begins, np.split(thought, begins[1:])):
        traffic = known.traffic[begin : begin + len(us)]
        first.append(begin + order(us, traffic, rate[begin + us.argmin()])[0])
    return np.exp(known.slow[first])


def unseen(known: Rows, products: Sequence[Product], folds: int) -> np.ndarray:
    """`regrets`' off by trees that have seen no shape of the same N and K. MissingExtra without CatBoost."""
    places = sorted({(one.n, one.k) for one in products})
    fold = dict(zip(places, np.random.default_rng(0).permutation(len(places)) % folds))
    of = np.array([fold[one.n, one.k] for one in products])[known.product]
    made = np.zeros(len(of))
    for number in range(folds):
        made[of == number] = answers(known.x[of == number], learnt.made_of(fit(known, of != number)))
    return made


def said(name: str, found: np.ndarray, products: Sequence[Product]) -> str:
    """A line on regrets."""
    mean, worst = np.exp(np.log(found).mean()), products[int(found.argmax())]
    return (
        f"{name}: {mean:.4f} of the best time (geometric mean of {len(found)}), "
        f"more than 1.1 at {(found > 1.1).sum()}, at most {found.max():.3f} at "
        f"{' x '.join(map(str, worst[:3]))} ({spell(worst.form)})"
    )


def of_torch(product: Product, at: At, power: bool) -> tuple[float, float]:
    """What is chosen of the candidates that were timed alone takes of torch's time, alone and in turns. power: whether
    what they take of it counts."""
    ranked = rank(*product, SMS)
    us = dict(zip(ranked, predicted(ranked, product, SMS)))
    first = next(one for one in (ranked if power else sorted(us, key=us.__getitem__)) if one in at.alone)
    turns, alone = at.torch or (math.nan, math.nan)
    return at.alone[first] / alone, at.us[first] / turns


def judge(path: Path, folds: int) -> Iterator[str]:
    """A line for each way to choose, and on the times of `tune=True` where those were taken."""
    times = read(path)
    if all(at.alone and at.torch for at in times.values()):
        for name, power in (("the choice", True), ("the fastest in turns", False)):
            ratios = np.array([of_torch(product, at, power) for product, at in times.items()])
            alone, turns = np.exp(np.log(ratios).mean(axis=0))
            yield f"{name}: {alone:.3f} of torch's time alone (at most {ratios[:, 0].max():.3f}), {turns:.3f} in turns"
        return
    known, products = rows(times), list(times)
    yield said("the model alone", regrets(known), products)
    if folds:
        yield said(f"with trees of {folds} folds", regrets(known, unseen(known, products, folds)), products)
    chosen = regrets(known, answers(known.x, trees()))
    yield said("the choice", chosen, products)
    if all(at.tuned for at in times.values()):
        tuned = [at.us[at.tuned] / min(at.us.values()) for at in times.values() if at.tuned]
        yield said("the choice", chosen / np.array(tuned), products).replace("best", "tuned", 1)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.choice", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    pack = verbs.add_parser("pack")
    pack.add_argument("folder", type=Path)
    pack.add_argument("--form", action="append")
    run = verbs.add_parser("run")
    run.add_argument("folder", type=Path)
    run.add_argument("shapes", type=Path)
    run.add_argument("--results", type=Path, required=True)
    run.add_argument("--tune", action="store_true")
    verbs.add_parser("fit")
    asked = verbs.add_parser("judge")
    asked.add_argument("file", type=Path, nargs="?", default=KEPT)
    asked.add_argument("--folds", type=int, default=0)
    try:
        do(parser.parse_args(argv))
    except TensorladderError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def do(asked: argparse.Namespace) -> None:
    """A verb."""
    if asked.verb == "pack":
        print(make(asked.folder, [packing.parse_form(form) for form in asked.form or ["bf16"]]))
    elif asked.verb == "judge":
        for line in judge(asked.file, asked.folds):
            print(line)
    elif asked.verb == "fit":
        TREES.write_text(json.dumps(fit(rows(read(KEPT))), separators=(",", ":")) + "\n")
    else:
        lines = [line.split() for line in asked.shapes.read_text().splitlines() if line and line[0] != "#"]
        with asked.results.open("w") as file:
            for one in record(asked.folder, [_product(*line) for line in lines], asked.tune):
                print(json.dumps(one), file=file, flush=True)


if __name__ == "__main__":
    sys.exit(piped(main))
