"""Deleting takes the words of a trajectory out of what replays made of it, and leaves their figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvmill.errors import UserError
from kvmill.traces.delete import delete
from kvmill.traces.ingest import ingest_samples
from kvmill.traces.run import Run
from kvmill.traces.select import select
from kvmill.traces.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store(tmp_path / "store")
    ingest_samples(opened)
    return opened


def replayed(store: Store, ids: list[str]) -> str:
    """A closed-loop replay in which the model said a secret of each trajectory."""
    run = store.begin("replay", {})
    for id in ids:
        cell = {"cell_id": id, "trajectory_id": id, "answer": f"secret of {id}", "error": f"near {id}", "kl": 0.5}
        turn = {"cell_id": id, "trajectory_id": id, "turn": 0, "said": f"secret of {id}", "kl": 0.25}
        run.add({"cells": [cell], "turn_metrics": [turn]}, key=id)
    run.finish()
    return run.id


@pytest.mark.parametrize("whole", [False, True], ids=["a trajectory", "an ingest"])
def test_what_models_said_in_its_place_goes_and_figures_stay(store: Store, whole: bool):
    gone, stays = [trajectory.id for trajectory in select(store, "all")][:2]
    replayed(store, [gone, stays])
    delete(store, store.runs("ingest")[0].run_id if whole else gone)
    cells = {row["trajectory_id"]: row for row in store.query("select * from cells").to_pylist()}
    turns = {row["trajectory_id"]: row for row in store.query("select * from turn_metrics").to_pylist()}
    assert (cells[gone]["answer"], cells[gone]["error"], turns[gone]["said"]) == (None, None, None)
    assert (cells[gone]["kl"], turns[gone]["kl"], turns[gone]["turn"]) == (0.5, 0.25, 0)
    if not whole:
        assert (cells[stays]["answer"], turns[stays]["said"]) == (f"secret of {stays}", f"secret of {stays}")
    files = [path.read_bytes() for path in store.path.rglob("*") if path.is_file()]
    assert not [data for data in files if f"secret of {gone}".encode() in data]
    assert store.check() == []


@pytest.mark.parametrize("whole", [False, True], ids=["a trajectory", "an ingest"])
def test_a_deletion_that_was_refused_half_way_is_finished_by_asking_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, whole: bool
):
    gone = select(store, "all")[0].id
    replayed(store, [gone])
    named, rewrite = store.runs("ingest")[0].run_id if whole else gone, Run.rewrite

    def refused(run: Run, table: str, change: Any) -> int:
        if table == "turn_metrics":
            raise UserError("run is being written by another process")
        return rewrite(run, table, change)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "rewrite", refused)
        with pytest.raises(UserError, match="being written"):
            delete(store, named)
    assert delete(store, named)["trajectories"] >= 1
    files = [path.read_bytes() for path in store.path.rglob("*") if path.is_file()]
    assert not [data for data in files if f"secret of {gone}".encode() in data]
    with pytest.raises(UserError, match="no trajectory and no ingest run"):
        delete(store, gone)
