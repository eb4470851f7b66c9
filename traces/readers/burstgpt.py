"""BurstGPT request log as CSV: Timestamp in s, Model, Request tokens, Response tokens, Log Type.

Described in the README of HPMLL/BurstGPT; later releases add Session ID and Elapsed time. Failed requests have no
response tokens: they are refused, since they did no work that could be replayed. The log begins with a slow ramp-up,
which the checks of a log report.
"""

from __future__ import annotations

from typing import Any

from ..reading import Format, Reject
from ..trajectory import Request
from .fields import has, named, row_of, seconds, tokens

NAME = "burstgpt"


def sniff(record: Any) -> bool:
    """Whether the row has BurstGPT's columns."""
    return has(record, "Timestamp", "Request tokens", "Response tokens")


def read(record: Any) -> Request:
    """One request. Reject for a failed one."""
    row = row_of(record)
    asked, answered = tokens(row, "Request tokens"), tokens(row, "Response tokens")
    if answered == 0:
        raise Reject("a failed request: it has 0 response tokens")
    session = named(row.get("Session ID")) or named(row.get("SessionID"))
    return Request("", NAME, seconds(row, "Timestamp"), asked, answered, session)


FORMAT = Format(
    NAME,
    "BurstGPT request log: Timestamp (s), Request tokens, Response tokens, Model, Log Type, CSV",
    "requests",
    sniff,
    read,
)
