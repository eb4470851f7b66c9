"""AIPerf's `mooncake_trace` with messages: one row per request, with the conversation so far and a session.

A session's rows are joined: each goes on from the one before, and the reply between them stands in the later row's
history. The reply to the last request is in no row. Rows of lengths and hashes are read as `mooncake`. Described by
ai-dynamo/aiperf, docs/benchmark-modes/trace-replay.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..items import items_of, passed_on, refused
from ..reading import Bad, Format, Item, Record, Reject, Source
from ..trajectory import Trajectory, Usage
from .chat import Told, is_messages, tools_of, trajectory_of
from .counts import count, finite, inside

NAME = "aiperf"
_MARKS = ("output_length", "message_mode", "delay")
_HELD_CHARACTERS = 256_000_000


def sniff(record: Any) -> bool:
    """Whether the record is a request with its words. A plain conversation has none of AIPerf's own fields."""
    if not isinstance(record, Mapping) or "input_length" in record or "type" in record:
        return False
    if is_messages(inside(record, "payload").get("messages")):
        return any(mark in record for mark in (*_MARKS, "timestamp", "session_id"))
    said = is_messages(record.get("messages")) or isinstance(record.get("text_input"), str)
    return said and any(mark in record for mark in _MARKS)


@dataclass(slots=True)
class _Session:
    """The rows of one session so far: the longest history, and what was told of the replies in it, by their place."""

    first: Record
    messages: list[Any]
    tools: Any
    output_tokens: int | None
    started_s: float | None
    told: dict[int, Told] = field(default_factory=dict)
    compacted: bool = False
    characters: int = 0


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """One run per session; sessions may alternate. Held back until the end, or until too much is held."""
    return sessions(records)


def sessions(records: Iterator[Record | Bad]) -> Iterator[Item]:
    """The runs of rows."""
    held: dict[str, _Session] = {}
    room = _HELD_CHARACTERS
    for found in records:
        if isinstance(found, Bad):
            yield passed_on(found)
            continue
        try:
            row = _row(found)
        except Reject as error:
            yield refused(found, str(error))
            continue
        name = inside(found.value).get("session_id")
        if not isinstance(name, str):
            yield from _made(row)
            continue
        before = held.pop(name, None)
        if before is not None:
            room += before.characters
            if row.messages[: len(before.messages)] == before.messages:
                row = _joined(before, row, finite(found.value.get("delay")))
            else:
                row.compacted = True
                yield from _made(before)
        row.characters = len(str(row.messages))
        held[name] = row
        room -= row.characters
        while room < 0 and len(held) > 1:
            oldest = held.pop(next(iter(held)))
            room += oldest.characters
            yield from _made(oldest)
    for session in held.values():
        yield from _made(session)


def _row(found: Record) -> _Session:
    record = found.value
    if not isinstance(record, Mapping):
        raise Reject("not an object")
    if record.get("message_mode") == "delta":
        raise Reject("message_mode delta leaves out what the model said; only rows with the whole history can be read")
    request = record if "messages" in record else inside(record, "payload")
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Reject("no messages")
    at = finite(record.get("timestamp"))
    tokens = count(record.get("output_length"))
    return _Session(found, messages, request.get("tools"), tokens, None if at is None else at / 1000)


def _joined(before: _Session, row: _Session, delay_ms: float | None) -> _Session:
    """The later row, knowing what the rows before it told."""
    told = dict(before.told)
    place = len(before.messages)
    if inside(row.messages[place] if place < len(row.messages) else None).get("role") == "assistant":
        usage = None if before.output_tokens is None else Usage(output_tokens=before.output_tokens)
        told[place] = Told(usage, before.started_s, tool_wait_s=None if delay_ms is None else delay_ms / 1000)
    return _Session(
        before.first, row.messages, row.tools or before.tools, row.output_tokens, row.started_s, told, before.compacted
    )


def _made(session: _Session) -> Iterator[Item]:
    return items_of(lambda _: _run(session), session.first)


def _run(session: _Session) -> Trajectory:
    said = session.messages
    places = [n for n, message in enumerate(said) if inside(message).get("role") == "assistant"]
    losses = {"no_last_reply"} | ({"already_compacted"} if session.compacted else set())
    name = inside(session.first.value).get("session_id")
    return trajectory_of(
        NAME,
        NAME,
        said,
        tools=tools_of(session.tools),
        losses=losses,
        told=[session.told.get(place) for place in places],
        already_compacted=session.compacted,
        meta={"session_id": name} if isinstance(name, str) else {},
    )


FORMAT = Format(
    NAME,
    "AIPerf mooncake_trace with messages: one request a line, with its history and session",
    "trajectories",
    sniff,
    gather=gather,
)
