"""A run over time: what the intervals show adds up to what the run says of itself, and looking changes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from worlds import closed, deployment, scenario

from kvmill.simulator.failure import Failure
from kvmill.simulator.run import run_fleet
from kvmill.simulator.series import COLUMNS, Series, turn_table
from kvmill.simulator.stored import simulation_row
from kvmill.traces.store import Store
from kvmill.traces.tables import SCHEMAS


def watched(asked, replicas=2, seed=0, intervals=20):
    """(result, series, fleet, warm-up)."""
    seen = {}

    def watch(fleet, warm, end):
        seen.update(fleet=fleet, warm=warm, series=Series(fleet, warm, end, intervals))

    result = run_fleet(asked, replicas, seed, watch=watch)
    return result, seen["series"], seen["fleet"], seen["warm"]


CROWDED = scenario(closed(40, turns=10, out=400), "full", deployment(40_000), turns=1500)


def test_looking_changes_nothing():
    plain, (result, *_) = run_fleet(CROWDED, 2, 0), watched(CROWDED)
    assert replace(result, wall_s=0.0) == replace(plain, wall_s=0.0)


def test_intervals_add_up_to_the_run():
    result, series, _, warm = watched(CROWDED)
    rows = series.rows()
    assert result.preemptions > 0
    assert [row["interval"] for row in rows] == list(range(20))
    assert (rows[0]["start_s"], rows[-1]["end_s"]) == (warm, result.simulated_s)
    assert sum(row["requests"] for row in rows) == result.requests
    assert sum(row["preemptions"] for row in rows) == result.preemptions
    span = result.simulated_s - warm
    tokens = sum(row["throughput_tokens_per_s"] * (row["end_s"] - row["start_s"]) for row in rows)
    assert tokens / span == pytest.approx(result.throughput_tokens_per_s)
    hits = sum(row["hit_share"] * row["requests"] for row in rows if row["requests"])
    assert hits / result.requests == pytest.approx(1 - result.miss_share)


def test_looks_average_to_the_meters():
    result, series, *_ = watched(CROWDED, intervals=60)
    rows = series.rows()
    assert np.mean([row["batch"] for row in rows]) == pytest.approx(result.batch_mean * result.busy_share, rel=0.1)
    assert np.mean([row["kv_used_share"] for row in rows]) == pytest.approx(result.kv_used_share, rel=0.05)
    assert all(0 <= row["kv_held_share"] <= row["kv_used_share"] <= 1 for row in rows)


def test_an_overloaded_fleet_shows_its_queue():
    asked = scenario(closed(60, turns=10, out=400), "full", deployment(30_000), turns=800)
    rows = watched(asked, replicas=1)[1].rows()
    assert np.mean([row["waiting"] for row in rows]) > 10
    calm = watched(scenario(closed(4), "full", deployment(), turns=300), replicas=1)[1].rows()
    assert np.mean([row["waiting"] for row in calm]) < 0.5


def test_a_percentile_of_too_few_turns_is_null():
    rows = watched(scenario(closed(4), "full", deployment(), turns=60), replicas=1)[1].rows()
    assert {row["ttft_p95_s"] for row in rows} == {None}
    assert all(row["ttft_p50_s"] is None for row in rows if row["requests"] < 20)


def test_turns_and_intervals_go_to_the_store_and_come_back(tmp_path):
    result, series, fleet, warm = watched(CROWDED)
    turns = turn_table(fleet, warm)
    assert turns.num_rows == result.requests
    store = Store.open(tmp_path)
    run = store.begin("simulate", {}, seed=0)
    same = {"policy": "full", "gpus": 2, "seed": 0}
    run.add({"intervals": [row | same for row in series.rows()], "sim_turns": turns}, key="simulate")
    run.finish()
    found = store.query("select count(*) as n, sum(output_tokens) as tokens, min(arrival_s) as first from sim_turns")
    kept = fleet.columns()
    kept = kept[kept[:, 0] >= warm]
    assert found.to_pylist() == [{"n": len(kept), "tokens": int(kept[:, 4].sum()), "first": kept[:, 0].min()}]
    assert store.query("select max(interval) as last from intervals").to_pylist() == [{"last": 19}]


def test_a_turn_of_one_token_has_no_tpot():
    turns = turn_table(watched(scenario(closed(5, out=1), "full", deployment(), turns=100), replicas=1)[2])
    single = [t for t, n in zip(turns["tpot_s"].to_pylist(), turns["output_tokens"].to_pylist(), strict=True) if n == 1]
    assert single
    assert set(single) == {None}


def test_the_table_has_the_columns_of_a_turn():
    names = [name if name != "output" else "output_tokens" for name in COLUMNS]
    assert SCHEMAS["sim_turns"].names[-len(names) :] == names


def test_a_store_from_before_has_these_tables_empty(tmp_path):
    store = Store.open(tmp_path)
    assert store.query("select * from intervals").num_rows == 0
    assert store.query("select * from sim_turns").num_rows == 0


def test_a_simulation_fills_every_column_of_its_table():
    result, *_ = watched(CROWDED)
    row = simulation_row(CROWDED, result)
    assert set(row) == set(SCHEMAS["simulations"].names) - {"run_id"}
    assert {name for name, value in row.items() if value is None} <= {"rate", "ttft_p99_s", "tpot_p99_s", "e2e_p99_s"}


def test_a_replicas_failure_is_seen_when_it_happens():
    asked = scenario(closed(30, turns=10), "full", deployment(200_000), turns=1500, failure=Failure(outage_s=30.0))
    result, series, _, warm = watched(asked, replicas=2, intervals=30)
    middle, rows = (warm + result.simulated_s) / 2, series.rows()
    before = [row["hit_share"] for row in rows if row["end_s"] < middle - 1]
    meanwhile = [row["hit_share"] for row in rows if row["end_s"] > middle - 1 and row["start_s"] < middle + 30]
    assert min(before) == 1
    assert min(meanwhile) < 0.95, "caches that were on it are gone"
