"""A store in a folder: renames, locks of the system and fsync."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from ..errors import UserError
from . import leftovers, locks, manifest, segments, views
from .manifest import FileEntry, RunInfo
from .redact_key import redaction_key
from .tables import SCHEMAS


class LocalHome:
    """A run's folder. Files appear by rename; one process at a time has the lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def id(self) -> str:
        """The folder's name."""
        return self.folder.name

    def exists(self) -> bool:
        """Whether the manifest is there."""
        return (self.folder / manifest.NAME).is_file()

    def found(self) -> bool:
        """Whether there is a folder."""
        return self.folder.is_dir()

    def read(self) -> RunInfo:
        """What the manifest says now."""
        return manifest.read(self.folder)

    def swap(self, before: RunInfo | None, after: RunInfo) -> bool:
        """Put a manifest in place; the lock has kept others from changing the one before."""
        if before is None and self.exists():
            return False
        if before is not None:
            manifest.sync_folder(self.folder)  # the files' names first, then the manifest that lists them
        manifest.write(self.folder, after)
        if before is None:
            manifest.sync_folder(self.folder.parent)
        return True

    def acquire(self) -> bool:
        """Take the lock; makes the folder."""
        if not self.folder.is_dir():
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                store, why = self.folder.parent.parent, error.strerror
                raise UserError(f"store {store} cannot be written ({why}); give a folder with --store") from None
        return locks.acquire(self.folder)

    def holds(self) -> bool:
        """Whether this process has the lock."""
        return locks.holds(self.folder)

    def writer(self) -> str | None:
        """Somebody, as long as the lock is taken."""
        return "another process" if locks.busy(self.folder) else None

    def release(self) -> None:
        """Give the lock back."""
        locks.release(self.folder)

    def file_name(self, table: str, generation: int) -> str:
        """Names count up: only the holder of the lock writes them."""
        return f"{table}.{generation}.parquet"

    def write(self, name: str, parts: Iterable[pa.Table], schema: pa.Schema) -> tuple[int, int]:
        """Write a file whole."""
        rows = segments.write(self.folder / name, parts, schema, self.id)
        return rows, (self.folder / name).stat().st_size

    def path(self, info: RunInfo, entry: FileEntry) -> Path:
        """The file itself."""
        path = self.folder / entry.path
        if not path.is_file():
            raise views.missing(str(path), info.run_id)
        return path

    def problem(self, info: RunInfo, entry: FileEntry) -> str | None:
        """Missing, torn, or with other rows than the manifest says."""
        return segments.problem(self.folder / entry.path, entry.rows, entry.bytes)

    def drop(self, names: Sequence[str]) -> int:
        """Unlink files."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)
        return len(names)

    def unlisted(self, info: RunInfo) -> list[str]:
        """Parquet and temporary files that killed processes left."""
        return [path.name for path in leftovers.unlisted(self.folder, info)]

    def left_behind(self) -> bool:
        """Idle for a while, and without a manifest."""
        return leftovers.left_behind(self.folder)

    def holds_rows(self) -> bool:
        """Parquet files whose manifest is gone."""
        return leftovers.holds_rows(self.folder)

    def retire(self) -> None:
        """Rename the manifest."""
        if self.exists():
            (self.folder / manifest.NAME).rename(self.folder / leftovers.REMOVED)
        manifest.sync_folder(self.folder)

    def clear(self) -> int:
        """Delete the folder."""
        removed = sum(1 for path in self.folder.iterdir() if path.name != locks.NAME)
        shutil.rmtree(self.folder)
        return removed

    def workspace(self) -> Path:
        """The folder itself: what is written there is kept at once."""
        return self.folder

    def keep(self) -> None:
        """Nothing is left to do."""

    def beside(self, name: str) -> Path | None:
        """A file of the folder."""
        path = self.folder / name
        return path if path.is_file() else None

    def name_of(self, name: str) -> str:
        """Its path."""
        return str(self.folder / name)


class LocalStorage:
    """A folder with one sub-folder per run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def home(self, run_id: str) -> LocalHome:
        """A sub-folder."""
        return LocalHome(self.path / "runs" / run_id)

    def homes(self) -> Iterator[LocalHome]:
        """All sub-folders."""
        return map(LocalHome, sorted(self.path.glob("runs/*/")))

    def infos(self) -> list[RunInfo]:
        """Every manifest that is there."""
        return [manifest.read(path.parent) for path in self.path.glob(f"runs/*/{manifest.NAME}") if path.exists()]

    def ready(self, runs: Sequence[RunInfo], tables: Iterable[str]) -> None:
        """They are here."""

    def tables_for(self, sql: str) -> tuple[str, ...]:
        """All: it costs nothing."""
        return tuple(SCHEMAS)

    def key(self) -> bytes:
        """A file that only its owner can read."""
        return redaction_key(self.path)

    def desk(self) -> Path:
        """The store itself."""
        return self.path
