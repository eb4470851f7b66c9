"""An action, and what all grammars share: calls are looked for outside thinking, and all or none of a text are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

THOUGHTS = (("<think>", "</think>"), ("<|channel>", "<channel|>"), ("[THINK]", "[/THINK]"))
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Action:
    """One call. `arguments` is their text as it was written; `parsed` the object it stands for, None if it is none."""

    name: str
    arguments: str
    parsed: Mapping[str, Any] | None = None


Grammar = Callable[[str], tuple[Action, ...]]
"""The calls of a text, in order. () if there are none, or if one of them cannot be read: half of a reply is another."""
Reader = Callable[[str, int], tuple[Action, int] | None]
"""One call from a place on, after its opening: the action and where it ends, None if it cannot be read."""


def read_calls(text: str, opening: str, read: Reader) -> tuple[Action, ...]:
    """Every call that begins with `opening` outside thinking; () if one of them cannot be read."""
    found: list[Action] = []
    at = 0
    while (start := _next(text, opening, at)) is not None:
        call = read(text, start + len(opening))
        if call is None:
            return ()
        found.append(call[0])
        at = call[1]
    return tuple(found)


def without_thinking(text: str) -> str:
    """The text without what stands between thinking tags; a tag that is not closed reaches to the end."""
    out: list[str] = []
    at = 0
    while (thought := _thought(text, at)) is not None:
        out.append(text[at : thought[0]])
        at = thought[1]
    return "".join([*out, text[at:]])


def begun_thinking(text: str) -> str:
    """The opening tag of a thought that `text` leaves open, "" if there is none: a template may begin a reply so."""
    for opening, closing in THOUGHTS:
        if text.rfind(opening) > text.rfind(closing):
            return opening
    return ""


def skip_space(text: str, at: int) -> int:
    """The place of the next character that is no white space."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def members(text: str, at: int) -> tuple[dict[str, tuple[str, Any]], int] | None:
    """The members of the JSON object at a place, each as it is written and as a value, and where the object ends.

    None if there is no whole object.
    """
    at = skip_space(text, at)
    if not text.startswith("{", at):
        return None
    found: dict[str, tuple[str, Any]] = {}
    at = skip_space(text, at + 1)
    if text.startswith("}", at):
        return found, at + 1
    while True:
        key = _value(text, at)
        if key is None or not isinstance(key[0], str):
            return None
        at = skip_space(text, key[1])
        if not text.startswith(":", at):
            return None
        begin = skip_space(text, at + 1)
        value = _value(text, begin)
        if value is None:
            return None
        found[key[0]] = (text[begin : value[1]], value[0])
        at = skip_space(text, value[1])
        if text.startswith("}", at):
            return found, at + 1
        if not text.startswith(",", at):
            return None
        at = skip_space(text, at + 1)


def _value(text: str, at: int) -> tuple[Any, int] | None:
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None


def _next(text: str, opening: str, at: int) -> int | None:
    """Where the next call opens, thoughts passed over."""
    while (start := text.find(opening, at)) >= 0:
        thought = _thought(text, at)
        if thought is None or start < thought[0]:
            return start
        at = thought[1]
    return None


def _thought(text: str, at: int) -> tuple[int, int] | None:
    """The span of the next thought, its tags included."""
    starts = [(start, *tags) for tags in THOUGHTS if (start := text.find(tags[0], at)) >= 0]
    if not starts:
        return None
    start, opening, closing = min(starts)
    end = text.find(closing, start + len(opening))
    return start, len(text) if end < 0 else end + len(closing)
