"""Findings name what is odd in a recorded run, and nothing in a run that is fine."""

from __future__ import annotations

from typing import Any

import pytest

from kvmill.traces import samples
from kvmill.traces.checks import trajectory_findings, unmatched
from kvmill.traces.record import tool_call
from kvmill.traces.trajectory import Message, Trajectory, Turn


def turn(calls: list[str], results: list[str | None], said: str = "x", **values: Any) -> Turn:
    return Turn(
        Message("assistant", said, tuple(tool_call(id, "f", "{}") for id in calls)),
        tuple(Message("tool", "r", tool_call_id=id) for id in results),
        **values,
    )


@pytest.mark.parametrize(
    ("calls", "results", "expected"),
    [
        (["a", "b"], ["b", "a"], ([], [])),
        (["a", "b"], ["a"], (["b"], [])),
        (["a"], ["a", "z"], ([], ["z"])),
        (["a", "a"], ["a"], (["a"], [])),
        (["a", "b"], [None, None], ([], [])),
        (["a", "b"], ["b", None], ([], [])),
        (["a"], [None, None], ([], ["(no id)"])),
        ([], ["a"], ([], ["a"])),
        ([], [None, None], ([], [])),
    ],
)
def test_calls_and_results_are_matched_by_id_or_else_by_number(
    calls: list[str], results: list[str | None], expected: tuple[list[str], list[str]]
) -> None:
    assert unmatched(turn(calls, results)) == expected


def test_what_is_odd_is_found_where_it_is() -> None:
    turns = (
        turn(["a"], []),
        turn([], [], said="  "),
        turn([], [], started_s=5.0, tool_wait_s=-1.0),
        turn([], [], started_s=4.0),
        Turn(Message("assistant", "", (tool_call("b", "f", "[1]"),)), (Message("tool", "r", tool_call_id="b"),)),
        turn(["c"], []),
    )
    found = trajectory_findings(Trajectory("t", "s", "f", (Message("user", "u"),), turns))
    assert [(f.code, f.where) for f in found] == [
        ("call_without_result", "turn 0"),
        ("empty_turn", "turn 1"),
        ("negative_time", "turn 2"),
        ("time_runs_backwards", "turn 3"),
        ("arguments_not_an_object", "turn 4"),
        ("ends_with_call", "turn 5"),
    ]


def test_the_samples_are_fine() -> None:
    assert [f for run in samples.load() for f in trajectory_findings(run)] == []
