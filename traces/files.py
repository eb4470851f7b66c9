"""One file as nouns: its records, the format they are in, and what its reader makes of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from ..errors import InputError
from . import formats, inputs
from .beside import LocalSource
from .items import each
from .reading import Bad, Format, Item, Record

_SNIFFED = 20


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
    if chosen.gather is not None:
        return chosen, chosen.gather(records, source), source
    assert chosen.read is not None
    return chosen, each(chosen.read, records), source
