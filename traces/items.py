"""What a reader makes of records, one at a time: items in order, and a refusal as an item without a value."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from .reading import Bad, Item, Noun, Record, Reject
from .trajectory import Request, Trajectory

_MAX_REASON = 200
MAX_RAW = 10_000


def each(read: Callable[[Any], Noun | Iterable[Noun]], records: Iterable[Record | Bad]) -> Iterator[Item]:
    """The items of a format that makes nouns of every record for itself."""
    for found in records:
        if isinstance(found, Bad):
            yield passed_on(found)
        else:
            yield from items_of(read, found)


def items_of(read: Callable[[Any], Noun | Iterable[Noun]], found: Record) -> Iterator[Item]:
    """What a reader makes of one record."""
    try:
        made = read(found.value)
        for value in [made] if isinstance(made, (Trajectory, Request)) else made:
            yield Item(found.place, marked(value, found))
    except Reject as error:
        yield refused(found, str(error))
    except RecursionError:
        yield refused(found, "nested too deeply")


def refused(found: Record, reason: str) -> Item:
    """A record that cannot be read, with the beginning of its JSON."""
    return Item(found.place, None, reason[:_MAX_REASON], excerpt(found.value))


def passed_on(bad: Bad) -> Item:
    """A record that could not be parsed."""
    return Item(bad.place, None, bad.reason, bad.raw)


def marked(value: Noun, *records: Record) -> Noun:
    """A noun, with what was replaced in the records it was made of among its losses."""
    losses = {"invalid_characters" for found in records if found.repaired}
    losses |= {"not_a_number" for found in records if found.nulled}
    if losses and isinstance(value, Trajectory):
        return replace(value, losses=tuple(sorted({*value.losses, *losses})))
    return value


def excerpt(value: Any) -> str:
    """The beginning of a record's JSON, for the reject file."""
    parts, size = [], 0
    try:
        for part in json.JSONEncoder(ensure_ascii=False).iterencode(value):
            parts.append(part)
            size += len(part)
            if size > MAX_RAW:
                break
    except (ValueError, RecursionError):
        return ""
    return "".join(parts)[:MAX_RAW]
