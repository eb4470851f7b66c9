"""JSON text as records: what is too large is refused with its size, and no layout makes the work quadratic."""

from __future__ import annotations

import io
import json
import time

import pytest

from kvmill.traces import json_text
from kvmill.traces.json_text import crowded
from kvmill.traces.reading import Bad, Record


def read(text: str | bytes) -> list[Record | Bad]:
    return list(json_text.records(io.BufferedReader(io.BytesIO(text.encode() if isinstance(text, str) else text))))  # pyright: ignore[reportArgumentType]


def values(found: list[Record | Bad]) -> list[object]:
    return [r.value for r in found if isinstance(r, Record)]


def reasons(found: list[Record | Bad]) -> list[str]:
    return [r.reason for r in found if isinstance(r, Bad)]


def test_a_line_of_a_hundred_megabytes_is_refused_with_its_size_and_the_rest_is_read() -> None:
    found = read(b'{"n": 1}\n{"a": "' + b"x" * 100_000_000 + b'"}\n{"n": 3}\n')
    assert [r.place for r in found] == [1, 2, 3]
    assert values(found) == [{"n": 1}, {"n": 3}]
    assert reasons(found) == ["the line is 100 MB long: more than 64 MiB"]


def test_one_list_on_one_line_may_be_longer_than_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "MAX_RECORD_BYTES", 1000)
    monkeypatch.setattr(json_text, "_CHUNK", 64)
    rows = [{"n": n, "text": "x" * 20} for n in range(100)]
    assert values(read(json.dumps(rows))) == rows
    rows[50]["text"] = "x" * 5000
    found = read(json.dumps(rows))
    assert values(found) == rows[:50]
    assert reasons(found) == ["longer than 0 MiB; the rest of the file was not read"]


def test_a_list_of_messages_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "MAX_RECORD_BYTES", 1000)
    said = [{"role": "user", "content": "x" * 20} for _ in range(100)]
    found = read(json.dumps(said, indent=1))
    assert values(found) == []
    assert "one list of messages" in reasons(found)[0]


def test_what_follows_a_list_is_named() -> None:
    found = read('[\n{"n": 1}\n]\n{"n": 2}\n')
    assert values(found) == [{"n": 1}]
    assert reasons(found) == ["something follows the list; it was not read"]


def test_a_top_level_number_is_never_cut_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for chunk in range(1, 9):
        monkeypatch.setattr(json_text, "_CHUNK", chunk)
        assert values(read("[\n12345, 678,\n9012345]")) == [12345, 678, 9012345]


@pytest.mark.parametrize(
    "many", ["[" + "1," * 50_000 + "1]", "[" + "[]," * 50_000 + "[]]", "{" + '"a":1,' * 50_000 + '"b":1}']
)
def test_values_without_end_are_refused(many: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "MAX_VALUES", 10_000)
    monkeypatch.setattr(json_text, "_FEW", 10_000)
    monkeypatch.setattr(json_text, "_CHUNK", 1000)
    found = read('{"n": 1}\n{"a": ' + many + '}\n{"n": 3}\n')
    assert values(found) == [{"n": 1}, {"n": 3}]
    assert reasons(found) == ["holds more than 10,000 values"]
    found = read('[\n{"n": 1},\n{"a": ' + many + "}]")
    assert values(found) == [{"n": 1}]
    assert reasons(found) == ["holds more than 10,000 values; the rest of the file was not read"]


def test_commas_in_text_are_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "MAX_VALUES", 10_000)
    monkeypatch.setattr(json_text, "_FEW", 0)
    assert not crowded(json.dumps({"csv": '1,"2",\\,[{\n' * 5_000}).encode())
    assert crowded(json.dumps({"csv": "1," * 10, "list": [1] * 11_000}).encode())
    assert values(read(json.dumps({"csv": "1," * 50_000}))) == [{"csv": "1," * 50_000}]


@pytest.mark.parametrize("layout", ["lines", "list", "list on one line", "documents", "broken lines", "blank lines"])
def test_many_small_records_take_time_in_proportion(layout: str) -> None:
    def seconds(count: int) -> float:
        text = {
            "lines": '{"n":1}\n' * count,
            "list": "[\n" + '{"n":1},\n' * count + '{"n":1}]',
            "list on one line": "[" + '{"n":1},' * count + '{"n":1}]',
            "documents": '{\n"n":1}\n' * count,
            "broken lines": '{"n":1}\n' + '{"n":]\n' * count,
            "blank lines": '{"n":1}\n' + "\n" * count * 10,
        }[layout]
        start = time.process_time()
        found = read(text)
        spent = time.process_time() - start
        assert len(found) == text.count("n")
        return spent

    assert seconds(60_000) < 20 * seconds(6_000) + 1
