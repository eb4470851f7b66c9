"""Files behind what a user names: paths, folders, patterns, URIs, standard input."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UserError
from .places import STANDARD_INPUT, LocalFile, Place, RemoteFile, StandardInput, is_uri, remote, shown, told


@dataclass(slots=True)
class Inputs:
    """Files, each once and in order, with the input that named it.

    `hidden`: how many files of folders were skipped for their names; `links`: links that leave their folder, or lead
    nowhere, and were not followed.
    """

    files: dict[Place, str] = field(default_factory=dict)
    hidden: int = 0
    links: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Place]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def expand(paths: Sequence[str | Path]) -> Inputs:
    """The files behind paths, folders, patterns and URIs; `-` is standard input.

    A folder's own files come before those of its folders: they are the ones that name the others. UserError if an
    input matches nothing.
    """
    found = Inputs()
    for given in paths:
        if not str(given).strip():
            raise UserError("an empty path; the folder here is `.`")
        files = list(_files(given, found))
        if not files:
            folder = not is_uri(str(given)) and Path(given).expanduser().is_dir()
            raise UserError(f"no files in the folder {given}" if folder else f"no such file: {shown(str(given))}")
        for file in files:
            found.files.setdefault(file, shown(str(given)))
    return found


def _files(given: str | Path, found: Inputs) -> Iterator[Place]:
    if given == STANDARD_INPUT:
        yield StandardInput()
        return
    if is_uri(str(given)):
        yield from _remote(remote(str(given)), found)
        return
    path = Path(given).expanduser()
    if path.is_dir():
        yield from _folder(path, found)
    elif path.exists():
        yield LocalFile(path)
    else:
        names = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 (a pattern may be absolute)
        yield from (LocalFile(Path(name)) for name in names if Path(name).is_file())


def _folder(folder: Path, found: Inputs) -> Iterator[Place]:
    root = folder.resolve()
    unreadable: list[OSError] = []
    for parent, folders, names in os.walk(folder, onerror=unreadable.append):
        folders.sort()
        for name in [*sorted(names), *(name for name in folders if (Path(parent) / name).is_symlink())]:
            path = Path(parent) / name
            if name.startswith("."):
                found.hidden += 1
            elif path.is_symlink() and not (path.exists() and path.resolve().is_relative_to(root)):
                found.links.append(str(path))
            elif path.is_file():
                yield LocalFile(path)
        found.hidden += sum(name.startswith(".") for name in folders)
        folders[:] = [name for name in folders if not name.startswith(".")]
    # Reading such a folder as if it were a file says why it cannot be read, where every other file says so.
    yield from (LocalFile(Path(error.filename)) for error in unreadable)


def _remote(named: RemoteFile, found: Inputs) -> Iterator[Place]:
    with told(str(named)):
        if any(c in named.path for c in "*?["):
            paths = [path for path in named.system.glob(named.path) if named.system.isfile(path)]
        elif named.system.isdir(named.path) and not named.system.isfile(named.path):
            paths = named.system.find(named.path)
        else:
            paths = [named.path] if named.system.exists(named.path) else []
    for path in sorted(paths, key=lambda path: (str(path).count("/"), path)):
        if any(part.startswith(".") for part in path.removeprefix(named.path).split("/")):
            found.hidden += 1
        else:
            yield named.beside(path)
