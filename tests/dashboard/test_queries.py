"""What the pages ask of the store, on rows written by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fabricate
import pytest

from kvmill.dashboard import queries
from kvmill.errors import UserError
from kvmill.traces.store import Store


def test_an_empty_store_has_no_runs(tmp_path: Path):
    store = Store.open(tmp_path / "none")
    assert queries.newest_runs(store) == []
    assert queries.run_ids(store, "replay", "cells") == []
    assert not store.path.exists(), "looking creates nothing"


def test_newest_runs_come_first_with_their_state(tmp_path: Path):
    store = Store.open(tmp_path)
    first = fabricate.replay(store, state="incomplete")
    second = fabricate.plan(store)
    runs = queries.newest_runs(store)
    assert [(run["run"], run["state"]) for run in runs] == [(second, "complete"), (first, "incomplete")]
    assert runs[1]["model"] == "smollm2-135m"
    assert queries.newest_runs(store, limit=1) == runs[:1]


def test_a_run_whose_process_is_gone_is_killed_not_running(tmp_path: Path):
    script = (
        "import os, sys; from kvmill.traces.store import Store; "
        "Store.open(sys.argv[1]).begin('replay', {}); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    store = Store.open(tmp_path)
    store.begin("replay", {})
    assert [run["state"] for run in queries.newest_runs(store)] == ["running", "killed"]


def test_runs_without_rows_are_not_offered(tmp_path: Path):
    store = Store.open(tmp_path)
    store.begin("replay", {}).finish()
    full = fabricate.replay(store)
    assert queries.run_ids(store, "replay", "cells") == [full]


def test_plan_rows_join_columns_and_detail_widest_fleet_first(tmp_path: Path):
    store = fabricate.filled(tmp_path)
    rows = queries.plan_rows(store, queries.run_ids(store, "plan", "plans")[0])
    assert [row["gpus"] for row in rows] == [27, 14, 12]
    assert rows[1]["turns_break_even"] == 0.9
    assert rows[1]["gpus_saved_high"] == 14
    assert rows[0]["gpus_saved"] is None


def test_a_plan_with_broken_detail_is_the_users_to_fix(tmp_path: Path):
    store = Store.open(tmp_path)
    run = store.begin("plan", {})
    run.add({"plans": [{"policy": "full", "detail": "{"}]}, key="a")
    run.finish()
    with pytest.raises(UserError, match="not JSON"):
        queries.plan_rows(store, run.id)


def test_replications_show_mean_and_range_per_fleet_size(tmp_path: Path):
    store = fabricate.filled(tmp_path)
    run = queries.run_ids(store, "plan", "plans")[0]
    rows = queries.replications(store, run, "full")
    assert [row["gpus"] for row in rows] == [26, 27, 28]
    middle = rows[1]
    assert middle["replications"] == 3
    assert middle["ttft_p95_s"] == pytest.approx((1.9 * 1.91 * 1.92) ** (1 / 3))
    assert (middle["ttft_low_s"], middle["ttft_high_s"]) == pytest.approx((1.9, 1.92))
