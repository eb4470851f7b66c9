"""`Run`: one run of a store being written, segment by segment, and merged at its end."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..console import plain
from ..errors import UserError
from . import locks, manifest, segments, views
from .manifest import FileEntry, RunInfo
from .tables import SCHEMAS

if TYPE_CHECKING:
    from .store import Store

_LARGE_BYTES = 1 << 20  # a file that stays as it is when a run ends: joining it to others would only copy it


class Run:
    """A run being written. Safe to share between the threads of one process."""

    def __init__(self, store: Store, run_id: str) -> None:
        self.store = store
        self.id = run_id
        self._folder = store.folder(run_id)
        self._guard = threading.RLock()

    @property
    def info(self) -> RunInfo:
        """What the manifest says now."""
        return manifest.read(self._folder)

    def keys(self) -> set[str]:
        """Keys of the segments that are in, also after they were merged: a resumed run skips them."""
        return set(self.info.keys)

    def read(self, table: str) -> pa.Table:
        """All rows of one table of this run."""
        schema = segments.schema_of(table)
        parts = [self._load(entry, schema) for entry in self.info.files if entry.table == table]
        return pa.concat_tables(parts) if parts else schema.empty_table()

    def add(self, tables: Mapping[str, segments.Rows], *, key: str) -> None:
        """Add one segment, all or nothing: rows of several tables under the caller's `key`.

        UserError for an unknown table or column; ValueError for a key that is in already, and for NaN.
        """
        arrow = segments.to_tables(tables, self.id)
        with self._guard:
            info = self._open_for(key)
            self._list(info, [self._write(info, name, [rows], key) for name, rows in arrow.items()], key)

    def adopt(self, entries: Sequence[FileEntry], *, key: str) -> None:
        """Add one segment that `Store.write_segment` wrote, here or in another process, all or nothing.

        ValueError for a key that is in already.
        """
        with self._guard:
            self._list(self._open_for(key), entries, key)

    def _open_for(self, key: str) -> RunInfo:
        """The manifest, under the lock; ValueError if the segment is in already."""
        lock(self._folder)
        info = self.info
        if key in info.keys:
            raise ValueError(f"segment {key!r} is already in run {self.id}")
        return info

    def _list(self, info: RunInfo, made: Sequence[FileEntry], key: str) -> None:
        self._swap(info, files=(*info.files, *made), keys=(*info.keys, key), state="running", finished_at=None)

    def annotate(self, **values: Any) -> None:
        """Add to the run's config what only became known while it ran."""
        with self._guard:
            lock(self._folder)
            info = self.info
            self._swap(info, config={**info.config, **plain(values)})

    def finish(self, state: str = "complete") -> None:
        """End the run: small segments joined to one file per table, the manifest swapped, the segments deleted."""
        if state not in ("complete", "incomplete"):
            raise ValueError(f"a run ends complete or incomplete, not {state!r}")
        with self._guard:
            lock(self._folder)
            self.merge(state, datetime.now(UTC).isoformat(timespec="microseconds"))
            locks.release(self._folder)

    def discard(self, table: str, column: str, value: Any) -> int:
        """Delete the rows of `table` in which `column` equals `value`; returns how many."""
        import pyarrow.compute as pc

        return self.rewrite(table, lambda rows: rows.filter(pc.field(column) != value))

    def rewrite(self, table: str, change: Callable[[pa.Table], pa.Table]) -> int:
        """Put what `change` makes of a table in its place; returns by how many rows it got smaller."""
        with self._guard:
            held = locks.holds(self._folder)
            lock(self._folder)
            info = self.info
            before = self.read(table)
            after = change(before)
            if not after.equals(before):
                kept = [entry for entry in info.files if entry.table != table]
                made = [self._write(info, table, [after], "merged")] if after.num_rows else []
                self._swap(info, files=(*kept, *made))
                self._drop(info)
            if not held:
                locks.release(self._folder)
            return before.num_rows - after.num_rows

    def merge(self, state: str, finished_at: str | None) -> int:
        """Join the small files of each table, under the lock that the caller holds; returns how many files went."""
        info = self.info
        files = [entry for entry in info.files if entry.table not in SCHEMAS]
        for table in SCHEMAS:
            listed = [entry for entry in info.files if entry.table == table]
            parts = [entry for entry in listed if entry.bytes < _LARGE_BYTES]
            if len(parts) > 1:
                schema = SCHEMAS[table]
                files.append(self._write(info, table, (self._load(part, schema) for part in parts), "merged"))
                files += [entry for entry in listed if entry not in parts]
            else:
                files += listed
        if set(files) != set(info.files) or (state, finished_at) != (info.state, info.finished_at):
            self._swap(info, files=tuple(files), state=state, finished_at=finished_at)
        return self._drop(info)

    def write_apart(self, table: str, rows: pa.Table, segment: str) -> FileEntry:
        """Write a file that no manifest lists, under a name that nobody else takes: see `adopt`."""
        return self._file(f"{table}.{secrets.token_hex(8)}.parquet", table, [rows], segment)

    def _write(self, info: RunInfo, table: str, parts: Any, segment: str) -> FileEntry:
        return self._file(f"{table}.{info.generation + 1}.parquet", table, parts, segment)

    def _file(self, name: str, table: str, parts: Any, segment: str) -> FileEntry:
        path = self._folder / name
        rows = segments.write(path, parts, segments.schema_of(table), self.id)
        return FileEntry(table, name, rows, segment, path.stat().st_size)

    def _load(self, entry: FileEntry, schema: pa.Schema) -> pa.Table:
        path = self._folder / entry.path
        if not path.is_file():
            raise views.missing(path, self.id)
        try:
            return segments.read(path, schema)
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"torn file {path} of run {self.id} ({error}); run `kvmill store check`") from None

    def _swap(self, info: RunInfo, **changes: Any) -> None:
        manifest.sync_folder(self._folder)  # the files' names first, then the manifest that lists them
        manifest.write(self._folder, replace(info, generation=info.generation + 1, **changes))

    def _drop(self, before: RunInfo) -> int:
        listed = {entry.path for entry in self.info.files}
        gone = [entry.path for entry in before.files if entry.path not in listed]
        for name in gone:
            (self._folder / name).unlink(missing_ok=True)
        return len(gone)


def lock(folder: Path) -> None:
    """Take the lock of the run in this folder. UserError if another process has it."""
    if not locks.acquire(folder):
        raise UserError(f"run {folder.name} is being written by another process; wait for it or start a new run")
