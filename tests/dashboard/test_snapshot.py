"""One connection for many questions, and a new one as soon as a run changes."""

from __future__ import annotations

import threading
from pathlib import Path

import fabricate
import pytest

from kvmill.dashboard.snapshot import Snapshot, rows_of, snapshot
from kvmill.errors import UserError
from kvmill.traces import views
from kvmill.traces.store import Store


def counted(store: Store) -> int:
    return rows_of(store, "SELECT count(*) AS n FROM cells")[0]["n"]


def test_a_connection_is_opened_once_and_again_when_a_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    opened: list[int] = []
    connect = views.connect
    monkeypatch.setattr(views, "connect", lambda *given: (opened.append(1), connect(*given))[1])
    store = Store.open(tmp_path)
    fabricate.replay(store)
    first = counted(store)
    assert counted(store) == first
    assert len(opened) == 1
    fabricate.replay(store)
    assert counted(store) == 2 * first
    assert len(opened) == 2


def test_it_is_one_for_all_that_read_a_folder(tmp_path: Path):
    store = Store.open(tmp_path)
    assert snapshot(store) is snapshot(Store.open(tmp_path))
    assert snapshot(snapshot(store)) is snapshot(store)
    assert isinstance(snapshot(store), Snapshot)


def test_threads_ask_at_the_same_time(tmp_path: Path):
    store = Store.open(tmp_path)
    fabricate.replay(store)
    expected, found = counted(store), list[int]()
    threads = [threading.Thread(target=lambda: found.extend(counted(store) for _ in range(5))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 20


def test_a_file_that_goes_missing_is_said_in_words(tmp_path: Path):
    store = Store.open(tmp_path)
    run = fabricate.replay(store)
    assert counted(store) > 0
    for entry in store.info(run).files:
        (store.folder(run) / entry.path).unlink()
    with pytest.raises(UserError, match="missing file"):
        rows_of(store, "SELECT sum(nll) AS nll FROM cells WHERE policy <> 'x'")
