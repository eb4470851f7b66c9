"""Which run is the baseline, and the latency of earlier nights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvmill.errors import UserError
from kvmill.nightly.baseline import accept, find, history, last_success, require_alike, require_comparable
from kvmill.replay.gate_speed import Past
from kvmill.traces.store import Store

HERE = "this machine"


def night(store: Store, verdict: str | None = "green", *, name: str = "n", ttft_s: float = 1.0, slow: bool = False,
          machine: str = HERE, state: str = "complete") -> str:  # fmt: skip
    """A night with its replay, latency timed; returns the night."""
    replay = store.begin("replay", {"dtype": "float32", "device": "cpu", "mode": "teacher"})
    cell = {"cell_id": "c", "trajectory_id": "t", "family": "a", "policy": "full", "measure": "latency"}
    replay.add({"cells": [cell | {"status": "ok", "ttft_s": ttft_s}]}, key="t")
    replay.finish()
    config: dict[str, Any] = {"name": name, "machine": machine, "pinned": ["t"], "replay": replay.id}
    run = store.begin("nightly", config | ({"verdict": verdict} if verdict else {}))
    row = {"policy": "full", "family": "a", "category": "DRIFT" if slow else "OK", "metric": "ttft_s", "detail": ""}
    run.add({"gates": [row]}, key="gates")
    run.finish(state)
    return run.id


def test_the_newest_green_night_of_the_same_name_is_the_baseline(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    assert find(store, "n", None) is None
    assert last_success(store, "n") is None
    first = night(store)
    night(store, name="other")
    night(store, "regression")
    night(store, "undecided")
    night(store, None, state="incomplete")
    found = find(store, "n", "previous")
    assert found is not None
    assert (found.night, found.machine, found.promised) == (first, HERE, {"t"})
    assert last_success(store, "n") == store.info(first).finished_at
    second = night(store)
    newest = find(store, "n", None)
    assert newest is not None
    assert newest.night == second


def test_what_is_accepted_by_hand_is_the_baseline_until_the_next_green_night(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    first, red = night(store), night(store, "regression")
    accept(store, "n", red, HERE)
    assert find(store, "n", None).night == red  # type: ignore[union-attr]
    accept(store, "n", first, HERE)
    assert find(store, "n", None).night == first  # type: ignore[union-attr]
    third = night(store)
    assert find(store, "n", None).night == third  # type: ignore[union-attr]
    assert find(store, "n", red).night == red  # type: ignore[union-attr]


def test_a_replay_run_promises_all_its_rows_and_is_of_the_machine_it_was_accepted_on(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    replay = store.info(night(store)).config["replay"]
    by_hand = find(store, "n", replay)
    assert by_hand is not None
    assert (by_hand.night, by_hand.promised, by_hand.machine, by_hand.name) == (None, None, None, replay)
    accept(store, "n", replay, HERE)
    found = find(store, "n", None)
    assert found is not None
    assert (found.replay.run_id, found.machine) == (replay, HERE)


def test_other_machines_dtypes_and_modes_are_not_compared(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    night(store)
    found = find(store, "n", None)
    assert found is not None
    require_comparable(found, HERE, None)
    require_comparable(found, HERE, "auto")
    require_comparable(found, HERE, "float32")
    with pytest.raises(UserError, match="from another machine"):
        require_comparable(found, "another", None)
    with pytest.raises(UserError, match="in float32, tonight in bfloat16"):
        require_comparable(found, HERE, "bfloat16")
    for key, value in (("dtype", "bfloat16"), ("device", "cuda"), ("mode", "stepwise")):
        other = store.begin("replay", {**found.replay.config, key: value})
        with pytest.raises(UserError, match=f"has {key}"):
            require_alike(found.replay, store.info(other.id))
    ray = [
        store.begin("replay", {**found.replay.config, "worker": {"processor": kind}}).info for kind in ("A", "B", "A")
    ]
    with pytest.raises(UserError, match="has workers on A, tonight B"):
        require_alike(ray[0], ray[1])
    require_alike(ray[0], ray[2])
    require_alike(found.replay, ray[0])


def test_history_is_of_this_name_and_machine_newest_first_and_marks_slow_nights(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    night(store, ttft_s=1.0)
    night(store, ttft_s=9.0, machine="another")
    night(store, ttft_s=9.0, name="other")
    night(store, ttft_s=1.5, slow=True)
    assert history(store, "n", HERE) == {("full", "a", "ttft_s"): [Past(1.5, True), Past(1.0, False)]}
    assert history(store, "n", "nowhere") == {}


def test_accepting_a_slow_night_begins_its_history_anew(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    night(store, ttft_s=1.0)
    slow = night(store, "regression", ttft_s=1.5, slow=True)
    accept(store, "n", slow, HERE)
    night(store, ttft_s=1.6)
    assert history(store, "n", HERE)["full", "a", "ttft_s"] == [Past(1.6, False), Past(1.5, False)]


def test_a_baseline_whose_runs_were_removed_is_said_to_be_gone(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    first = night(store, "regression")
    accept(store, "n", first, HERE)
    replay = store.info(first).config["replay"]
    store.remove(replay)
    with pytest.raises(UserError, match=f"baseline {first}: its replay run {replay} was removed"):
        find(store, "n", None)
    with pytest.raises(UserError, match=f"its replay run {replay} was removed"):
        accept(store, "n", first, HERE)
    store.remove(first)
    with pytest.raises(UserError, match=f"the accepted baseline {first} of 'n' was removed"):
        find(store, "n", None)
