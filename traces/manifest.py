"""A run's manifest: the one file that says which files of the run count. Replaced atomically, never edited.

A kill at any point leaves the old manifest or the new one. Files that no manifest lists do not exist for readers.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import UserError

FORMAT = 1
NAME = "manifest.json"
KINDS = ("ingest", "replay", "simulate", "plan", "max-load", "nightly", "acceptance")
STATES = ("running", "complete", "incomplete")
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # never a path: whoever may write to a store says these names
_MANY_FILES = 200
_PACKAGES = ("kvmill", "duckdb", "jinja2", "numpy", "pyarrow", "scipy", "simpy", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One Parquet file of a run. `path` is relative to the run's folder; `segment` is the caller's key or `merged`."""

    table: str
    path: str
    rows: int
    segment: str
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a manifest says. Times are ISO 8601 in UTC; `generation` counts the manifest's versions."""

    run_id: str
    kind: str
    state: str
    config: dict[str, Any]
    seed: int
    device: str | None
    git_revision: str | None
    versions: dict[str, str]
    created_at: str
    finished_at: str | None = None
    files: tuple[FileEntry, ...] = ()
    keys: tuple[str, ...] = ()
    generation: int = 0
    format: int = field(default=FORMAT)

    def rows(self, table: str) -> int:
        """Rows of one table."""
        return sum(entry.rows for entry in self.files if entry.table == table)


def read(folder: Path) -> RunInfo:
    """The manifest in a run's folder. UserError if it is damaged or from a newer kvmill."""
    path = folder / NAME
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _damaged(str(path), error) from None
    return decode(data, str(path))


def decode(data: bytes, where: str) -> RunInfo:
    """A manifest from its bytes; `where` is for the UserError if it is damaged or from a newer kvmill."""
    try:
        raw = json.loads(data)
        if raw["format"] > FORMAT:
            raise UserError(f"{where} was written by a newer kvmill (format {raw['format']}); update kvmill to read it")
        known = {f.name for f in fields(RunInfo)}
        values = {key: value for key, value in raw.items() if key in known}
        values["files"] = tuple(FileEntry(**entry) for entry in raw["files"])
        values["keys"] = tuple(raw["keys"])
        info = RunInfo(**values)
        _require_names(info)
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(where, error) from None
    if info.state not in STATES:
        raise UserError(f"damaged manifest {where} (state {info.state!r}); run `kvmill store check`")
    return info


def _require_names(info: RunInfo) -> None:
    """ValueError for names that lead out of the run's folder, or of where copies of its files lie."""
    if not RUN_ID.fullmatch(info.run_id):
        raise ValueError(f"run id {info.run_id!r}")
    for entry in info.files:
        if not _FILE.fullmatch(entry.path):
            raise ValueError(f"file name {entry.path!r}")


def _damaged(where: str, error: Exception) -> UserError:
    return UserError(
        f"damaged manifest {where} ({type(error).__name__}: {error}); "
        "run `kvmill store check`, then restore the file or delete the run's folder"
    )


def encode(info: RunInfo) -> bytes:
    """The bytes of a manifest: a line for each value; of a large run, which writes it very often, as few as can be."""
    values = {f.name: getattr(info, f.name) for f in fields(info)}
    values["files"] = [{name: getattr(entry, name) for name in FileEntry.__slots__} for entry in info.files]
    layout: dict[str, Any] = {"indent": 1} if len(info.files) < _MANY_FILES else {"separators": (",", ":")}
    return json.dumps(values, allow_nan=False, **layout).encode()


def write(folder: Path, info: RunInfo) -> None:
    """Replace the manifest atomically and durably."""
    replace(folder / NAME, encode(info))


def replace(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader, and a crash, sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)  # noqa: PTH105 (the tests count these calls)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@functools.cache
def git_revision() -> str | None:
    """Commit of this checkout, with `-dirty` when it was changed; None outside a checkout of kvmill itself."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


@functools.cache
def _versions() -> Mapping[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide results, without importing any of them."""
    return dict(_versions())
