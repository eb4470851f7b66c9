"""The store as it is now, for a page that asks it many questions: one connection for all of them.

Opening a connection costs more than most questions. It is kept, for other pages and visitors too, until a run changes.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..traces.manifest import RunInfo
from ..traces.store import Store

if TYPE_CHECKING:
    import duckdb


class Snapshot(Store):
    """A store whose connection stays open as long as its manifests say the same. Reads only; safe between threads."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._guard = threading.Lock()
        self._seen: Sequence[RunInfo] | None = None
        self._open: duckdb.DuckDBPyConnection | None = None

    def _connect(self, runs: Sequence[RunInfo]) -> duckdb.DuckDBPyConnection:
        with self._guard:
            if self._open is None or self._seen != runs:
                self._open, self._seen = super()._connect(runs), runs
            return self._open.cursor()  # of its own to each question, which closes it


@functools.lru_cache(maxsize=2)
def _of(path: Path) -> Snapshot:
    return Snapshot(path)


def snapshot(store: Store) -> Snapshot:
    """The same store, read through a connection that is kept."""
    return store if isinstance(store, Snapshot) else _of(store.path.absolute())


def rows_of(store: Store, sql: str, params: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """The answer to one question as plain dictionaries. UserError for a damaged store."""
    return snapshot(store).query(sql, params).to_pylist()
