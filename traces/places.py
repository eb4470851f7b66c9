"""Where a file is: in a folder of this machine, on standard input, or in an object store."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol, cast

from ..errors import UserError

STANDARD_INPUT = "-"
_EXTRAS = {"s3": "s3", "s3a": "s3"}  # protocol → the optional dependencies that read it


class Place(Protocol):
    """A file to read. `str()` of it is what a user would type."""

    @property
    def name(self) -> str:
        """The file's own name."""
        ...

    @property
    def size(self) -> int | None:
        """Bytes, None where nobody knows before it was read."""
        ...

    def open(self) -> BinaryIO:
        """The file's bytes, unbuffered. UserError if it cannot be read."""
        ...


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of this machine, or a pipe with a name."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.path.name

    @property
    def size(self) -> int | None:
        """Bytes; None of a pipe."""
        try:
            return self.path.stat().st_size if self.path.is_file() else None
        except OSError:
            return None

    def open(self) -> BinaryIO:
        """The file's bytes."""
        try:
            return self.path.open("rb", buffering=0)
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror or error}") from None


@dataclass(frozen=True, slots=True)
class StandardInput:
    """What another program writes to this one."""

    name: str = STANDARD_INPUT
    size: int | None = None

    def __str__(self) -> str:
        return "standard input"

    def open(self) -> BinaryIO:
        """The bytes; they can be read once."""
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file behind a URI. `path` is its name inside the file system."""

    uri: str
    system: Any
    path: str

    def __str__(self) -> str:
        return shown(self.uri)

    @property
    def name(self) -> str:
        """The last part of the URI."""
        return PurePosixPath(shown(self.path)).name

    @property
    def size(self) -> int | None:
        """Bytes, as the file system says."""
        return self.system.size(self.path)

    def beside(self, path: str) -> RemoteFile:
        """Another file of the same file system."""
        return RemoteFile(self.system.unstrip_protocol(path), self.system, path)

    def open(self) -> BinaryIO:
        """The file's bytes, fetched as they are read."""
        with told(str(self)):
            return cast(BinaryIO, _Fetched(str(self), self.system.open(self.path, "rb")))


class _Fetched(io.RawIOBase):
    """A remote file of which every failure is one line for the user, also in the middle."""

    def __init__(self, uri: str, file: Any) -> None:
        self._uri, self._file = uri, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def readinto(self, buffer: Any) -> int:
        with told(self._uri):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with told(self._uri):
            return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@contextmanager
def told(uri: str) -> Iterator[None]:
    """Turns what a remote file system raises into one line for the user."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"no such file: {uri}") from None
    except Exception as error:  # every file system has errors of its own
        raise UserError(f"cannot read {uri}: {str(error) or type(error).__name__}") from None


def shown(given: str) -> str:
    """What a user typed, as it may be printed and stored: a signed address without its signature or password."""
    protocol, found, rest = given.partition("://")
    if not found or protocol not in ("http", "https"):
        return given
    server, slash, path = rest.partition("?")[0].partition("/")
    return f"{protocol}://{server.rpartition('@')[2]}{slash}{path}"


def is_uri(given: str) -> bool:
    """Whether it names a file system (`s3://…`) and not a path."""
    protocol, found, _ = given.partition("://")
    return bool(found) and protocol.replace("+", "").isalnum()


def remote(uri: str) -> RemoteFile:
    """The file, folder or pattern behind a URI. UserError for a protocol nobody reads here."""
    protocol = uri.partition("://")[0]
    extra = _EXTRAS.get(protocol)
    hint = f"pip install 'kvmill[{extra}]'" if extra else "install the fsspec package that reads it"
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise UserError(f"{shown(uri)}: reading it needs fsspec: pip install 'kvmill[s3]'") from None
    try:
        system, path = url_to_fs(uri)
    except ImportError as error:
        raise UserError(f"{shown(uri)}: {protocol}:// cannot be read yet: {hint} ({error})") from None
    except ValueError as error:
        raise UserError(f"{shown(uri)}: {error}") from None
    return RemoteFile(uri, system, path)


def place_of(given: str | Path | Place) -> Place:
    """The place that a path, a URI or `-` names; a place is itself."""
    if isinstance(given, Path):
        return LocalFile(given)
    if not isinstance(given, str):
        return given
    if given == STANDARD_INPUT:
        return StandardInput()
    return remote(given) if is_uri(given) else LocalFile(Path(given).expanduser())
