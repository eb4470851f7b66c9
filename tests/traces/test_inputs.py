"""Whatever a file holds, each record comes out once, in order, or is named with its place and the reason."""

from __future__ import annotations

import decimal
import gzip
import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvmill.errors import InputError, UserError
from kvmill.traces import json_text, unpack
from kvmill.traces.inputs import Bad, Record, records

ROWS = [{"n": n, "text": "zeile\nzwei ü 😀" * n} for n in range(4)]


def read(tmp_path: Path, data: bytes | str, name: str = "data") -> list[Record | Bad]:
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return list(records(path))


def values(found: list[Record | Bad]) -> list[object]:
    assert [r for r in found if isinstance(r, Bad)] == []
    return [r.value for r in found if isinstance(r, Record)]


LAYOUTS = {
    "lines": "\n".join(map(json.dumps, ROWS)) + "\n",
    "no final newline": "\n".join(map(json.dumps, ROWS)),
    "blank lines and CRLF": "\r\n \r\n" + "\r\n\r\n".join(map(json.dumps, ROWS)) + "\r\n",
    "BOM": "\ufeff" + "\n".join(map(json.dumps, ROWS)),
    "BOM on a line of its own": "\ufeff\n" + "\n".join(map(json.dumps, ROWS)),
    "list on one line": json.dumps(ROWS),
    "list over many lines": json.dumps(ROWS, indent=2, ensure_ascii=False),
    "list, a record a line": "[\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]\n",
    "list with a BOM": "\ufeff" + json.dumps(ROWS, indent=1),
    "documents one after the other": "".join(map(json.dumps, ROWS)),
    "documents with commas between": ",\n".join(map(json.dumps, ROWS)) + ",\n",
    "documents over many lines": "\n".join(json.dumps(row, indent=2) for row in ROWS),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("packed", [False, True])
def test_every_layout_gives_the_same_records(tmp_path: Path, layout: str, packed: bool) -> None:
    data = LAYOUTS[layout].encode()
    assert values(read(tmp_path, gzip.compress(data) if packed else data)) == ROWS


def test_records_longer_than_a_chunk_survive_any_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "_CHUNK", 7)
    for layout in ("list over many lines", "list on one line", "documents over many lines", "lines"):
        assert values(read(tmp_path, LAYOUTS[layout])) == ROWS


def test_a_list_of_chat_messages_is_one_record(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert values(read(tmp_path, json.dumps(said))) == [said]
    assert values(read(tmp_path, json.dumps(said, indent=1))) == [said]
    assert values(read(tmp_path, f"{json.dumps(said)}\n{json.dumps(said[:1])}\n")) == [said, said[:1]]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": 1', "no valid JSON"),
        (b'{"a":' * 201 + b"1" + b"}" * 201, "nested more than 200 levels"),
        (b'{"a": "\xff"}', "invalid UTF-8 at byte 8"),
        (b'{"a": 1} trailing', "Extra data"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"1" * 5000, "a whole number of thousands of digits"),
        (b'{"a": "' + b"x" * 3000 + b'"}', "MB long"),
    ],
)
def test_a_bad_line_is_named_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes, reason: str
) -> None:
    if reason == "MB long":
        monkeypatch.setattr(json_text, "MAX_RECORD_BYTES", 2048)
        monkeypatch.setattr(json_text, "_CHUNK", 100)
    found = read(tmp_path, b'{"n": 1}\n' + line + b'\n{"n": 3}\n')
    assert [r.place for r in found] == [1, 2, 3]
    assert [r.value for r in found if isinstance(r, Record)] == [{"n": 1}, {"n": 3}]
    bad = found[1]
    assert isinstance(bad, Bad)
    assert reason in bad.reason
    assert len(bad.raw) <= 10_000


def test_a_broken_first_line_is_only_one_line(tmp_path: Path) -> None:
    found = read(tmp_path, '{"n": broken}\n{"n": 2}\n{"n": 3}\n')
    assert [type(r) for r in found] == [Bad, Record, Record]


def test_a_broken_list_gives_what_came_before_and_says_the_rest_was_not_read(tmp_path: Path) -> None:
    for tail, reason in ((', {"n": oops}, {"n": 3}]', "the rest of the file was not read"), ("", "not closed")):
        found = read(tmp_path, '[{"n": 1},\n {"n": 2}' + tail)
        assert [r.value for r in found if isinstance(r, Record)] == [{"n": 1}, {"n": 2}]
        assert isinstance(found[-1], Bad)
        assert reason in found[-1].reason


@pytest.mark.parametrize("written", ["NaN", "-Infinity", "[Infinity]", "1e999", '{"b": -1e999}'])
def test_a_number_that_json_does_not_have_is_null_and_marked(tmp_path: Path, written: str) -> None:
    layouts = ('{"n": 1}\n{"n": %s}\n{"n": 3}', '[{"n": 1}, {"n": %s}, {"n": 3}]', '[\n{"n": 1},\n{"n": %s},{"n": 3}]')
    for layout in layouts:
        found = [r for r in read(tmp_path, layout % written) if isinstance(r, Record)]
        assert [r.nulled for r in found] == [False, True, False]
        assert [r.value["n"] for r in found] in ([1, None, 3], [1, [None], 3], [1, {"b": None}, 3])


def test_half_a_surrogate_pair_is_repaired_and_marked(tmp_path: Path) -> None:
    found = read(tmp_path, '{"a": "x\\ud83dy"}\n{"a": "\\ud83d\\ude00"}\n')
    assert [(r.value, r.repaired) for r in found if isinstance(r, Record)] == [
        ({"a": "x\ufffdy"}, True),
        ({"a": "😀"}, False),
    ]


def test_a_cut_gzip_file_gives_what_can_be_unpacked(tmp_path: Path) -> None:
    lines = b"".join(json.dumps({"n": n}).encode() + b"\n" for n in range(50_000))
    found = read(tmp_path, gzip.compress(lines)[:-2000])
    assert len(found) > 1000
    assert isinstance(found[-1], Bad)
    assert "damaged gzip data" in found[-1].reason


@pytest.mark.parametrize("layout", ["lines", "list over many lines", "documents over many lines"])
@pytest.mark.parametrize("junk", [b"no gzip", gzip.compress(b" \n" * 99)[:-5]])
def test_what_stands_before_damage_is_read_however_short_it_is(tmp_path: Path, layout: str, junk: bytes) -> None:
    found = read(tmp_path, gzip.compress(LAYOUTS[layout].encode()) + junk)
    assert [r.value for r in found[: len(ROWS)] if isinstance(r, Record)] == ROWS
    assert isinstance(found[-1], Bad)
    assert "damaged gzip data" in found[-1].reason


def test_a_table_without_a_row_is_said_to_be_so(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"messages": pa.array([], pa.string())}), path)
    with pytest.raises(InputError, match="a Parquet file without a record"):
        list(records(path))


@pytest.mark.parametrize("before", ["# exported on Monday\n# by nobody\n", "sep=;\r\n", "\n\n"])
def test_what_stands_before_a_header_is_passed_over(tmp_path: Path, before: str) -> None:
    assert values(read(tmp_path, f"{before}a;b\n1;2\n")) == [{"a": "1", "b": "2"}]


def test_a_heading_and_prose_are_no_table(tmp_path: Path) -> None:
    found = read(tmp_path, "# Files\n\nOf other people, all of them, to be read.\nOne, two.\n")
    assert all(isinstance(each, Bad) for each in found)


def test_text_of_a_table_that_is_not_marked_as_text_is_read_and_bytes_are_not(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": pa.array(["zwei ü".encode()], pa.binary())}), path)
    assert values(list(records(path))) == [{"a": "zwei ü"}]
    pq.write_table(pa.table({"a": pa.array([b"\xff\xfe"], pa.binary())}), path)
    with pytest.raises(InputError, match="column 'a' holds bytes that are no text; leave it out"):
        list(records(path))


def test_a_gzip_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "PLAIN_BYTES", 1 << 20)
    bomb = gzip.compress(b'{"n": 1}\n' + b" " * (64 << 20))
    found = read(tmp_path, bomb)
    assert isinstance(found[-1], Bad)
    assert "unpack to far more" in found[-1].reason


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"\n \r\n", "is empty"),
        (gzip.compress(b""), "is empty"),
        (b"[ ]", "only an empty list"),
        (b"PK\x03\x04rest", "no zip archive that can be read"),
        (b"PAR1rest", "no Parquet file that can be read"),
        (gzip.compress(b"PAR1rest"), "is a Parquet file in gzip data"),
        ("x".encode("utf-16"), "UTF-16"),
        (b"SQLite format 3\0", "an SQLite database"),
    ],
)
def test_what_is_no_text_is_said_to_be_so(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(tmp_path, data)


def test_an_unreadable_path_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*No such file"):
        list(records(tmp_path / "nope"))


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=60) | st.text(alphabet='[]{}",: \n\\1NaN\u00e4', max_size=40).map(str.encode))
@example(b"[[]]")
@example(b'[{"role": "user"}, NaN')
def test_no_bytes_crash_it(tmp_path: Path, data: bytes) -> None:
    try:
        found = read(tmp_path, data)
    except InputError:
        return
    assert found
    assert all(record.place >= 1 for record in found)


def test_whole_decimals_of_a_table_keep_every_digit(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    large = decimal.Decimal("14879255164371896291")
    columns = {
        "long": pa.array([large], pa.decimal128(38, 0)),
        "longs": pa.array([[large]], pa.list_(pa.decimal128(20, 0))),
        "short": pa.array([decimal.Decimal(7)], pa.decimal128(10, 0)),
        "price": pa.array([decimal.Decimal("0.25")], pa.decimal128(10, 2)),
    }
    pq.write_table(pa.table(columns), path)
    assert values(list(records(path))) == [{"long": str(large), "longs": [str(large)], "short": 7, "price": 0.25}]


def test_nan_inside_what_was_said_is_null_and_noted(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"said": [[{"score": math.nan}, {"score": 1.0}]], "n": [math.nan]}), path)
    [found] = list(records(path))
    assert found == Record(1, {"said": [{"score": None}, {"score": 1.0}], "n": None}, nulled=True)
