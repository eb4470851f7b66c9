"""Records out of a file, one at a time: JSON lines, a JSON list or JSON documents, plain or gzip.

Nothing here knows a trace format. Whatever is wrong with one record becomes a `Bad` with its place and a reason; only
the size of one record is held in memory.
"""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..errors import InputError, UserError
from . import values
from .reading import Bad, Record

MAX_RECORD_BYTES = 64 << 20
_PLAIN_BYTES, _MAX_RATIO = 1 << 30, 200  # a gzip file may unpack to the larger of 1 GiB and 200 times its size
_CHUNK = 1 << 20
_UNPACKED = 1 << 16  # what is lost at most where a damaged gzip file breaks off
_KEPT_RAW = 1000
_OTHER = {
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "zstd-compressed",
    b"BZh": "bzip2-compressed",
    b"\xfd7zXZ": "xz-compressed",
    b"PAR1": "a Parquet file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}
_BLANK = " \t\r\n"


def records(path: Path) -> Iterator[Record | Bad]:
    """The records of a file. UserError if it cannot be read, InputError if it is empty or no text."""
    try:
        with path.open("rb") as file:
            yield from _records(_plain(file, path), path)
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise InputError(f"{path}: damaged gzip file ({error})") from None
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None


def _plain(file: BinaryIO, path: Path) -> BinaryIO:
    magic = file.read(6)
    file.seek(0)
    if magic[:2] == b"\x1f\x8b":
        limit = max(_PLAIN_BYTES, _MAX_RATIO * path.stat().st_size)
        return BufferedReader(cast(Any, _Bounded(fileobj=file, limit=limit)), _UNPACKED)
    for start, name in _OTHER.items():
        if magic.startswith(start):
            raise InputError(f"{path} is {name}; give JSON as UTF-8 text, plain or gzip-compressed")
    return file


class _Bounded(gzip.GzipFile):
    """A gzip file that refuses to unpack without end."""

    def __init__(self, fileobj: BinaryIO, limit: int) -> None:
        super().__init__(fileobj=fileobj, mode="rb")
        self._left = limit

    def readinto(self, b: Any) -> int:
        count = super().readinto(b)
        self._left -= count
        if self._left < 0:
            raise gzip.BadGzipFile("it unpacks to far more than its size; unpack it first if that is right")
        return count


def _records(stream: BinaryIO, path: Path) -> Iterator[Record | Bad]:
    place, seen = 0, False
    try:
        for place, line in _lines(stream):
            if not line.strip():
                continue
            if not seen:
                seen = True
                line = line.removeprefix(b"\xef\xbb\xbf")  # noqa: PLW2901
                if not line.strip():
                    seen = False
                    continue
                whole = _whole_document(line, stream)
                if whole is not None:
                    first = next(whole, None)
                    if first is None:
                        raise InputError(f"{path} holds an empty list")
                    yield first
                    yield from whole
                    return
            yield _line(place, line)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        yield Bad(place + 1, f"damaged gzip data, the rest was not read ({error})", "")
        return
    if not seen:
        raise InputError(f"{path} is empty")


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    place = 0
    while line := stream.readline(MAX_RECORD_BYTES + 1):
        place += 1
        if len(line) > MAX_RECORD_BYTES:
            while (rest := stream.readline(_CHUNK)) and not rest.endswith(b"\n"):
                pass
        yield place, line


def _line(place: int, line: bytes) -> Record | Bad:
    raw = line[:_KEPT_RAW].decode(errors="backslashreplace")
    if len(line) > MAX_RECORD_BYTES:
        return Bad(place, f"the line is longer than {MAX_RECORD_BYTES >> 20} MiB", raw)
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return Bad(place, f"invalid UTF-8 at byte {error.start + 1} of the line", raw)
    try:
        return _parsed(place, json.loads(text), text)
    except (ValueError, RecursionError) as error:
        return Bad(place, _why(error), raw)


def _parsed(place: int, value: Any, text: str) -> Record | Bad:
    reason = values.flaw(value)
    if reason is not None:
        return Bad(place, reason, text[:_KEPT_RAW])
    cleaned = values.whole(value, text)
    return Record(place, cleaned, repaired=cleaned != value)


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "invalid UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"no valid JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}"
    return f"no valid JSON: {str(error).partition(';')[0]}"


def _whole_document(first: bytes, stream: BinaryIO) -> Iterator[Record | Bad] | None:
    """The records of a file that is no JSON lines, or None. Decided by its first line and what follows it."""
    text = first.decode(errors="replace").strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        if text[0] not in "[{" or (text[0] == "{" and text[-1] not in "[{,:"):
            return None
        return _elements(_Text(first, stream), in_list=text[0] == "[")
    if not isinstance(value, list):
        return None
    following = stream.read(_CHUNK)
    if following.strip():
        return _with_rest(first, following, stream)
    return _elements(_Text(first, stream), in_list=True)


def _with_rest(first: bytes, following: bytes, stream: BinaryIO) -> Iterator[Record | Bad]:
    """JSON lines whose first line is a list: go on where looking ahead stopped."""
    yield _line(1, first)
    *lines, last = following.split(b"\n")
    place = 1
    for line in [*lines, last + stream.readline(MAX_RECORD_BYTES)]:
        place += 1
        if line.strip():
            yield _line(place, line)
    for further, line in _lines(stream):
        if line.strip():
            yield _line(place + further, line)


class _Text:
    """Text of a stream, read as far as the next value needs. Doubled, so a value costs at most twice its length."""

    def __init__(self, first: bytes, stream: BinaryIO) -> None:
        self._first, self._stream = first, stream
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._text, self._at, self.ended = "", 0, False

    def _grow(self) -> None:
        data = self._first or self._stream.read(max(_CHUNK, len(self._text) - self._at))
        self._first, self.ended = b"", not data
        self._text, self._at = self._text[self._at :] + self._decode(data, not data), 0

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
        """The next JSON value and its text. ValueError if there is none."""
        while True:
            rest = self._text[self._at :]
            try:
                value, end = json.JSONDecoder().raw_decode(rest)
            except json.JSONDecodeError as error:
                # A value that was only cut fails at the end of what was read, or in a string that may go on.
                cut = error.msg.startswith("Unterminated") or error.pos >= len(rest) - 16
                if self.ended or not cut or len(rest) > MAX_RECORD_BYTES:
                    raise
                self._grow()
                continue
            self._at += end
            return value, rest[:end]


def _elements(text: _Text, in_list: bool) -> Iterator[Record | Bad]:
    """The elements of one JSON list, or JSON documents one after the other; a list of messages is one record."""
    place, said = 1, []
    try:
        if in_list:
            text.peek(_BLANK)
            text.step()
        while (mark := text.peek(_BLANK + "," if in_list else _BLANK)) and not (in_list and mark == "]"):
            record = _parsed(place, *text.value())
            if isinstance(record, Record) and in_list and (said or place == 1) and _is_message(record.value):
                said.append(record.value)
            else:
                yield record
            place += 1
        if in_list and not mark:
            yield Bad(place, "the list is not closed", "")
    except (ValueError, RecursionError) as error:
        yield Bad(place, f"{_why(error)}; the rest of the file was not read", "")
    if said:
        yield Record(1, said)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and not {"messages", "traj"} & set(value)
