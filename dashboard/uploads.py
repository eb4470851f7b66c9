"""Files coming in: streamed to disk in pieces, there as a whole or not at all, under a name that is only a name."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ..errors import UserError
from ..traces import manifest
from .uploaded import Uploaded, record

VARIABLE = "KVMILL_MAX_UPLOAD_GIB"
MOST_GIB = 20
LEFT_FREE_BYTES = 512 << 20  # of the disk, for the store itself
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_LONGEST = 120


class TooLarge(UserError):
    """The upload is larger than what is taken."""


class NoRoom(UserError):
    """The disk is full."""


def most_bytes() -> int:
    """Bytes of the largest upload that is taken: KVMILL_MAX_UPLOAD_GIB, else 20 GiB. UserError if it is no number."""
    given = os.environ.get(VARIABLE, str(MOST_GIB))
    try:
        size = int(float(given) * (1 << 30))
    except (ValueError, OverflowError):
        size = 0
    if size <= 0:
        raise UserError(f"{VARIABLE}={given}: give a number of GiB above 0")
    return size


def safe_name(given: str) -> str:
    """The name a file is kept under. UserError for a path in place of a name.

    Letters, digits, dots, dashes and underscores stay; everything else becomes an underscore.
    """
    if "/" in given or "\\" in given or "\0" in given or given.strip(" ") in ("", ".", ".."):
        raise UserError(f"upload {given!r}: give the name of a file, without folders")
    name = re.sub(r"[^A-Za-z0-9._-]", "_", given.strip(" ")).lstrip(".-") or "upload"
    stem, dot, suffix = name.partition(".")
    return name if len(name) <= _LONGEST else (stem[: _LONGEST - 20] + dot + suffix[-19:])


class Upload:
    """One file coming in. `write` pieces, then `finish`; `abort` leaves nothing, and so does a killed process."""

    def __init__(self, folder: Path, name: str, most_bytes: int, expected_bytes: int | None = None) -> None:
        self.name = safe_name(name)
        self.most_bytes = most_bytes
        self.bytes = 0
        self._folder = folder
        self._digest = hashlib.sha256()
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        self._check(expected_bytes or 0)
        self._part = folder / f".{secrets.token_hex(8)}.part"
        self._file = self._part.open("xb")
        fcntl.flock(self._file, fcntl.LOCK_EX)  # says that somebody still writes it

    def write(self, piece: bytes) -> None:
        """Take a piece. TooLarge or NoRoom, after which only `abort` is left."""
        self._check(self.bytes + len(piece))
        try:
            self._file.write(piece)
        except OSError as error:
            raise self._unwritten(error) from None
        self.bytes += len(piece)
        self._digest.update(piece)

    def finish(self) -> Uploaded:
        """Make the file durable and visible."""
        upload = f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}-{secrets.token_hex(3)}"
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unwritten(error) from None
        path = f"{self._folder.name}/{upload}/{self.name}"
        found = Uploaded(upload, self.name, path, self.bytes, self._digest.hexdigest())
        whole = self._folder / f".{upload}"
        whole.mkdir()
        self._part.rename(whole / self.name)
        record(self._folder, found)
        manifest.sync_folder(whole)
        whole.rename(self._folder / upload)
        manifest.sync_folder(self._folder)
        self._file.close()
        return found

    def abort(self) -> None:
        """Forget what came."""
        self._part.unlink(missing_ok=True)
        self._file.close()

    def _check(self, size: int) -> None:
        if size > self.most_bytes:
            raise TooLarge(
                f"{self.name}: more than {self.most_bytes:,} bytes are not taken; let its folder be read here"
            )
        if size - self.bytes > shutil.disk_usage(self._folder).free - LEFT_FREE_BYTES:
            raise NoRoom(f"{self.name}: the disk of the store has no room for it")

    def _unwritten(self, error: OSError) -> Exception:
        return NoRoom(f"{self.name}: the disk of the store is full") if error.errno in _NO_ROOM else error


def receive(folder: Path, name: str, pieces: Iterable[bytes], most_bytes: int) -> Uploaded:
    """A whole upload from its pieces."""
    upload = Upload(folder, name, most_bytes)
    try:
        for piece in pieces:
            upload.write(piece)
        return upload.finish()
    except BaseException:
        upload.abort()
        raise


def sweep(folder: Path) -> None:
    """Delete what processes left that were killed in the middle of an upload, or of deleting one."""
    for left in [*folder.glob(".*.part"), *folder.glob(".*-*/*")]:
        try:
            with left.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink(missing_ok=True)
        except (BlockingIOError, FileNotFoundError):
            continue
        if left.parent != folder:
            with suppress(OSError):  # holds another file
                left.parent.rmdir()
            (folder / f"{left.parent.name[1:]}.json").unlink(missing_ok=True)
