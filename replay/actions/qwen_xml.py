"""`qwen-xml`: `<function=NAME><parameter=KEY>VALUE</parameter></function>`, as Qwen3-Coder and Qwen3.5 print calls.

Values stand there as text, so whether `3` was a number or a string cannot be told: all are strings, but those that
spell a JSON object or array.
"""

from __future__ import annotations

import json
from typing import Any

from .action import Action, read_calls, skip_space

_FUNCTION, _END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"


def parse(text: str) -> tuple[Action, ...]:
    """The calls of a text; () if a tag is not closed or something else stands between them."""
    return read_calls(text, _FUNCTION, _read)


def _read(text: str, at: int) -> tuple[Action, int] | None:
    tag = text.find(">", at)
    if tag < 0 or not (name := text[at:tag].strip()) or "<" in name:
        return None
    begin = tag + 1
    values: dict[str, Any] = {}
    at = skip_space(text, begin)
    while text.startswith(_PARAMETER, at):
        tag, end = text.find(">", at), text.find(_PARAMETER_END, at)
        if tag < 0 or end < tag:
            return None
        values[text[at + len(_PARAMETER) : tag].strip()] = _valued(text[tag + 1 : end])
        at = skip_space(text, end + len(_PARAMETER_END))
    if not text.startswith(_END, at):
        return None
    return Action(name, text[begin:at].strip(), values), at + len(_END)


def _valued(text: str) -> Any:
    """The value without the line breaks that the template puts around it."""
    text = text.removeprefix("\n").removesuffix("\n")
    if text[:1] not in ("{", "["):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
