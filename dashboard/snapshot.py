"""The store as it is now, for a page that asks it many questions: one connection for all of them.

Opening a connection costs more than most questions. It is kept, for other pages and visitors too, until a run changes.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import UserError
from ..traces.manifest import RunInfo
from ..traces.storage import Storage
from ..traces.store import Store

if TYPE_CHECKING:
    import duckdb

Answer = TypeVar("Answer")


class Snapshot(Store):
    """A store whose connections stay open as long as its manifests say the same. Reads only; safe between threads.

    There is one for each set of tables that an answer needs: all of them at once, where their files are in a folder.
    """

    def __init__(self, where: Path | Storage) -> None:
        super().__init__(where)
        self._guard = threading.Lock()
        self._seen: Sequence[RunInfo] | None = None
        self._open: dict[tuple[str, ...], duckdb.DuckDBPyConnection] = {}

    def _connect(self, runs: Sequence[RunInfo], tables: Sequence[str]) -> duckdb.DuckDBPyConnection:
        with self._guard:
            if self._seen != runs:
                self._open, self._seen = {}, runs
            wanted = tuple(tables)
            if wanted in self._open:
                self.storage.ready(runs, wanted)
            else:
                self._open[wanted] = super()._connect(runs, wanted)
            return self._open[wanted].cursor()  # of its own to each question, which closes it


class Moment(Store):
    """A snapshot for one answer that asks many questions: its manifests are read once, before the first.

    A file that a run swaps away in between is then missing: ask the snapshot itself again.
    """

    def __init__(self, whole: Snapshot) -> None:
        super().__init__(whole.storage)
        self._whole, self._runs = whole, whole.runs()

    def runs(self, kind: str | None = None, state: str | None = None) -> list[RunInfo]:
        """Those that there were, newest first."""
        return [run for run in self._runs if kind in (None, run.kind) and state in (None, run.state)]

    def _connect(self, runs: Sequence[RunInfo], tables: Sequence[str]) -> duckdb.DuckDBPyConnection:
        return self._whole._connect(runs, tables)


@functools.lru_cache(maxsize=2)
def _of(where: str) -> Snapshot:
    return Snapshot(Store.open(where).storage)


def snapshot(store: Store) -> Snapshot:
    """The same store, read through a connection that is kept."""
    return store if isinstance(store, Snapshot) else _of(store.where)


def at_once(store: Store, answer: Callable[[Store], Answer]) -> Answer:
    """An answer of many questions, all asked of the store as it is at one moment, or else each as it is then."""
    import duckdb

    whole = snapshot(store)
    try:
        return answer(Moment(whole))
    except (UserError, duckdb.Error):
        return answer(whole)


def rows_of(store: Store, sql: str, params: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """The answer to one question as plain dictionaries. UserError for a damaged store."""
    return snapshot(store).query(sql, params).to_pylist()
