"""The agent's side of a tau2-bench conversation: what the user called and got back never reached the agent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..reading import Reject
from .chat import Told
from .clock import when
from .counts import finite, inside
from .openai_chat import usage_of


def agents_side(messages: list[Any], losses: set[str]) -> tuple[list[Any], list[Told]]:
    """Chat messages of the agent's side, and what is told of each of its calls."""
    said: list[Any] = []
    told: list[Told] = []
    for message in _flat(messages):
        if not isinstance(message, Mapping):
            raise Reject(f"a message is not an object: {str(message)[:50]}")
        role = message.get("role")
        if message.get("is_audio"):
            losses.add("non_text_content")
            message = {**message, "content": None}  # noqa: PLW2901
        if role == "tool":
            if message.get("requestor") == "user":
                losses.add("user_side_calls")
            else:
                said.append({"role": "tool", "content": message.get("content"), "tool_call_id": message.get("id")})
        elif role == "assistant":
            said.append(_assistant(message))
            told.append(_told(message))
            if message.get("context_truncation"):
                losses.add("already_compacted")
        else:
            if message.get("tool_calls"):
                losses.add("user_side_calls")
                if not message.get("content"):
                    continue
            said.append({"role": role, "content": message.get("content")})
    return said, told


def _flat(messages: list[Any]) -> Iterator[Any]:
    for message in messages:
        inner = message.get("tool_messages") if isinstance(message, Mapping) else None
        if isinstance(inner, list):
            yield from inner
        else:
            yield message


def _assistant(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message as the model's API gave it, where that is kept: there, arguments are still strings."""
    raw = inside(message, "raw_data", "message") or inside(message, "raw_data")
    calls = message.get("tool_calls")
    names = _names(calls)
    kept = names and _names(raw.get("tool_calls")) == names
    return {
        "role": "assistant",
        "content": message.get("content"),
        "tool_calls": raw["tool_calls"] if kept else calls,
        "reasoning_content": raw.get("reasoning_content"),
    }


def _names(calls: Any) -> list[tuple[Any, Any]]:
    if not isinstance(calls, list):
        return []
    found = [(call.get("id"), call.get("function", call)) for call in calls if isinstance(call, Mapping)]
    return [(id, function.get("name")) for id, function in found if isinstance(function, Mapping)]


def _told(message: Mapping[str, Any]) -> Told:
    # The time stamp is made with the message, at the end of the call.
    end, took = when(message.get("timestamp")), finite(message.get("generation_time_seconds"))
    took = took if took is not None and took >= 0 else None
    started = None if end is None or took is None else end - took
    return Told(usage_of(message.get("usage")), started, took)
