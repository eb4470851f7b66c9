"""One file as nouns: its format is found or said, and what was replaced in a record is a loss of what it became."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvmill.errors import InputError, UserError
from kvmill.traces import formats
from kvmill.traces.files import read_file
from kvmill.traces.items import each
from kvmill.traces.readers import openai_chat
from kvmill.traces.reading import Bad, Format, Item, Record
from kvmill.traces.trajectory import Trajectory


def talk(**values: object) -> str:
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    return json.dumps({"messages": said, **values}) + "\n"


def losses(items: Iterator[Item]) -> list[tuple[str, ...]]:
    return [item.value.losses for item in items if isinstance(item.value, Trajectory)]


@pytest.mark.parametrize("gathered", [False, True])
def test_what_was_replaced_in_a_record_is_a_loss_of_its_run(
    tmp_path: Path, gathered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gathered:
        assert openai_chat.FORMAT.read is not None
        read = openai_chat.FORMAT.read
        made = Format(
            "openai-chat",
            "",
            "trajectories",
            openai_chat.sniff,
            gather=lambda records, source: each(read, _plain(records)),
        )
        monkeypatch.setitem(formats.FORMATS, "openai-chat", made)
    path = tmp_path / "a"
    half = talk().replace("Hello", "\\ud83d")
    path.write_text(talk() + half + talk(score=float("nan")) + talk())
    assert losses(read_file(path).items) == [(), ("invalid_characters",), ("not_a_number",), ()]


def _plain(records: Iterator[Record | Bad]) -> Iterator[Record | Bad]:
    """Records as a reader passes them on that makes its own: without the marks."""
    return (Record(r.place, r.value) if isinstance(r, Record) else r for r in records)


def test_a_table_is_read_by_what_the_user_says_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("when,in,out\n1,2,3\n")
    with pytest.raises(InputError, match="no known format; its first record is an object with the keys when, in, out"):
        read_file(path)
    reading = read_file(path, columns={"arrival_s": "when", "input_tokens": "in", "output_tokens": "out"})
    assert reading.format.name == "table"
    assert len(list(reading.items)) == 1


def test_a_file_is_one_format_or_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("oops\nmore\n")
    with pytest.raises(InputError, match=r"none of its first records can be read \(no valid JSON"):
        read_file(path)
    kind, items, source = read_file(path, "mooncake")
    assert kind.name == "mooncake"
    assert [item.value for item in items] == [None, None]
    assert source.name == "a"
    with pytest.raises(UserError, match="unknown trace format 'mooncak'"):
        read_file(path, "mooncak")
    with pytest.raises(UserError, match="cannot read"):
        read_file(tmp_path)
