"""The files beside the one being read that belong to the same run: found by pattern, never outside its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from ..errors import UserError
from . import inputs
from .places import LocalFile, Place, RemoteFile, told
from .reading import Bad, Record

_MAX_TEXT_BYTES = 16 << 20


class LocalSource:
    """A `reading.Source` on a folder of this machine. `opened` collects the files that were read with it."""

    def __init__(self, path: Path, columns: Mapping[str, str] | None = None) -> None:
        self._path = path
        self._columns = dict(columns or {})
        self.opened: list[Place] = []

    @property
    def name(self) -> str:
        """The file's own name."""
        return self._path.name

    @property
    def columns(self) -> dict[str, str]:
        """The user's column map."""
        return self._columns

    def names(self, pattern: str) -> list[str]:
        """Names below the folder that match, sorted."""
        folder = self._path.parent
        found = (file.relative_to(folder).as_posix() for file in folder.glob(pattern) if file.is_file())
        return sorted(name for name in found if self._inside(name) is not None)

    def records(self, name: str) -> Iterator[Record | Bad]:
        """The records of a file beside this one."""
        place = self._open(name)
        if place is None:
            return
        try:
            yield from inputs.records(place)
        except UserError as error:
            yield Bad(0, str(error), "")

    def text(self, name: str) -> str | None:
        """The text of a file beside this one, at most 16 MiB of it; invalid characters are replaced."""
        place = self._open(name)
        if place is None:
            return None
        with place.open() as file:
            return _read(file, _MAX_TEXT_BYTES).decode(errors="replace")

    def _open(self, name: str) -> Place | None:
        place = self._inside(name)
        if place is not None:
            self.opened.append(place)
        return place

    def _inside(self, name: str) -> Place | None:
        """The file of that name if it is really below the folder, symbolic links followed."""
        folder = self._path.parent
        try:
            path = folder / name
            inside = path.resolve().is_relative_to(folder.resolve())
            return LocalFile(path) if inside and path.is_file() else None
        except (OSError, ValueError):
            return None


class RemoteSource(LocalSource):
    """The same in an object store."""

    def __init__(self, place: RemoteFile, columns: Mapping[str, str] | None = None) -> None:
        super().__init__(Path(place.path), columns)
        self._place = place
        self._folder = PurePosixPath(place.path).parent

    def names(self, pattern: str) -> list[str]:
        """Names below the folder that match, sorted."""
        with told(str(self._place)):
            found = self._place.system.glob(f"{self._folder}/{pattern}")
        names = (PurePosixPath(path).relative_to(self._folder).as_posix() for path in found)
        return sorted(name for name in names if self._inside(name) is not None)

    def _inside(self, name: str) -> Place | None:
        path = self._folder / name
        if ".." in path.parts or not path.is_relative_to(self._folder):
            return None
        with told(str(self._place)):
            if not self._place.system.isfile(str(path)):
                return None
        return self._place.beside(str(path))


class NoSource(LocalSource):
    """Nothing lies beside what comes from another program."""

    def names(self, pattern: str) -> list[str]:
        """None."""
        return []

    def _inside(self, name: str) -> Place | None:
        return None


def source_of(place: Place, columns: Mapping[str, str] | None = None) -> LocalSource:
    """What lies beside a file."""
    if isinstance(place, LocalFile):
        return LocalSource(place.path, columns)
    if isinstance(place, RemoteFile):
        return RemoteSource(place, columns)
    return NoSource(Path(place.name), columns)


def _read(file: BinaryIO, most: int) -> bytes:
    parts, left = [], most
    while left and (data := file.read(left)):
        parts.append(data)
        left -= len(data)
    return b"".join(parts)
