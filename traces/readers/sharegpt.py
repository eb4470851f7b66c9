"""ShareGPT conversations: `{id, conversations: [{from, value}]}`, one a line or in a list.

There is no description of its own; LLaMA-Factory's data README names the roles that training sets use, among them
`function_call` (the JSON of a call, or of several) and `observation` (what it gave), with `system` and `tools` beside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..reading import Format, Reject
from ..trajectory import Trajectory
from .chat import listed, tools_of, trajectory_of

NAME = "sharegpt"
_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function_call": "assistant",
}


def sniff(record: Any) -> bool:
    """Whether the record holds a conversation of `from` and `value`."""
    said = _said(record)
    return bool(said) and all(isinstance(turn, Mapping) and "from" in turn for turn in said)


def _said(record: Any) -> list[Any]:
    return listed(record.get("conversations", record.get("items"))) if isinstance(record, Mapping) else []


def read(record: Any) -> Trajectory:
    """One conversation. Reject if it has no turns, or one of a role that is not known."""
    said = _said(record)
    if not said:
        raise Reject("no conversations")
    messages = [{"role": "system", "content": record["system"]}] if record.get("system") else []
    for place, turn in enumerate(said):
        role = turn.get("from") if isinstance(turn, Mapping) else None
        if not isinstance(role, str) or role.lower() not in _ROLES:
            raise Reject(f"turn {place} is from {role!r}, which is none of {', '.join(_ROLES)}"[:200])
        value = turn.get("value", turn.get("text"))
        message: dict[str, Any] = {"role": _ROLES[role.lower()], "content": value}
        calls = _calls(value) if role.lower() == "function_call" else []
        if calls:
            message |= {"content": None, "tool_calls": calls}
        messages.append(message)
    id, model = record.get("id"), record.get("model")
    return trajectory_of(
        NAME,
        "chat",
        messages,
        tools=tools_of(record.get("tools") or None),
        model=model if isinstance(model, str) and model else None,
        meta={"conversation": id} if isinstance(id, (str, int)) else {},
    )


def _calls(value: Any) -> list[dict[str, Any]]:
    """The calls in a text; none if it is no JSON of any, and the text then stays as it is."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return []
    calls = found if isinstance(found, list) else [found]
    if not all(isinstance(call, Mapping) and isinstance(call.get("name"), str) for call in calls):
        return []
    return [{"function": {"name": call["name"], "arguments": call.get("arguments")}} for call in calls]


FORMAT = Format(
    NAME,
    "ShareGPT conversations: turns of from and value, one JSON each",
    "trajectories",
    sniff,
    read,
)
