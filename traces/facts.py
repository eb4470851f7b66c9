"""Facts in tool results that could be asked for later: numbers, identifiers, names, paths, dates, and where they stand.

`entities` finds the spans; here they become single values of one kind. Keys of objects and labels before a colon or an
equals sign are no facts. What a run says is compared by `skeleton`, so that "$1,200" states 1200 and "HAT-069" states
hat_069; another wording of the same fact ("May 20" for 2024-05-20) is not recognised.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from .entities import entity_spans
from .trajectory import Message, Trajectory, Turn

KINDS = ("number", "id", "name", "path", "date")
SHORTEST, LONGEST = 2, 80  # characters of a value
_QUOTES = "\"'`"
_PIECE = re.compile(r"[^\"'`“”„«»<>()\[\]{}|,;\s]++(?: [^\"'`“”„«»<>()\[\]{}|,;\s]++)*+")
_DATE = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|\d{1,2}[/.]\d{1,2}[/.](?:\d{4}|\d\d)|\d{1,2}:\d\d(?::\d\d)?(?:\+\d)?"
)
_NUMBER = re.compile(r"[$€£#]?[+\-]?\d[\d.]*(?: ?(?:%|[A-Za-zµ°]{1,3}))?")
_PATH = re.compile(
    r"[A-Za-z][A-Za-z0-9+.\-]{1,15}://\S+|(?:~|\.{1,2})?[/\\]?[\w.+@%\-]+(?:[/\\][\w.+@%\-]+)+[/\\]?|/\w[\w.\-]+"
)
_ID = re.compile(r"(?!\d+:)[\w#][\w.@:+#\-]*\w")
_NAME = re.compile(r"[^\W\d_]+(?:[ '’\-][^\W\d_]+){0,3}")
_GROUPED, _WHOLE, _OTHER = (
    re.compile(r"(?<=\d),(?=\d{3}(?!\d))"),
    re.compile(r"(?<=\d)\.0+(?!\d)"),
    re.compile(r"[\W_]+"),
)


class _Classes(dict[int, str]):
    """Of each character its class, found out when it is first met."""

    def __missing__(self, code: int) -> str:
        c = chr(code)
        self[code] = "9" if c.isdigit() else "A" if c.isupper() else "a" if c.isalpha() else c
        return self[code]


_CLASSES = _Classes()


@dataclass(frozen=True, slots=True)
class Said:
    """What one message says, in order of the run; `kind` is prefix (schemas too), user, assistant or tool."""

    turn: int
    kind: str
    text: str
    tool: str | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A value in the result `said` (a place in the list of `context`), at `begin` to `end`, quotes included.

    `label` is the word before it, such as `"price":`; `quote` the mark around it, or nothing.
    """

    said: int
    turn: int
    begin: int
    end: int
    kind: str
    value: str
    quote: str
    label: str


def context(trajectory: Trajectory) -> list[Said]:
    """Everything a model has read and written by the end, message by message."""
    out = [Said(-1, "prefix", json.dumps(trajectory.tools, ensure_ascii=False, default=str))]
    out += [Said(-1, "prefix", _words(message)) for message in trajectory.prefix]
    for turn, said in enumerate(trajectory.turns):
        out += [Said(turn, "user", _words(message)) for message in said.user]
        out.append(Said(turn, "assistant", _words(said.assistant)))
        out += [Said(turn, "tool", message.content, _tool(message, said)) for message in said.tools]
    return out


def facts(said: list[Said]) -> Iterator[Fact]:
    """The facts of all tool results, in order."""
    for place, one in enumerate(said):
        if one.kind == "tool":
            yield from _facts(place, one)


def skeleton(text: str) -> str:
    """Words and numbers alone, in small letters, one blank around each: to find a value however it is written."""
    text = _WHOLE.sub("", _GROUPED.sub("", text) if "," in text else text)
    return f" {_OTHER.sub(' ', text.casefold()).strip()} "


def kind_of(value: str, quoted: bool = False) -> str | None:
    """Which kind of fact a value is, or None. A quoted string of a few words counts as a name."""
    if not SHORTEST <= len(value) <= LONGEST or sum(map(str.isalnum, value)) < SHORTEST:
        return None
    if _DATE.fullmatch(value):
        return "date"
    if _NUMBER.fullmatch(value):
        return "number"
    if _PATH.fullmatch(value):
        return "path"
    if _ID.fullmatch(value) and _mixed(value):
        return "id"
    if _NAME.fullmatch(value) and (quoted or all(word[0].isupper() for word in re.split(r"[ \-]", value))):
        return "name"
    return None


def shape(value: str) -> str:
    """Its outline: A for a capital, a for a small letter, 9 for a digit, other characters as they are."""
    return value.translate(_CLASSES)


def outline(value: str) -> str:
    """Its shape with runs drawn together: `A9` for HAT069, `a_9` for mia_3668."""
    return "".join(character for character, _ in groupby(shape(value)))


def _facts(place: int, said: Said) -> Iterator[Fact]:
    text = said.text
    for begin, end in entity_spans(text):
        for match in _PIECE.finditer(text, begin, end):
            value = match.group().rstrip(".:=")
            start, stop = match.start(), match.start() + len(value)
            quote = text[start - 1 : start] if text[start - 1 : start] == text[stop : stop + 1] else ""
            quote = quote if quote and quote in _QUOTES else ""
            kind = kind_of(value, quoted=bool(quote))
            start, stop = start - len(quote), stop + len(quote)
            if kind is None or _is_key(text, stop, kind):
                continue
            before = text[max(0, start - LONGEST) : start].split()
            yield Fact(place, said.turn, start, stop, kind, value, quote, before[-1] if before else "")


def _is_key(text: str, stop: int, kind: str) -> bool:
    """Whether a colon or an equals sign follows, as after a key or a line's number. A line's number follows paths."""
    return kind not in ("path", "date") and text[stop : stop + 3].lstrip(" ")[:1] in (":", "=")


def _mixed(value: str) -> bool:
    """Letters with digits, an underscore, a dot inside or a capital after the first letter."""
    letters = any(map(str.isalpha, value))
    return letters and (
        any(map(str.isdigit, value)) or any(c in value for c in "_.@") or value[1:] != value[1:].lower()
    )


def _words(message: Message) -> str:
    calls = (f"{call.name} {call.arguments}" for call in message.tool_calls)
    return "\n".join([message.reasoning or "", message.content, *calls])


def _tool(message: Message, turn: Turn) -> str | None:
    """The name of the tool that answered, where the run says it."""
    named = {call.id: call.name for call in turn.assistant.tool_calls}
    if message.name or message.tool_call_id in named:
        return message.name or named[message.tool_call_id or ""]
    return next(iter(named.values())) if len(named) == 1 else None
