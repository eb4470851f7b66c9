"""What a store asks of where it lies: `Storage` of the whole, `Home` of one run. A folder and an object store answer.

Every change of a run is one compare-and-swap of its manifest. In a folder the run's lock makes it one; an object store
does it by a conditional put, and its lease only spares writers the work of losing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from .manifest import FileEntry, RunInfo


class Home(Protocol):
    """Where one run lies. `str()` of it is what a user would look for."""

    @property
    def id(self) -> str:
        """The run's id."""
        ...

    def exists(self) -> bool:
        """Whether it has a manifest."""
        ...

    def found(self) -> bool:
        """Whether there is anything of it, be it without a manifest."""
        ...

    def read(self) -> RunInfo:
        """What the manifest says now. UserError if it is damaged or not there."""
        ...

    def swap(self, before: RunInfo | None, after: RunInfo) -> bool:
        """Put a manifest in the place of `before` (None: of none). False if another was there, which then stays."""
        ...

    def acquire(self) -> bool:
        """Become the one process that writes the run, or find that it is. False if another one is."""
        ...

    def holds(self) -> bool:
        """Whether this process writes the run."""
        ...

    def writer(self) -> str | None:
        """Who writes the run, in words; None if nobody does."""
        ...

    def release(self) -> None:
        """Let others write the run."""
        ...

    def file_name(self, table: str, generation: int) -> str:
        """The name of a new file of the run's writer."""
        ...

    def write(self, name: str, parts: Iterable[pa.Table], schema: pa.Schema) -> tuple[int, int]:
        """Write a new Parquet file whole; returns its rows and bytes."""
        ...

    def path(self, info: RunInfo, entry: FileEntry) -> Path:
        """A path on this machine that holds a listed file. UserError if it is missing."""
        ...

    def problem(self, info: RunInfo, entry: FileEntry) -> str | None:
        """What is wrong with a listed file, in words, or None."""
        ...

    def drop(self, names: Sequence[str]) -> int:
        """Delete files, of which some may be gone; returns how many were named."""
        ...

    def unlisted(self, info: RunInfo) -> list[str]:
        """Files of ours that no manifest lists: a writer may be about to, if there is one."""
        ...

    def left_behind(self) -> bool:
        """Whether there is no manifest, and not because the run is just being begun."""
        ...

    def holds_rows(self) -> bool:
        """Whether there are rows that nobody asked to remove, though there is no manifest: it was lost."""
        ...

    def retire(self) -> None:
        """Take the run from its readers: the first step of removing it."""
        ...

    def clear(self) -> int:
        """Delete all that is there; returns the number of files."""
        ...

    def workspace(self) -> Path:
        """A folder of this machine for files beside the rows, which `keep` puts with the run."""
        ...

    def keep(self) -> None:
        """Put what is in the workspace with the run."""
        ...

    def beside(self, name: str) -> Path | None:
        """A path on this machine that holds a file kept beside the rows, None if there is none."""
        ...

    def name_of(self, name: str) -> str:
        """A file of the run as a user would look for it."""
        ...


class Storage(Protocol):
    """Where a whole store lies. `str()` of it is what a user would type."""

    def home(self, run_id: str) -> Home:
        """Where a run lies, whether it exists or not."""
        ...

    def homes(self) -> Iterator[Home]:
        """Of every run, also of those whose manifest is gone, in the order of their ids."""
        ...

    def infos(self) -> list[RunInfo]:
        """What all manifests say. UserError if one is damaged."""
        ...

    def ready(self, runs: Sequence[RunInfo], tables: Iterable[str]) -> None:
        """Make the files of these tables readable by `Home.path`, several at a time where that is faster."""
        ...

    def tables_for(self, sql: str) -> tuple[str, ...]:
        """The tables whose files must be at hand for a question."""
        ...

    def key(self) -> bytes:
        """The key of the store's stand-ins, made at its first use."""
        ...

    def desk(self) -> Path:
        """A folder of this machine for what belongs to the store but is never in an object store: jobs, audit log."""
        ...
