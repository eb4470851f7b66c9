"""Archives are read without being unpacked, in order, and refused in words when they are not to be trusted."""

from __future__ import annotations

import io
import json
import stat
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvmill.errors import InputError
from kvmill.traces import json_text, zip_members
from kvmill.traces.inputs import records
from kvmill.traces.reading import Bad, Record

MEMBERS = {"_journal/start.json": {"n": 0}, "samples/1_epoch_1.json": {"n": 1}, "header.json": {"version": 2}}
_ZSTD = 93


def packed(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def as_json(members: dict[str, Any]) -> dict[str, bytes]:
    return {name: json.dumps(value).encode() for name, value in members.items()}


def with_zstd(members: dict[str, bytes]) -> bytes:
    """An archive as newer tools write it; Python's own module cannot before 3.14."""
    out, directory = b"", b""
    for name, data in members.items():
        body = pa.compress(data, codec="zstd", asbytes=True)
        common = struct.pack("<HHHHHLLLHH", 63, 0, _ZSTD, 0, 0, zlib.crc32(data), len(body), len(data), len(name), 0)
        directory += (
            b"PK\1\2" + struct.pack("<H", 63) + common + struct.pack("<HHHLL", 0, 0, 0, 0, len(out)) + name.encode()
        )
        out += b"PK\3\4" + common + name.encode() + body
    count = len(members)
    return out + directory + b"PK\5\6" + struct.pack("<HHHHLLH", 0, 0, count, count, len(directory), len(out), 0)


def read(tmp_path: Path, data: bytes) -> list[Record | Bad]:
    path = tmp_path / "archive"
    path.write_bytes(data)
    return list(records(path))


def refusal(tmp_path: Path, data: bytes) -> str:
    with pytest.raises(InputError) as caught:
        read(tmp_path, data)
    return str(caught.value)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, _ZSTD])
def test_members_come_in_order_the_header_first(tmp_path: Path, method: int) -> None:
    members = as_json(MEMBERS) | {"notes.txt": b"not read"}
    found = read(tmp_path, with_zstd(members) if method == _ZSTD else packed(members, method))
    assert [(r.place, r.value) for r in found if isinstance(r, Record)] == [
        (1, {"member": "header.json", "value": {"version": 2}}),
        (2, {"member": "_journal/start.json", "value": {"n": 0}}),
        (3, {"member": "samples/1_epoch_1.json", "value": {"n": 1}}),
    ]


def test_lines_of_a_member_are_records_of_their_own(tmp_path: Path) -> None:
    found = read(tmp_path, packed({"a.jsonl": b'{"n": 1}\nbroken\n{"n": 3}\n', "b.json": b'{"n": NaN}'}))
    assert [r.value["value"] for r in found if isinstance(r, Record)] == [{"n": 1}, {"n": 3}, {"n": None}]
    assert [r.nulled for r in found if isinstance(r, Record)] == [False, False, True]
    [bad] = [r for r in found if isinstance(r, Bad)]
    assert bad.reason == "a.jsonl: no valid JSON: Expecting value at character 1"


@pytest.mark.parametrize(
    "name", ["../up.json", "/etc/passwd.json", "a/../../b.json", "C:\\x.json", "a\\..\\..\\b.json"]
)
def test_a_name_that_leaves_the_archive_refuses_it(tmp_path: Path, name: str) -> None:
    data = packed({"header.json": b"{}", "x" * len(name): b"{}"}).replace(b"x" * len(name), name.encode())
    assert "points out of the archive" in refusal(tmp_path, data)
    assert [path.name for path in tmp_path.rglob("*")] == ["archive"], "nothing was unpacked"


def test_links_encryption_and_unknown_methods_are_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        link = zipfile.ZipInfo("link.json")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    assert "is a symbolic link" in refusal(tmp_path, out.getvalue())
    data = bytearray(packed({"a.json": b"{}"}, zipfile.ZIP_STORED))
    listed = data.index(b"PK\1\2")
    data[listed + 8] |= 1
    [bad] = read(tmp_path, bytes(data))
    assert isinstance(bad, Bad)
    assert bad.reason == "a.json: it is encrypted"
    [bad] = read(tmp_path, packed({"a.json": b"{}"}, zipfile.ZIP_LZMA))
    assert isinstance(bad, Bad)
    assert "method 14" in bad.reason


def test_bombs_are_refused_before_anything_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_members, "PLAIN_BYTES", 1 << 20)
    assert "unpacks to far more than its size" in refusal(tmp_path, packed({"a.json": b'"' + b" " * 8_000_000 + b'"'}))


def test_members_on_top_of_each_other_are_refused(tmp_path: Path) -> None:
    data = bytearray(packed({"a.json": b"{}" * 10, "b.json": b"{}" * 10}, zipfile.ZIP_STORED))
    second = data.index(b"PK\1\2", data.index(b"PK\1\2") + 4)
    data[second + 42 : second + 46] = struct.pack("<L", 4)
    assert "overlaps another one" in refusal(tmp_path, bytes(data))


def test_too_many_members_are_refused_before_their_list_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = packed({f"{n}.json": b"{}" for n in range(30)})
    monkeypatch.setattr(zip_members, "MAX_MEMBERS", 20)
    assert "has 30 members: more than 20" in refusal(tmp_path, many)
    monkeypatch.setattr(zip_members, "_DIRECTORY_BYTES", 1000)
    assert "its list of members takes" in refusal(tmp_path, many)


def test_what_the_list_says_is_checked_against_what_is_there(tmp_path: Path) -> None:
    for method in (zipfile.ZIP_STORED, _ZSTD):
        members = {"a.json": b'{"n": 1}'}
        data = bytearray(with_zstd(members) if method == _ZSTD else packed(members, method))
        listed = data.index(b"PK\1\2")
        data[listed + 16 : listed + 20] = bytes(4)  # the sum
        [bad] = read(tmp_path, bytes(data))
        assert isinstance(bad, Bad)
        assert "damaged, the rest of it was not read" in bad.reason


def test_a_member_that_is_too_long_is_named_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "MAX_RECORD_BYTES", 1000)
    found = read(tmp_path, packed({"big.json": b"[" + b"1," * 2_000_000 + b"1]", "a.json": b"{}"}))
    assert isinstance(found[0], Bad)
    assert "big.json: it is 4 MB long" in found[0].reason
    assert isinstance(found[1], Record)


def test_an_archive_without_json_and_an_empty_one_are_named(tmp_path: Path) -> None:
    assert "holds no .json and no .jsonl file" in refusal(tmp_path, packed({"a.txt": b"x"}))
    assert "is an empty zip archive" in refusal(tmp_path, packed({}))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(at=st.integers(0, 400), new=st.binary(min_size=1, max_size=4))
def test_damage_anywhere_is_read_around_or_refused(tmp_path: Path, at: int, new: bytes) -> None:
    data = bytearray(packed(as_json(MEMBERS)))
    data[at : at + len(new)] = new
    try:
        found = read(tmp_path, bytes(data))
    except InputError:
        return
    assert all(isinstance(r, (Record, Bad)) for r in found)


def test_real_inspect_logs_come_header_first(shared_data: Path) -> None:
    for path in sorted((shared_data / "traces/inspect-ai").glob("*.eval")):
        found = list(records(path))
        names = [r.value["member"] for r in found if isinstance(r, Record)]
        assert names[0] == "header.json"
        assert len(names) == len(found) == len(set(names))
        assert any(name.startswith("samples/") for name in names)
