"""Control tokens spelled out in content must stay text: they are hidden while a chat template runs.

Recorded tool output may spell `<|im_end|>`. A template prints it verbatim and a tokenizer would then read a real end
of message. So each spelling is replaced by a private-use character first, and put back at encoding, as plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

_FIRST, _LAST = 0xF0000, 0xFFFFD  # a private-use plane: no template and no tokenizer gives it a meaning


class Shield:
    """Hides the spellings of one tokenizer's control tokens. Stand-ins that occur in content are hidden as well."""

    def __init__(self, spellings: Iterable[str]) -> None:
        words = sorted({word for word in spellings if word.strip()}, key=len, reverse=True)
        own = f"[{chr(_FIRST)}-{chr(_LAST)}]"
        self._find = re.compile("|".join([*map(re.escape, words), own]))
        self._own = re.compile(f"({own})")
        self._stand_in: dict[str, str] = {}
        self._spelled: dict[str, str] = {}

    def hide(self, text: str) -> str:
        """`text` with every spelling replaced by its stand-in."""
        return self._find.sub(lambda match: self._hidden(match.group()), text)

    def hide_json(self, value: Any) -> Any:
        """The same for all strings inside JSON data."""
        return json.loads(self.hide(json.dumps(value, ensure_ascii=False)))

    def show(self, text: str) -> str:
        """The text with spellings put back."""
        return self._own.sub(lambda match: self._spelled.get(match.group(), match.group()), text)

    def split(self, text: str) -> list[tuple[str, bool]]:
        """Parts of a rendered text; True where control tokens are meant, False for a spelling from content."""
        parts = [
            (self._spelled[part], False) if part in self._spelled else (part, True) for part in self._own.split(text)
        ]
        return [part for part in parts if part[0]]

    def _hidden(self, spelled: str) -> str:
        if spelled not in self._stand_in:
            mark = chr(_FIRST + len(self._stand_in))
            self._stand_in[spelled], self._spelled[mark] = mark, spelled
        return self._stand_in[spelled]
