"""What is kept of mutants says of each one why it is no error, and the table counts as it says."""

from __future__ import annotations

from benchmarks import mutation_table as table
from benchmarks.mutation_reasons import reason

HEAD = {"rung": "d9", "shape": [1], "sm_count": None}
MUTANT = {
    **HEAD, "op": "bar.sync", "change": "removed", "ptx_line": 1, "file": "d9.py", "line": 1, "code": "", "kinds": [],
    "rules": [], "wrong": "",
}  # fmt: skip


def mutant(fate: str, **more: object) -> table.Record:
    return {**MUTANT, "fate": fate, **more}


def test_no_kept_mutant_is_without_its_reason() -> None:
    kept = [record for record in table.kept() if record["fate"] != "flagged"]
    assert kept and not [table.line_of(r) for r in kept if reason(r) is None]


def test_most_harmful_mutants_are_an_error() -> None:
    by = {record["rung"]: [] for record in table.kept()}
    for record in table.kept():
        by[record["rung"]].append(record)
    assert float(table.total(table.row(name, of) for name, of in by.items())["error share"]) >= table.AIM


def test_what_is_not_run_is_neither_harmful_nor_harmless() -> None:
    found = [
        mutant("flagged", kinds=["race"]),
        mutant("not run"),
        mutant("right", change="doubled"),  # all meet twice
        mutant("review", op="tcgen05.fence::after_thread_sync", kinds=["tcgen05-order"]),
        mutant("right"),  # nobody has said why
    ]
    made = table.row("d9", found)
    assert made == {
        "rung": "d9", "mutants": 5, "not run": 1, "no effect": 1, "harmful": 3, "error": 1, "review": 1, "unseen": 1,
        "error share": "0.333", "found share": "0.667", "unexplained": 1,
    }  # fmt: skip


def test_no_reason_excuses_a_wrong_result_but_of_a_store_after_the_exit() -> None:
    assert reason(mutant("right", change="doubled")) is not None
    wrong = {"op": "cp.async.bulk.wait_group.read", "wrong": "lazy: C differs"}
    assert reason(mutant("unseen", change="doubled", **wrong)) is None
    assert reason(mutant("review", rules=["STORE_AT_EXIT"], **wrong)) is not None
    assert reason(mutant("review", rules=["RACE_SAME"], **wrong)) is None


def test_a_rung_takes_the_place_of_what_was_kept_of_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(table, "RESULTS", tmp_path / "mutation.jsonl")
    table.keep({**HEAD, "rung": "a1"}, [])  # nothing to change
    flagged = mutant("flagged", kinds=["race"], rules=["RACE_WR", "RACE_WW"])
    for found in ([mutant("right")], [flagged, mutant("not run")]):
        table.keep(HEAD, found)
    bare, head, other = table.kept()
    assert (bare["rung"], bare["mutants"]) == ("a1", 0)
    assert (head["mutants"], head["kinds"], head["rules"]) == (1, {"race": 1}, {"RACE_WR RACE_WW": 1})
    assert head["checker"] == table.judged_by()
    assert other["fate"] == "not run"
