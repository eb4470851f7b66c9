"""Azure's LLM inference logs as CSV: TIMESTAMP, ContextTokens, GeneratedTokens (2023, 2024) and NumImages (2025).

Described in Azure/AzurePublicDataset. Times have seven fractional digits, in 2024 also a zone; arrivals are counted
from the file's first row. Images are not counted in the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..items import each
from ..reading import Bad, Format, Item, Record, Source
from ..trajectory import Request
from .fields import clock, has, row_of, tokens

NAME = "azure-llm"


def sniff(record: Any) -> bool:
    """Whether the row has Azure's columns."""
    return has(record, "TIMESTAMP", "ContextTokens", "GeneratedTokens")


class _Rows:
    """Rows of one file; the first one is the zero of its clock."""

    def __init__(self) -> None:
        self._zero: tuple[int, int] | None = None

    def read(self, record: Any) -> Request:
        row = row_of(record)
        second, nanosecond = clock(row, "TIMESTAMP")
        lengths = tokens(row, "ContextTokens"), tokens(row, "GeneratedTokens")
        if self._zero is None:
            self._zero = second, nanosecond
        arrival = ((second - self._zero[0]) * 10**9 + nanosecond - self._zero[1]) / 10**9
        return Request("", NAME, arrival, *lengths)


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """The requests of one file."""
    return each(_Rows().read, records)


FORMAT = Format(
    NAME,
    "Azure LLM inference log 2023, 2024, 2025: TIMESTAMP, ContextTokens, GeneratedTokens, CSV",
    "requests",
    sniff,
    gather=gather,
    verified=True,
)
