"""OpenHands events of version 0: the answers' own words, results by call id, condensations that cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sources import items

from kvmill.traces import formats
from kvmill.traces.files import read_file
from kvmill.traces.readers.openhands import FORMAT
from kvmill.traces.trajectory import Trajectory, Usage


def event(id: int, source: str, **values: Any) -> dict[str, Any]:
    return {"id": id, "timestamp": f"2025-10-10T06:10:{id:02}.5", "source": source, **values}


def action(id: int, name: str, answer: str | None, call: str = "", **args: Any) -> dict[str, Any]:
    made = event(id, "agent", action=name, args=args)
    if answer:
        calls = [{"id": c, "function": {"name": "bash", "arguments": f'{{"n":"{c}"}}'}} for c in ("a", "b")]
        response = {"id": answer, "model": "m-1", "choices": [{"message": {"content": "Both.", "tool_calls": calls}}]}
        made["tool_call_metadata"] = {"function_name": "bash", "tool_call_id": call, "model_response": response}
    return made


def result(id: int, cause: int, content: str, call: str | None = None) -> dict[str, Any]:
    named = {"tool_call_metadata": {"function_name": "bash", "tool_call_id": call}} if call else {}
    return event(id, "agent", observation="run", cause=cause, content=content, extras={}, **named)


SYSTEM = event(0, "agent", action="system", args={"content": "You help.", "tools": []})
TASK = event(1, "user", action="message", args={"content": "Look."})
RECALL = event(2, "user", action="recall", args={"query": "Look."})
RECALLED = event(3, "environment", observation="recall", content="Added workspace context", extras={})
DONE = event(30, "agent", action="message", args={"content": "Empty."})


def run(values: list[Any]) -> Trajectory:
    (item,) = items(FORMAT, values)
    assert isinstance(item.value, Trajectory), item.reason
    return item.value


def test_calls_of_one_answer_are_one_turn_with_their_own_arguments() -> None:
    ran = [action(4, "run", "r1", "a"), result(5, 4, "1", "a"), action(6, "run", "r1", "b"), result(7, 6, "2", "b")]
    made = run([SYSTEM, TASK, RECALL, RECALLED, *ran, DONE])
    assert [(c.id, c.arguments) for c in made.turns[0].assistant.tool_calls] == [("a", '{"n":"a"}'), ("b", '{"n":"b"}')]
    assert [(m.tool_call_id, m.content) for m in made.turns[0].tools] == [("a", "1"), ("b", "2")]
    assert [t.assistant.content for t in made.turns] == ["Both.", "Empty."]
    assert made.losses == ("no_tool_schemas", "prompt_not_exact")
    assert made.model == "m-1"


def test_actions_without_a_recorded_answer_become_calls() -> None:
    made = run([SYSTEM, TASK, action(4, "run", None, command="ls", thought="See."), result(5, 4, "a.py"), DONE])
    (call,) = made.turns[0].assistant.tool_calls
    assert (made.turns[0].assistant.content, call.name, call.parsed) == ("See.", "run", {"command": "ls"})
    assert [m.content for m in made.turns[0].tools] == ["a.py"]
    assert "call_without_result" not in made.losses
    assert "arguments_were_objects" in made.losses


@pytest.mark.parametrize(
    "forgotten",
    [
        {"forgotten_event_ids": [4, 5]},
        {"forgotten_events_start_id": 4, "forgotten_events_end_id": 5},
    ],
)
def test_a_condensation_cuts_the_run(forgotten: dict[str, Any]) -> None:  # bug 11
    ran = [action(4, "run", None, command="ls"), result(5, 4, "a.py"), action(6, "run", None, command="pwd")]
    args = {**forgotten, "summary": "Looked.", "summary_offset": 1}
    cut = event(8, "agent", action="condensation", args=args)
    first, second = (item.value for item in items(FORMAT, [SYSTEM, TASK, *ran, result(7, 6, "/"), cut, DONE]))
    assert isinstance(first, Trajectory)
    assert isinstance(second, Trajectory)
    assert not first.already_compacted
    assert [m.content for m in first.messages()] == ["You help.", "Look.", "", "a.py", "", "/"]
    assert [m.content for m in second.prefix] == ["You help.", "Looked.", "Look.", "", "/"]
    assert [t.assistant.content for t in second.turns] == ["Empty."]
    assert second.already_compacted
    assert "missing_calls" in second.losses


@pytest.mark.parametrize(
    "wrap", [lambda e: e, lambda e: {"history": e, "instance_id": "x"}, lambda e: {"trajectory": e}]
)
def test_events_in_one_record_are_one_run(wrap: Any) -> None:
    record = wrap([SYSTEM, TASK, DONE])
    assert formats.detect([record], "x").name == "openhands"
    assert [t.assistant.content for t in run([record]).turns] == ["Empty."]


def test_what_is_no_event_is_refused_alone() -> None:
    found = items(FORMAT, [SYSTEM, TASK, 7, {"odd": 1}, DONE])
    assert [(item.place, item.value is None) for item in found] == [(3, True), (4, True), (1, False)]


def test_the_real_run_is_two_calls_with_usage(shared_data: Path) -> None:
    (path,) = (shared_data / "traces/openhands").glob("v0.58*.json")
    form, found, _ = read_file(path)
    (item,) = found
    made = item.value
    assert form.name == "openhands"
    assert isinstance(made, Trajectory)
    events = json.loads(path.read_text())
    assert [m.content for m in made.prefix] == [events[0]["args"]["content"], events[1]["args"]["content"]]
    assert [turn.usage for turn in made.turns] == [Usage(5863, 0, None, 1042), Usage(364, 5632, None, 44)]
    assert [[m.content for m in turn.tools] for turn in made.turns] == [[events[5]["content"]], []]
    raw = [events[n]["tool_call_metadata"]["model_response"]["choices"][0]["message"]["tool_calls"] for n in (4, 6)]
    calls = [turn.assistant.tool_calls for turn in made.turns]
    assert [[c.arguments for c in each] for each in calls] == [
        [c["function"]["arguments"] for c in each] for each in raw
    ]
    assert len(made.tools) == 6
    assert made.model == "gpt-5-2025-08-07"
    assert made.turns[0].tool_wait_s == pytest.approx(0.689184)
    assert made.losses == ("ends_with_call", "prompt_not_exact")
