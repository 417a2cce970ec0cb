"""What came of mutants, as it is kept, and the table of it (benchmarks.mutation)."""

from __future__ import annotations

import collections
import hashlib
import json
import subprocess
import time
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.mutation_reasons import BLIND, IDLE, REVIEW, SAME, Rule, reason
from tensorladder.measure import bench
from tensorladder.rungs.rung import catalog

Record = dict[str, Any]

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "mutation.jsonl"
#: what decides what is found in a mutant, in the package
JUDGES = ("vgpu/ptx", "vgpu/codegen", "vgpu/machine", "vgpu/check", "zoo/mutate.py")
AIM = 0.95
COLUMNS = (
    "rung", "mutants", "not run", "no effect", "harmful", "error", "review", "unseen", "error share", "found share",
    "unexplained",
)  # fmt: skip


# ---------------------------------------------------------------- what is kept
@cache
def judged_by() -> str:
    """A digest of the source of what judges mutants."""
    made = hashlib.sha256()
    for place in (ROOT / "tensorladder" / name for name in JUDGES):
        for path in sorted(place.glob("*.py")) if place.is_dir() else [place]:
            made.update(path.read_bytes())
    return made.hexdigest()[:12]


def _commit() -> str:
    """The last commit of the package, "+" where the tree differs from it; "" outside of a repository."""
    git = ["git", "-C", str(ROOT)]
    last = subprocess.run(
        [*git, "log", "-1", "--format=%h", "--", "tensorladder"], capture_output=True, text=True, check=False
    )
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "tensorladder"], capture_output=True, check=False)
    return last.stdout.strip() + ("+" if changed.returncode == 1 else "")


def kept() -> list[Record]:
    return bench.read(RESULTS)[1] if RESULTS.exists() else []


def stale() -> list[str]:
    """The rungs that are not kept, or were judged by another checker's source."""
    of_this = {r["rung"] for r in kept() if r["fate"] == "flagged" and r.get("checker") == judged_by()}
    return [rung.name for rung in catalog() if rung.name not in of_this]


def keep(head: Mapping[str, Any], found: Iterable[Record]) -> None:
    """A rung's mutants take the place of those kept before: a line for those flagged, and one for each other.

    head: the rung and at which shape and SMs. Of those flagged: how many each kind was found in, and how many each set
    of rules.
    """
    found = list(found)
    flagged = [record for record in found if record["fate"] == "flagged"]
    kinds = collections.Counter(kind for record in flagged for kind in record["kinds"])
    rules = collections.Counter(" ".join(record["rules"]) for record in flagged)
    taken = {"when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "commit": _commit(), "checker": judged_by()}
    said = {"kinds": dict(sorted(kinds.items())), "rules": dict(sorted(rules.items()))}
    lines: list[Record] = [{**head, "fate": "flagged", "mutants": len(flagged), **said, **taken}]
    for record in found:
        if record["fate"] != "flagged":
            lines.append({key: value for key, value in record.items() if key not in ("shape", "sm_count", "seconds")})
    others = [record for record in kept() if record["rung"] != head["rung"]]
    made = sorted([*others, *lines], key=lambda record: record["rung"])
    bench.keep(RESULTS, bench.emulator("mutation"), made)


# ---------------------------------------------------------------- its table
def row(name: str, of: list[Record]) -> Record:
    """A rung's line of the table.

    not run: what is changed is not executed at the shape; harmful: of the others, all but what has no effect; unseen:
    of those, nothing was found.
    """
    count: collections.Counter[str] = collections.Counter()
    for record in of:
        if record["fate"] == "flagged":
            count["error"] += record.get("mutants", 1)
            continue
        if record["fate"] == "not run":
            count["not run"] += 1
            continue
        rule = reason(record)
        count["unexplained"] += rule is None
        harmless = rule is not None and rule.effect in (SAME, IDLE)
        count["no effect" if harmless else "review" if record["fate"] == "review" else "unseen"] += 1
    count["harmful"] = count["error"] + count["review"] + count["unseen"]
    count["mutants"] = count["harmful"] + count["no effect"] + count["not run"]
    made = {"rung": name, **_shares(count)}
    return {key: made.get(key, count[key]) for key in COLUMNS}


def _shares(count: Mapping[str, int]) -> dict[str, str]:
    """Of the harmful mutants, those with an error, and those with any finding ("" where there are none)."""
    found = {"error share": count["error"], "found share": count["error"] + count["review"]}
    return {key: f"{n / count['harmful']:.3f}" if count["harmful"] else "" for key, n in found.items()}


def total(rows: Iterable[Record]) -> Record:
    rows = list(rows)
    count = {key: sum(one[key] for one in rows) for key in COLUMNS if isinstance(rows[0][key], int)}
    made = {"rung": "all", **count, **_shares(count)}
    return {key: made[key] for key in COLUMNS}


def summary(as_json: bool) -> int:
    """Print the table of what is kept, and why what is no error is none; 1 where that is not said of a mutant, or a
    rung is not kept."""
    by: dict[str, list[Record]] = collections.defaultdict(list)
    for record in kept():
        by[record["rung"]].append(record)
    heads = {name: next(r for r in of if r["fate"] == "flagged") for name, of in by.items()}
    rows = [row(name, of) for name, of in by.items()]
    shown = [{**one, **_taken(heads[one["rung"]])} for one in rows if one["mutants"]]
    bare = [one["rung"] for one in rows if not one["mutants"]]
    absent = [rung.name for rung in catalog() if rung.name not in by]
    rest = [(record, reason(record)) for of in by.values() for record in of if record["fate"] != "flagged"]
    left = [record for record, why in rest if why is None]
    whole = total(rows)
    if as_json:
        for one in [*shown, {**whole, "nothing to change": bare, "not kept": absent}]:
            print(json.dumps(one))
        return 1 if left or absent else 0
    print(" | ".join([*COLUMNS, "taken"]))
    for one in shown:
        print(" | ".join(str(one[key]) for key in COLUMNS), f"{one['when']} {one['commit']}", sep=" | ")
    print(" | ".join(str(whole[key]) for key in COLUMNS))
    _say_what_is_left_out(bare, absent, [one["rung"] for one in shown if one["stale"]])
    _say_shares(whole)
    _say_rules(heads.values())
    print("\nWhat no error is found in, and why:")
    for (effect, why), count in collections.Counter((w.effect, w.why) for _, w in rest if w).most_common():
        print(f"{count:5}  {effect}: {why}")
    _say_who_is_below(rows, rest)
    wrong = [record for record, _ in rest if record["wrong"]]
    known = sum(why is not None for record, why in rest if record["wrong"])
    print(f"\n{len(wrong)} with a wrong result or a hang and no error, {known} of them for a reason above; "
          f"{len(left)} not explained")  # fmt: skip
    for record in left:
        print(line_of(record))
    return 1 if left or absent else 0


def _taken(head: Record) -> Record:
    """When a rung's rows were taken, of which commit, and whether the checker's source is another one by now."""
    return {"when": head.get("when", ""), "commit": head.get("commit", ""), "stale": head.get("checker") != judged_by()}


def _say_what_is_left_out(bare: list[str], absent: list[str], stale: list[str]) -> None:
    if bare:
        print(f"\nNothing to change ({len(bare)}): no barrier, fence, wait, arrival or commit in the PTX of", *bare)
    if absent:
        print(f"\nNot kept ({len(absent)}); `python -m benchmarks.mutation --keep` with", *absent)
    if stale:
        print(
            f"\nTaken with another checker than this tree's ({len(stale)} of the rungs; digest of its source):", *stale
        )


def _say_shares(whole: Record) -> None:
    shares = [f"{100 * float(whole[key]):.1f} %" for key in ("error share", "found share")]
    print(
        f"\nOf {whole['harmful']} harmful mutants {whole['error']} are an error ({shares[0]}), "
        f"{whole['error'] + whole['review']} any finding ({shares[1]}); the others have their reasons below"
    )


def _say_rules(heads: Iterable[Record]) -> None:
    """In how many flagged mutants, under the first schedule with an error, each rule was found, and in how many no
    other."""
    found, alone = collections.Counter[str](), collections.Counter[str]()
    for rules, count in (pair for head in heads for pair in head.get("rules", {}).items()):
        names = rules.split()
        found.update(dict.fromkeys(names, count))
        if len(names) == 1:
            alone[names[0]] += count
    print("\nErrors by the checker's rule: mutants that it is found in, those that nothing else is found in:")
    for name, count in found.most_common():
        print(f"{count:5} {alone[name]:5}  {name}")


def _say_who_is_below(rows: list[Record], rest: list[tuple[Record, Rule | None]]) -> None:
    """Of each rung below the aim: the harmful mutants that are no error, one by one."""
    for one in rows:
        if not one["error share"] or float(one["error share"]) >= AIM:
            continue
        print(f"\n{one['rung']}: {one['error']} of {one['harmful']} an error; the others:")
        for record, why in rest:
            if record["rung"] == one["rung"] and (why is None or why.effect in (REVIEW, BLIND)):
                print("  ", line_of(record))


def line_of(record: Record) -> str:
    place = f"{record['file']}:{record['line']} PTX {record['ptx_line']}"
    why = reason(record)
    text = " ".join([*record["kinds"], record["wrong"], why.why if why else "not explained"]).strip()
    what = f"{record['op']} {record['change']}"
    return f"{record['rung']:24} {record['fate']:8} {place}  {what}: {text}  [{record['code'][:70]}]"
