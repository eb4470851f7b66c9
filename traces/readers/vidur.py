"""Vidur request log as CSV: arrived_at in s, num_prefill_tokens, num_decode_tokens.

Described in microsoft/vidur. Its other files have lengths only (num_total_tokens, pd_ratio) and no arrival: a request
without its arrival is none, so they are refused, saying so.
"""

from __future__ import annotations

from typing import Any

from ..reading import Format, Reject
from ..trajectory import Request
from .fields import has, row_of, seconds, tokens

NAME = "vidur"


def sniff(record: Any) -> bool:
    """Whether the row has Vidur's columns, with or without an arrival."""
    return has(record, "num_prefill_tokens", "num_decode_tokens")


def read(record: Any) -> Request:
    """One request. Reject for a file of lengths only."""
    row = row_of(record)
    if "arrived_at" not in row:
        raise Reject("lengths without arrivals: the file has no column arrived_at, so it is no request log")
    lengths = tokens(row, "num_prefill_tokens"), tokens(row, "num_decode_tokens")
    return Request("", NAME, seconds(row, "arrived_at"), *lengths)


FORMAT = Format(
    NAME,
    "Vidur request log: arrived_at (s), num_prefill_tokens, num_decode_tokens, CSV",
    "requests",
    sniff,
    read,
    verified=True,
)
