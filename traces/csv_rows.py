"""Rows of a CSV or TSV table with a header: objects of column → text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from io import BufferedReader
from typing import Any

from ..errors import InputError
from .items import MAX_RAW
from .json_text import MAX_RECORD_BYTES
from .reading import Bad, Record

_EXCEL = re.compile(r"sep=.\s*\Z", re.IGNORECASE)
_DELIMITERS = ",\t;|"


def looks_like(text: str) -> bool:
    """Whether text begins with a header of two or more names, and no JSON follows it."""
    lines = text.lstrip("\ufeff").splitlines()
    begun = [line for line in lines if not _before_header(line)][:2]
    if not begun or begun[0].lstrip()[:1] in "[{" or (len(begun) > 1 and begun[1].lstrip()[:1] in ("{", "[")):
        return False
    names = _header(begun[0])
    if lines[0].startswith("# ") and (len(begun) < 2 or len(_header(begun[1])) != len(names)):
        return False  # a heading and prose, rather than a comment and a table
    different = len(set(names)) == len(names) or (len(begun) > 1 and len(_header(begun[1])) == len(names) > 2)
    return len(names) > 1 and different and not any(map(_number, names))


def _before_header(line: str) -> bool:
    """Whether a line may stand before the header: a comment, Excel's `sep=;`, or nothing."""
    return not line.strip() or line.startswith("# ") or bool(_EXCEL.match(line))


def _delimiter(line: str) -> str:
    return max(_DELIMITERS, key=line.count)


def _header(line: str) -> list[str]:
    row = next(csv.reader([line], delimiter=_delimiter(line)), [])
    return [name.strip() for name in row]


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def records(stream: BufferedReader[Any], where: str) -> Iterator[Record | Bad]:
    """The rows, each at the line it begins at. InputError for a header with the same name twice."""
    lines = _Lines(io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline=""))
    first = next((line for line in lines if not _before_header(line)), "")
    names = _header(first.rstrip("\r\n"))
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{where}: two columns are called {twice!r}")
    csv.field_size_limit(MAX_RECORD_BYTES)
    rows = csv.reader(lines, delimiter=_delimiter(first))
    while True:
        place, lines.held = lines.place + 1, 0
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield Bad(place, f"no valid row: {error}", "")
            continue
        if row:
            yield _record(place, names, row)


def _record(place: int, names: list[str], row: list[str]) -> Record | Bad:
    try:
        ",".join(row).encode()
    except UnicodeEncodeError:
        raw = ",".join(row).encode(errors="surrogateescape").decode(errors="backslashreplace")
        return Bad(place, "invalid UTF-8 in the row", raw[:MAX_RAW])
    if len(row) != len(names):
        return Bad(place, f"the row has {len(row)} fields, the header {len(names)}", ",".join(row)[:MAX_RAW])
    return Record(place, dict(zip(names, row, strict=True)))


class _Lines:
    """Lines of a table, counted; `held` is what the row being read has taken so far."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self.place = 0
        self.held = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._text.readline(MAX_RECORD_BYTES)
        if not line:
            raise StopIteration
        self.place += 1
        self.held += len(line)
        if self.held > MAX_RECORD_BYTES:
            self.held = 0
            raise csv.Error(f"it is longer than {MAX_RECORD_BYTES >> 20} MiB; is a quotation mark not closed?")
        return line
