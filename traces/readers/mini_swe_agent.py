"""mini-swe-agent trajectories, versions 1 and 2: `{info, messages, trajectory_format}`, one run per file.

Described in the sources (minisweagent/agents/default.py, models/utils). Version 1 finds the command in the text; what
it printed comes back as a user message, which is kept as a tool result. Version 2 calls a tool or does the same, ends
with a message of the role `exit`, and may hold whole objects of the Responses API. `extra` is never sent to the model;
an answer's has the response with its usage. The oldest files are bare message lists: `openai-chat`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..reading import Format, Reject
from ..trajectory import Trajectory
from . import openai_chat, response_items
from .chat import listed, told_of, trajectory_of
from .counts import finite

NAME = "mini-swe-agent"


def sniff(record: Any) -> bool:
    """Whether the record has messages and names this format, or an `info` of this agent."""
    if not isinstance(record, Mapping) or not isinstance(record.get("messages"), list):
        return False
    info, named = record.get("info"), record.get("trajectory_format")
    return (isinstance(named, str) and named.startswith(NAME)) or (isinstance(info, Mapping) and "mini_version" in info)


def read(record: Any) -> Trajectory:
    """One run. Reject if it holds no answer."""
    if not isinstance(record, Mapping) or not isinstance(record.get("messages"), list):
        raise Reject("no messages")
    losses: set[str] = set()
    messages = _messages(record["messages"], losses)
    info = record.get("info")
    info = info if isinstance(info, Mapping) else {}
    compacted = len(listed(record.get("segments"))) > 1  # forks that summarise keep the last context as `messages`
    if compacted:
        losses |= {"already_compacted", "missing_calls"}
    return trajectory_of(
        NAME,
        NAME,
        messages,
        losses=losses,
        told=told_of(messages),
        model=_model(info),
        already_compacted=compacted,
        meta={key: info[key] for key in ("exit_status", "mini_version") if isinstance(info.get(key), str)},
    )


def _messages(raw: Sequence[Any], losses: set[str]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for place, item in enumerate(raw):
        if not isinstance(item, Mapping):
            raise Reject(f"message {place} is not an object")
        if item.get("role") == "exit":
            continue
        extra = item.get("extra")
        extra = extra if isinstance(extra, Mapping) else {}
        at = finite(extra.get("timestamp"))
        if "role" not in item and ("output" in item or "type" in item):
            messages += _from_response(item, at, losses)
            continue
        message = {**item, "at": at, "usage": None, "ids": None}
        before = messages[-1] if messages else {}
        if message.get("role") == "assistant":
            response = extra.get("response")
            message["usage"] = openai_chat.usage_of(response.get("usage")) if isinstance(response, Mapping) else None
        elif message.get("role") == "user" and ("raw_output" in extra or _acted(before)):
            message["role"] = "tool"
            losses.add("results_as_user")
        messages.append(message)
    return messages


def _acted(message: Mapping[str, Any]) -> bool:
    """Whether the message is an answer with its command in the text."""
    return message.get("role") == "assistant" and not message.get("tool_calls")


def _from_response(item: Mapping[str, Any], at: float | None, losses: set[str]) -> list[dict[str, Any]]:
    """The messages of a Responses object, or of one item of that API."""
    said = response_items.Conversation(losses)
    said.extend(item["output"] if isinstance(item.get("output"), list) and "type" not in item else [item], at=at)
    messages = said.chat()
    if messages:
        messages[-1]["usage"] = response_items.usage_of(item.get("usage"))
    return messages


def _model(info: Mapping[str, Any]) -> str | None:
    found: Any = info
    for key in ("config", "model", "model_name"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) and found else None


FORMAT = Format(
    NAME,
    "mini-swe-agent trajectories (v1, v2): info and messages, one JSON each",
    "trajectories",
    sniff,
    read,
    verified=True,
)
