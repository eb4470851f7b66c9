"""Copies of immutable files of object stores on this machine, for DuckDB and pyarrow to read: bounded, and forgotten.

They lie below KVMILL_CACHE, readable by their owner alone. What the store no longer lists is deleted here as soon as
this machine asks the store again; beyond KVMILL_OBJECT_CACHE_GIB (10) what was not read for longest goes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from ..errors import UserError

MOST_GIB = "KVMILL_OBJECT_CACHE_GIB"
_DEFAULT_GIB = 10.0
_IN_USE_S = 600.0  # what was read so lately stays, whatever the bound says
_JUST_READ_S = 60.0  # another process may have seen a newer listing than this one
_HALF = ".tmp"  # of a copy that is being fetched, or whose process was killed meanwhile
MARK = "~"  # between the id of a run, which never has one, and what tells two runs of one id apart
Fetch = Callable[[IO[bytes]], bool]


def cache_home() -> Path:
    """The folder for downloads and converted weights: KVMILL_CACHE, else `kvmill` in the user's cache folder."""
    if given := os.environ.get("KVMILL_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "kvmill" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "kvmill"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvmill"


def most_bytes() -> int:
    """The bound of all copies together. UserError for a variable that is no number."""
    given = os.environ.get(MOST_GIB)
    try:
        most = float(given) if given else _DEFAULT_GIB
    except ValueError:
        most = -1.0
    if most < 0:
        raise UserError(f"{MOST_GIB}={given}: give a number of GiB")
    return int(most * (1 << 30))


def copy(path: Path, size: int, fetch: Fetch) -> bool:
    """Have a copy of `size` bytes at `path`; False if there is nothing to fetch. It appears whole or not at all."""
    with contextlib.suppress(OSError):
        if path.stat().st_size == size:
            os.utime(path)  # when it was last used
            return True
    for folder in reversed([path.parent, *path.parent.parents]):
        folder.mkdir(exist_ok=True, mode=0o700)  # also those between, which `parents=True` would open to others
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_HALF}")
    try:
        with temporary.open("wb") as file:
            if not fetch(file):
                return False
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def forget(folder: Path, listed: Mapping[str, set[str]]) -> None:
    """Delete copies below `folder` that are not listed any more: `listed` has the file names of each sub-folder."""
    if not folder.is_dir():
        return
    now = time.time()
    for found in folder.iterdir():
        names = listed.get(found.name, set())
        for path in found.iterdir():
            if path.name in names or (path.suffix not in (".parquet", _HALF) and found.name in listed):
                continue
            with contextlib.suppress(FileNotFoundError):
                if now - path.stat().st_mtime > (_IN_USE_S if path.suffix == _HALF else _JUST_READ_S):
                    path.unlink()
        if found.name not in listed:
            with contextlib.suppress(OSError):  # not empty yet
                found.rmdir()


def forget_run(folder: Path, run_id: str) -> None:
    """Delete all copies of a run that is removed."""
    for found in folder.glob(f"{run_id}{MARK}*"):
        shutil.rmtree(found, ignore_errors=True)


def bound(folder: Path) -> None:
    """Delete the copies below `folder` that were not read for longest, until the others are within the bound."""
    found = []
    for path in folder.rglob("*.parquet"):
        with contextlib.suppress(FileNotFoundError):
            stat = path.stat()
            found.append((stat.st_mtime, stat.st_size, path))
    total, most, now = sum(size for _, size, _ in found), most_bytes(), time.time()
    for read, size, path in sorted(found):
        if total <= most or now - read < _IN_USE_S:
            break
        path.unlink(missing_ok=True)
        total -= size
