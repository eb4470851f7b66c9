"""A format is found by what is in a file; doubt and ignorance are said in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvmill.errors import InputError, UserError
from kvmill.traces import formats

CHAT = {"messages": [{"role": "user", "content": "x"}]}
ROW = {"timestamp": 1, "input_length": 1, "output_length": 1}


def test_most_of_the_first_records_decide() -> None:
    assert formats.detect([CHAT, {"odd": 1}, CHAT], "f").name == "openai-chat"
    assert formats.detect([ROW], "f").name == "mooncake"
    assert formats.detect([{"odd": 1}, CHAT, None, 42, [], {}], "f").name == "openai-chat"
    with pytest.raises(UserError, match="any of: mooncake, openai-chat"):
        formats.detect([CHAT, ROW], "f")
    with pytest.raises(InputError, match="no known format"):
        formats.detect([CHAT, {"odd": 1}, {"odder": 1}], "f")


def test_doubt_names_the_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = replace(formats.FORMATS["mooncake"], name="twin")
    monkeypatch.setitem(formats.FORMATS, "twin", twin)
    with pytest.raises(UserError, match="any of: mooncake, twin; choose with --format"):
        formats.detect([ROW], "f")


@pytest.mark.parametrize(
    ("record", "seen"),
    [
        ({}, "an empty object"),
        ({"a": 1, "b": 2}, "the keys a, b"),
        ([1], "a list"),
        ("x", "a string"),
        (3, "a number"),
        (None, "null"),
        (True, "true or false"),
    ],
)
def test_ignorance_says_what_was_seen_and_what_is_known(record: object, seen: str) -> None:
    with pytest.raises(InputError, match=f"f: no known format; .*{seen}.*mooncake.*openai-chat.*tau-bench"):
        formats.detect([record], "f")


def test_the_formats_exclude_each_other() -> None:
    tau = {"task_id": 1, "reward": 0, "traj": CHAT["messages"]}
    for record, name in ((CHAT, "openai-chat"), (ROW, "mooncake"), (tau, "tau-bench"), (tau | CHAT, "tau-bench")):
        assert [f.name for f in formats.FORMATS.values() if f.sniff(record)] == [name]
