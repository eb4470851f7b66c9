"""Names of people where text says that they are names: behind keys such as `first_name`, and `name` beside an e-mail.

Names in free prose cannot be told from other words and stay, unless the same run holds them in such a place: then
their copies are found by `redact_known`.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator

from .redact_stand_ins import StandIns
from .redact_view import Find, View, unescaped

# JSON, and what Python prints of a dict.
_VALUE = re.compile(r"([\"'])\1{0,7}\s{0,4}:\s{0,4}([\"'])\2{0,7}([^\"'\\\s](?:(?!\2)[^\\\n]){0,78}(?<!\s))\s{0,4}\2")
_KEY_OF_NAME = re.compile(
    r"(?:[a-z]{1,20}[_ -]){0,2}(?:first|last|full|given|family|middle|maiden|nick|display|customer|passenger|guest"
    r"|patient|employee|contact|cardholder|account_?holder|beneficiary|recipient|sender|owner)"
    r"[_ -]?name|surname|forename"
    r"|cardholder|customer|passenger|attendee|patient"
)
_PERSONAL = re.compile(
    r"[\"'](?:\w{0,20}_)?(?:e-?mail|phone|mobile|dob|date_of_birth|birth_?date|ssn|first_?name|last_?name"
    r"|home_address)\w{0,12}[\"']"
)
_FIRST_LAST = re.compile(
    r"([\"'])first_?name\1{1,8}\s{0,4}:\s{0,4}([\"'])\2{0,7}([^\"\\\n]{2,40}?)\s{0,4}\2{1,8}\s{0,4},\s{0,4}"
    r"\1{1,8}last_?name\1{1,8}\s{0,4}:\s{0,4}([\"'])\4{0,7}([^\"\\\n]{2,40}?)\s{0,4}\4"
)
_WORDS_BEFORE = ("name", "customer", "cardholder", "patient", "passenger", "attendee")
_ENDINGS = tuple((word + sign, sign) for word in _WORDS_BEFORE for sign in "\"'")
_LONGEST_KEY = 48
WORDS = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_BRACKET = re.compile(r"<[^<>\s@]{1,64}@")
_BREAKS = "<>@:,;\n()"
_SIGNED = re.compile(
    r"(?<![\w-])(?!(?:From|By|To|Cc|Author|Contact|Email|Mail)\b)"
    r"([A-ZÀ-Þ][\w'’]*(?: [A-ZÀ-Þ][\w'’]*\.?){1,3})[\"']{0,8} {0,2}\Z"
)
_EDGES = ("{", "\x1e")
_REACH = 600
_MOST_WORDS = 5


def names(view: View, stand_ins: StandIns) -> Iterator[Find]:
    """Names in JSON, also in JSON inside a JSON string."""
    low = view.low
    personal: list[int] | None = None
    for ending, sign in _ENDINGS:
        at = low.find(ending)
        while at >= 0:
            end = at + len(ending) - 1
            key = low[low.rfind(sign, max(0, at - _LONGEST_KEY), end) + 1 : end]
            plain = key == "name"
            value = _VALUE.match(view.shadow, end) if plain or _KEY_OF_NAME.fullmatch(key) else None
            if value and plain and personal is None:
                personal = [match.start() for match in _PERSONAL.finditer(low)]
            if value and (not plain or _beside(personal or [], view.shadow, at, value.end())):
                yield from _changed(view, value, stand_ins)
            at = low.find(ending, end)


def signatures(view: View, stand_ins: StandIns) -> Iterator[Find]:
    """Names before an address in angle brackets, as commits and mails are signed: `Ann Lee <ann@corp.io>`."""
    if "@" not in view.shadow:
        return
    for bracket in _BRACKET.finditer(view.shadow):
        at = bracket.start()
        begin = max(at - 60, *(view.shadow.rfind(sign, max(0, at - 60), at) + 1 for sign in _BREAKS))
        before = _SIGNED.search(view.shadow, max(0, begin), at)
        if before:
            name = view.text[before.start(1) : before.end(1)]
            yield Find(before.start(1), before.end(1), "name", changed_name(name, stand_ins))


def people(view: View) -> list[tuple[str, str]]:
    """First and last names that stand side by side in one object."""
    if "first" not in view.low:
        return []
    return [(match.group(3), match.group(5)) for match in _FIRST_LAST.finditer(view.low)]


def is_name(value: str) -> bool:
    """Whether a value may be a person's name: a few words of letters, each with a capital."""
    words = WORDS.findall(value)
    if not 1 <= len(words) <= _MOST_WORDS or not re.fullmatch(r"[^\W\d_].*", value.strip(), re.DOTALL):
        return False
    letters = re.sub(r"[^\W\d_]|[\s.'’,-]", "", value)
    return not letters and (words[0][0].isupper() or len(words) == 1)


def _beside(personal: list[int], text: str, start: int, end: int) -> bool:
    """Whether the object around two places also holds an address, a number or a birthday."""
    begins = max(start - _REACH, *(text.rfind(sign, max(0, start - _REACH), start) for sign in _EDGES))
    ends = [found for sign in ("}", "\x1e") if (found := text.find(sign, end, end + _REACH)) >= 0]
    number = bisect.bisect_left(personal, begins)
    return number < len(personal) and personal[number] < min([end + _REACH, *ends])


def _changed(view: View, match: re.Match[str], stand_ins: StandIns) -> Iterator[Find]:
    name = unescaped(view.text[match.start(3) : match.end(3)])
    if is_name(name):
        yield Find(match.start(3), match.end(3), "name", changed_name(name, stand_ins))


def changed_name(value: str, stand_ins: StandIns) -> str:
    """Every word of a name replaced."""
    return WORDS.sub(lambda word: stand_ins.name(word.group()), value)
