"""`Run`: one run of a store being written, segment by segment, and merged at its end."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..console import plain
from ..errors import UserError
from . import segments
from .manifest import FileEntry, RunInfo
from .storage import Home
from .tables import SCHEMAS

if TYPE_CHECKING:
    from .store import Store

_LARGE_BYTES = 1 << 20  # a file that stays as it is when a run ends: joining it to others would only copy it
_TRIES = 50  # of a writer whose manifest others swap
Changes = dict[str, Any]


class Run:
    """A run being written. Safe to share between the threads of one process."""

    def __init__(self, store: Store, home: Home) -> None:
        self.store = store
        self.id = home.id
        self.home = home
        self._guard = threading.RLock()

    @property
    def info(self) -> RunInfo:
        """What the manifest says now."""
        return self.home.read()

    def keys(self) -> set[str]:
        """Keys of the segments that are in, also after they were merged: a resumed run skips them."""
        return set(self.info.keys)

    def workspace(self) -> Path:
        """A folder of this machine for files beside the rows: `home.keep` puts them with the run."""
        return self.home.workspace()

    def read(self, table: str) -> pa.Table:
        """All rows of one table of this run."""
        schema = segments.schema_of(table)
        while True:
            info = self.info
            try:
                parts = list(self._parts(info, [entry for entry in info.files if entry.table == table], schema))
            except UserError:
                if self.info == info:
                    raise
                continue  # a writer has swapped the files in between
            return pa.concat_tables(parts) if parts else schema.empty_table()

    def add(self, tables: Mapping[str, segments.Rows], *, key: str) -> None:
        """Add one segment, all or nothing: rows of several tables under the caller's `key`.

        UserError for an unknown table or column; ValueError for a key that is in already, and for NaN.
        """
        arrow = segments.to_tables(tables, self.id)
        with self._guard:
            hold(self.home)
            info = self._without(key)
            made = [self._write(info, name, [rows], key) for name, rows in arrow.items()]
            self._change(lambda info: _listing(info, made, key), info)

    def adopt(self, entries: Sequence[FileEntry], *, key: str) -> None:
        """Add one segment that `Store.write_segment` wrote, here or in another process, all or nothing.

        ValueError for a key that is in already.
        """
        with self._guard:
            self._change(lambda info: _listing(info, entries, key))

    def annotate(self, **values: Any) -> None:
        """Add to the run's config what only became known while it ran."""
        with self._guard:
            self._change(lambda info: {"config": {**info.config, **plain(values)}})

    def reopen(self) -> None:
        """Take the run to go on with it."""
        with self._guard:
            hold(self.home)
            info = self.info
            if info.state == "incomplete":
                self._change(lambda _: {"state": "running", "finished_at": None}, info)

    def finish(self, state: str = "complete") -> None:
        """End the run: small segments joined to one file per table, the manifest swapped, the segments deleted."""
        if state not in ("complete", "incomplete"):
            raise ValueError(f"a run ends complete or incomplete, not {state!r}")
        with self._guard:
            self.merge(state, datetime.now(UTC).isoformat(timespec="microseconds"))
            self.home.release()

    def discard(self, table: str, column: str, value: Any) -> int:
        """Delete the rows of `table` in which `column` equals `value`; returns how many."""
        import pyarrow.compute as pc

        return self.rewrite(table, lambda rows: rows.filter(pc.field(column) != value))

    def rewrite(self, table: str, change: Callable[[pa.Table], pa.Table]) -> int:
        """Put what `change` makes of the rows of a table in their place; returns how many fewer there are.

        It is given some rows at a time, and those of a file that it changes twice. Files in which it changes nothing
        stay; the others are swapped one after the other, the small ones joined: whoever is stopped half-way asks again.
        """
        smaller = 0
        same: set[FileEntry] = set()
        with self._guard:
            held = self.home.holds()
            try:
                hold(self.home)
                while chosen := self._changed(table, change, same):
                    smaller += self._rewrite(chosen, change, same)
            finally:
                if not held:
                    self.home.release()
        return smaller

    def _changed(
        self, table: str, change: Callable[[pa.Table], pa.Table], same: set[FileEntry]
    ) -> tuple[FileEntry, ...]:
        """Files that `change` changes: a large one alone, or all small ones. `same` collects those it leaves alone."""
        info, schema, small = self.info, segments.schema_of(table), []
        for entry in info.files:
            if entry.table != table or entry in same:
                continue
            if all(change(rows).equals(rows) for rows in self._parts(info, [entry], schema)):
                same.add(entry)
            elif entry.bytes >= _LARGE_BYTES:
                return (entry,)
            else:
                small.append(entry)
        return tuple(small)

    def _rewrite(
        self, chosen: Sequence[FileEntry], change: Callable[[pa.Table], pa.Table], same: set[FileEntry]
    ) -> int:
        """Swap these files for one, which joins `same`; returns by how many rows it is smaller."""
        table, smaller = chosen[0].table, 0

        def rewritten(info: RunInfo) -> Changes:
            nonlocal smaller
            if not set(chosen) <= set(info.files):
                return {}  # another writer took them: the caller looks again
            parts = self._parts(info, chosen, segments.schema_of(table))
            made = self._write(info, table, map(change, parts), "merged")
            smaller = sum(entry.rows for entry in chosen) - made.rows
            same.add(made)
            if not made.rows:
                self.home.drop([made.path])
            others = (entry for entry in info.files if entry not in chosen)
            return {"files": (*others, *([made] if made.rows else []))}

        self._drop(self._change(rewritten, writes=True).files)
        return smaller

    def scattered(self) -> bool:
        """Whether `merge` would join files."""
        return any(len(parts) > 1 for parts in _small(self.info).values())

    def merge(self, state: str, finished_at: str | None) -> int:
        """Join the small files of each table; returns how many files went."""

        def merged(info: RunInfo) -> Changes:
            files = [entry for entry in info.files if entry.table not in SCHEMAS]
            for table, parts in _small(info).items():
                listed = [entry for entry in info.files if entry.table == table]
                if len(parts) > 1:
                    schema = SCHEMAS[table]
                    files.append(self._write(info, table, self._parts(info, parts, schema), "merged"))
                    files += [entry for entry in listed if entry not in parts]
                else:
                    files += listed
            same = set(files) == set(info.files) and (state, finished_at) == (info.state, info.finished_at)
            return {} if same else {"files": tuple(files), "state": state, "finished_at": finished_at}

        return self._drop(self._change(merged, writes=True).files)

    def write_apart(self, table: str, rows: pa.Table, segment: str) -> FileEntry:
        """Write a file that no manifest lists, under a name that nobody else takes: see `adopt`."""
        return self._file(f"{table}.{secrets.token_hex(8)}.parquet", table, [rows], segment)

    def _write(self, info: RunInfo, table: str, parts: Iterable[pa.Table], segment: str) -> FileEntry:
        return self._file(self.home.file_name(table, info.generation + 1), table, parts, segment)

    def _file(self, name: str, table: str, parts: Iterable[pa.Table], segment: str) -> FileEntry:
        rows, size = self.home.write(name, parts, segments.schema_of(table))
        return FileEntry(table, name, rows, segment, size)

    def _parts(self, info: RunInfo, entries: Iterable[FileEntry], schema: pa.Schema) -> Iterator[pa.Table]:
        """The rows of files, some at a time."""
        for entry in entries:
            path = self.home.path(info, entry)
            try:
                yield from segments.read(path, schema)
            except (OSError, pa.ArrowException) as error:
                where = self.home.name_of(entry.path)
                raise UserError(f"torn file {where} of run {self.id} ({error}); run `kvmill store check`") from None

    def _without(self, key: str) -> RunInfo:
        """The manifest; ValueError if the segment is in already."""
        info = self.info
        _listing(info, (), key)
        return info

    def _change(
        self, make: Callable[[RunInfo], Changes], info: RunInfo | None = None, *, writes: bool = False
    ) -> RunInfo:
        """Swap the manifest for what `make` changes of it, once more as often as another writer was faster.

        Returns the manifest that was replaced. `writes`: `make` writes the files that it lists, which are of no use
        when the swap fails. UserError if another process has the run.
        """
        for _ in range(_TRIES):
            hold(self.home)
            info = info or self.info
            changes = make(info)
            if not changes:
                return info
            if self.home.swap(info, replace(info, generation=info.generation + 1, **changes)):
                return info
            made = set(changes.get("files", ())) - set(info.files)
            if made and made <= set(self.info.files):
                return info  # it was swapped; the answer was lost, and another writer came before it was asked again
            if writes:
                self._drop(made)
            info = None
        raise UserError(f"run {self.id} is changed by others faster than it can be written; try again")

    def _drop(self, entries: Iterable[FileEntry]) -> int:
        """Delete those of these files that the manifest does not list now."""
        listed = {entry.path for entry in self.info.files}
        return self.home.drop([entry.path for entry in entries if entry.path not in listed])


def hold(home: Home) -> None:
    """Become the run's writer. UserError if another process is."""
    if not home.acquire():
        who = home.writer() or "another process"
        raise UserError(f"run {home.id} is being written by {who}; wait for it or start a new run")


def _listing(info: RunInfo, made: Sequence[FileEntry], key: str) -> Changes:
    """The manifest with a segment more; ValueError if it is in already."""
    if key in info.keys:
        raise ValueError(f"segment {key!r} is already in run {info.run_id}")
    return {
        "files": (*info.files, *made),
        "keys": (*info.keys, key),
        "state": "running",
        "finished_at": None,
    }


def _small(info: RunInfo) -> dict[str, list[FileEntry]]:
    """By table, the files that are small enough to be joined."""
    return {t: [e for e in info.files if e.table == t and e.bytes < _LARGE_BYTES] for t in SCHEMAS}
