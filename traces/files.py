"""One file as nouns: its records, the format they are in, and what its reader makes of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from . import formats, inputs
from .beside import LocalSource
from .reading import Bad, Format, Item, Noun, Record, Reject
from .trajectory import Request, Trajectory

_SNIFFED = 20
_MAX_REASON = 200


def read_file(
    path: Path, format: str = "auto", columns: dict[str, str] | None = None
) -> tuple[Format, Iterator[Item], LocalSource]:
    """The format of a file, its items in order, and the files that are read with it (once the items are).

    UserError and InputError say why a file cannot be read at all.
    """
    stream = inputs.records(path)
    head = list(itertools.islice(stream, _SNIFFED))
    parsed = [r.value for r in head if isinstance(r, Record)]
    if format != "auto":
        chosen = formats.named(format)
    elif parsed:
        chosen = formats.detect(parsed, str(path))
    else:
        bad = next(r for r in head if isinstance(r, Bad))
        raise InputError(f"{path}: no JSON in its first records ({bad.reason})")
    source = LocalSource(path, columns)
    records = itertools.chain(head, stream)
    return chosen, (chosen.gather(records, source) if chosen.gather else _each(chosen, records)), source


def _each(chosen: Format, stream: Iterator[Record | Bad]) -> Iterator[Item]:
    assert chosen.read is not None
    for found in stream:
        if isinstance(found, Bad):
            yield Item(found.place, None, found.reason, found.raw)
        else:
            yield from items_of(chosen.read, found)


def items_of(read: Any, found: Record) -> Iterator[Item]:
    """What a reader makes of one record; a refusal is an item without a value."""
    try:
        made: Noun | Iterable[Noun] = read(found.value)
        for value in [made] if isinstance(made, (Trajectory, Request)) else made:
            yield Item(found.place, _marked(value) if found.repaired else value)
    except Reject as error:
        yield Item(found.place, None, str(error)[:_MAX_REASON], excerpt(found.value))
    except RecursionError:
        yield Item(found.place, None, "nested too deeply", excerpt(found.value))


def _marked(value: Noun) -> Noun:
    if isinstance(value, Trajectory):
        return replace(value, losses=tuple(sorted({*value.losses, "invalid_characters"})))
    return value


def excerpt(value: Any) -> str:
    """The beginning of a record's JSON, for the reject file."""
    try:
        return json.dumps(value, ensure_ascii=False)[:1000]
    except (ValueError, RecursionError):
        return ""
