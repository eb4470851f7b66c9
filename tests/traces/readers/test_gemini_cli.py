"""Gemini CLI sessions: whole objects or lines that grow and rewind; thinking and cached tokens in their buckets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sources import items

from kvmill.traces import checks, formats
from kvmill.traces.readers.gemini_cli import FORMAT
from kvmill.traces.reading import Bad
from kvmill.traces.trajectory import Trajectory, Usage

HEADER = {"sessionId": "s", "projectHash": "h", "startTime": "2026-01-01T10:00:00.000Z"}
ALWAYS = {"no_system_prompt", "no_tool_schemas"}


def said(id: str, kind: str, content: Any, at: float = 0, **values: Any) -> dict[str, Any]:
    return {"id": id, "timestamp": f"2026-01-01T10:00:{at:06.3f}Z", "type": kind, "content": content, **values}


def ran(id: str, response: Any, at: float = 0, **values: Any) -> dict[str, Any]:
    result = [{"functionResponse": {"id": id, "name": "grep", "response": response}}]
    stamp = f"2026-01-01T10:00:{at:06.3f}Z"
    return {
        "id": id,
        "name": "grep",
        "args": {"q": "7"},
        "status": "success",
        "result": result,
        "timestamp": stamp,
    } | values


def run(values: list[Any]) -> Trajectory:
    found = [item.value for item in items(FORMAT, values) if item.value is not None]
    (made,) = found
    assert isinstance(made, Trajectory)
    return made


def test_calls_thoughts_tokens_and_times() -> None:
    thoughts = [{"subject": "Search", "description": "Look."}, {"subject": "", "description": "More."}]
    tokens = {"input": 50, "output": 4, "cached": 30, "thoughts": 2, "tool": 5, "total": 61}
    calls = [ran("c1", {"output": "in Oslo"}, 3), ran("c2", {"error": "no such file"}, 4)]
    answer = said("2", "gemini", "", 2, toolCalls=calls, thoughts=thoughts, tokens=tokens, model="m-1")
    talk = [said("1", "user", [{"text": "Where"}, {"text": "is 7?"}]), answer, said("3", "info", "Updated.")]
    made = run([{**HEADER, "messages": [*talk, said("4", "gemini", "In Oslo.", 6)]}])
    assert [m.content for m in made.prefix] == ["Where\nis 7?"]
    assert made.turns[0].assistant.reasoning == "**Search**\nLook.\nMore."
    assert [m.content for m in made.turns[0].tools] == ["in Oslo", "no such file"]
    assert made.turns[0].usage == Usage(25, 30, None, 6)
    assert (made.turns[0].duration_s, made.turns[0].tool_wait_s, made.turns[1].duration_s) == (2.0, 2.0, 2.0)
    assert (made.model, made.meta) == ("m-1", {"session": "s"})
    assert set(made.losses) == ALWAYS | {"arguments_were_objects"}
    assert checks.trajectory_findings(made) == []


def test_other_shapes_of_results() -> None:
    calls = [
        ran("a", {"rows": [1, 2], "count": 2}),
        ran("b", None, result="plain"),
        ran("c", None, result=[{"inlineData": {"mimeType": "image/png", "data": "AA"}}, {"text": "a picture"}]),
    ]
    made = run([{**HEADER, "messages": [said("1", "user", "Go."), said("2", "gemini", "x", toolCalls=calls)]}])
    assert [m.content for m in made.turns[0].tools] == ['{"rows": [1, 2], "count": 2}', "plain", "a picture"]
    assert "non_text_content" in made.losses


def test_parts_of_the_api_in_the_content() -> None:
    call = {"functionCall": {"id": "q", "name": "grep", "args": {"q": "7"}}}
    parts = [{"text": "Hm.", "thought": True}, {"text": "Look."}, call]
    given = [{"functionResponse": {"id": "q", "name": "grep", "response": {"output": "in Oslo"}}}]
    talk = [said("1", "user", "Go."), said("2", "gemini", parts), said("3", "user", given), said("4", "gemini", "x")]
    made = run([{**HEADER, "messages": talk}])
    assert (made.turns[0].assistant.reasoning, made.turns[0].assistant.content) == ("Hm.", "Look.")
    assert [c.arguments for c in made.turns[0].assistant.tool_calls] == ['{"q": "7"}']
    assert [m.content for m in made.turns[0].tools] == ["in Oslo"]
    assert checks.trajectory_findings(made) == []
    both = said("2", "gemini", parts, toolCalls=[ran("q", {"output": "in Oslo"})])
    made = run([{**HEADER, "messages": [talk[0], both, talk[3]]}])
    assert len(made.turns[0].assistant.tool_calls) == 1


def test_a_cancelled_call_is_interrupted() -> None:
    calls = [ran("a", None, result=None, status="cancelled")]
    talk = [said("1", "user", "Go."), said("2", "gemini", "x", toolCalls=calls), said("3", "gemini", "y")]
    made = run([{**HEADER, "messages": talk}])
    assert {"interrupted", "call_without_result"} <= set(made.losses)


def test_lines_grow_change_and_rewind_a_session() -> None:
    values = [
        HEADER,
        said("1", "user", "Go."),
        said("2", "gemini", "Whe"),
        said("2", "gemini", "Where?"),
        {"$set": {"lastUpdated": "2026-01-01T10:00:09.000Z", "kind": "subagent"}},
        said("3", "user", "Left."),
        said("4", "gemini", "A wall."),
        {"$rewindTo": "3"},
        said("5", "user", "Right."),
        said("6", "gemini", "A door."),
    ]
    assert formats.detect(values, "x").name == "gemini-cli"
    made = run(values)
    assert [m.content for m in made.messages()] == ["Go.", "Where?", "Right.", "A door."]
    assert made.family == "gemini-cli-subagent"
    assert {"branches_dropped", "calls_untold"} <= set(made.losses)
    replaced = {"$set": {"messages": [said("7", "user", "Anew."), said("8", "gemini", "Yes.")]}}
    assert [m.content for m in run([*values, replaced]).messages()] == ["Anew.", "Yes."]
    assert [m.content for m in run([*values, {"$rewindTo": "gone"}, *replaced["$set"]["messages"]]).messages()] == [
        "Anew.",
        "Yes.",
    ]


def test_several_sessions_and_broken_lines() -> None:
    whole = {**HEADER, "messages": [said("1", "user", "Go."), said("2", "gemini", "x")]}
    found = items(FORMAT, [whole, 7, Bad(3, "no valid JSON", "{"), whole, {**HEADER, "messages": [8]}])
    assert [(item.place, item.value is None) for item in found] == [
        (2, True),
        (3, True),
        (1, False),
        (4, False),
        (5, True),
    ]


def test_the_real_session_is_one_answer(shared_data: Path) -> None:
    (path,) = (shared_data / "traces/gemini-cli").glob("*.json")
    record = json.loads(path.read_text())
    assert formats.detect([record], "x").name == "gemini-cli"
    made = run([record])
    assert [m.content for m in made.messages()] == [m["content"] for m in record["messages"]]
    assert made.turns[0].usage == Usage(5915, 0, None, 24)
    assert (made.model, made.losses) == ("gemini-2.0-flash", ("calls_untold", "no_system_prompt", "no_tool_schemas"))
