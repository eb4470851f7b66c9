"""The store: a folder of runs. Parquet files are the truth, a manifest per run says which of them count.

Layout: `runs/RUN_ID/manifest.json` and `runs/RUN_ID/TABLE.GENERATION.parquet`. Segments are added while a run is
going and merged into one file per table at its end. A kill at any point leaves the old or the new state.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..console import plain
from ..errors import UserError
from . import locks, manifest, segments, views
from .leftovers import REMOVED, holds_rows, left_behind, unlisted
from .manifest import FileEntry, RunInfo
from .run import Run, lock

if TYPE_CHECKING:
    import duckdb

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
_TRIES = 50  # of a reader that runs into writers


class Store:
    """A folder with one sub-folder per run. Reading needs no lock; a run has one writing process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, where: str | Path | None = None) -> Store:
        """The store at `where`, else at KVMILL_STORE, else at ./kvmill-store. Made on the first write."""
        given = str(where or os.environ.get("KVMILL_STORE") or "kvmill-store")
        if "://" in given:
            raise UserError(f"store {given!r}: only folders are supported; give a path with --store or KVMILL_STORE")
        path = Path(given).expanduser()
        if path.exists() and not path.is_dir():
            raise UserError(f"store {path} is a file; give a folder with --store or KVMILL_STORE")
        return cls(path)

    def folder(self, run_id: str) -> Path:
        """The folder of a run."""
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
        """Start a run: its manifest is on disk, in state `running`, before this returns."""
        now = datetime.now(UTC)
        run_id = run_id or f"{kind}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        if not _RUN_ID.fullmatch(run_id):
            raise UserError(f"run id {run_id!r}: use letters, digits, '.', '_' and '-'")
        folder = self.folder(run_id)
        if (folder / manifest.NAME).exists():
            raise UserError(f"run {run_id} exists already in {self.path}; resume it or choose another id")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"store {self.path} cannot be written ({error.strerror}); give a folder with --store"
            ) from None
        lock(folder)
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
        manifest.write(folder, info)
        manifest.sync_folder(folder.parent)
        return Run(self, run_id)

    def resume(self, run_id: str) -> Run:
        """The run, to go on with: skip what `keys()` holds. UserError if unknown, or if another process writes it."""
        info = self.info(run_id)
        lock(self.folder(run_id))
        if info.state == "incomplete":
            manifest.write(self.folder(run_id), replace(info, state="running", finished_at=None))
        return Run(self, run_id)

    def open_run(self, run_id: str) -> Run:
        """A run as it is, without going on with it: to read its tables or to delete rows. UserError if unknown."""
        return Run(self, self.info(run_id).run_id)

    def write_segment(self, run_id: str, tables: Mapping[str, segments.Rows], *, key: str) -> list[FileEntry]:
        """Write rows of a run that another process holds, under names of their own and without its lock.

        They count when that process calls `Run.adopt` on what this returns; until then no reader sees them. UserError
        for an unknown run, table or column; ValueError for NaN.
        """
        run = self.open_run(run_id)
        return [run.write_apart(name, rows, key) for name, rows in segments.to_tables(tables, run_id).items()]

    def runs(self, kind: str | None = None, state: str | None = None) -> list[RunInfo]:
        """All runs, newest first."""
        found = [manifest.read(path.parent) for path in self.path.glob(f"runs/*/{manifest.NAME}") if path.exists()]
        chosen = [run for run in found if kind in (None, run.kind) and state in (None, run.state)]
        return sorted(chosen, key=lambda run: (run.created_at, run.run_id), reverse=True)

    def info(self, run_id: str) -> RunInfo:
        """What the manifest of one run says. UserError if there is no such run."""
        if _RUN_ID.fullmatch(run_id) and (self.folder(run_id) / manifest.NAME).is_file():
            return manifest.read(self.folder(run_id))
        newest = ", ".join(run.run_id for run in self.runs()[:5]) or "none"
        raise UserError(f"unknown run {run_id!r} in {self.path}. Newest runs: {newest}")

    def latest(self, kind: str) -> RunInfo | None:
        """The newest complete run of a kind."""
        return next(iter(self.runs(kind, "complete")), None)

    def connect(self) -> duckdb.DuckDBPyConnection:
        """DuckDB in memory with a view per table and `runs`, over the files listed now.

        A run that ends later replaces its files: connect again, or use `query`, which does.
        """
        return self._connect(self.runs())

    def query(self, sql: str, params: Sequence[Any] = ()) -> pa.Table:
        """The answer to one question over the views. Errors of the SQL itself are DuckDB's."""
        import duckdb

        for _ in range(_TRIES):
            runs = self.runs()
            try:
                with self._connect(runs) as connection:
                    relation = connection.sql(sql, params=list(params) or None)
                    return relation.to_arrow_table() if relation is not None else pa.table({})
            except (UserError, duckdb.IOException, duckdb.InvalidInputException) as error:
                if self.runs() != runs:
                    continue  # a run that ended in between has swapped its files
                problems = self.check()
                if isinstance(error, UserError) or not problems:
                    raise
                raise UserError(f"{problems[0]}; run `kvmill store check`") from None
        raise UserError(f"{self.path} changes faster than it can be read; try again when fewer runs write to it")

    def _connect(self, runs: Sequence[RunInfo]) -> duckdb.DuckDBPyConnection:
        return views.connect(runs, {run.run_id: self.folder(run.run_id) for run in runs})

    def check(self) -> list[str]:
        """Problems in words: damaged manifests, missing, torn or unlisted files. Empty if all is well."""
        return [problem for folder in sorted(self.path.glob("runs/*/")) for problem in self._check(folder)]

    def _check(self, folder: Path) -> list[str]:
        for _ in range(_TRIES):
            if not (folder / manifest.NAME).exists():
                if holds_rows(folder):
                    return [f"no manifest in {folder}, but rows: put it back, or `kvmill store remove {folder.name}`"]
                left = left_behind(folder)
                return [f"no manifest in {folder}; `kvmill store compact` removes the folder"] if left else []
            try:
                info = manifest.read(folder)
            except UserError as error:
                return [str(error)]
            broken = [segments.problem(folder / entry.path, entry.rows, entry.bytes) for entry in info.files]
            problems = [f"{problem} (run {info.run_id})" for problem in broken if problem]
            problems += [
                f"unlisted file {path} (run {info.run_id}): left by a killed process; `kvmill store compact` removes it"
                for path in unlisted(folder, info)
                if not locks.busy(folder) and path.exists()
            ]
            if not problems or manifest.read(folder) == info:
                return problems
        return []  # never the same twice: it is being written, and so not damaged

    def compact(self) -> int:
        """Merge the segments of finished runs and drop unlisted files. Returns the number of files removed.

        Runs that another process is writing are left alone; so are damaged manifests, and rows whose manifest is gone
        (`check` names both): measurements are never thrown away for a lost file beside them.
        """
        removed = 0
        for folder in sorted(self.path.glob("runs/*/")):
            held, left = locks.holds(folder), left_behind(folder)
            if not (left or (folder / manifest.NAME).exists()) or not locks.acquire(folder):
                continue
            try:
                if left:
                    if not holds_rows(folder):
                        removed += sum(1 for path in folder.iterdir() if path.name != locks.NAME)
                        shutil.rmtree(folder)
                    continue
                info = manifest.read(folder)
                if info.state != "running":
                    removed += Run(self, info.run_id).merge(info.state, info.finished_at)
                for path in unlisted(folder, manifest.read(folder)):
                    path.unlink()
                    removed += 1
            finally:
                if not held:
                    locks.release(folder)
        return removed

    def remove(self, run_id: str) -> None:
        """Delete a run. It is gone for readers the moment its manifest is."""
        folder = self.folder(run_id)
        if not _RUN_ID.fullmatch(run_id) or not folder.is_dir():
            self.info(run_id)  # says which runs there are
        lock(folder)
        if (folder / manifest.NAME).exists():
            (folder / manifest.NAME).rename(folder / REMOVED)
        manifest.sync_folder(folder)
        locks.release(folder)
        shutil.rmtree(folder)
