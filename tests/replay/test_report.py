"""The text says what was measured, on which model, over how many trajectories."""

from __future__ import annotations

from pathlib import Path

from kvmill.replay.report import demo_table, summary_text
from kvmill.replay.results import summary

from .runs import FULL, TE, replay_run


def test_the_headline_names_model_device_and_sample(tmp_path: Path) -> None:
    store, run = replay_run(tmp_path)
    text = summary_text(summary(store))
    first = text.splitlines()[0]
    assert run in first
    assert "smollm2-135m (float32, cpu, 2 threads)" in first
    assert "3 trajectories, 12 probes" in first
    assert "fewer than 10 trajectories" in text
    assert "Agreement is not accuracy" in text


def test_a_row_shows_value_and_interval(tmp_path: Path) -> None:
    store, _ = replay_run(tmp_path)
    line = next(line for line in summary_text(summary(store)).splitlines() if line.startswith(TE))
    assert " ".join(line.removeprefix(TE).split()) == "0.2 50.0% (0%–75%) -2.00 0.300 75.0% 420 65.0% 1.2 0.05 –"
    assert "against full: answer accuracy -25.0 points (-50.0 to +0.0), paired over 3" in summary_text(summary(store))


def test_without_latency_rows_no_latency_is_shown(tmp_path: Path) -> None:
    store, _ = replay_run(tmp_path, latency=False)
    assert "TTFT" not in summary_text(summary(store))


def test_latency_says_how_far_its_repeats_lie_apart(tmp_path: Path) -> None:
    found = summary(replay_run(tmp_path)[0])
    assert "differ by" not in summary_text(found)
    found["policies"][0]["turn_spread"], found["policies"][1]["turn_spread"] = 0.02, 0.071
    assert "the median of repeats, which differ by up to 7% (slowest less fastest" in summary_text(found)


def test_failed_cells_are_named_with_their_reason(tmp_path: Path) -> None:
    store, _ = replay_run(tmp_path, failed=True)
    assert f"failed cells: {TE} (1: too long)" in summary_text(summary(store))


def test_groups_show_only_what_they_have(tmp_path: Path) -> None:
    store, _ = replay_run(tmp_path)
    by_turn = summary_text(summary(store, by="turn")).split("By turn:")[1]
    assert "probes" not in by_turn.split("answer accuracy:")[0]
    by_age = summary_text(summary(store, by="age")).split("By age:")[1]
    assert "turns since the fact" in by_age


def test_the_demo_table_joins_plans_by_policy(tmp_path: Path) -> None:
    store, _ = replay_run(tmp_path)
    plans = [
        {"policy": FULL, "feasible": True, "gpus": 27, "gpus_saved": None},
        {"policy": TE, "feasible": True, "gpus": 11, "gpus_saved": 16, "gpus_saved_low": 14.0, "gpus_saved_high": 18.0},
    ]
    text = demo_table(summary(store), plans)
    line = next(line for line in text.splitlines() if line.startswith(TE))
    assert line.endswith("11  16 (14–18)")
    assert "no fleet" in demo_table(summary(store), [{"policy": TE, "feasible": False, "gpus": None}])


def test_an_equal_size_run_says_what_was_held_equal(tmp_path: Path) -> None:
    store, _ = replay_run(tmp_path)
    found = summary(store)
    assert "equal size" not in summary_text(found)
    text = summary_text(found | {"equal_size": TE, "equal_by": "mean"})
    assert f"holds as many KV tokens on average over turns as {TE}" in text
