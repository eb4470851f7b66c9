"""A tokenizer with merges, around the fake one of bytes: two ids that follow each other may be written as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MERGES = {(10, 10): 2000, (ord("P"), ord("a")): 2001, (ord("a"), ord("n")): 2002}
"""Two line breaks, and two ways to write `Pan`: `Pa`+`n` is how text is encoded, `P`+`an` what a model may write."""
_SPLIT = {merged: pair for pair, merged in MERGES.items()}


class Merging:
    """`inner` with `MERGES`, from left to right."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.control_ids, self.renders_tools = inner.control_ids, inner.renders_tools
        self.fingerprint = "merging " + inner.fingerprint

    def render(self, *arguments: Any) -> str:
        return self._inner.render(*arguments)

    def encode(self, text: str, control: bool) -> list[int]:
        out: list[int] = []
        for token in self._inner.encode(text, control):
            merged = MERGES.get((out[-1], token)) if out else None
            out[-1:] = [*out[-1:], token] if merged is None else [merged]
        return out

    def decode(self, ids: Sequence[int]) -> str:
        return self._inner.decode([part for token in ids for part in _SPLIT.get(token, (token,))])

    def token_text(self, token_id: int) -> str:
        return self.decode([token_id])
