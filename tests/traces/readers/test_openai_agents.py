"""OpenAI Agents SDK traces: generations are read, ids of responses on a server are refused as such."""

from __future__ import annotations

from typing import Any

from sources import items

from kvmill.traces.readers.openai_agents import FORMAT, sniff
from kvmill.traces.trajectory import Trajectory, Usage

TRACE = {"object": "trace", "id": "trace_1", "workflow_name": "Meteo", "group_id": None, "metadata": {}}
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather?"}]
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"city":"Oslo"}'}
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}


def span(kind: str, at: int = 0, id: str = "s", parent: str | None = None, **data: Any) -> dict[str, Any]:
    times = {"started_at": f"2025-01-01T00:00:0{at}+00:00", "ended_at": f"2025-01-01T00:00:0{at + 1}+00:00"}
    place = {"id": id, "trace_id": "trace_1", "parent_id": parent}
    return {"object": "trace.span", **place, **times, "span_data": {"type": kind, **data}, "error": None}


def one(*records: Any) -> Trajectory:
    (item,) = items(FORMAT, list(records))
    assert isinstance(item.value, Trajectory), item.reason
    return item.value


def test_generations_and_functions_are_one_run() -> None:
    calling = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "function": {"name": "weather", "arguments": "{}"}}],
    }
    usage = {"input_tokens": 40, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 16}}
    batch = {"data": [span("generation", 0, "a", input=ASKED, output=[calling], model="m", usage=usage), TRACE]}
    run = one(batch, span("function", 2, "f", name="weather", input="{}", output="rain"))
    assert sniff(batch)
    assert (run.family, run.model) == ("meteo", "m")
    assert run.turns[0].usage == Usage(24, 16, None, 3)
    assert [m.content for m in run.turns[0].tools] == ["rain"]
    assert run.turns[0].tool_wait_s == 2.0


def test_a_response_with_its_content_has_instructions_tools_and_items() -> None:
    response = {
        "id": "resp_1",
        "model": "m",
        "instructions": "Be brief.",
        "tools": [TOOL],
        "output": [{"type": "reasoning", "id": "rs", "summary": []}, CALL],
        "usage": {"input_tokens": 9, "output_tokens": 2},
    }
    first = span("response", 0, "a", response_id="resp_1", input="Weather?", response=response)
    again = [
        {"role": "user", "content": "Weather?"},
        CALL,
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    ]
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Rain."}]}
    second = span("response", 3, "b", response_id="resp_2", input=again, response=response | {"output": [said]})
    run = one(TRACE | {"group_id": "g"}, first, second)
    assert [(m.role, m.content) for m in run.messages()] == [
        ("system", "Be brief."),
        ("user", "Weather?"),
        ("assistant", ""),
        ("tool", "rain"),
        ("assistant", "Rain."),
    ]
    assert (run.turns[0].assistant.tool_calls[0].id, run.meta["chain"]) == ("c1", "g")
    assert run.tools[0]["function"]["name"] == "weather"
    assert run.turns[0].usage == Usage(9, None, None, 2)


def test_only_the_id_of_a_response_is_nothing_to_replay() -> None:
    (item,) = items(FORMAT, [span("response", response_id="resp_1")])
    assert "on the provider's server" in item.reason
    (item,) = items(FORMAT, [span("generation", input=ASKED, output=None) | {"error": {"message": "boom"}}])
    assert item.reason == "the span has no output: boom"


def test_other_objects_are_not_taken_for_it() -> None:
    for record in (
        None,
        [],
        {"data": []},
        {"object": "list", "data": [{"object": "model"}]},
        {"object": "chat.completion"},
    ):
        assert not sniff(record)
