"""Dynamo request traces (before: agent traces), one event a line: what a request's end tells.

Described in ai-dynamo/dynamo docs/agents. Schema `dynamo.request.trace.v1`, or `dynamo.agent.trace.v1` inside
{timestamp, event}. Block hashes are u64 and cover the prefix; events of tools carry no request and are passed over.
Arrivals count from the file's first request; a session's tool wait is the time from its last request's end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from ..items import each
from ..reading import Bad, Format, Item, Record, Reject, Source
from ..trajectory import Request
from .fields import hashes, named, row_of, seconds, tokens, whole

NAME = "dynamo"
SCHEMAS = ("dynamo.request.trace.v1", "dynamo.agent.trace.v1")
_MOST_SESSIONS = 1 << 20


def sniff(record: Any) -> bool:
    """Whether the record is an event of such a trace."""
    return isinstance(record, Mapping) and _event(record).get("schema") in SCHEMAS


def _event(record: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = record.get("event")
    return inner if isinstance(inner, Mapping) else record


class _Events:
    """Events of one file; the ends of the sessions' last requests are remembered."""

    def __init__(self) -> None:
        self._zero: float | None = None
        self._ends: OrderedDict[str, float] = OrderedDict()

    def read(self, record: Any) -> list[Request]:
        row = row_of(record)
        event = _event(row)
        if event.get("schema") not in SCHEMAS:
            raise Reject(f"the schema is none of {', '.join(SCHEMAS)}")
        if event.get("event_type") != "request_end":
            return []
        request = row_of(event.get("request"))
        replay = request.get("replay")
        replay = replay if isinstance(replay, Mapping) else {}
        start, end = _times(row, event, request)
        zero = start if self._zero is None else self._zero
        session = self._session(event)
        last = self._ends.get(session) if session is not None else None
        blocks = hashes(replay.get("input_sequence_hashes"), "input_sequence_hashes")
        size = whole(replay.get("trace_block_size"))
        made = Request(
            id="",
            source=NAME,
            arrival_s=start - zero,
            input_tokens=tokens(replay, "input_length")
            if "input_length" in replay
            else tokens(request, "input_tokens"),
            output_tokens=tokens(request, "output_tokens"),
            session=session,
            prefix_blocks=blocks if size else None,
            block_tokens=size if blocks is not None else None,
            tool_wait_s=None if last is None else max(0.0, start - last),
        )
        self._zero = zero
        self._remember(session, end)
        return [made]

    def _session(self, event: Mapping[str, Any]) -> str | None:
        context = event.get("agent_context")
        context = context if isinstance(context, Mapping) else {}
        return named(context.get("trajectory_id")) or named(context.get("session_id"))

    def _remember(self, session: str | None, end: float | None) -> None:
        if session is None or end is None:
            return
        self._ends[session] = end
        if len(self._ends) > _MOST_SESSIONS:
            self._ends.popitem(last=False)


def _times(row: Mapping[str, Any], event: Mapping[str, Any], request: Mapping[str, Any]) -> tuple[float, float | None]:
    """When a request began and ended, in s: as received, or its end less its duration."""
    took = seconds(request, "total_time_ms", 1000) if request.get("total_time_ms") is not None else None
    clock = next((name for name in ("event_time_unix_ms", "timestamp") if event.get(name) is not None), None)
    end = seconds(event, clock, 1000) if clock else seconds(row, "timestamp", 1000)
    if request.get("request_received_ms") is not None:
        start = seconds(request, "request_received_ms", 1000)
        return start, end if took is None else start + took
    return max(0.0, end - (took or 0.0)), end


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """The requests of one file."""
    return each(_Events().read, records)


FORMAT = Format(
    NAME,
    "Dynamo request trace: request_end events with lengths and u64 block hashes, one JSON a line",
    "requests",
    sniff,
    gather=gather,
)
