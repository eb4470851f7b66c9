"""Copies of what was found once in a run: in other letter case, without separators, or where nothing says what it is.

A customer's name stands under `first_name` in one tool result and in the agent's prose later; a telephone is copied
without its dashes; a password is typed into a command. What the rules found is looked for again, word by word.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .redact_names import WORDS, changed_name
from .redact_stand_ins import StandIns
from .redact_view import Find, View

_RUNS = re.compile(r"[^\W_]+")
_MOST_PER_WORD = 50
_FEW = 100
# Names that are ordinary words are only replaced where they stand with the rest of the name.
_WORDS = (
    "able admin agent angel april art august autumn bell best bill bishop black blue bond booker bright brook "
    "brown buck bush carol case chance chase chip christian church clay cliff close cook cross crystal customer "
    "dale dawn day dean default drew duke earl east english faith false field fields fisher ford forest fox frank "
    "french gene glass glen gold good grace grant gray green grey guest guy hall hand harmony heart heath hill "
    "holiday holly home hope hunter iris ivy jack jasmine jean jewel joy july june justice key king knight lake "
    "lane lily long love major march mark marsh martin mason may melody mercy miles mill miller miss monday moon "
    "more moss name none north null olive other page park parks patience pearl penny pepper piper pool porter "
    "power price prince queen rain ray read reed rice rich ring rob robin rock root rose ruby rush sage savage "
    "scott shell short silver singer sky small smart snow south sparks spring stark stone storm strong sue summer "
    "sun sunday swift system temple terry test tony trip troy true union unknown user van vance victor violet "
    "walker wall ward warren waters way weaver wells west white wild will winter wise wolf wood woods worth "
    "wright yes young "
)
_ORDINARY = frozenset(_WORDS.split())
_OWNER = re.compile(
    r"(?:[-dlbcps][-rwxsStT]{9}[.+@]?\s{1,4}\d{1,6}\s{1,4}(?:[\w.-]{1,32}\s{1,8})?|-(?:home|Users)-|(?:USER|LOGNAME|USERNAME|user|login|owner)"
    r"[=:]\s?|(?:[ug]id|groups)=\d{1,10}\(|~)\Z"
)
_PROMPT = re.compile(r"@[\w.-]{1,40}[:~ $#]")


@dataclass(frozen=True, slots=True)
class _Copy:
    """A text to look for in lower case, and its stand-in for one spelling, None if that spelling is something else."""

    low: str
    kind: str
    stand_in: Callable[[View, int, int], str | None]


class Known:
    """What was found in one run, and where copies of it are."""

    def __init__(self, stand_ins: StandIns) -> None:
        self._stand_ins = stand_ins
        self._by_word: defaultdict[str, dict[tuple[str, str], _Copy]] = defaultdict(dict)

    def add(self, found: str, find: Find) -> None:
        """Remember one find, given the text that it stood for."""
        if find.kind == "name":
            self._name(found)
        elif find.kind == "home_path":
            self._put(found.lower(), "user", _if_owner(find.stand_in))
        elif find.kind in ("phone", "card", "national_id"):
            self._digits(found, find)
        elif find.kind in ("password", "secret") and len(found) >= 6:
            self._put(found.lower(), find.kind, _if_spelled(found, find.stand_in))

    def finds(self, view: View) -> Iterator[Find]:
        """Copies in one text."""
        done = 0
        for start, word in self._words(view.low) if self._by_word else ():
            if start < done:
                continue
            for copy in self._by_word[word].values():
                end = start + len(copy.low)
                if not view.low.startswith(copy.low, start) or view.low[end : end + 1].isalnum():
                    continue
                changed = copy.stand_in(view, start, end)
                if changed is not None:
                    done = end
                    yield Find(start, end, copy.kind, changed)
                    break

    def _words(self, low: str) -> Iterator[tuple[int, str]]:
        """Where a text has one of the known first words, in order."""
        if len(self._by_word) > _FEW:
            return ((m.start(), m.group()) for m in _RUNS.finditer(low) if m.group() in self._by_word)
        return iter(sorted(place for word in self._by_word for place in _places(word, low)))

    def _put(self, low: str, kind: str, stand_in: Callable[[View, int, int], str | None]) -> None:
        first = _RUNS.match(low)
        if first is None:
            return
        copies = self._by_word[first.group()]
        if (low, kind) not in copies and len(copies) < _MOST_PER_WORD:
            copies[low, kind] = _Copy(low, kind, stand_in)
            # The longest first: a whole name before its first word.
            self._by_word[first.group()] = dict(sorted(copies.items(), key=lambda item: -len(item[0][0])))

    def _digits(self, found: str, find: Find) -> None:
        if not any(c.isalpha() for c in found):
            digits, changed = re.sub(r"\D", "", found), re.sub(r"\D", "", find.stand_in)
            self._put(digits, find.kind, _always(changed))
            if len(digits) == 11 and find.kind == "phone":
                self._put(digits[1:], find.kind, _always(changed[1:]))

    def _name(self, found: str) -> None:
        words = [word.lower() for word in WORDS.findall(found)]
        for word in words:
            if len(word) >= 3 and word not in _ORDINARY:
                self._put(word, "name", self._if_capital)
        if len(words) > 1:
            self.person(words[0], words[-1])
            self._put(found.lower(), "name", self._any_case)

    def person(self, first: str, last: str) -> None:
        """A first and a last name together, as they are written and as they become user names."""
        first, last = first.lower(), last.lower()
        for sign in (" ", "_", ".", "-"):
            self._put(f"{first}{sign}{last}", "name", self._any_case)
        self._put(f"{last}, {first}", "name", self._any_case)

    def _any_case(self, view: View, start: int, end: int) -> str | None:
        return changed_name(view.text[start:end].replace("_", "\0"), self._stand_ins).replace("\0", "_")

    def _if_capital(self, view: View, start: int, end: int) -> str | None:
        """A word alone is a name in title case; in capitals only if long, for airports and stocks are short."""
        word = view.text[start:end]
        if word.istitle() or (word.isupper() and len(word) > 4):
            return self._stand_ins.name(word)
        return None


def _places(word: str, low: str) -> Iterator[tuple[int, str]]:
    at = low.find(word)
    while at >= 0:
        if not (at and low[at - 1].isalnum()) and not low[at + len(word) : at + len(word) + 1].isalnum():
            yield at, word
        at = low.find(word, at + len(word))


def _always(changed: str) -> Callable[[View, int, int], str | None]:
    return lambda view, start, end: changed


def _if_spelled(found: str, changed: str) -> Callable[[View, int, int], str | None]:
    return lambda view, start, end: changed if view.text[start:end] == found else None


def _if_owner(changed: str) -> Callable[[View, int, int], str | None]:
    """A user's name outside a path: as the owner of a file, or before a prompt."""

    def stand_in(view: View, start: int, end: int) -> str | None:
        text = view.text
        owner = _OWNER.search(text, max(0, start - 80), start) or _PROMPT.match(text, end)
        return changed if owner else None

    return stand_in
