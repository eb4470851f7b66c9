"""Records of one trace lie apart in a file, between those of others: they are held till it ends, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..items import marked, passed_on, refused
from ..reading import Bad, Item, Record, Reject
from .spans import Trace, runs

MOST_CHARACTERS = 64_000_000
_VALUE = 100  # what a value takes beside its text, in characters
_MOST_LET_GO = 1 << 18
Part = TypeVar("Part")


@dataclass(slots=True)
class _Group(Generic[Part]):
    first: Record
    parts: list[Part] = field(default_factory=list)
    characters: int = 0


def gathered(
    source: str,
    records: Iterable[Record | Bad],
    parts_of: Callable[[Any], Iterable[tuple[str | None, Part]]],
    trace_of: Callable[[list[Part]], Trace],
) -> Iterator[Item]:
    """Items of a file. `parts_of` gives a record's spans with the trace they belong to (None: one of its own);
    `trace_of` makes a trace of its spans. When too much is held the oldest trace is let go: what comes later of it is
    a piece for itself, which ingest joins again where it continues the first.
    """
    held: dict[str, _Group[Part]] = {}
    let_go: OrderedDict[str, None] = OrderedDict()
    total = 0
    for found in records:
        if isinstance(found, Bad):
            yield passed_on(found)
            continue
        try:
            parts = list(parts_of(found.value))
        except Reject as error:
            yield refused(found, str(error))
            continue
        alone: list[Part] = []
        for key, part in parts:
            if key is None:
                alone.append(part)
                continue
            group = held.setdefault(key, _Group(found))
            group.parts.append(part)
        size = characters(found.value)
        for key in {key for key, _ in parts if key is not None}:
            held[key].characters += size
            total += size
        for part in alone:
            yield from _items(source, _Group(found, [part]), trace_of)
        while total > MOST_CHARACTERS and len(held) > 1:
            key = next(iter(held))
            group = held.pop(key)
            let_go[key] = None
            if len(let_go) > _MOST_LET_GO:
                let_go.popitem(last=False)
            total -= group.characters
            yield from _items(source, group, trace_of, piece=True)
    for key in list(held):
        yield from _items(source, held.pop(key), trace_of, piece=key in let_go)


def _items(
    source: str, group: _Group[Part], trace_of: Callable[[list[Part]], Trace], piece: bool = False
) -> Iterator[Item]:
    trace = trace_of(group.parts)
    trace.piece = piece
    made = False
    for value in runs(source, trace):
        made = True
        if isinstance(value, Reject):
            yield refused(group.first, str(value))
        else:
            yield Item(group.first.place, marked(value) if group.first.repaired else value)
    if not made:
        yield refused(group.first, "no span of a model call in this trace")


def characters(value: Any) -> int:
    """Characters of all texts inside a value, and what keeping each value takes beside them."""
    level, total = [value], 0
    while level:
        below: list[Any] = []
        total += _VALUE * len(level)
        for item in level:
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        level = below
    return total
