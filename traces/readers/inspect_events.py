"""The model calls of an Inspect sample: its `model` events, and strings that were moved into attachments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..reading import Reject
from ..trajectory import Usage
from .chat import Told
from .clock import between, when
from .counts import count, finite, inside

_MOVED = "attachment://"
# A file of a few bytes can name the same long string, or the same messages, over and over.
_MOST_ATTACHED = 256_000_000
_MOST_MESSAGES = 100_000


class Attachments:
    """The strings of a sample that were moved out of its messages, to be put back; missing ones go into `losses`."""

    def __init__(self, sample: Mapping[str, Any], losses: set[str]) -> None:
        self._texts = inside(sample, "attachments")
        self._losses = losses
        self._room = _MOST_ATTACHED

    def put_back(self, value: Any) -> Any:
        """The value with its strings. Reject if they come to far more than any context holds."""
        if isinstance(value, str):
            return self._text(value) if value.startswith(_MOVED) else value
        if isinstance(value, Mapping):
            return {key: self.put_back(item) for key, item in value.items()}
        return [self.put_back(item) for item in value] if isinstance(value, list) else value

    def _text(self, name: str) -> str:
        text = self._texts.get(name.removeprefix(_MOVED))
        if not isinstance(text, str):
            self._losses.add("content_not_recorded")
            return name
        self._room -= len(text)
        if self._room < 0:
            raise Reject(f"its attachments unfold to more than {_MOST_ATTACHED:,} characters")
        return text


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
    messages: list[Any] = []
    for span in spans:
        if isinstance(span, list) and len(span) == 2 and all(count(end) is not None for end in span):
            messages += pool[span[0] : span[1]]
        if len(messages) > _MOST_MESSAGES:
            raise Reject(f"a call was given more than {_MOST_MESSAGES:,} messages")
    return messages


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
