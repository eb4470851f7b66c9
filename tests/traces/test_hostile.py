"""Whatever the bytes are: an answer or a sentence, in time linear in their number, and the rest of the file is read."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvmill.errors import UserError
from kvmill.traces.files import read_file
from kvmill.traces.ingest import ingest
from kvmill.traces.inputs import records
from kvmill.traces.reading import Bad, Record
from kvmill.traces.store import Store

GOOD = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
LINE = json.dumps(GOOD).encode() + b"\n"

# A corpus of what files really hold when something went wrong, each between two good lines.
CORPUS: dict[str, bytes] = {
    "invalid UTF-8": b'{"a": "\xff\xfe"}',
    "UTF-16 in the middle": '{"a": 1}'.encode("utf-16"),
    "a lone surrogate as bytes": b'{"a": "\xed\xa0\x80"}',
    "NUL bytes": b"\0" * 1000,
    "a cut line": b'{"messages": [{"role": "user", "cont',
    "a line and a half in one": b'{"a": 1}{"b": ',
    "Python's own spelling": b"{'a': None}",
    "a number of 10^5 digits": b'{"a": ' + b"9" * 100_000 + b"}",
    "a float of 10^5 digits": b'{"a": 0.' + b"9" * 100_000 + b"e-5}",
    "10^5 open lists": b"[" * 100_000,
    "10^5 open objects": b'{"a":' * 100_000,
    "10^5 nested and closed": b"[" * 100_000 + b"]" * 100_000,
    "a key 10^5 times": b"{" + b'"a":1,' * 100_000 + b'"a":2}',
    "10^5 keys": b"{" + b",".join(b'"%d":1' % n for n in range(100_000)) + b"}",
    "a string of 10^6 backslashes": b'"' + b"\\" * 1_000_000 + b'"',
    "10^6 quotes": b'"' * 1_000_000,
    "10^6 commas": b"," * 1_000_000,
    "10^6 blanks": b" " * 1_000_000 + b"x",
    "10^6 carriage returns": b"\r" * 1_000_000,
    "10^6 surrogates": b'"' + b"\\ud83d" * 160_000 + b'"',
    "10^5 messages without an end": b'{"messages": [' + b'{"role": "user", "content": ""},' * 100_000,
    "NaN": b'{"a": NaN}',
    "a comment": b"# nothing",
    "a merge conflict": b"<<<<<<< HEAD",
    "an HTML page": b"<!DOCTYPE html><html><body>404</body></html>",
}


def read(tmp_path: Path, data: bytes) -> list[Record | Bad]:
    path = tmp_path / "data"
    path.write_bytes(data)
    return list(records(path))


@pytest.mark.parametrize("name", CORPUS)
def test_one_bad_record_costs_one_record(tmp_path: Path, name: str) -> None:
    start = time.process_time()
    found = read(tmp_path, LINE + CORPUS[name] + b"\n" + LINE)
    good = [r.place for r in found if isinstance(r, Record) and r.value == GOOD]
    assert len(good) == 2
    assert len(found) in (2, 3)
    assert good[0] == 1
    assert all(len(r.raw) <= 50_000 for r in found if isinstance(r, Bad))
    assert time.process_time() - start < 5


@pytest.mark.parametrize("name", CORPUS)
def test_a_file_of_nothing_but_that_is_read_or_refused(tmp_path: Path, name: str) -> None:
    start = time.process_time()
    for data in (CORPUS[name], CORPUS[name] + b"\n" + CORPUS[name], b"[\n" + CORPUS[name] + b",\n1]"):
        (tmp_path / "data").write_bytes(data)
        said = _said(tmp_path / "data")
        assert len(said) < 2000
        assert "\n" not in said
    assert time.process_time() - start < 8


def _said(path: Path) -> str:
    try:
        return str(sum(1 for _ in read_file(path).items))
    except UserError as error:
        return str(error)


PACKED = st.sampled_from([lambda data: data, gzip.compress, bz2.compress, lzma.compress])
MAGIC = [
    b"PK\3\4",
    b"PAR1",
    b"\x1f\x8b",
    b"BZh",
    b"\x28\xb5\x2f\xfd",
    b"\xfd7zXZ\0",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xff",
]
MARKS = [*(bytes([n]) for n in b'[]{}",:\n\r\t|;\\ 1N-'), b"data:", b"event:", b"NaN", b'{"a":1}', b"a,b\n", LINE]
TOKENS = st.sampled_from([*MAGIC, *MARKS])


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=80) | st.lists(TOKENS, max_size=12).map(b"".join), pack=PACKED, cut=st.integers(0, 8))
@example(data=b"", pack=gzip.compress, cut=0)
@example(data=b'a,b\n1,"2\n', pack=lzma.compress, cut=4)
def test_any_bytes_are_records_or_a_sentence(tmp_path: Path, data: bytes, pack: Any, cut: int) -> None:
    packed = pack(data)
    try:
        found = read(tmp_path, packed[: len(packed) - cut])
    except UserError:
        return
    assert found
    places = [r.place for r in found]
    assert all(place >= 1 for place in places)
    assert all(isinstance(r, (Record, Bad)) for r in found)


def test_compressed_data_in_compressed_data_are_refused(tmp_path: Path) -> None:
    for inner in (gzip.compress, bz2.compress, lzma.compress):
        with pytest.raises(UserError, match="data in gzip data; unpack it first"):
            read(tmp_path, gzip.compress(inner(LINE)))


def test_many_tiny_records_are_stored_in_few_segments(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"".join(LINE.replace(b"Hello", b"%d" % n) for n in range(10_000)))
    store = Store.open(tmp_path / "store")
    report = ingest(store, [path], redact=False)
    assert (report.accepted, report.rejected) == (10_000, 0)
    assert len(store.info(report.run).keys) <= 2
