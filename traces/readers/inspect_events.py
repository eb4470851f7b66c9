"""The model calls of an Inspect sample: its `model` events, and strings that were moved into attachments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..trajectory import Usage
from .chat import Told
from .clock import between, when
from .counts import count, finite, inside

_MOVED = "attachment://"


def attached(value: Any, attachments: Mapping[str, Any], losses: set[str]) -> Any:
    """The value with every moved string put back; one that is not there is noted in `losses`."""
    if isinstance(value, str):
        if not value.startswith(_MOVED):
            return value
        text = attachments.get(value.removeprefix(_MOVED))
        if isinstance(text, str):
            return text
        losses.add("content_not_recorded")
        return value
    if isinstance(value, Mapping):
        return {key: attached(item, attachments, losses) for key, item in value.items()}
    return [attached(item, attachments, losses) for item in value] if isinstance(value, list) else value


def calls_of(sample: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The events of its model calls, in order."""
    events = sample.get("events")
    return [e for e in events if inside(e).get("event") == "model"] if isinstance(events, list) else []


def answer_of(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message that a call gave; an empty object if it gave none."""
    choices = inside(call, "output").get("choices")
    return inside(choices[0], "message") if isinstance(choices, list) and choices else {}


def input_of(call: Mapping[str, Any], sample: Mapping[str, Any]) -> list[Any]:
    """What a call was given. Newer logs name spans of the sample's pool instead of repeating messages."""
    given, spans = call.get("input"), call.get("input_refs")
    pool = sample.get("message_pool") or inside(sample, "events_data").get("messages")
    if given or not isinstance(spans, list) or not isinstance(pool, list):
        return given if isinstance(given, list) else []
    return [message for span in spans for message in _span(span, pool)]


def _span(span: Any, pool: list[Any]) -> Sequence[Any]:
    if not isinstance(span, list) or len(span) != 2 or not all(count(end) is not None for end in span):
        return []
    return pool[span[0] : span[1]]


def spelled(calls: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Call id → arguments as the provider sent them, where its raw answer was logged: Inspect keeps only objects."""
    return {
        call["id"]: arguments
        for event in calls
        for call in _raw_calls(event)
        if isinstance(call.get("id"), str) and isinstance(arguments := inside(call, "function").get("arguments"), str)
    }


def _raw_calls(event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    choices = inside(event, "call", "response").get("choices")
    for choice in choices if isinstance(choices, list) else []:
        calls = inside(choice, "message").get("tool_calls")
        yield from (inside(call) for call in calls if inside(call)) if isinstance(calls, list) else ()


def told_of(call: Mapping[str, Any]) -> Told:
    """Usage and times of one call."""
    begin, took = when(call.get("timestamp")), finite(inside(call, "output").get("time"))
    took = took if took is not None and took >= 0 else None
    lasted = between(begin, when(call.get("completed")))
    return Told(usage_of(inside(call, "output", "usage")), begin, took if lasted is None else lasted)


def usage_of(raw: Mapping[str, Any]) -> Usage | None:
    """Usage. Whether `input_tokens` include cached ones depends on provider and version; the total tells which."""
    given, output, total = (
        count(raw.get("input_tokens")),
        count(raw.get("output_tokens")),
        count(raw.get("total_tokens")),
    )
    read, write = count(raw.get("input_tokens_cache_read")), count(raw.get("input_tokens_cache_write"))
    if given is None and output is None:
        return None
    cached = (read or 0) + (write or 0)
    apart = total == (given or 0) + (output or 0) + cached if total is not None else (given or 0) < cached
    fresh = given if given is None or apart else max(0, given - cached)
    return Usage(fresh, read, write, output)
