"""`fallback`: what kvmill itself writes for a template that prints no calls (`traces/template.call_text`).

`<tool_call>{"name":…,"arguments":RAW}</tool_call>`, where RAW is what was recorded, JSON or not.
"""

from __future__ import annotations

import json
import re

from . import hermes
from .action import Action, read_calls

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*', re.DOTALL)
_TAIL = re.compile(r"\}\s*</tool_call>")


def parse(text: str) -> tuple[Action, ...]:
    """The calls of a text; () if one is not closed or has not this form."""
    return read_calls(text, hermes.OPENING, _read)


def _read(text: str, at: int) -> tuple[Action, int] | None:
    if (call := hermes.read(text, at)) is not None:
        return call
    head = _HEAD.match(text, at)
    tail = _TAIL.search(text, head.end()) if head else None
    if head is None or tail is None:
        return None
    try:
        name = json.loads(head[1])
    except ValueError:
        return None
    return Action(name, text[head.end() : tail.start()].rstrip()), tail.end()
