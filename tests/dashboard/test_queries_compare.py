"""What the page Compare asks: figures of the command line, and groups held against brute force."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import fabricate
import numpy as np
import pytest
from scipy import stats

from kvmill.dashboard import queries_compare as queries
from kvmill.errors import UserError
from kvmill.replay.recommend import recommend
from kvmill.replay.results import summary
from kvmill.traces.store import Store


def uneven(store: Store, trajectories: int = 30, seed: int = 1) -> tuple[str, list[dict[str, Any]]]:
    """A run whose trajectories have between one and nine probes of two ages; its id and its probes."""
    rng = np.random.default_rng(seed)
    run = store.begin("replay", {"model": "m", "policies": ["full"]})
    probes = [
        {"cell_id": f"c{n}", "trajectory_id": f"t{n}", "family": "ab"[n % 2], "policy": "full", "probe_id": f"{n}-{i}"}
        | {"age_turns": int(rng.choice([0, 5, 6, 8])), "correct": bool(rng.random() < 0.7), "answer_ll": -rng.random()}
        for n in range(trajectories)
        for i in range(int(rng.integers(1, 10)))
    ]
    run.add({"probes": probes}, key="probes")
    run.finish()
    return run.id, probes


def test_policies_are_those_of_the_command_line(tmp_path: Path):
    store = Store.open(tmp_path)
    run = fabricate.replay(store)
    assert queries.measured(store, run) == summary(store, run)
    assert queries.recommended(store, run) == recommend(store, run)


def test_what_was_remembered_is_dropped_when_the_run_changes(tmp_path: Path):
    store = Store.open(tmp_path)
    run = fabricate.replay(store)
    assert queries.measured(store, run)["policies"][0]["n"] == 4
    store.open_run(run).discard("cells", "trajectory_id", "t-0")
    assert queries.measured(store, run)["policies"][0]["n"] == 3


def test_closed_runs_come_after_recorded_ones_and_incomplete_ones_last(tmp_path: Path):
    store = Store.open(tmp_path)
    incomplete = fabricate.replay(store, state="incomplete")
    recorded = fabricate.replay(store)
    closed = store.begin("replay", {"model": "m", "policies": ["full"], "mode": "closed"})
    closed.add({"cells": [{"policy": "full", "status": "ok"}]}, key="a")
    closed.finish()
    store.begin("replay", {}).finish()
    assert queries.replays(store) == [recorded, closed.id, incomplete]
    assert queries.recommended(store, closed.id) is None


def test_ages_are_grouped_by_doubling(tmp_path: Path):
    store = Store.open(tmp_path)
    run, probes = uneven(store)
    found = {row["grp"]: row for row in queries.by_age(store, run, "answer_accuracy")}
    assert list(found) == ["0 turns", "5 to 8 turns"]
    old = [probe["correct"] for probe in probes if probe["age_turns"] >= 5]
    assert found["5 to 8 turns"]["value"] == pytest.approx(np.mean(old))
    assert found["5 to 8 turns"]["weight"] == len(old)


def test_the_interval_of_a_group_is_that_of_a_ratio_of_sums_with_trajectories_as_the_unit(tmp_path: Path):
    store = Store.open(tmp_path)
    run, probes = uneven(store)
    (found,) = [r for r in queries.by_age(store, run, "answer_ll") if r["grp"] == "5 to 8 turns"]
    sums: dict[str, list[float]] = {}
    for probe in probes:
        if probe["age_turns"] >= 5:
            sums.setdefault(probe["trajectory_id"], []).append(probe["answer_ll"])
    top, bottom = np.array([sum(v) for v in sums.values()]), np.array([len(v) for v in sums.values()])
    ratio, n = top.sum() / bottom.sum(), len(top)
    error = math.sqrt(n / (n - 1) * ((top - ratio * bottom) ** 2).sum()) / bottom.sum()
    assert (found["value"], found["n"]) == (pytest.approx(ratio), n)
    low, high = stats.t.interval(0.95, n - 1, ratio, error)
    assert (found["low"], found["high"]) == pytest.approx((low, high))


def test_an_interval_stays_within_what_is_possible_and_one_trajectory_has_none():
    row = {"value": 0.95, "error": 0.2, "n": 5}
    assert queries.with_interval(row, least=0.0, most=1.0)["high"] == 1.0
    assert queries.with_interval(row)["high"] > 1.0
    assert queries.with_interval(row | {"error": None})["low"] is None


def test_families_leave_out_those_that_are_hidden(tmp_path: Path):
    store = Store.open(tmp_path)
    run = fabricate.replay(store)
    found = queries.by_family(store, run, "answer_accuracy")
    assert {row["grp"] for row in found} == {"operations", "registry"}
    assert {row["value"] for row in found if row["policy"] == "full"} == {0.75}
    assert {row["grp"] for row in queries.by_family(store, run, "answer_accuracy", ["registry"])} == {"operations"}
    assert {row["grp"] for row in queries.by_age(store, run, "answer_accuracy", ["operations", "registry"])} == set()


def test_unknown_metrics_are_refused(tmp_path: Path):
    store = Store.open(tmp_path)
    run = fabricate.replay(store)
    with pytest.raises(UserError, match="Known: answer_accuracy"):
        queries.by_family(store, run, "1; drop table cells")
    with pytest.raises(UserError, match="Known: answer_accuracy"):
        queries.by_age(store, run, "nll")


def test_kv_over_turns_averages_trajectories_and_counts_turns_from_one(tmp_path: Path):
    store = fabricate.filled(tmp_path)
    run = queries.replays(store)[0]
    rows = {(row["policy"], row["turn"]): row for row in queries.kv_over_turns(store, run)}
    assert rows["full", 2]["kv_tokens"] == 280
    assert rows[fabricate.BOUNDARY, 1]["kv_tokens"] == rows[fabricate.BOUNDARY, 1]["kv_tokens_p90"] == 70
    assert rows[fabricate.BOUNDARY, 1]["trajectories"] == 4
    assert queries.kv_over_turns(store, "no-such-run") == []


def test_seconds_per_turn_leave_out_the_first_turn_and_add_up(tmp_path: Path):
    store = Store.open(tmp_path)
    run = store.begin("replay", {"model": "m", "policies": ["full"]})
    rows = [
        {"cell_id": name, "trajectory_id": name, "policy": "full", "measure": "latency", "turn": turn}
        | {"compaction_s": 0.1, "prefill_s": 0.2 * turn, "decode_s": 1.0, "ttft_s": 0.1 + 0.2 * turn}
        for name in ("a", "b")
        for turn in range(3)
    ]
    run.add({"turn_metrics": rows}, key="a")
    run.finish()
    (found,) = queries.latency_parts(store, run.id)
    assert (found["n"], found["turns"]) == (2, 4)
    assert found["turn_s"] == pytest.approx(found["compaction_s"] + found["prefill_s"] + found["decode_s"])
    assert found["turn_s"] == pytest.approx(0.1 + (0.2 + 0.4) / 2 + 1.0)
    assert [row["turn"] for row in queries.ttft_over_turns(store, run.id)] == [1, 2, 3]


def test_failed_cells_are_listed_with_their_reason(tmp_path: Path):
    store = Store.open(tmp_path)
    run = fabricate.replay(store, failed=True)
    assert [row["error"] for row in queries.failures(store, run)] == ["window too short"]


def test_behaviour_is_of_the_closed_run_of_the_same_model(tmp_path: Path):
    store = Store.open(tmp_path)
    run = fabricate.replay(store)
    assert queries.acted(store, run) == []
    made = []
    for model, more in (("smollm2-135m", 2), ("another", 9)):
        closed = store.begin("replay", {"model": model, "policies": ["full", fabricate.BOUNDARY], "mode": "closed"})
        same = {"mode": "closed", "measure": "quality", "status": "ok", "end_reason": "answered", "recorded_turns": 4}
        counts = ("generated_tokens", "calls", "calls_exact", "calls_searched", "calls_error", "repeated_calls")
        same |= dict.fromkeys((*counts, "near_repeats"), 0) | {"searches": 4, "repeated_searches": 1}
        cells = [
            {"cell_id": f"{policy}{n}", "trajectory_id": f"t{n}", "family": "registry", "policy": policy}
            | same
            | {"turns": turns}
            for n in range(3)
            for policy, turns in (("full", 4), (fabricate.BOUNDARY, 4 + more))
        ]
        closed.add({"cells": cells}, key="cells")
        closed.finish()
        made.append(closed.id)
    assert queries.acted(store, run) == made[:1], "of the same model"
    assert queries.acted(store, made[1]) == made[1:], "a closed-loop run is its own"
    acted = queries.behaviour(store, made[0])
    found = {policy["policy"]: policy for policy in acted["policies"]}
    assert found[fabricate.BOUNDARY]["extra_turns"] == pytest.approx(0.5)
    assert found["full"]["repeated_searches"] == 0.25
