"""AIPerf rows with messages: a session's rows are one run, what each row tells belongs to the reply it asked for."""

from __future__ import annotations

from typing import Any

import pytest
from sources import items

from kvmill.traces import formats
from kvmill.traces.readers import aiperf
from kvmill.traces.readers.aiperf import FORMAT
from kvmill.traces.trajectory import Trajectory, Usage

SAID: list[dict[str, Any]] = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "U"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "R"},
    {"role": "assistant", "content": "B"},
    {"role": "user", "content": "more"},
]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
ROWS: list[dict[str, Any]] = [
    {"session_id": "s", "messages": SAID[:2], "tools": TOOLS, "output_length": 50, "timestamp": 1000},
    {"session_id": "s", "messages": SAID[:4], "tools": TOOLS, "output_length": 30, "delay": 2000},
    {"session_id": "s", "messages": SAID, "tools": TOOLS, "output_length": 9, "delay": 500},
]


def read(rows: list[Any]) -> list[Trajectory]:
    made = items(FORMAT, rows)
    assert all(item.value is not None for item in made), [item.reason for item in made]
    return [item.value for item in made if isinstance(item.value, Trajectory)]


def test_the_rows_of_a_session_are_one_run() -> None:
    assert formats.detect(ROWS, "x").name == "aiperf"
    (run,) = read(ROWS)
    assert [m.content for m in run.messages()] == ["S", "U", "", "R", "B"]
    assert [turn.usage for turn in run.turns] == [Usage(output_tokens=50), Usage(output_tokens=30)]
    assert [turn.tool_wait_s for turn in run.turns] == [2.0, 0.5]
    assert run.tools == tuple(TOOLS)
    assert set(run.losses) == {"no_last_reply", "trailing_user_dropped"}
    assert run.meta == {"session_id": "s"}


def test_sessions_may_alternate_and_stay_apart() -> None:
    other = [{**row, "session_id": "t"} for row in ROWS]
    mixed = [row for pair in zip(ROWS, other, strict=True) for row in pair]
    one, two = read(mixed)
    assert one.turns == two.turns
    assert [run.meta["session_id"] for run in (one, two)] == ["s", "t"]


def test_no_more_is_held_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiperf, "_HELD_CHARACTERS", 8)
    made = items(FORMAT, [ROWS[1], {**ROWS[1], "session_id": "t"}, {**ROWS[1], "session_id": "u"}])
    assert [item.place for item in made] == [1, 2, 3]


def test_a_history_that_was_rewritten_begins_another_run() -> None:
    rewritten = {**ROWS[2], "messages": [SAID[0], {"role": "user", "content": "summary"}, SAID[4]]}
    before, after = read([*ROWS[:2], rewritten])
    assert [m.content for m in after.messages()] == ["S", "summary", "B"]
    assert (before.already_compacted, after.already_compacted) == (False, True)
    assert "already_compacted" in after.losses


def test_a_payload_is_a_request_and_rows_without_a_session_stand_alone() -> None:
    payload = {"payload": {"messages": SAID, "tools": TOOLS, "model": "m"}, "timestamp": 5}
    assert formats.detect([payload], "x").name == "aiperf"
    (run,) = read([payload])
    assert [m.content for m in run.messages()] == ["S", "U", "", "R", "B"]
    assert run.meta == {}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**ROWS[1], "message_mode": "delta"}, "leaves out what the model said"),
        ({"text_input": "Hi", "output_length": 4}, "no messages"),
        ({**ROWS[0]}, "no assistant message"),
    ],
)
def test_rows_without_a_reply_are_refused_with_a_reason(row: Any, reason: str) -> None:
    assert formats.detect([row], "x").name == "aiperf"
    (item,) = items(FORMAT, [row])
    assert item.value is None
    assert reason in item.reason


def test_logs_of_lengths_stay_mooncake_and_conversations_stay_chat() -> None:
    row = {"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [0, 1]}
    assert formats.detect([row], "x").name == "mooncake"
    assert formats.detect([{"messages": SAID}], "x").name == "openai-chat"
