"""One writing process per run: an advisory lock that the system releases when the process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

NAME = "lock"
_held: dict[Path, int] = {}


def acquire(folder: Path) -> bool:
    """Take the run's lock for this process, or find that it has it. False if another process writes the run."""
    path = (folder / NAME).resolve()
    if path in _held:
        return True
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return False
    except OSError:
        pass  # a file system without locks: writing still is atomic, only two writers are not kept apart
    _held[path] = handle
    return True


def holds(folder: Path) -> bool:
    """Whether this process holds the run's lock."""
    return (folder / NAME).resolve() in _held


def busy(folder: Path) -> bool:
    """Whether some process, this one included, is writing the run. Changes nothing on disk."""
    path = (folder / NAME).resolve()
    if path in _held:
        return True
    if not path.exists():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


def release(folder: Path) -> None:
    """Give the lock back."""
    handle = _held.pop((folder / NAME).resolve(), None)
    if handle is not None:
        os.close(handle)
