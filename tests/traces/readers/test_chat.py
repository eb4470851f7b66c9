"""Shared by message histories: what is told of each call finds its turn, times count from the first call."""

from __future__ import annotations

from typing import Any

import pytest

from kvmill.traces.readers.chat import Told, told_of, trajectory_of
from kvmill.traces.reading import Reject
from kvmill.traces.trajectory import Usage


def said(role: str, at: float | None = None, **values: Any) -> dict[str, Any]:
    return {"role": role, "content": role, "at": at, **values}


def test_a_call_lasts_from_the_message_before_it_and_the_tools_until_the_next() -> None:
    raw = [said("user", 100), said("assistant", 103, usage=Usage(9)), said("tool", 105), said("assistant", 106)]
    run = trajectory_of("x", "x", raw, told=told_of(raw))
    assert [(t.started_s, t.duration_s, t.tool_wait_s) for t in run.turns] == [(0.0, 3.0, 2.0), (5.0, 1.0, None)]
    assert [t.usage for t in run.turns] == [Usage(9), None]


def test_unknown_times_stay_unknown() -> None:
    raw = [
        said("user"),
        said("assistant", 103),
        said("tool"),
        said("assistant", 90),
        said("user", 95),
        said("assistant", 94),
    ]
    run = trajectory_of("x", "x", raw, told=told_of(raw))
    assert [(t.started_s, t.duration_s, t.tool_wait_s) for t in run.turns] == [
        (None, None, None),
        (None, None, None),
        (0.0, None, None),
    ]


def test_what_is_told_of_a_greeting_is_not_told_of_a_turn() -> None:
    raw = [said("assistant"), said("user"), said("assistant")]
    run = trajectory_of("x", "x", raw, told=[Told(Usage(1)), Told(Usage(2))])
    assert [t.usage for t in run.turns] == [Usage(2)]


def test_messages_that_are_shown_belong_to_the_prefix() -> None:
    raw = [said("system"), said("user"), said("assistant"), said("user"), said("assistant")]
    run = trajectory_of("x", "x", raw, shown=3)
    assert [m.role for m in run.prefix] == ["system", "user", "assistant", "user"]
    run = trajectory_of("x", "x", raw, shown=4)
    assert [m.role for m in run.prefix] == ["system", "user", "assistant", "user"]
    with pytest.raises(Reject, match="no assistant message"):
        trajectory_of("x", "x", raw, shown=5)
