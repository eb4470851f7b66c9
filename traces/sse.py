"""Server-sent events: the JSON objects that a streamed answer was sent in, as logs and cassettes keep it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from . import values

DONE = "[DONE]"
_FIELD = re.compile(r"(data|event|id|retry):|:")
# The event that ends one streamed answer (Anthropic Messages, OpenAI Responses); OpenAI Chat ends with DONE.
_LAST = {"message_stop", "response.completed", "response.failed", "response.incomplete"}


def looks_like(text: str) -> bool:
    """Whether text begins like a stream of events."""
    lines = text.lstrip("\ufeff\r\n").splitlines()
    return bool(lines) and bool(_FIELD.match(lines[0])) and any(line.startswith("data:") for line in lines)


def objects(text: str) -> list[Any]:
    """The data objects of a stream held as text, as far as they are JSON: a stream may be cut off anywhere.

    ValueError if none is.
    """
    found: list[Any] = []
    for _, data in events(re.split("\r\n|\r|\n", text)):
        if data == DONE:
            continue
        try:
            found.append(values.load(data).value)
        except ValueError:
            if not found:
                raise
            break
    return found


def events(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The data of each event, and the line it begins at, from 1. Other fields and comments are passed over."""
    begun, data = 0, []
    for number, line in enumerate(lines, 1):
        text = line.rstrip("\r\n")
        if text.startswith("data:"):
            begun = begun or number
            data.append(text[5:].removeprefix(" "))
        elif not text and data:
            yield begun, "\n".join(data)
            begun, data = 0, []
    if data:
        yield begun, "\n".join(data)


def ends(value: Any) -> bool:
    """Whether this is the last object of one answer."""
    return isinstance(value, dict) and value.get("type") in _LAST
