"""Bailian rows are in seconds, carry the whole context, and belong to the chat that they continue."""

from __future__ import annotations

from typing import Any

import pytest
from sources import items

from kvmill.traces import formats
from kvmill.traces.readers import bailian, mooncake
from kvmill.traces.trajectory import Request


def row(chat: int, parent: int, time: float = 1.0, **more: Any) -> dict[str, Any]:
    lengths = {"input_length": 40, "output_length": 2}
    return {"chat_id": chat, "parent_chat_id": parent, "timestamp": time, "turn": 1, **lengths, **more}


def made(rows: list[Any]) -> list[Request]:
    return [item.value for item in items(bailian.FORMAT, rows) if isinstance(item.value, Request)]


def test_chats_that_continue_each_other_are_one_session() -> None:
    requests = made([row(1, -1), row(2, 1, turn=2), row(9, -1), row(3, 2, turn=3), row(5, 4)])
    assert [request.session for request in requests] == ["1", "1", "9", "1", "4"]
    assert [request.turn for request in requests] == [1, 2, 1, 3, 1]


def test_seconds_are_seconds_and_blocks_have_sixteen_tokens() -> None:
    (request,) = made([row(1, -1, time=61.25, hash_ids=[3, 4, 5])])
    assert (request.arrival_s, request.prefix_blocks, request.block_tokens) == (61.25, (3, 4, 5), 16)


def test_sessions_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bailian, "_MOST_CHATS", 2)
    requests = made([row(1, -1), row(2, 1), row(3, -1), row(4, 2), row(5, 1)])
    assert [request.session for request in requests] == ["1", "1", "3", "1", "1"]


def test_it_is_not_taken_for_mooncake_whose_hashes_mean_something_else() -> None:
    assert formats.detect([row(1, -1)], "f").name == "bailian"
    assert not mooncake.sniff(row(1, -1))
