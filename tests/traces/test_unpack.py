"""Compressed streams give what was packed, up to the byte where they are damaged, and never without end."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable

import pyarrow as pa
import pytest

from kvmill.traces import unpack
from kvmill.traces.unpack import Ahead, Damaged, packing, unpacked

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}
TEXT = b"".join(b'{"n": %d, "text": "some words"}\n' % n for n in range(50_000))


def read(packed: bytes, name: str, step: int = 1 << 16) -> tuple[bytes, str | None]:
    """What comes out, and why it ended if it did too early."""
    plain, out = unpacked(Ahead(io.BytesIO(packed).read), name), b""
    try:
        while data := plain(step):
            assert len(data) <= step
            out += data
    except Damaged as error:
        return out, str(error)
    return out, None


@pytest.mark.parametrize("name", PACKERS)
def test_what_was_packed_comes_out_also_of_streams_one_after_the_other(name: str) -> None:
    pack = PACKERS[name]
    assert packing(pack(TEXT)) == name
    assert read(pack(TEXT), name) == (TEXT, None)
    assert read(pack(TEXT[:7]) + pack(TEXT[7:]), name) == (TEXT, None)
    assert read(pack(b""), name) == (b"", None)


@pytest.mark.parametrize("name", PACKERS)
def test_of_a_cut_stream_the_beginning_comes_out_and_the_end_is_named(name: str) -> None:
    packed = PACKERS[name](TEXT)
    for kept in (len(packed) - 1, len(packed) // 2, 12):
        out, reason = read(packed[:kept], name)
        assert TEXT.startswith(out)
        assert reason is not None
        assert reason.startswith(f"damaged {name} data")


@pytest.mark.parametrize("name", PACKERS)
def test_what_is_no_stream_of_that_kind_is_damage(name: str) -> None:
    packed = PACKERS[name](TEXT)
    middle = len(packed) // 2
    changed = packed[:middle] + bytes(64) + packed[middle + 64 :]
    # Arrow writes zstd without a checksum: nothing can tell that its words were changed.
    for broken in (packed + b"rubbish behind", *([] if name == "zstd" else [changed])):
        out, reason = read(broken, name)
        assert reason is not None
        assert TEXT.startswith(out[:100])


@pytest.mark.parametrize("name", PACKERS)
def test_a_bomb_is_refused_at_the_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "PLAIN_BYTES", 1 << 20)
    bomb = PACKERS[name](bytes(32 << 20))
    out, reason = read(bomb, name)
    assert "unpack to far more than their size" in str(reason)
    assert len(out) <= max(1 << 20, unpack.MAX_RATIO * len(bomb)) + (1 << 18)


def test_an_xz_file_that_asks_for_gigabytes_of_memory_is_refused() -> None:
    # The memory that a decoder must have is written in the header: byte 15 holds the size of its dictionary.
    chosen = {"id": lzma.FILTER_LZMA2, "preset": 0}
    hungry = bytearray(lzma.compress(TEXT, check=lzma.CHECK_NONE, filters=[chosen]))
    assert hungry[14:16] == b"\x21\x01"
    hungry[16] = 40  # 4 GiB
    hungry[12 + 4 * (hungry[12] + 1) - 4 : 12 + 4 * (hungry[12] + 1)] = zlib.crc32(
        bytes(hungry[12 : 12 + 4 * (hungry[12] + 1) - 4])
    ).to_bytes(4, "little")
    assert "Memory usage limit" in str(read(hungry, "xz")[1])


def test_looking_ahead_takes_nothing_away() -> None:
    stream = Ahead(io.BytesIO(b"0123456789").read)
    assert stream.look(4) == b"0123"
    assert stream.look(2) == b"01"
    assert io.BufferedReader(stream).read() == b"0123456789"
    assert stream.taken == 10
    short = Ahead(io.BytesIO(b"01").read)
    assert short.look(9) == b"01"
