"""What the page Regressions asks: findings of nights, and differences of two runs held against brute force."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import fabricate
import kept_rows
import numpy as np
import pytest
from scipy import stats

from kvmill.dashboard import queries_gates as queries
from kvmill.errors import UserError
from kvmill.traces.store import Store

FOUND = [
    {"policy": "full", "family": "a", "category": "OK", "detail": "as before", "n": 12},
    {"policy": "te", "family": "a", "category": "DRIFT", "detail": "slower", "metric": "nll", "loss": 0.01},
    {"policy": "te", "family": "a", "category": "REGRESSION", "detail": "worse", "metric": "kl", "loss": 0.3}
    | {"blocks": True, "low": 0.2, "high": 0.4, "margin": 0.02},
]


def drawn(store: Store, seed: int, count: int = 20, policies: tuple[str, ...] = ("full",)) -> list[dict[str, Any]]:
    """A run with cells drawn at random; its rows."""
    rng = np.random.default_rng(seed)
    run = store.begin("replay", {"model": "m", "policies": list(policies)}, seed=seed)
    cells = [
        {"cell_id": f"{policy}{n}", "trajectory_id": f"t{n}", "family": "ab"[n % 2], "policy": policy}
        | {"measure": "quality", "status": "ok", "nll": rng.random(), "scored_tokens": int(rng.integers(1, 50))}
        for policy in policies
        for n in range(count)
    ]
    run.add({"cells": cells}, key="cells")
    run.finish()
    return [cell | {"run": run.id} for cell in cells]


def test_nights_come_oldest_first_and_the_worst_finding_of_a_night_first(tmp_path: Path):
    store = Store.open(tmp_path)
    assert queries.gates(store) == []
    first = kept_rows.night(store, FOUND)
    second = kept_rows.night(store, FOUND[:1])
    rows = queries.gates(store)
    assert [row["run"] for row in rows] == [first] * 3 + [second]
    assert [row["category"] for row in rows[:3]] == ["REGRESSION", "DRIFT", "OK"]
    assert [row["blocks"] for row in rows[:3]] == [True, False, False]
    assert {row["run"] for row in queries.gates(store, nights=1)} == {second}


def test_a_difference_is_paired_and_its_interval_that_of_two_ratios(tmp_path: Path):
    store = Store.open(tmp_path)
    one, other = drawn(store, 1), drawn(store, 2, count=15)
    rows = {row["grp"]: row for row in queries.differences(store, one[0]["run"], other[0]["run"], "nll")}
    assert list(rows) == [queries.ALL, "a", "b"]
    found = rows[queries.ALL]
    t1, t2 = (np.array([c["nll"] * c["scored_tokens"] for c in side[:15]]) for side in (one, other))
    b1, b2 = (np.array([c["scored_tokens"] for c in side[:15]]) for side in (one, other))
    r1, r2, n = t1.sum() / b1.sum(), t2.sum() / b2.sum(), 15
    apart = (t2 - r2 * b2) / b2.sum() - (t1 - r1 * b1) / b1.sum()
    error = math.sqrt(n / (n - 1) * (apart**2).sum())
    assert (found["before"], found["after"], found["n"]) == (pytest.approx(r1), pytest.approx(r2), n)
    assert (found["low"], found["high"]) == pytest.approx(stats.t.interval(0.95, n - 1, r2 - r1, error))


def test_a_run_does_not_differ_from_itself(tmp_path: Path):
    store = Store.open(tmp_path)
    run = drawn(store, 1)[0]["run"]
    assert {row["value"] for row in queries.differences(store, run, run, "nll")} == {0.0}
    assert queries.changed_states(store, run, run) == []
    assert queries.circumstances(store, run, run) == []
    with pytest.raises(UserError, match="Known: "):
        queries.differences(store, run, run, "1; drop table cells")


def test_circumstances_say_in_what_runs_were_not_alike(tmp_path: Path):
    store = Store.open(tmp_path)
    one, other = drawn(store, 1)[0]["run"], drawn(store, 2, policies=("full", "te"))[0]["run"]
    found = {row["what"]: (row["before"], row["after"]) for row in queries.circumstances(store, one, other)}
    assert found == {"policies": ("full", "full, te"), "seed": ("1", "2")}


def test_changed_states_are_of_policies_that_both_runs_were_asked_for(tmp_path: Path):
    store = Store.open(tmp_path)
    one, other = fabricate.replay(store), fabricate.replay(store, failed=True)
    (row,) = queries.changed_states(store, one, other)
    assert (row["trajectory_id"], row["before"], row["after"]) == ("t-broken", "absent", "failed")
    assert row["error"] == "window too short"


def test_the_turn_at_which_a_trajectory_changed_is_found(tmp_path: Path):
    store = Store.open(tmp_path)
    one, other = kept_rows.kept_replay(store), kept_rows.kept_replay(store, worse=0.5)
    rows = queries.changed_trajectories(store, one, other, fabricate.BOUNDARY, "nll")
    assert [(row["trajectory_id"], row["value"]) for row in rows] == [("t-0", 0.5), ("t-1", 0.5)]
    found = queries.turns(store, one, other, fabricate.BOUNDARY, "t-0")
    assert [row["changed"] for row in found] == [[], ["nll"], ["nll"]]
    assert (found[1]["nll before"], found[1]["nll after"]) == (1.0, 1.5)
    assert all(row["changed"] == [] for row in queries.turns(store, one, other, "full", "t-0"))


def test_turns_that_only_one_run_has_count_as_changed(tmp_path: Path):
    store = Store.open(tmp_path)
    one, other = kept_rows.kept_replay(store), kept_rows.kept_replay(store, trajectories=("t-9",))
    found = queries.turns(store, one, other, "full", "t-0")
    assert [row["turn"] for row in found] == [0, 1, 2]
    assert all("kv_tokens" in row["changed"] for row in found)


def test_policies_in_common_are_in_the_order_of_the_later_run(tmp_path: Path):
    store = Store.open(tmp_path)
    one, other = drawn(store, 1, policies=("full", "te"))[0]["run"], drawn(store, 2, policies=("te", "full"))[0]["run"]
    assert queries.common_policies(store, one, other) == ["te", "full"]
    third = drawn(store, 3, policies=("random",))[0]["run"]
    assert queries.common_policies(store, one, third) == []
