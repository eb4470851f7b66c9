"""Records damaged at random are read or rejected, never a crash; what is read survives the store's form."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvmill.traces import checks, record
from kvmill.traces.formats import FORMATS, Format
from kvmill.traces.reading import Reject
from kvmill.traces.redact import Redactor
from kvmill.traces.rows import request_of, request_row, trajectory_row, turn_rows
from kvmill.traces.trajectory import Trajectory

SAID: list[Any] = [
    {"role": "system", "content": "# Airline agent policy"},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "42"},
    {"role": "assistant", "content": "<think>x</think>Done", "reasoning": "y"},
]
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
WHOLE: dict[str, list[Any]] = {
    "openai-chat": [
        {"messages": SAID, "tools": [{"name": "f"}], "model": "m", "family": "x"},
        {"request": {"messages": SAID[:-1]}, "response": {"choices": [{"message": SAID[-1]}], "usage": USAGE}},
    ],
    "tau-bench": [
        {
            "task_id": 1,
            "trial": 0,
            "reward": 1,
            "traj": SAID,
            "info": {"task": {"actions": [{"name": "f", "kwargs": {}}]}},
        }
    ],
    "mooncake": [{"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [1, 2], "session_id": "s"}],
}
JUNK: list[Any] = [None, 1, -1, 1.5, 2**70, True, "x", "", [], {}, [[]], [None], {"a": 1}, ["x"], {"role": "user"}]


def damaged(value: Any, dice: random.Random) -> Any:
    if dice.random() < 0.06:
        return dice.choice(JUNK)
    if isinstance(value, dict):
        return {key: damaged(item, dice) for key, item in value.items() if dice.random() > 0.04}
    return [damaged(item, dice) for item in value if dice.random() > 0.04] if isinstance(value, list) else value


@pytest.mark.parametrize("reader", FORMATS.values(), ids=FORMATS)
def test_damage_is_read_or_rejected(reader: Format) -> None:
    dice = random.Random(reader.name)
    read = rejected = 0
    for _ in range(400):
        for whole in WHOLE[reader.name]:
            value = damaged(whole, dice)
            reader.sniff(value)
            try:
                found = reader.read(value)
            except Reject:
                rejected += 1
                continue
            read += 1
            if isinstance(found, Trajectory):
                assert record.load(record.dump(found)) == found
                assert found.prefix
                assert found.turns
                checks.trajectory_findings(found)
                trajectory_row(Redactor().trajectory(found))
                list(turn_rows(found))
            else:
                assert request_of(request_row(found)) == found
    assert read > 50
    assert rejected > 50


@pytest.mark.parametrize("reader", FORMATS.values(), ids=FORMATS)
def test_undamaged_records_are_recognised_and_read(reader: Format) -> None:
    for whole in WHOLE[reader.name]:
        assert [f.name for f in FORMATS.values() if f.sniff(whole)] == [reader.name]
        reader.read(whole)
