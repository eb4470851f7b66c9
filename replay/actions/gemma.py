"""`gemma`: `call:NAME{key:value,…}` between control tokens, as Gemma 4 and FunctionGemma print calls.

Strings stand between quote tokens and nothing in them is escaped; keys are bare or quoted; the rest is as in JSON.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from .action import Action, read_calls, skip_space

# Opening and closing of a call, and what stands around a string.
DIALECTS = (
    ("<|tool_call>", "<tool_call|>", '<|"|>'),
    ("<start_function_call>", "<end_function_call>", "<escape>"),
)
_NAME = re.compile(r"\s*call:\s*([^\s{}]+)\s*(?=\{)")
_BARE = re.compile(r"[^,:{}\[\]]+")
_DEEPEST = 50


def parse(text: str) -> tuple[Action, ...]:
    """The calls of a text; () if one is not closed or not of this form."""
    for opening, closing, quote in DIALECTS:
        if found := read_calls(text, opening, partial(_read, closing, quote)):
            return found
    return ()


def _read(closing: str, quote: str, text: str, at: int) -> tuple[Action, int] | None:
    name = _NAME.match(text, at)
    if name is None:
        return None
    values = _Values(text, name.end(), quote)
    try:
        parsed = values.next(0)
    except _Unlike:
        return None
    raw, end = text[name.end() : values.at], skip_space(text, values.at)
    return (Action(name[1], raw, parsed), end + len(closing)) if text.startswith(closing, end) else None


class _Unlike(ValueError):
    """The text is no value of this form."""


@dataclass
class _Values:
    """Reads values from a text; `at` is where the next one begins."""

    text: str
    at: int
    quote: str

    def next(self, depth: int) -> Any:
        """The value that begins here."""
        if depth > _DEEPEST:
            raise _Unlike
        if self._took("{"):
            pairs: dict[str, Any] = {}
            while not self._took("}"):
                key = self._text()
                self._need(":")
                pairs[key] = self.next(depth + 1)
                self._separated("}")
            return pairs
        if self._took("["):
            items: list[Any] = []
            while not self._took("]"):
                items.append(self.next(depth + 1))
                self._separated("]")
            return items
        if self._here(self.quote):
            return self._text()
        return _plain(self._text())

    def _text(self) -> str:
        """A quoted or a bare word."""
        if self._took(self.quote):
            end = self.text.find(self.quote, self.at)
            if end < 0:
                raise _Unlike
            said, self.at = self.text[self.at : end], end + len(self.quote)
            return said
        bare = _BARE.match(self.text, self.at)
        if bare is None:
            raise _Unlike
        self.at = bare.end()
        return bare[0].strip()

    def _here(self, mark: str) -> bool:
        self.at = skip_space(self.text, self.at)
        return self.text.startswith(mark, self.at)

    def _took(self, mark: str) -> bool:
        here = self._here(mark)
        self.at += len(mark) * here
        return here

    def _need(self, mark: str) -> None:
        if not self._took(mark):
            raise _Unlike

    def _separated(self, end: str) -> None:
        """A comma, or the end, which stays."""
        if not self._took(",") and not self._here(end):
            raise _Unlike


def _plain(word: str) -> Any:
    """A number, true, false or null; any other bare word is text. Older templates print null as None."""
    if word == "None":
        return None
    try:
        return json.loads(word)
    except ValueError:
        return word
