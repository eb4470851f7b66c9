"""The contract of a trace reader: what it is given, what it gives back, and how it refuses.

A reader is one file of `readers/` with a `FORMAT`. Most formats hold one run or one model call per record and need
only `read`; those that spread a run over many records, or over several files, have `gather`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from .trajectory import Request, Trajectory


class Reject(ValueError):
    """This record cannot be read; the message says why, in words that need no source code."""


@dataclass(frozen=True, slots=True)
class Record:
    """One parsed record. `place`: line, row or element of a list, from 1.

    `repaired`: half characters were replaced; `nulled`: NaN and Infinity, which JSON does not have, became null.
    """

    place: int
    value: Any
    repaired: bool = False
    nulled: bool = False


@dataclass(frozen=True, slots=True)
class Bad:
    """One record that could not be parsed, and the beginning of its text."""

    place: int
    reason: str
    raw: str


@dataclass(frozen=True, slots=True)
class Item:
    """One noun made from a file, and the place it begins at; or why there is none, and the beginning of the text."""

    place: int
    value: Trajectory | Request | None
    reason: str = ""
    raw: str = ""


class Source(Protocol):
    """The file being read, and the files beside it that belong to the same run."""

    @property
    def name(self) -> str:
        """The file's own name, without its folder."""
        ...

    @property
    def columns(self) -> dict[str, str]:
        """What the user said of a table: noun's field → column. Empty unless `--columns` was given."""
        ...

    def names(self, pattern: str) -> list[str]:
        """Names of files below the same folder that match a pattern such as `events/*.json`, sorted; never above it."""
        ...

    def records(self, name: str) -> Iterator[Record | Bad]:
        """The records of one such file, which then counts as read with this one. Nothing if there is no such file."""
        ...

    def text(self, name: str) -> str | None:
        """The text of one such file, bounded in size; None if there is none."""
        ...


Noun = Trajectory | Request


@dataclass(frozen=True, slots=True)
class Format:
    """One trace format.

    `sniff`: whether a parsed record (an object, a list, or a row of a table as an object) looks like this format and no
    other. `read`: the noun or nouns of one record, or Reject. `gather`: all items of one file from its records, for
    formats in which a run is spread over records; it passes on every `Bad` as a refused `Item`, holds no more than one
    run in memory, and raises nothing. `verified`: a real file of another project was read with it.
    """

    name: str
    title: str
    kind: Literal["trajectories", "requests"]
    sniff: Callable[[Any], bool]
    read: Callable[[Any], Noun | Iterable[Noun]] | None = None
    gather: Callable[[Iterator[Record | Bad], Source], Iterator[Item]] | None = None
    verified: bool = False

    def __post_init__(self) -> None:
        assert (self.read is None) != (self.gather is None), f"{self.name} needs either read or gather"
