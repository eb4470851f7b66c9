"""`protect=…`: which tokens of a segment are always kept.

`none`, or any of `structure` (the chat template's structural tokens, compaction.md 1.2), `sinks:N` (the segment's
first N tokens) and `last:N` (its last N), joined by `+`.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache

from .base import SegmentSize
from .options import integer, option

SHOW = "none | structure | sinks:N | last:N, joined by +"
_ORDER = ("structure", "sinks", "last")


def parse_protect(text: str) -> str:
    """The text in its one spelling, so that equal protections compare equal."""
    if text == "none":
        return text
    found: dict[str, str] = {}
    for part in text.split("+"):
        name, colon, count = part.partition(":")
        if name not in _ORDER or name in found or bool(colon) != (name != "structure"):
            raise ValueError(SHOW)
        found[name] = f"{name}:{integer(1)(count)}" if colon else name
    return "+".join(found[name] for name in _ORDER if name in found)


def protect_option() -> str:
    """The option as scoring policies have it."""
    return option("structure", "tokens of each segment that are always kept", parse=parse_protect, show=SHOW)


@lru_cache(maxsize=4096)
def forced_offsets(segment: SegmentSize, protect: str) -> tuple[int, ...]:
    """Offsets of the protected tokens of a segment, ascending."""
    if protect == "none":
        return ()
    found: set[int] = set()
    for part in protect.split("+"):
        name, _, count = part.partition(":")
        if name == "structure":
            found.update(segment.structural())
        elif name == "sinks":
            found.update(range(min(int(count), segment.tokens)))
        else:
            found.update(range(max(0, segment.tokens - int(count)), segment.tokens))
    return tuple(sorted(found))


def forced_count(segment: SegmentSize, protect: str) -> int:
    """How many tokens of a segment are protected."""
    if protect == "structure" and segment.protected_at is None:
        return min(segment.protected, segment.tokens)
    return len(forced_offsets(segment, protect))


def forced_before(segment: SegmentSize, protect: str, offset: int) -> int:
    """How many of the first `offset` tokens are protected."""
    if protect == "structure" and segment.protected_at is None:
        return min(segment.protected, offset)
    return bisect_left(forced_offsets(segment, protect), offset)
