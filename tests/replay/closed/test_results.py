"""Figures of closed-loop runs from rows made by hand, the model that is too weak, and what a profile takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvmill.errors import UserError
from kvmill.replay.profiles import profiles
from kvmill.replay.recommend import recommend
from kvmill.replay.report import summary_text
from kvmill.replay.results import find_run, summary
from kvmill.traces.store import Store

TE = "te(proxy=assistant,delay=1,keep=0.2)"
CONFIG = {"model": "m", "policies": ["full", TE], "mode": "closed", "seed_turns": 2, "max_turns": None}
ASKED = {"actions": {"samples": "samples"}, "temperature": 0.0, "max_action_tokens": 128}
# By trajectory (turns, end) under full and under te; each was recorded with 10 turns.
RUNS = {
    "a": ((10, "answered"), (15, "answered")),
    "b": ((10, "answered"), (24, "turn_limit")),
    "c": ((8, "answered"), (5, "no_action")),
    "d": ((24, "turn_limit"), (9, "answered")),
}
Ends = Mapping[str, Sequence[tuple[int, str]]]


def cell(trajectory: str, i: int, turns: int, end: str) -> dict[str, Any]:
    key = {"cell_id": f"{trajectory}-{i}", "trajectory_id": trajectory, "family": "f", "policy": ("full", TE)[i]}
    same = {**key, "measure": "quality", "mode": "closed"}
    if end == "failed":
        return {**same, "status": "failed", "error": "it broke"}
    return {
        **same,
        "status": "ok",
        "end_reason": end,
        "turns": turns,
        "seed_turns": 2,
        "recorded_turns": 10,
        "generated_tokens": 100 * turns,
        "calls": 8,
        "calls_exact": 4,
        "calls_searched": 2,
        "calls_error": 2,
        "repeated_calls": 2 + 2 * i,
        "searches": 5,
        "repeated_searches": 1,
        "near_repeats": 1 + 2 * i,
        "answer_score": float(end == "answered"),
        "answer_correct": end == "answered",
        "kv_tokens_peak": 500.0 - 300 * i,
    }


def closed(where: Path | Store, runs: Ends = RUNS, model: str = "m") -> Store:
    store = where if isinstance(where, Store) else Store.open(where)
    run = store.begin("replay", CONFIG | ASKED | {"model": model}, device="cpu")
    rows = [cell(name, i, *ends[i]) for name, ends in runs.items() for i in range(2)]
    run.add({"cells": rows}, key="all")
    run.finish()
    return store


def teacher(store: Store, model: str = "m") -> str:
    run = store.begin("replay", {"model": model, "policies": ["full", TE], "mode": "teacher"}, device="cpu")
    rows = [
        {
            "cell_id": f"t{n}-{i}",
            "trajectory_id": f"t{n}",
            "family": "f",
            "policy": ("full", TE)[i],
            "measure": "quality",
            "status": "ok",
            "probes": 8,
            "answer_accuracy": (0.75, 0.5)[i],
            "kv_tokens_peak": (500.0, 200.0)[i],
        }
        for n in range(3)
        for i in range(2)
    ]
    run.add({"cells": rows}, key="all")
    run.finish()
    return run.id


def test_every_figure_is_that_of_the_rows(tmp_path: Path) -> None:
    found = summary(closed(tmp_path))
    full, te = found["policies"]
    assert (full["turns_mean"], te["turns_mean"]) == (13, 13.25)
    assert full["end_reasons"] == {"answered": 3, "turn_limit": 1}
    assert te["end_reasons"] == {"answered": 2, "no_action": 1, "turn_limit": 1}
    assert (te["answered"], te["closed_accuracy"], te["closed_n"], te["closed_difference"]) == (0.5, 0.5, 4, -0.25)
    assert (te["searches"], te["repeated_searches"], te["near_repeats"]) == (5, 1 / 5, 3 / 5)
    assert (te["calls"], te["calls_exact"], te["calls_searched"], te["tool_errors"]) == (8, 1 / 2, 1 / 4, 1 / 4)
    assert (te["repeated_calls"], full["repeated_calls"]) == (1 / 2, 1 / 4)
    assert te["tokens_generated"] == 1325
    assert te["extra_turns_recorded"] == pytest.approx(53 / 40 - 1)
    assert (found["mode"], found["seed_turns"], found["max_turns"], found["model_too_weak"]) == (
        "closed",
        2,
        None,
        None,
    )


def test_extra_turns_are_of_pairs_that_tell(tmp_path: Path) -> None:
    full, te = summary(closed(tmp_path))["policies"]
    # a: 15 of 10, b: at least 24 of 10, d: 9 of at least 24; te broke off in c.
    assert te["extra_turns"] == pytest.approx(48 / 44 - 1)
    assert (te["extra_turns_n"], te["extra_turns_of"], te["extra_turns_cut"]) == (3, 4, 2)
    assert full["extra_turns"] is full["extra_turns_n"] is full["extra_turns_of"] is None


@pytest.mark.parametrize(
    ("mine", "theirs", "growth"),
    [
        ((12, "answered"), (10, "answered"), 0.2),
        ((14, "window"), (10, "answered"), 0.4),
        ((10, "window"), (10, "answered"), 0.0),
        ((9, "window"), (10, "answered"), None),
        ((10, "answered"), (14, "window"), 10 / 14 - 1),
        ((10, "answered"), (9, "window"), None),
        ((24, "turn_limit"), (24, "turn_limit"), None),
        ((24, "turn_limit"), (9, "window"), None),
        ((3, "no_action"), (10, "answered"), None),
        ((10, "answered"), (3, "no_action"), None),
        ((3, "no_action"), (3, "no_action"), None),
    ],
)
def test_a_pair_tells_if_one_answered_and_the_other_was_still_there(
    tmp_path: Path, mine: tuple[int, str], theirs: tuple[int, str], growth: float | None
) -> None:
    te = summary(closed(tmp_path, {"a": (theirs, mine)}))["policies"][1]
    assert te["extra_turns"] == (None if growth is None else pytest.approx(growth))
    assert te["extra_turns_n"] == (growth is not None)


def test_a_policy_that_changes_nothing_shows_no_extra_turns(tmp_path: Path) -> None:
    """Two runs of every kind, once each way round: whatever is the policy's is full's, too."""
    kinds = [(10, "answered"), (16, "answered"), (24, "turn_limit"), (20, "window"), (5, "no_action")]
    runs = {f"{i}{j}": (one, other) for i, one in enumerate(kinds) for j, other in enumerate(kinds)}
    te = summary(closed(tmp_path, runs))["policies"][1]
    assert (te["extra_turns"], te["extra_turns_n"], te["extra_turns_cut"]) == (0, 12, 8)
    assert te["extra_turns_low"] < 0 < te["extra_turns_high"]


def test_other_modes_have_none_of_it(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    teacher(store)
    found = summary(store)
    names = (
        "turns_mean",
        "extra_turns",
        "searches",
        "near_repeats",
        "tokens_generated",
        "end_reasons",
        "closed_accuracy",
    )
    assert {entry[name] for entry in found["policies"] for name in names} == {None}
    assert found["model_too_weak"] is None
    assert "extra turns" not in summary_text(found)


def test_families_have_their_own_figures(tmp_path: Path) -> None:
    found = summary(closed(tmp_path), by="family")
    assert [group["turns_mean"] for group in found["groups"]] == [13, 13.25]
    assert "extra turns (95 %)" in summary_text(found)
    assert summary(closed(tmp_path), by="turn")["groups"] == []


def test_the_text_leads_with_behaviour(tmp_path: Path) -> None:
    text = summary_text(summary(closed(tmp_path)))
    assert "closed-loop replay (2 recorded turns first, at most twice the recorded turns and 4; actions: greedy" in text
    assert "+9% (-62% to +140%), 3 pairs" in text
    assert "answered 2, no_action 1, turn_limit 1" in text
    assert "ΔNLL" not in text
    assert "too weak" not in text


WEAK: Ends = {name: ((9, "no_action" if name < "c" else "failed"), (12, "answered")) for name in "abc"} | {
    "d": ((10, "answered"), (20, "answered"))
}


def test_a_model_that_does_not_answer_itself_is_too_weak(tmp_path: Path) -> None:
    store = closed(tmp_path, WEAK)
    found = summary(store)
    why = "model too weak: full itself ended without an answer in 3 of 4 runs (failed 1, no_action 2)"
    assert str(found["model_too_weak"]).startswith(why)
    assert why in summary_text(found)
    assert found["policies"][1]["extra_turns"] == 1, "the figure is there, marked"
    profile = profiles(store)[TE]
    assert (profile.extra_turns, profile.answer_accuracy, profile.n) == (None, None, 0)
    assert profile.extra_turns_source.endswith("with m: model too weak")


def test_however_many_pairs_tell_a_model_that_is_too_weak_enters_no_profile(tmp_path: Path) -> None:
    weak = {f"w{n}": ((24, "turn_limit"), (9, "no_action")) for n in range(11)}
    store = closed(tmp_path, {**many(), **weak})
    assert summary(store)["policies"][1]["extra_turns_n"] == 10
    assert profiles(store)[TE].extra_turns is None


def test_half_without_an_answer_is_not_more_than_half(tmp_path: Path) -> None:
    half = {"a": ((9, "no_action"), (9, "answered")), "b": ((10, "answered"), (12, "answered"))}
    assert summary(closed(tmp_path, half))["model_too_weak"] is None


def many(turns: int = 20, pairs: int = 10) -> Ends:
    """Ten answered turns under full; half of te's runs take as many, the others `turns`, the last cut if more."""
    runs = {f"t{n}": ((10, "answered"), (turns if n % 2 else 10, "answered")) for n in range(pairs)}
    return {**runs, f"t{pairs - 1}": ((10, "answered"), (turns, "turn_limit" if turns > 10 else "answered"))}


def test_a_profile_joins_quality_and_turns_of_two_runs_of_one_model(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    quality = teacher(store)
    assert profiles(store)[TE].extra_turns is None
    closed(store, many())
    newest = find_run(store).run_id
    closed(store, many(90), model="another")
    profile = profiles(store)[TE]
    assert (profile.run, profile.n, profile.answer_accuracy) == (quality, 3, 0.5)
    assert profile.extra_turns == pytest.approx(0.5)
    assert profile.extra_turns_source.startswith(f"closed-loop run {newest} with m: +50% turns, 95 % interval +20% to")
    assert profile.extra_turns_source.endswith("10 of 10 pairs with full tell, 1 of them cut at a limit")
    full = profiles(store)["full"]
    assert (full.extra_turns, full.extra_turns_source) == (0, "none by definition: full is the reference")
    assert profiles(store, newest)[TE].extra_turns == pytest.approx(0.5)
    assert profiles(store, newest)[TE].run == quality, "a closed loop measures the agent, not the cache"


def test_a_closed_run_alone_gives_turns_and_no_quality(tmp_path: Path) -> None:
    profile = profiles(closed(tmp_path, many()))[TE]
    assert (profile.run, profile.model, profile.answer_accuracy, profile.n) == (None, None, None, 0)
    assert profile.extra_turns == pytest.approx(0.5)


def test_nine_pairs_are_too_few_for_a_profile(tmp_path: Path) -> None:
    store = closed(tmp_path, many(pairs=9))
    profile = profiles(store)[TE]
    assert profile.extra_turns is None
    assert profile.extra_turns_source == (
        f"assumed none: closed-loop run {find_run(store).run_id} with m: 9 of 9 pairs with full tell, fewer than 10"
    )


def test_fewer_turns_count_as_none(tmp_path: Path) -> None:
    profile = profiles(closed(tmp_path, many(6)))[TE]
    assert profile.extra_turns == 0
    assert "with m: -20% turns" in profile.extra_turns_source
    assert profile.extra_turns_source.endswith(", counted as none")


def test_what_reads_recorded_turns_passes_closed_runs_over(tmp_path: Path) -> None:
    store = closed(tmp_path)
    with pytest.raises(UserError, match=r"run `kvmill replay` first$"):
        recommend(store)
    with pytest.raises(UserError, match="is a closed-loop run: name one of --mode teacher or stepwise"):
        recommend(store, find_run(store).run_id)
    run = teacher(store)
    closed(store)
    assert recommend(store)["run"] == run
