"""LLMServingSim workload: flat requests, or sessions whose calls wait for a tool, times in ns.

Described in casys-kaist/LLMServingSim. Flat: input_toks, output_toks, arrival_time_ns. A session: session_id,
arrival_time_ns and sub_requests, each with its full input and tool_duration_ns, the wait between its end and the next
one's start. Only a session's first call has an arrival; the others are given the earliest possible one, the tool waits
added up. A session_id that occurs again is another session, kept apart by a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ..items import each
from ..reading import Bad, Format, Item, Record, Reject, Source
from ..trajectory import Request
from .fields import has, named, row_of, seconds, tokens

NAME = "llmservingsim"


def sniff(record: Any) -> bool:
    """Whether the record is a flat request or a session of this kind."""
    return has(record, "input_toks", "output_toks", "arrival_time_ns") or has(
        record, "session_id", "arrival_time_ns", "sub_requests"
    )


class _Rows:
    """Records of one file."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def read(self, record: Any) -> list[Request]:
        row = row_of(record)
        start = seconds(row, "arrival_time_ns", 10**9)
        if "sub_requests" not in row:
            return [Request("", NAME, start, tokens(row, "input_toks"), tokens(row, "output_toks"))]
        calls = row["sub_requests"]
        if not isinstance(calls, list) or not calls:
            raise Reject("sub_requests is not a list of requests")
        made: list[Request] = []
        waited = 0.0
        session = self._name(row)
        for turn, call in enumerate(map(row_of, calls)):
            lengths = tokens(call, "input_toks"), tokens(call, "output_toks")
            wait = seconds(calls[turn - 1], "tool_duration_ns", 10**9) if turn else None
            waited += wait or 0.0
            made.append(Request("", NAME, start + waited, *lengths, session, turn, tool_wait_s=wait))
        return made

    def _name(self, row: Any) -> str | None:
        name = named(row.get("session_id"))
        if name is None:
            raise Reject("the session has no session_id")
        self._seen[name] += 1
        return name if self._seen[name] == 1 else f"{name}#{self._seen[name]}"


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """The requests of one file."""
    return each(_Rows().read, records)


FORMAT = Format(
    NAME,
    "LLMServingSim workload: input_toks, output_toks, arrival_time_ns, or sessions of sub_requests, one JSON a line",
    "requests",
    sniff,
    gather=gather,
    verified=True,
)
