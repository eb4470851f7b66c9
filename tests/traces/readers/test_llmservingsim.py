"""LLMServingSim: nanoseconds, sessions with tool waits, and sessions of one name kept apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sources import items

from kvmill.traces.readers.llmservingsim import FORMAT
from kvmill.traces.trajectory import Request

SESSION: dict[str, Any] = {
    "session_id": 4,
    "arrival_time_ns": 2_000_000_000,
    "sub_requests": [
        {"input_toks": 100, "output_toks": 10, "tool_duration_ns": 500_000_000},
        {"input_toks": 150, "output_toks": 5, "tool_duration_ns": 250_000_000},
        {"input_toks": 200, "output_toks": 5, "tool_duration_ns": 0},
    ],
}


def made(records: list[Any]) -> list[Request]:
    return [item.value for item in items(FORMAT, records) if isinstance(item.value, Request)]


def test_a_call_waits_for_the_tool_of_the_call_before_it() -> None:
    requests = made([SESSION])
    assert [(r.session, r.turn, r.input_tokens) for r in requests] == [("4", 0, 100), ("4", 1, 150), ("4", 2, 200)]
    assert [r.tool_wait_s for r in requests] == [None, 0.5, 0.25]
    assert [r.arrival_s for r in requests] == [2.0, 2.5, 2.75]


def test_a_session_name_that_occurs_again_is_another_session() -> None:
    flat = {"input_toks": 5, "output_toks": 1, "arrival_time_ns": 0}
    requests = made([SESSION, flat, SESSION])
    assert {r.session for r in requests} == {"4", "4#2", None}
    assert len(requests) == 7


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"sub_requests": []}, "sub_requests"),
        ({"session_id": None}, "session_id"),
        ({"sub_requests": [{"input_toks": -1}]}, "input_toks"),
        ({"arrival_time_ns": "now"}, "arrival_time_ns is 'now', not a time in ns"),
    ],
)
def test_wrong_fields_are_named(change: dict[str, Any], word: str) -> None:
    (item,) = items(FORMAT, [SESSION | change])
    assert word in item.reason


def test_the_real_workload_is_read_whole(shared_data: Path) -> None:
    lines = (shared_data / "traces/llmservingsim/workload_me2_01_mixed.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    requests = made(rows)
    assert len(requests) == len(rows) == 608
    assert sum(r.input_tokens for r in requests) == sum(row["input_toks"] for row in rows)
    assert requests[0].arrival_s == 0.101537
