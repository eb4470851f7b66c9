"""The store: a folder of runs, here or in an object store. Parquet is the truth, a manifest per run says what counts.

Layout: `runs/RUN_ID/manifest.json` and `runs/RUN_ID/TABLE.GENERATION.parquet`. Segments are added while a run is
going and merged into one file per table at its end. A kill at any point leaves the old or the new state.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..console import plain
from ..errors import UserError
from . import manifest, segments, upkeep, views
from .local_storage import LocalStorage
from .manifest import RUN_ID, FileEntry, RunInfo
from .places import is_uri
from .run import Run, hold
from .storage import Home, Storage
from .tables import SCHEMAS

if TYPE_CHECKING:
    import duckdb

_TRIES = 50  # of a reader that runs into writers


class Store:
    """Runs in a folder or below an address. Reading needs no lock; a run has one writing process.

    `str()` of it is what `open` takes.
    """

    def __init__(self, where: Path | Storage) -> None:
        self.storage: Storage = LocalStorage(where) if isinstance(where, Path) else where

    def __str__(self) -> str:
        return str(self.storage)

    @classmethod
    def open(cls, where: str | Path | None = None) -> Store:
        """The store at `where`, else at KVMILL_STORE, else at ./kvmill-store. Made on the first write.

        UserError for a file, and for an address of another kind than s3://BUCKET/PREFIX.
        """
        given = str(where or os.environ.get("KVMILL_STORE") or "kvmill-store")
        if is_uri(given):
            from .object_storage import ObjectStorage

            return cls(ObjectStorage.of(given))
        path = Path(given).expanduser()
        if path.exists() and not path.is_dir():
            raise UserError(f"store {path} is a file; give a folder with --store or KVMILL_STORE")
        return cls(path)

    @property
    def where(self) -> str:
        """What `open` takes from anywhere: the address, or the whole path of the folder."""
        return str(self.path.absolute()) if isinstance(self.storage, LocalStorage) else str(self)

    @property
    def path(self) -> Path:
        """The store's folder. UserError if it has none: then what is asked for works in a folder only."""
        if isinstance(self.storage, LocalStorage):
            return self.storage.path
        raise UserError(
            f"{self} is an object store, and this needs a folder of this machine, as jobs and uploads do: "
            "give one with --store, or run the command itself"
        )

    @property
    def desk(self) -> Path:
        """The folder of this machine for jobs, uploads and the audit log: the store's own, if it has one."""
        return self.storage.desk()

    def folder(self, run_id: str) -> Path:
        """The folder of a run. UserError as of `path`."""
        return self.path / "runs" / run_id

    def begin(
        self,
        kind: str,
        config: Mapping[str, Any],
        *,
        seed: int = 0,
        device: str | None = None,
        run_id: str | None = None,
    ) -> Run:
        """Start a run: its manifest is written, in state `running`, before this returns."""
        if kind not in manifest.KINDS:
            raise ValueError(f"kind {kind!r}: one of {manifest.KINDS}")
        now = datetime.now(UTC)
        run_id = run_id or f"{kind}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        if not RUN_ID.fullmatch(run_id):
            raise UserError(f"run id {run_id!r}: use letters, digits, '.', '_' and '-'")
        if seed.bit_length() > 63:  # of a manifest that cannot be read as a row, no run of the store can
            raise UserError(f"seed {seed}: a store keeps whole numbers of 63 bits")
        home = self.storage.home(run_id)
        taken = f"run {run_id} exists already in {self}; resume it or choose another id"
        if home.exists():
            raise UserError(taken)
        hold(home)
        info = RunInfo(
            run_id=run_id,
            kind=kind,
            state="running",
            config=plain({**config, **({"job": job} if (job := os.environ.get("KVMILL_JOB")) else {})}),
            seed=seed,
            device=device,
            git_revision=manifest.git_revision(),
            versions=manifest.versions(),
            created_at=now.isoformat(timespec="microseconds"),
        )
        if not home.swap(None, info):
            raise UserError(taken)
        return Run(self, home)

    def resume(self, run_id: str) -> Run:
        """The run, to go on with: skip what `keys()` holds. UserError if unknown, or if another process writes it."""
        self.info(run_id)
        run = Run(self, self.storage.home(run_id))
        run.reopen()
        return run

    def open_run(self, run_id: str) -> Run:
        """A run as it is, without going on with it: to read its tables or to delete rows. UserError if unknown."""
        return Run(self, self.storage.home(self.info(run_id).run_id))

    def write_segment(self, run_id: str, tables: Mapping[str, segments.Rows], *, key: str) -> list[FileEntry]:
        """Write rows of a run that another process holds, under names of their own and without its lock.

        They count when that process calls `Run.adopt` on what this returns; until then no reader sees them. UserError
        for an unknown run, table or column; ValueError for NaN.
        """
        run = Run(self, self._home(run_id))
        return [run.write_apart(name, rows, key) for name, rows in segments.to_tables(tables, run_id).items()]

    def runs(self, kind: str | None = None, state: str | None = None) -> list[RunInfo]:
        """All runs, newest first."""
        chosen = [run for run in self.storage.infos() if kind in (None, run.kind) and state in (None, run.state)]
        return sorted(chosen, key=lambda run: (run.created_at, run.run_id), reverse=True)

    def info(self, run_id: str) -> RunInfo:
        """What the manifest of one run says. UserError if there is no such run."""
        return self._home(run_id).read()

    def _home(self, run_id: str) -> Home:
        """Where a run lies. UserError if there is no such run."""
        if RUN_ID.fullmatch(run_id) and (home := self.storage.home(run_id)).exists():
            return home
        newest = ", ".join(run.run_id for run in self.runs()[:5]) or "none"
        raise UserError(f"unknown run {run_id!r} in {self}. Newest runs: {newest}")

    def latest(self, kind: str) -> RunInfo | None:
        """The newest complete run of a kind."""
        return next(iter(self.runs(kind, "complete")), None)

    def busy(self, run_id: str) -> bool:
        """Whether some process, this one included, is writing the run."""
        return self.storage.home(run_id).writer() is not None

    def beside(self, run_id: str, name: str) -> Path | None:
        """A file that was kept beside a run's rows, on this machine; None if there is none."""
        return self.storage.home(run_id).beside(name)

    def connect(self) -> duckdb.DuckDBPyConnection:
        """DuckDB in memory with a view per table and `runs`, over the files listed now.

        A run that ends later replaces its files: connect again, or use `query`, which does.
        """
        return self._connect(self.runs(), tuple(SCHEMAS))

    def query(self, sql: str, params: Sequence[Any] = ()) -> pa.Table:
        """The answer to one question over the views. Errors of the SQL itself are DuckDB's."""
        import duckdb

        for _ in range(_TRIES):
            runs = self.runs()
            try:
                with self._connect(runs, self.storage.tables_for(sql)) as connection:
                    relation = connection.sql(sql, params=list(params) or None)
                    return relation.to_arrow_table() if relation is not None else pa.table({})
            except (UserError, duckdb.IOException, duckdb.InvalidInputException) as error:
                if self.runs() != runs:
                    continue  # a run that ended in between has swapped its files
                problems = self.check()
                if isinstance(error, UserError) or not problems:
                    raise
                raise UserError(f"{problems[0]}; run `kvmill store check`") from None
        raise UserError(f"{self} changes faster than it can be read; try again when fewer runs write to it")

    def _connect(self, runs: Sequence[RunInfo], tables: Sequence[str]) -> duckdb.DuckDBPyConnection:
        self.storage.ready(runs, tables)
        return views.connect(runs, lambda info, entry: self.storage.home(info.run_id).path(info, entry), tables)

    def check(self) -> list[str]:
        """Problems in words: damaged manifests, missing, torn or unlisted files. Empty if all is well."""
        return upkeep.check(self.storage)

    def compact(self) -> int:
        """Merge the segments of finished runs and drop unlisted files. Returns the number of files removed.

        Runs that another process is writing are left alone; so are damaged manifests, and rows whose manifest is gone
        (`check` names both): measurements are never thrown away for a lost file beside them.
        """
        return upkeep.compact(self)

    def remove(self, run_id: str) -> None:
        """Delete a run. It is gone for readers the moment its manifest is."""
        home = self.storage.home(run_id)
        if not RUN_ID.fullmatch(run_id) or not home.found():
            self.info(run_id)  # says which runs there are
        hold(home)
        home.retire()
        home.release()
        home.clear()
