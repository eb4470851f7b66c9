"""One file as nouns: its records, the format they are in, and what its reader makes of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from . import formats
from .beside import LocalSource, source_of
from .inputs import Records
from .items import each, marked
from .places import Place, place_of
from .reading import Bad, Format, Item, Record, Source

_SNIFFED, _SNIFFED_BYTES = 20, 8 << 20


@dataclass(frozen=True, slots=True)
class Reading:
    """One file being read. `items` are gone through once; then `source.opened` names the files read with it."""

    format: Format
    items: Iterator[Item]
    source: LocalSource
    records: Records

    def __iter__(self) -> Iterator[Any]:
        """The format, the items and the source."""
        return iter((self.format, self.items, self.source))


def read_file(path: str | Path | Place, format: str = "auto", columns: Mapping[str, str] | None = None) -> Reading:
    """The format of a file, its items in order, and the files that are read with it (once the items are).

    UserError and InputError say why a file cannot be read at all.
    """
    place = place_of(path)
    records = Records(place)
    stream = iter(records)
    head: list[Record | Bad] = []
    while len(head) < _SNIFFED and records.taken < _SNIFFED_BYTES and (found := next(stream, None)) is not None:
        head.append(found)
    parsed = [r.value for r in head if isinstance(r, Record)]
    if format != "auto":
        chosen = formats.named(format)
    elif columns:
        chosen = formats.named("table")
    elif parsed:
        chosen = formats.detect(parsed, str(place))
    else:
        bad = next(r for r in head if isinstance(r, Bad))
        raise InputError(f"{place}: none of its first records can be read ({bad.reason})")
    source = source_of(place, columns)
    stream = itertools.chain(head, stream)
    if chosen.gather is not None:
        return Reading(chosen, _marked(chosen.gather, stream, source), source, records)
    assert chosen.read is not None
    return Reading(chosen, each(chosen.read, stream), source, records)


def _marked(
    gather: Callable[[Iterator[Record | Bad], Source], Iterator[Item]], records: Iterator[Record | Bad], source: Source
) -> Iterator[Item]:
    """The items of a gathering reader; one made after a record in which something was replaced says so."""
    changed: list[Record] = []

    def seen(found: Record | Bad) -> Record | Bad:
        if isinstance(found, Record) and (found.repaired or found.nulled):
            changed.append(replace(found, value=None))
        return found

    for item in gather(map(seen, records), source):
        if changed and item.value is not None:
            yield replace(item, value=marked(item.value, *changed))
            changed.clear()
        else:
            yield item
