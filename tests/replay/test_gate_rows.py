"""From rows of the store to the gate: cells, what is kept, what failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvmill.replay.gate_nouns import Cell
from kvmill.replay.gate_rows import changed, doubled, failed, moved, side, speeds, without
from kvmill.traces.store import Store


def row(trajectory: str, policy: str = "te", measure: str = "quality", **more: Any) -> dict[str, Any]:
    key = {"cell_id": f"{policy}-{trajectory}-{measure}", "trajectory_id": trajectory, "family": "a", "policy": policy}
    return {**key, "measure": measure, "status": "ok", **more}


def stored(store: Store, cells: list[dict[str, Any]], kept: list[dict[str, Any]] | None = None) -> str:
    run = store.begin("replay", {})
    run.add({"cells": cells, "kept": kept or []}, key="all")
    run.finish()
    return run.id


def kept(shares: list[float], policy: str = "te") -> list[dict[str, Any]]:
    key = {"cell_id": "c", "trajectory_id": "t", "family": "a", "policy": policy, "turn": 0, "kind": "tool"}
    return [{**key, "position": at, "token_id": 0, "text": "", "share": share} for at, share in enumerate(shares)]


def test_a_side_has_what_was_measured_and_nothing_else(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    run = stored(
        store,
        [
            row("t1", answer_accuracy=0.5, kl=0.1, kv_tokens_peak=80.0),
            row("t1", measure="latency", ttft_s=0.5, tpot_s=0.1),
            row("t2", answer_correct=True),
            row("t3", status="failed", error="out of memory"),
            row("t4", status="skipped", error="too long"),
        ],
    )
    found = side(store, run)
    assert found.promised == {"t1", "t2", "t3", "t4"}
    assert found.cells["te", "a"] == {
        "t1": Cell("ok", {"answer_accuracy": 0.5, "kl": 0.1}, 80.0),
        "t2": Cell("ok", {"answer_correct": 1.0}),
        "t3": Cell("failed", error="out of memory"),
        "t4": Cell("skipped", error="too long"),
    }
    assert side(store, run, {"t1"}).promised == {"t1"}
    assert failed(store, run) == 1
    assert speeds(store, run)["te", "a"]["ttft_s"] == 0.5


def test_a_failed_latency_cell_fails_its_trajectory(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    run = stored(store, [row("t", kl=0.1), row("t", measure="latency", status="failed", error="x")])
    assert side(store, run).cells["te", "a"]["t"].status == "failed"


@pytest.mark.parametrize(
    ("old", "new", "share"),
    [
        ([1, 1, 0, 0], [1, 1, 0, 0], 0.0),
        ([1, 1, 0, 0], [1, 0, 1, 0], 0.5),
        ([1, 1, 0, 0], [0, 0, 1, 1], 1.0),
        ([1, 0.5, 0.5, 0], [1, 0.5, 0, 0.5], 0.25),
        ([1, 1], [1, 1, 1, 1], 1 / 3),
    ],
)
def test_moved_is_the_share_of_kept_rows_that_are_others(
    tmp_path: Path, old: list[float], new: list[float], share: float
) -> None:
    store = Store.open(tmp_path)
    runs = [stored(store, [row("t")], kept(shares)) for shares in (old, new)]
    assert moved(store, *runs) == {("te", "t"): pytest.approx(share)}


def test_moved_says_nothing_of_what_was_not_stored(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    one, other = (stored(store, [row("t")]) for _ in range(2))
    assert moved(store, one, other) == {}


def test_a_cell_that_is_stored_twice_blocks(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    once = stored(store, [row("t1"), row("t1", measure="latency"), row("t2")])
    twice = stored(store, [row("t1", kl=0.1), row("t1", kl=0.3), row("t2")])
    assert doubled(store, once) == []
    (found,) = doubled(store, twice)
    assert (found.policy, found.family, found.category, found.blocks, found.n) == ("te", "a", "ROWS_ADDED", True, 1)
    assert twice in found.detail


def test_trajectories_that_changed_under_their_id_block_where_promised_and_are_not_compared(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    now = side(store, stored(store, [row("t1"), row("t2"), row("t3")]), {"t1", "t2"})
    (found,) = changed(now, {"t2", "t3", "t9"})
    assert (found.category, found.blocks, found.n) == ("ROWS_REMOVED", True, 1)
    assert found.detail.endswith("than in the baseline: t2")
    assert changed(now, {"t3"}) == []
    left = without(now, {"t2", "t3"})
    assert (set(left.cells["te", "a"]), left.promised) == ({"t1"}, {"t1"})
