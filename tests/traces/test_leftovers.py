"""What `store compact` may throw away, and what only `store remove` may."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kvmill.errors import UserError
from kvmill.traces.ingest import ingest_samples
from kvmill.traces.select import select
from kvmill.traces.store import Store


def old(folder: Path) -> None:
    """As if nobody had touched the folder for an hour."""
    then = time.time() - 3600
    os.utime(folder, (then, then))


def test_rows_whose_manifest_is_lost_are_never_thrown_away(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    run = ingest_samples(store)
    folder = store.folder(run)
    saved = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").unlink()
    old(folder)
    assert "but rows: put it back" in store.check()[0]
    assert store.compact() == 0
    (folder / "manifest.json").write_bytes(saved)
    assert len(select(store, run)) == 80
    assert store.check() == []


def test_a_damaged_run_can_be_removed(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    run = ingest_samples(store)
    for path in store.folder(run).glob("*.parquet"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="store check"):
        store.query("select * from turns")
    store.remove(run)
    assert store.query("select count(*) n from turns")["n"].to_pylist() == [0]
    assert store.check() == []
    with pytest.raises(UserError, match="unknown run"):
        store.remove(run)


def test_a_removal_that_was_killed_is_finished_by_compact(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    folder = store.folder(ingest_samples(store))
    (folder / "manifest.json").rename(folder / "removed.json")
    old(folder)
    assert store.compact() >= 2
    assert not folder.exists()


def test_an_ingest_is_selected_by_its_id(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    first = ingest_samples(store)
    again = ingest_samples(store)
    assert [t.id for t in select(store, first)] == [t.id for t in select(store, again)]
