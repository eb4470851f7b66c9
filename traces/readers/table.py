"""Any table of requests, CSV, Parquet or JSON lines, explained by the user: `--columns FIELD=COLUMN,…`.

Fields: arrival and tool_wait, each with its unit (`arrival_ms=sent_at`); input_tokens, output_tokens, session, turn,
prefix_blocks, block_tokens. Without a map the columns bear these names. An arrival that is a date and time counts from
the file's first row. A column inside an object is written `usage.prompt_tokens`; block_tokens may be the number itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from ..items import each
from ..reading import Bad, Format, Item, Record, Reject, Source
from ..trajectory import Request
from .fields import clock, hashes, named, row_of, seconds, tokens, whole

NAME = "table"
UNITS = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}
TIMES = tuple(f"{name}_{unit}" for name in ("arrival", "tool_wait") for unit in UNITS)
FIELDS = (*TIMES, "input_tokens", "output_tokens", "session", "turn", "prefix_blocks", "block_tokens")
NEEDED = ("input_tokens", "output_tokens")
_SHOWN = 12


def sniff(record: Any) -> bool:
    """Never: what the columns mean is only known from the user."""
    return False


def mapping_flaw(columns: Mapping[str, str]) -> str | None:
    """What is wrong with a column map, in words, or None."""
    unknown = [field for field in columns if field not in FIELDS]
    if unknown:
        return f"unknown field {unknown[0]!r} in --columns; known: {', '.join(FIELDS)}"
    times = {name: [field for field in columns if field.startswith(name + "_")] for name in ("arrival", "tool_wait")}
    if not times["arrival"] or any(field not in columns for field in NEEDED):
        return "--columns must name arrival_s (or arrival_ms, _us, _ns), input_tokens and output_tokens"
    twice = [fields for fields in times.values() if len(fields) > 1]
    if twice:
        return f"--columns names both {twice[0][0]} and {twice[0][1]}"
    return "--columns names prefix_blocks without block_tokens" if _lone_blocks(columns) else None


def _lone_blocks(columns: Mapping[str, str]) -> bool:
    return "prefix_blocks" in columns and "block_tokens" not in columns


class _Rows:
    """Rows of one file under a column map; the first calendar time is the zero of its clock."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._columns = columns
        self._arrival = next(field for field in columns if field.startswith("arrival_"))
        self._wait = next((field for field in columns if field.startswith("tool_wait_")), None)
        self._zero: tuple[int, int] | None = None

    def read(self, record: Any) -> Request:
        whole_row = row_of(record)
        row = {column: _cell(whole_row, column) for column in self._columns.values()}
        absent = next((field for field in self._required() if not _has(whole_row, self._columns[field])), None)
        if absent is not None:
            known = ", ".join(map(str, itertools.islice(whole_row, _SHOWN)))
            raise Reject(f"{absent}: no column {self._columns[absent]}; the row has {known}")
        lengths = [tokens(row, self._columns[field]) for field in NEEDED]
        blocks = None
        if "prefix_blocks" in self._columns:
            blocks = hashes(row[self._columns["prefix_blocks"]], self._columns["prefix_blocks"])
        return Request(
            id="",
            source=NAME,
            arrival_s=self._time(row),
            input_tokens=lengths[0],
            output_tokens=lengths[1],
            session=named(self._value(row, "session")),
            turn=whole(self._value(row, "turn")),
            prefix_blocks=blocks,
            block_tokens=None if blocks is None else self._block_tokens(row),
            tool_wait_s=self._tool_wait(row),
        )

    def _required(self) -> tuple[str, ...]:
        return (self._arrival, *NEEDED)

    def _value(self, row: Mapping[str, Any], field: str) -> Any:
        return row.get(self._columns.get(field, ""))

    def _time(self, row: Mapping[str, Any]) -> float:
        column = self._columns[self._arrival]
        cell = row[column]
        if not (isinstance(cell, str) and ":" in cell):
            return seconds(row, column, _per_second(self._arrival))
        second, nanosecond = clock(row, column)
        if self._zero is None:
            self._zero = second, nanosecond
        return ((second - self._zero[0]) * 10**9 + nanosecond - self._zero[1]) / 10**9

    def _tool_wait(self, row: Mapping[str, Any]) -> float | None:
        if self._wait is None or row[self._columns[self._wait]] in (None, ""):
            return None
        return seconds(row, self._columns[self._wait], _per_second(self._wait))

    def _block_tokens(self, row: Mapping[str, Any]) -> int:
        column = self._columns["block_tokens"]
        size = whole(row[column] if row[column] is not None else column)
        if not size:
            raise Reject(f"block_tokens: {column} is no column with a number of tokens, and no such number")
        return size


def _per_second(field: str) -> int:
    return UNITS[field.rpartition("_")[2]]


def _cell(row: Mapping[str, Any], column: str) -> Any:
    """The value of a column, or of a path into objects; None where there is none."""
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _has(row: Mapping[str, Any], column: str) -> bool:
    return column in row or column.partition(".")[0] in row


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """The requests of one file; without a usable column map one refusal that says what is wrong."""
    records = iter(records)
    columns = source.columns
    if not columns:
        records, columns = _own_names(records)
    flaw = mapping_flaw(columns)
    if flaw is not None:
        yield Item(0, None, flaw)
        return
    yield from each(_Rows(columns).read, records)


def _own_names(records: Iterator[Record | Bad]) -> tuple[Iterator[Record | Bad], dict[str, str]]:
    """The records again, and a map of the fields that the first row has by their own names."""
    seen: list[Record | Bad] = []
    for found in records:
        seen.append(found)
        if isinstance(found, Record):
            row = found.value if isinstance(found.value, Mapping) else {}
            return itertools.chain(seen, records), {field: field for field in FIELDS if field in row}
    return iter(seen), {}


FORMAT = Format(
    NAME,
    "any table of requests (CSV, Parquet, JSON lines), its columns named by --columns",
    "requests",
    sniff,
    gather=gather,
)
