"""One connection for many questions, and a new one as soon as a run changes."""

from __future__ import annotations

import threading
from pathlib import Path

import fabricate
import pytest

from kvmill.dashboard.snapshot import Snapshot, at_once, rows_of, snapshot
from kvmill.errors import UserError
from kvmill.traces import views
from kvmill.traces.local_storage import LocalStorage
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


def test_the_questions_of_one_answer_read_the_manifests_once_and_see_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = Store.open(tmp_path)
    fabricate.replay(store)
    once = counted(store)
    read: list[int] = []
    infos = LocalStorage.infos
    monkeypatch.setattr(LocalStorage, "infos", lambda self: (read.append(1), infos(self))[1])

    def twice(asked: Store) -> tuple[int, int]:
        first = asked.query("SELECT count(*) AS n FROM cells").to_pylist()[0]["n"]
        fabricate.replay(store)
        return first, asked.query("SELECT count(*) AS n FROM cells").to_pylist()[0]["n"]

    read.clear()
    assert at_once(store, twice) == (once, once)
    assert len(read) == 1
    assert counted(store) == 2 * once


def test_a_run_that_ends_between_two_questions_swaps_no_answer_away(tmp_path: Path):
    store = Store.open(tmp_path)
    run = fabricate.replay(store)
    once, gone = counted(store), []

    def asked_late(asked: Store) -> int:
        if not gone:  # as a run does that merges its files at its end
            gone.append(run)
            store.remove(run)
            fabricate.replay(store)
        return asked.query("SELECT count(*) AS n FROM cells WHERE nll IS NOT NULL OR true").to_pylist()[0]["n"]

    assert at_once(store, asked_late) == once
