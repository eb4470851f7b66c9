"""Records of a zip archive, such as an Inspect log: its JSON members, never unpacked to a disk.

A member is one record `{"member": name, "value": …}`, of a `.jsonl` member each line is one. `header.json` comes first.
"""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BufferedReader
from pathlib import PurePosixPath
from typing import BinaryIO

from ..errors import InputError
from . import json_text
from .reading import Bad, Record
from .unpack import MAX_RATIO, PLAIN_BYTES, Ahead, Damaged, unpacked

MAX_MEMBERS = 10_000
_DIRECTORY_BYTES = 8 << 20
_TAIL_BYTES = 22 + 65_535 + 76  # the end of the list of members, the longest comment, and what may stand before
_FIRST = "header.json"
_SUFFIXES = (".json", ".jsonl", ".ndjson")
_ZSTD, _LOCAL_HEADER_BYTES, _ENCRYPTED = 93, 30, 1
_READ = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, _ZSTD}


def records(file: BinaryIO, where: str) -> Iterator[Record | Bad]:
    """The records of an archive. InputError, in words, for one that is damaged or not to be trusted."""
    try:
        size = file.seek(0, io.SEEK_END)
        _check_directory(file, size, where)
        archive = zipfile.ZipFile(file)
        members = _members(archive, size, where)
    except (zipfile.BadZipFile, struct.error, OSError, ValueError, NotImplementedError) as error:
        raise InputError(f"{where}: no zip archive that can be read ({error})") from None
    place = 0
    for member in members:
        name = member.filename if member.filename.isprintable() else repr(member.filename)
        for found in _records(archive, file, member):
            place += 1
            if isinstance(found, Record):
                yield replace(found, place=place, value={"member": member.filename, "value": found.value})
            else:
                yield Bad(place, f"{name}: {found.reason}", found.raw)


def _check_directory(file: BinaryIO, size: int, where: str) -> None:
    """InputError if the list of members is too long to be looked at: it would be read whole."""
    file.seek(max(0, size - _TAIL_BYTES))
    tail = file.read(_TAIL_BYTES)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0:
        raise zipfile.BadZipFile("its list of members is missing")
    directory = struct.unpack_from("<L", tail, at + 12)[0]
    if tail[max(0, at - 76) : at - 72] == b"PK\x06\x06":  # of large archives, 64 bits wide
        directory = struct.unpack_from("<Q", tail, at - 76 + 40)[0]
    if directory > _DIRECTORY_BYTES:
        raise InputError(f"{where}: its list of members takes {directory:,} bytes: more than {MAX_MEMBERS:,} members")


def _members(archive: zipfile.ZipFile, size: int, where: str) -> list[zipfile.ZipInfo]:
    """The members to read, in order, when nothing is wrong with any."""
    listed = archive.infolist()
    if len(listed) > MAX_MEMBERS:
        raise InputError(f"{where} has {len(listed):,} members: more than {MAX_MEMBERS:,}")
    for member in listed:
        _check_name(member, where)
    if len({member.filename for member in listed}) < len(listed):
        raise InputError(f"{where} has two members of the same name")
    end = 0
    for member in sorted(listed, key=lambda member: member.header_offset):
        if member.header_offset < end:
            raise InputError(f"{where}: member {member.filename!r} overlaps another one")
        end = member.header_offset + _LOCAL_HEADER_BYTES + member.compress_size
    plain = sum(member.file_size for member in listed)
    if plain > max(PLAIN_BYTES, MAX_RATIO * size):
        raise InputError(f"{where} unpacks to far more than its size ({plain:,} bytes from {size:,})")
    wanted = [member for member in listed if PurePosixPath(member.filename).suffix in _SUFFIXES]
    if not wanted:
        raise InputError(f"{where} holds no .json and no .jsonl file")
    return sorted(wanted, key=lambda member: member.filename != _FIRST)


def _check_name(member: zipfile.ZipInfo, where: str) -> None:
    name = member.filename
    if name.startswith(("/", "\\")) or ":" in name[:2] or ".." in name.replace("\\", "/").split("/"):
        raise InputError(f"{where}: member {name!r} points out of the archive")
    if stat.S_ISLNK(member.external_attr >> 16):
        raise InputError(f"{where}: member {name!r} is a symbolic link")


def _records(archive: zipfile.ZipFile, file: BinaryIO, member: zipfile.ZipInfo) -> Iterator[Record | Bad]:
    if member.flag_bits & _ENCRYPTED:
        yield Bad(1, "it is encrypted", "")
        return
    if member.compress_type not in _READ:
        yield Bad(1, f"it is compressed by method {member.compress_type}, which is not read here", "")
        return
    try:
        stream = BufferedReader(Ahead(_checked(archive, file, member)), 1 << 20)
        if not member.filename.endswith(".json"):
            yield from json_text.records(stream)
        elif member.file_size > json_text.MAX_RECORD_BYTES:
            size = member.file_size / 1e6
            yield Bad(1, f"it is {size:,.0f} MB long: more than {json_text.MAX_RECORD_BYTES >> 20} MiB", "")
        else:
            yield json_text.record(1, stream.read())
    except (Damaged, zipfile.BadZipFile, struct.error, OSError, EOFError, ValueError, zlib.error) as error:
        yield Bad(1, f"damaged, the rest of it was not read ({error})", "")


def _checked(archive: zipfile.ZipFile, file: BinaryIO, member: zipfile.ZipInfo) -> Callable[[int], bytes]:
    """Reads of a member: as many bytes as the archive's list says, with the sum it says, or BadZipFile."""
    if member.compress_type == _ZSTD:
        plain = unpacked(Ahead(_packed(file, member)), "zstd")
    else:
        plain = archive.open(member).read
    left, found = member.file_size, 0

    def read(count: int) -> bytes:
        nonlocal left, found
        data = plain(count)
        left, found = left - len(data), zlib.crc32(data, found)
        if left < 0 or (not data and (left or found != member.CRC)):
            raise zipfile.BadZipFile("it is not what the archive's list says")
        return data

    return read


def _packed(file: BinaryIO, member: zipfile.ZipInfo) -> Callable[[int], bytes]:
    """Reads of the bytes as they are stored: zipfile itself knows no zstd before Python 3.14."""
    file.seek(member.header_offset)
    start = file.read(_LOCAL_HEADER_BYTES)
    if start[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile("it does not begin where the archive's list says")
    at = member.header_offset + _LOCAL_HEADER_BYTES + sum(struct.unpack_from("<HH", start, 26))
    end = at + member.compress_size

    def read(count: int) -> bytes:
        nonlocal at
        file.seek(at)
        data = file.read(min(count, end - at))
        at += len(data)
        return data

    return read
