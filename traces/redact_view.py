"""One text as the rules of redaction look at it.

Text inside JSON strings, URLs and terminals has letters that are none: in `\\nann@corp.io` the `n` belongs to the
backslash. Rules therefore match on a shadow of the same length in which escapes are blanks, and replace in the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Backslash escapes, as often as they were escaped again; percent escapes but for `@`; colours of a terminal.
# Each begins with a literal, which a search runs to at once.
_ESCAPES = (
    (
        "\\",
        re.compile(
            r"\\(?<!\\\\)\\*(?:u00[01][0-9a-fA-F]\[[0-9;]{0,20}m|x1b\[[0-9;]{0,20}m|u[0-9a-fA-F]{4}|[nrtbf\"'/])"
        ),
    ),
    ("%", re.compile(r"%(?!40)[0-9a-fA-F]{2}")),
    ("\x1b", re.compile(r"\x1b\[[0-9;]{0,20}m")),
)
# Stands between texts that are looked through as one: no rule reaches over it.
BETWEEN = "\n\x1e\x1e\x1e\x1e\x1e\x1e\n"
_UNICODE = re.compile(r"(?<!\\)\\+u([0-9a-fA-F]{4})")


@dataclass(frozen=True, slots=True)
class Find:
    """What stands in place of a span of one text, and the kind it is counted as."""

    start: int
    end: int
    kind: str
    stand_in: str


class View:
    """A text, its shadow, and the shadow in lower case; all of one length, so that places agree."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.shadow = text
        for literal, escape in _ESCAPES:
            if literal in self.shadow:
                self.shadow = escape.sub(_blank, self.shadow)
        low = self.shadow.lower()
        if len(low) != len(self.shadow):  # a few letters become two in lower case: then only the Latin ones are lowered
            low = self.shadow.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")
        self.low = low


def unescaped(text: str) -> str:
    """The text with `\\u00e9` and its like as letters."""
    return _UNICODE.sub(lambda match: chr(int(match.group(1), 16)), text) if "\\u" in text else text


def _blank(match: re.Match[str]) -> str:
    found = match.group()
    if found[0] == "%":
        return chr(int(found[1:], 16)).rjust(3) if found[1] in "2345678" else "   "
    if found[-1] in "\"'/":
        return found[-1] * len(found)
    last = " "
    if code := _UNICODE.fullmatch(found):
        letter = chr(int(code.group(1), 16))
        if letter.isalpha():
            return letter * len(found)
        last = letter if letter.isprintable() else " "
    return last.rjust(len(found))
