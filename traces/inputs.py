"""Records out of a file, one at a time, whatever it is packed in: JSON text, tables, streams of events, archives.

Nothing here knows a trace format, and nothing goes by a file's name. Only the size of one record is held in memory.

| what the file is | a record |
| --- | --- |
| JSON lines, a JSON list, JSON documents | each object or list; a list of chat messages is one |
| CSV or TSV with a header | column → text |
| Parquet | column → JSON value; times are ISO text |
| zip archive (an Inspect log) | `{"member": name, "value": …}`, `header.json` first |
| server-sent events | `{"sse": [the data objects of one answer]}` |
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..errors import InputError, UserError
from . import csv_rows, json_text, parquet_rows, sse, zip_members
from .places import Place, place_of
from .reading import Bad, Record
from .unpack import MAGIC_BYTES, Ahead, Damaged, packing, unpacked

_BUFFER = 1 << 20
_LOOKED = 1 << 16
_ZIP, _PARQUET = b"PK\x03\x04", b"PAR1"
_OTHER = {
    _ZIP: "a zip archive",
    _PARQUET: "a Parquet file",
    b"PK\x05\x06": "an empty zip archive",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"SQLite format 3": "an SQLite database",
    b"ARROW1": "an Arrow file",
    b"Obj\x01": "an Avro file",
    b"%PDF": "a PDF document",
    b"\x89PNG": "a picture",
}


class Records:
    """The records of one file; `taken` counts the bytes of it that were read so far."""

    def __init__(self, place: str | Path | Place) -> None:
        self.place = place_of(place)
        self._below: Ahead | None = None

    @property
    def taken(self) -> int:
        """Bytes of the file, as it is stored, that were read."""
        return self._below.taken if self._below is not None else 0

    def __iter__(self) -> Iterator[Record | Bad]:
        """UserError if the file cannot be read, InputError if it is empty or nothing of the above."""
        where = str(self.place)
        with self.place.open() as file:
            try:
                yield from self._records(file, where)
            except OSError as error:
                raise UserError(f"cannot read {where}: {error.strerror or error}") from None

    def _records(self, file: BinaryIO, where: str) -> Iterator[Record | Bad]:
        stream = self._below = Ahead(file.read)
        start = stream.look(MAGIC_BYTES)
        if start[:4] in (_ZIP, _PARQUET):
            if not file.seekable():
                raise InputError(f"{where} is {_OTHER[start[:4]]}, which cannot be read from a pipe; give the file")
            file.seek(0)
            # Both are read from their end.
            kind = zip_members if start[:4] == _ZIP else parquet_rows
            found = None
            for found in kind.records(BufferedReader(cast(Any, file), _BUFFER), where):
                yield found
            if found is None:
                raise InputError(f"{where} is {_OTHER[start[:4]]} without a record")
            return
        packed = packing(start)
        if packed is not None:
            stream = Ahead(unpacked(stream, packed))
        place = 0
        try:
            _refuse_other(stream.look(16), where, packed)
            for found in _text(stream, where):
                place = found.place
                yield found
        except Damaged as error:
            yield Bad(place + 1, str(error), "")
            return
        if not place:
            raise InputError(f"{where} holds no record, only an empty list or blanks")


def records(place: str | Path | Place) -> Iterator[Record | Bad]:
    """The records of a file. UserError if it cannot be read, InputError if it is empty or no text."""
    return iter(Records(place))


def _refuse_other(start: bytes, where: str, packed: str | None) -> None:
    again = packing(start) if packed else None
    if again:
        raise InputError(f"{where} is {again} data in {packed} data; unpack it first")
    for magic, name in _OTHER.items():
        if start.startswith(magic):
            if packed:
                raise InputError(f"{where} is {name} in {packed} data; unpack it first")
            raise InputError(f"{where} is {name}; give JSON as UTF-8 text, a table, or one of them compressed")


def _text(stream: Ahead, where: str) -> Iterator[Record | Bad]:
    start = stream.look(_LOOKED)
    if not start.removeprefix(b"\xef\xbb\xbf").strip() and len(start) < _LOOKED:
        raise InputError(f"{where} is empty")
    text = start.decode(errors="replace")
    reader = BufferedReader(stream, _BUFFER)
    if sse.looks_like(text):
        yield from _answers(reader)
    elif csv_rows.looks_like(text):
        yield from csv_rows.records(reader, where)
    else:
        yield from json_text.records(reader)


def _answers(stream: BufferedReader[Any]) -> Iterator[Record | Bad]:
    """One record per streamed answer, at the line of its first event."""
    begun, sent, size = 0, [], 0
    text = io.TextIOWrapper(stream, "utf-8-sig", "replace")
    lines = iter(lambda: text.readline(json_text.MAX_RECORD_BYTES), "")
    for place, data in sse.events(lines):
        begun, size = begun or place, size + len(data)
        if data != sse.DONE:
            found = json_text.record(place, data.encode())
            if isinstance(found, Bad):
                yield found
                continue
            sent.append(found.value)
            if size > json_text.MAX_RECORD_BYTES:
                yield Bad(begun, f"a stream of more than {json_text.MAX_RECORD_BYTES >> 20} MiB", "")
                begun, sent, size = 0, [], 0
            if not (sent and sse.ends(sent[-1])):
                continue
        if sent:
            yield Record(begun, {"sse": sent})
        begun, sent, size = 0, [], 0
    if sent:
        yield Record(begun, {"sse": sent})
