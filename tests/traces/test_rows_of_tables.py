"""Tables as rows: the right columns, each at its line, and nothing read that a table does not say."""

from __future__ import annotations

import datetime as dt
import decimal
import gzip
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.errors import InputError
from kvmill.traces import csv_rows, parquet_rows
from kvmill.traces.inputs import records
from kvmill.traces.reading import Bad, Record


def read(tmp_path: Path, data: bytes | str) -> list[Record | Bad]:
    path = tmp_path / "table"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return list(records(path))


def rows(found: list[Record | Bad]) -> list[Any]:
    assert [r for r in found if isinstance(r, Bad)] == []
    return [r.value for r in found if isinstance(r, Record)]


ROWS = [{"time": "1", "prompt": "some, text"}, {"time": "2", "prompt": 'two\nlines, "quoted" ü'}]


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\r\n"])
def test_rows_of_every_spelling(tmp_path: Path, delimiter: str, end: str, start: str) -> None:
    lines = [["time", "prompt"], ["1", '"some, text"'], ["2", '"two\nlines, ""quoted"" ü"']]
    text = start + end.join(delimiter.join(line) for line in lines)
    found = read(tmp_path, text)
    assert rows(found) == ROWS
    assert [r.place for r in found] == ([2, 3] if start != "\r\n" else [3, 4])
    assert rows(read(tmp_path, gzip.compress((text + end).encode()))) == ROWS


def test_a_row_that_does_not_fit_is_refused_at_its_line(tmp_path: Path) -> None:
    found = read(tmp_path, b"a,b\n1,2\n3\n\n4,5,6\n7,\xff\n8,9\n")
    assert [(r.place, r.value) for r in found if isinstance(r, Record)] == [
        (2, {"a": "1", "b": "2"}),
        (7, {"a": "8", "b": "9"}),
    ]
    assert [(r.place, r.reason) for r in found if isinstance(r, Bad)] == [
        (3, "the row has 1 fields, the header 2"),
        (5, "the row has 3 fields, the header 2"),
        (6, "invalid UTF-8 in the row"),
    ]


def test_a_quotation_mark_that_is_never_closed_costs_its_own_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_rows, "MAX_RECORD_BYTES", 1000)
    found = read(tmp_path, 'a,b\n1,"2\n' + "3,4\n" * 400)
    assert isinstance(found[0], Bad)
    assert "is a quotation mark not closed" in found[0].reason
    assert found[-1] == Record(402, {"a": "3", "b": "4"})


def test_a_table_needs_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two columns are called 'a'"):
        list(csv_rows.records(io.BufferedReader(io.BytesIO(b"a,b,a\n1,2,3\n")), "table"))  # pyright: ignore[reportArgumentType]
    for text in ("1,2\n3,4\n", "a,a\n1,2\n", "word\nword\n", "say, what\n{}\n", '{"a": 1, "b": 2}\n'):
        assert not csv_rows.looks_like(text)
    assert csv_rows.looks_like("a,b,a\n1,2,3\n"), "the reader says what is wrong"


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=2, max_size=2)))
def test_what_the_standard_library_writes_is_read(table: list[list[str]]) -> None:
    import csv

    out = io.StringIO(newline="")
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows([["a", "b"], *table])
    stream = io.BufferedReader(io.BytesIO(out.getvalue().encode()))  # pyright: ignore[reportArgumentType]
    assert [list(r.value.values()) for r in csv_rows.records(stream, "x") if isinstance(r, Record)] == table


def parquet(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def test_parquet_values_become_json_values(tmp_path: Path) -> None:
    at = dt.datetime(2023, 11, 16, 18, 17, 3, 979960)
    table = pa.table(
        {
            "whole": pa.array([2**64 - 1, None], pa.uint64()),
            "float": [1.5, float("nan")],
            "text": ["ü", ""],
            "category": pa.array(["x", "y"]).dictionary_encode(),
            "time": pa.array([at, None], pa.timestamp("us", "UTC")),
            "fine": pa.array([1_700_179_023_979_960_123, 0], pa.timestamp("ns")),
            "day": [dt.date(2020, 1, 2), None],
            "money": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(9, 2)),
            "messages": [[{"role": "user", "content": "hi"}], None],
            "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int32())),
        }
    )
    first, second = rows(read(tmp_path, parquet(table)))
    assert first == {
        "whole": 2**64 - 1,
        "float": 1.5,
        "text": "ü",
        "category": "x",
        "time": "2023-11-16T18:17:03.979960Z",
        "fine": "2023-11-16T23:57:03.979960123",
        "day": "2020-01-02",
        "money": 1.5,
        "messages": [{"role": "user", "content": "hi"}],
        "map": {"k": 1},
    }
    assert {name for name, value in second.items() if value is None} == {
        "whole", "float", "time", "day", "money", "messages"
    }  # fmt: skip


def test_parquet_columns_that_are_no_json_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="column 'picture' holds bytes that are no text"):
        read(tmp_path, parquet(pa.table({"picture": [b"\x89PNG\xff"]})))
    with pytest.raises(InputError, match="column 'took' holds duration"):
        read(tmp_path, parquet(pa.table({"took": pa.array([1], pa.duration("s"))})))


def test_parquet_rows_are_numbered_over_row_groups_and_read_in_small_batches(tmp_path: Path) -> None:
    table = pa.table({"n": list(range(1000)), "text": ["x" * 1000] * 1000})
    found = read(tmp_path, parquet(table, row_group_size=300))
    assert [r.place for r in found] == list(range(1, 1001))
    assert [row["n"] for row in rows(found)] == list(range(1000))


def test_a_parquet_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_rows, "PLAIN_BYTES", 1 << 20)
    bomb = parquet(pa.table({"a": pa.array(["x" * 100_000] * 1000)}), compression="zstd", use_dictionary=False)
    assert len(bomb) < 200_000
    with pytest.raises(InputError, match="unpacks to far more than its size"):
        read(tmp_path, bomb)


def test_of_a_damaged_parquet_file_the_rows_before_the_damage_are_read(tmp_path: Path) -> None:
    text = [f"text {n * 7919 % 10_007}" for n in range(2000)]
    data = bytearray(parquet(pa.table({"text": text}), row_group_size=1000, compression="zstd", use_dictionary=False))
    chunk = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(1).column(0)
    middle = chunk.data_page_offset + chunk.total_compressed_size // 2
    data[middle : middle + 200] = bytes(200)
    found = read(tmp_path, bytes(data))
    whole = [r.value["text"] for r in found if isinstance(r, Record)]
    assert 900 < len(whole) <= 1000, "all but the batch that reaches into the damage"
    assert whole == text[: len(whole)]
    assert isinstance(found[-1], Bad)
    assert found[-1].place == len(whole) + 1
    assert "damaged Parquet data, the rest was not read" in found[-1].reason
    with pytest.raises(InputError, match="no Parquet file that can be read"):
        read(tmp_path, bytes(data[:-10]))
