"""`hermes`: a JSON object between `<tool_call>` tags, as the templates of Hermes, Qwen2.5 and Qwen3 print calls."""

from __future__ import annotations

import json

from ...traces.values import parse_object
from .action import Action, members, read_calls, skip_space

OPENING, CLOSING = "<tool_call>", "</tool_call>"


def parse(text: str) -> tuple[Action, ...]:
    """The calls of a text; () if a tag is not closed, or if what it holds names no tool or no arguments."""
    return read_calls(text, OPENING, read)


def read(text: str, at: int) -> tuple[Action, int] | None:
    """One call after its opening tag. Arguments may be an object, or a string that spells one."""
    found = members(text, at)
    if found is None:
        return None
    call, end = found
    name, arguments = call.get("name"), call.get("arguments")
    end = skip_space(text, end)
    if name is None or arguments is None or not isinstance(name[1], str) or not text.startswith(CLOSING, end):
        return None
    raw, value = arguments
    if isinstance(value, str):
        return Action(name[1], value, parse_object(value)), end + len(CLOSING)
    return Action(name[1], raw, parse_object(json.dumps(value))), end + len(CLOSING)
