"""Compressed streams, unpacked as they are read: gzip, bzip2, xz and zstd, each within the same bound."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

PLAIN_BYTES, MAX_RATIO = 1 << 30, 200  # a file may unpack to the larger of 1 GiB and 200 times its size
_CHUNK = 1 << 18
_XZ_MEMORY_BYTES = 256 << 20  # what a decoder may ask for: the format allows 4 GiB
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
MAGIC_BYTES = 6


class Damaged(ValueError):
    """Compressed data that cannot be read on; the message says why."""


class Ahead(io.RawIOBase):
    """A stream that can be looked into before it is read, and that counts in `taken` what it took from below."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._ahead = b""
        self._damage: Damaged | None = None
        self.taken = 0

    def look(self, count: int) -> bytes:
        """The next `count` bytes, or what is left, or what stands before damage; they stay to be read."""
        try:
            while len(self._ahead) < count and (more := self._below(count - len(self._ahead))):
                self._ahead += more
        except Damaged as error:
            if not self._ahead:
                raise
            self._damage = error  # for whoever reads as far
        return self._ahead[:count]

    def _below(self, count: int) -> bytes:
        if self._damage is not None:
            raise self._damage
        data = self._read(count)
        self.taken += len(data)
        return data

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with what comes next, at most; 0 at the end."""
        if self._ahead:
            data, self._ahead = self._ahead[: len(buffer)], self._ahead[len(buffer) :]
        else:
            data = self._below(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def packing(start: bytes) -> str | None:
    """How a stream that begins like this is compressed, or None."""
    return next((name for magic, name in _MAGIC.items() if start.startswith(magic)), None)


def unpacked(packed: Ahead, name: str, plain_bytes: int | None = None) -> Callable[[int], bytes]:
    """Reads of what is in a stream compressed in that way. They raise `Damaged` where it cannot be read on."""
    if name == "zstd":
        reader = pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), name)
    else:
        reader = _Reader(packed, name)
    allowed = PLAIN_BYTES if plain_bytes is None else plain_bytes
    made = 0

    def read(count: int) -> bytes:
        nonlocal made
        try:
            data = reader.read(min(count, _CHUNK))
        except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError, pa.ArrowException) as error:
            raise Damaged(f"damaged {name} data, the rest was not read ({error})") from None
        made += len(data)
        if made > allowed and made > MAX_RATIO * packed.taken:
            raise Damaged(f"the {name} data unpack to far more than their size; unpack them first if that is right")
        return data

    return read


class _Decoder(Protocol):
    """What bz2 and lzma offer."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    """zlib's decoder in the same form."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def needs_input(self) -> bool:
        return not self._decoder.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._decoder.decompress(self._decoder.unconsumed_tail + data, max_length)


def _decoder(name: str) -> Any:
    if name == "gzip":
        return _Gzip()
    return bz2.BZ2Decompressor() if name == "bzip2" else lzma.LZMADecompressor(memlimit=_XZ_MEMORY_BYTES)


class _Reader:
    """Streams written one after the other, as one."""

    def __init__(self, packed: Ahead, name: str) -> None:
        self._packed, self._name = packed, name
        self._decoder: _Decoder = _decoder(name)
        self._left = b""

    def read(self, count: int) -> bytes:
        """At most `count` bytes; none at the end. EOFError if the data break off."""
        while True:
            if self._decoder.eof:
                self._left = self._decoder.unused_data or self._left
                if not self._next():
                    return b""
            more = b""
            if self._decoder.needs_input:
                more = self._left or self._packed.read(_CHUNK) or b""
                self._left = b""
                if not more:
                    raise EOFError("they break off")
            if data := self._decoder.decompress(more, count):
                return data

    def _next(self) -> bool:
        """Whether another stream follows; zero bytes between them are padding."""
        while not self._left.strip(b"\0"):
            self._left = self._packed.read(_CHUNK) or b""
            if not self._left:
                return False
        self._left = self._left.lstrip(b"\0")
        self._decoder = _decoder(self._name)
        return True
