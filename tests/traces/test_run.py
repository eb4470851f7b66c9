"""Rows of a run that are changed: a file at a time, the others left alone, and the run given back whatever happens."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kvmill.traces import segments
from kvmill.traces.store import Store


def test_a_change_of_rows_that_fails_gives_the_run_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run = store.begin("replay", {})
    run.add({"cells": [{"cell_id": "a"}]}, key="a")
    run.finish()
    with pytest.raises(ZeroDivisionError):
        store.open_run(run.id).rewrite("cells", lambda rows: rows.slice(1 // 0))
    assert not store.busy(run.id), "in a process that lives on nobody could write the run any more"


def test_a_change_of_rows_sees_some_at_a_time_and_leaves_other_files_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_ROW_GROUP", 3)
    monkeypatch.setattr("kvmill.traces.run._LARGE_BYTES", 1)  # every file is a large one
    store = Store(tmp_path)
    run = store.begin("replay", {})
    for key in ("mine", "mixed", "other", "left"):
        ids = ["a" if key == "mine" or (key == "mixed" and n % 2) else "b" for n in range(10)]
        run.add({"kept": [{"cell_id": key, "trajectory_id": id, "position": n} for n, id in enumerate(ids)]}, key=key)
    before, seen = {entry.segment: entry for entry in run.info.files}, []

    def without(rows: pa.Table) -> pa.Table:
        seen.append(rows.num_rows)
        return rows.filter(pc.field("trajectory_id") != "a")

    assert run.rewrite("kept", without) == 15
    assert max(seen) == 3
    after = run.info.files
    assert before["other"] in after
    assert before["left"] in after
    assert len(after) == 3, "a file of which nothing is left is gone"
    rows = run.read("kept").select(["cell_id", "position"]).to_pylist()
    assert sorted(row["position"] for row in rows if row["cell_id"] == "mixed") == [0, 2, 4, 6, 8]
    assert len(rows) == 25
    assert store.check() == []
    assert run.rewrite("kept", without) == 0
    assert run.info.files == after
