"""The files beside the one being read that belong to the same run: found by pattern, never outside its folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..errors import UserError
from . import inputs
from .reading import Bad, Record

_MAX_TEXT_BYTES = 16 << 20


class LocalSource:
    """A `reading.Source` on a folder of this machine. `opened` collects the files that were read with it."""

    def __init__(self, path: Path, columns: dict[str, str] | None = None) -> None:
        self._path = path
        self._columns = columns or {}
        self.opened: list[Path] = []

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
        path = self._inside(name)
        if path is None:
            return
        self.opened.append(path)
        try:
            yield from inputs.records(path)
        except UserError as error:
            yield Bad(0, str(error), "")

    def text(self, name: str) -> str | None:
        """The text of a file beside this one, at most 16 MiB of it; invalid characters are replaced."""
        path = self._inside(name)
        if path is None:
            return None
        self.opened.append(path)
        with path.open("rb") as file:
            return file.read(_MAX_TEXT_BYTES).decode(errors="replace")

    def _inside(self, name: str) -> Path | None:
        """The file of that name if it is really below the folder, symbolic links followed."""
        folder = self._path.parent.resolve()
        try:
            path = (folder / name).resolve()
            return path if path.is_relative_to(folder) and path.is_file() else None
        except (OSError, ValueError):
            return None
