"""Records of JSON text: JSON lines, one JSON list, or JSON documents one after the other.

Whatever is wrong with one record becomes a `Bad` with its place and a reason; one record at a time is in memory.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from io import BufferedReader
from typing import Any

from . import values
from .items import MAX_RAW
from .reading import Bad, Record

MAX_RECORD_BYTES = 64 << 20
MAX_VALUES = 4_000_000  # of one record: parsed, each takes about a hundred bytes of memory
_FEW = 1 << 22  # bytes that cannot hold too many values
_CHUNK = 1 << 20
_BLANK = " \t\r\n"
_CLOSED = '}]"'  # a value that ends so goes on nowhere; a number may
_AFTER_IT = "Extra data"  # what the parser says of a value that something follows
_STRING = re.compile(b'"[^"]*"')
_NOT_MARKS = bytes(set(range(256)) - set(b'",[{'))


def records(stream: BufferedReader[Any]) -> Iterator[Record | Bad]:
    """The records of a stream; none if it holds nothing but blanks, or an empty list."""
    lines, begun = _Lines(stream), False
    for line in lines:
        data = line if begun else line.removeprefix(codecs.BOM_UTF8)
        if data.isspace() or not data:
            continue
        if not begun:
            begun = True
            whole = _whole_document(data, lines, stream)
            if whole is not None:
                yield from whole
                return
        if lines.cut:
            yield _too_long(lines, data)
        else:
            yield from _line(lines.place, data)


class _Lines:
    """Lines of a stream, numbered from 1; of one that is too long (`cut`) the beginning."""

    def __init__(self, stream: BufferedReader[Any]) -> None:
        self._stream = stream
        self.place = 0
        self.cut = False

    def __iter__(self) -> Iterator[bytes]:
        while line := self._stream.readline(MAX_RECORD_BYTES + 1):
            self.place += 1
            self.cut = len(line) > MAX_RECORD_BYTES and not line.endswith(b"\n")
            yield line

    def skip(self) -> int:
        """Pass the rest of a line that was cut; returns its bytes."""
        size = 0
        while rest := self._stream.readline(_CHUNK):
            size += len(rest)
            if rest.endswith(b"\n"):
                break
        return size

    def ended(self) -> bool:
        """Whether nothing but blanks follows; they are passed."""
        while (near := self._stream.peek(1)) and near.isspace():
            self.place += near.count(b"\n")
            self._stream.read(len(near))
        return not near


def _too_long(lines: _Lines, data: bytes) -> Bad:
    size = len(data) + lines.skip()
    reason = f"the line is {size / 1e6:,.0f} MB long: more than {MAX_RECORD_BYTES >> 20} MiB"
    return Bad(lines.place, reason, excerpt(data))


def _line(place: int, data: bytes) -> Iterator[Record | Bad]:
    """The record of one line, or the records, where objects stand one after the other."""
    found = record(place, data)
    if isinstance(found, Bad) and _AFTER_IT in found.reason:
        several: list[Record] = []
        for each, _ in _elements(_Text(data, BufferedReader(io.BytesIO())), in_list=False):
            if not (isinstance(each, Record) and isinstance(each.value, dict)):
                break
            several.append(replace(each, place=place))
        else:
            yield from several
            return
    yield found


def record(place: int, data: bytes) -> Record | Bad:
    """The record that a JSON text is, or why it is none."""
    if len(data) > _FEW and crowded(data):
        return Bad(place, f"holds more than {MAX_VALUES:,} values", excerpt(data))
    try:
        loaded = values.load(data)
    except ValueError as error:
        return Bad(place, str(error), excerpt(data))
    return Record(place, loaded.value, loaded.repaired, loaded.nulled)


def excerpt(data: bytes) -> str:
    """The beginning of a record that is refused; bytes that are no text are spelled out."""
    return data[:MAX_RAW].decode(errors="backslashreplace")


def crowded(data: bytes) -> bool:
    """Whether a JSON text holds too many values to be parsed; counted without parsing it."""
    if sum(map(data.count, (b",", b"[", b"{"))) <= MAX_VALUES:
        return False
    marks = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NOT_MARKS)
    return len(_STRING.sub(b"", marks)) > MAX_VALUES


def _whole_document(first: bytes, lines: _Lines, stream: BufferedReader[Any]) -> Iterator[Record | Bad] | None:
    """The records of a stream that is no JSON lines, or None. Decided by its first line and what follows it."""
    text, place = first.strip(), lines.place
    if text[:1] == b"{":
        many = text[-1:] in (b"{", b"[", b",", b":") and not lines.cut
        return (found for found, _ in _elements(_Text(first, stream), in_list=False)) if many else None
    if text[:1] != b"[":
        return None
    found = None if lines.cut else record(place, text)
    if isinstance(found, Record) and not lines.ended():
        lines.place = place
        return None
    if isinstance(found, Record) and not (found.repaired or found.nulled):
        return _joined((Record(n, item), 0) for n, item in enumerate(found.value, 1))
    return _joined(_elements(_Text(first, stream), in_list=True))


class _Text:
    """Text of a stream, read as far as the next value needs. Doubled, so a value costs at most twice its length."""

    def __init__(self, first: bytes, stream: BufferedReader[Any]) -> None:
        self._first, self._stream = first, stream
        self._damage: ValueError | None = None
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._text, self._at, self.ended = "", 0, False

    def _grow(self) -> None:
        data = self._first or self._more(max(_CHUNK, len(self._text) - self._at))
        self._first, self.ended = b"", not data
        self._text, self._at = self._text[self._at :] + self._decode(data, not data), 0

    def _more(self, size: int) -> bytes:
        """As many bytes, or what is left, or what stands before damage: the values in it are read first."""
        if self._damage is not None:
            raise self._damage
        parts: list[bytes] = []
        try:
            while size > 0 and (part := self._stream.read1(size)):
                parts.append(part)
                size -= len(part)
        except ValueError as error:
            if not parts:
                raise
            self._damage = error
        return b"".join(parts)

    def peek(self, skip: str) -> str:
        """The next character that is not in `skip`, or nothing at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in skip:
                self._at += 1
            if self._at < len(self._text) or self.ended:
                return self._text[self._at : self._at + 1]
            self._grow()

    def step(self) -> None:
        """Pass one character."""
        self._at += 1

    def value(self) -> tuple[Any, str]:
        """The next JSON value and its text. ValueError or RecursionError if there is none."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # A value that was only cut fails at the end of what was read, or in a string that may go on.
                cut = error.msg.startswith("Unterminated") or error.pos >= len(self._text) - 16
                if self.ended or not cut:
                    error.pos -= self._at
                    raise
                self._bounded()
            else:
                if end < len(self._text) or self.ended or self._text[end - 1] in _CLOSED:
                    text, self._at = self._text[self._at : end], end
                    return value, text
            self._grow()

    def _bounded(self) -> None:
        """ValueError if what was read of a value that goes on is too much already."""
        size = len(self._text) - self._at
        if size > MAX_RECORD_BYTES:
            raise ValueError(f"longer than {MAX_RECORD_BYTES >> 20} MiB")
        if size > _FEW and crowded(self._text[self._at :].encode()):
            raise ValueError(f"holds more than {MAX_VALUES:,} values")


_DECODER = json.JSONDecoder()


def _elements(text: _Text, in_list: bool) -> Iterator[tuple[Record | Bad, int]]:
    """The elements of one JSON list, or JSON documents one after the other, and the length of each."""
    place = 1
    try:
        if in_list:
            text.peek(_BLANK)
            text.step()
        while (mark := text.peek(_BLANK + ",")) and not (in_list and mark == "]"):
            value, written = text.value()
            yield _checked(place, value, written), len(written)
            place += 1
        if in_list and not mark:
            yield Bad(place, "the list is not closed", ""), 0
        elif in_list:
            text.step()
            if text.peek(_BLANK):
                yield Bad(place, "something follows the list; it was not read", ""), 0
    except (ValueError, RecursionError) as error:
        yield Bad(place, f"{values.why(error)}; the rest of the file was not read", ""), 0


def _joined(elements: Iterator[tuple[Record | Bad, int]]) -> Iterator[Record | Bad]:
    """The elements of a list; chat messages at its beginning are one record."""
    said, size = [], 0
    for found, length in elements:
        if isinstance(found, Record) and (said or found.place == 1) and _is_message(found.value):
            said.append(found.value)
            size += length
            if size > MAX_RECORD_BYTES:
                yield Bad(1, f"one list of messages of more than {MAX_RECORD_BYTES >> 20} MiB; it was not read", "")
                return
        else:
            yield found
    if said:
        yield Record(1, said)


def _checked(place: int, value: Any, text: str) -> Record | Bad:
    try:
        loaded = values.safe(value, text)
    except ValueError as error:
        return Bad(place, str(error), text[:MAX_RAW])
    return Record(place, loaded.value, loaded.repaired, loaded.nulled)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and not {"messages", "traj"} & set(value)
