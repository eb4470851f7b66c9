"""OpenTelemetry's GenAI spans of four generations say the same; what is not recorded is said, never guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sources import items

from kvmill.traces import formats
from kvmill.traces.readers.otel_genai import FORMAT
from kvmill.traces.trajectory import Trajectory, Usage

COUNTS = {"gen_ai.usage.input_tokens": 97, "gen_ai.usage.output_tokens": 52}
BASE = {"gen_ai.operation.name": "chat", "gen_ai.system": "openai", "gen_ai.response.model": "m", **COUNTS}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
PARTS = [
    {"role": "user", "parts": [{"type": "text", "content": "Weather?"}]},
    {
        "role": "assistant",
        "parts": [
            {"type": "text", "content": "I look."},
            {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Oslo"}},
        ],
    },
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "rain"}]},
]
ANSWER = [{"role": "assistant", "parts": [{"type": "text", "content": "Rain."}], "finish_reason": "stop"}]


def span(attributes: dict[str, Any], events: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    context = {"spanContext": {"traceId": "t", "spanId": "s"}, "startTime": [1, 0], "endTime": [2, 0]}
    return {"name": "chat m", **context, "attributes": attributes, "events": events or [], **more}


def event(name: str, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "attributes": attributes}


FLAT = {
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "Be brief.",
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.1.content": json.dumps([{"type": "text", "text": "Weather?"}]),
    "gen_ai.prompt.2.role": "assistant",
    "gen_ai.prompt.2.content": "I look.",
    "gen_ai.prompt.2.tool_calls.0.id": "c1",
    "gen_ai.prompt.2.tool_calls.0.name": "weather",
    "gen_ai.prompt.2.tool_calls.0.arguments": '{"city":"Oslo"}',
    "gen_ai.prompt.3.role": "tool",
    "gen_ai.prompt.3.tool_call_id": "c1",
    "gen_ai.prompt.3.content": "rain",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "Rain.",
    "gen_ai.completion.0.finish_reason": "stop",
}
NEW = {
    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}]),
    "gen_ai.input.messages": json.dumps(PARTS),
    "gen_ai.output.messages": json.dumps(ANSWER),
}
OPENAI = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
]
EVENTS = [
    event("gen_ai.system.message", content="Be brief."),
    event("gen_ai.user.message", content="Weather?"),
    event("gen_ai.assistant.message", content="I look.", tool_calls=json.dumps([CALL])),
    event("gen_ai.tool.message", content="rain", id="c1"),
    event(
        "gen_ai.choice", index=0, finish_reason="stop", message=json.dumps({"role": "assistant", "content": "Rain."})
    ),
]
LISTED = json.dumps([{"event.name": e["name"], **e["attributes"]} for e in EVENTS])
COMPLETION = json.dumps({"text": "Rain.", "finish_reason": "stop"})
GENERATIONS: dict[str, dict[str, Any]] = {
    "1 flattened": span(BASE | FLAT),
    "1 as JSON": span(BASE | {"gen_ai.prompt": json.dumps(OPENAI), "gen_ai.completion": COMPLETION}),
    "1 in events": span(
        BASE,
        [
            event("gen_ai.content.prompt", **{"gen_ai.prompt": json.dumps(OPENAI)}),
            event("gen_ai.content.completion", **{"gen_ai.completion": COMPLETION}),
        ],
    ),
    "2 events": span(BASE, EVENTS),
    "2 events in an attribute": span(BASE | {"events": LISTED}),
    "3 attributes": span(BASE | NEW),
    "3 structured": span(BASE | {key: json.loads(value) for key, value in NEW.items()}),
    "3 one event": span(BASE, [event("gen_ai.client.inference.operation.details", **NEW)]),
}


def one(*records: Any) -> Trajectory:
    (item,) = items(FORMAT, list(records))
    assert isinstance(item.value, Trajectory), item.reason
    return item.value


def reason(record: Any) -> str:
    (item,) = items(FORMAT, [record])
    assert item.value is None
    return item.reason


@pytest.mark.parametrize("record", GENERATIONS.values(), ids=GENERATIONS)
def test_every_generation_gives_the_same_run(record: dict[str, Any]) -> None:
    assert formats.detect([record], "f").name == "otel-genai"
    run = one(record)
    assert [(m.role, m.content) for m in run.messages()] == [
        ("system", "Be brief."),
        ("user", "Weather?"),
        ("assistant", "I look."),
        ("tool", "rain"),
        ("assistant", "Rain."),
    ]
    (call,) = run.turns[0].assistant.tool_calls
    assert (call.id, call.name, call.parsed) == ("c1", "weather", {"city": "Oslo"})
    assert run.turns[0].tools[0].tool_call_id == "c1"
    assert run.turns[1].usage == Usage(97, None, None, 52)
    assert (run.model, run.turns[1].duration_s) == ("m", 1.0)


@pytest.mark.parametrize(
    ("counts", "usage"),
    [
        ({"gen_ai.usage.input_tokens": "97", "gen_ai.usage.output_tokens": "5"}, Usage(97, None, None, 5)),
        ({"gen_ai.usage.prompt_tokens": 97, "gen_ai.usage.completion_tokens": 5}, Usage(97, None, None, 5)),
        (
            {
                "gen_ai.usage.input_tokens": 97,
                "gen_ai.usage.cache_read.input_tokens": 60,
                "gen_ai.usage.cache_creation.input_tokens": 30,
                "gen_ai.usage.output_tokens": 5,
            },
            Usage(7, 60, 30, 5),
        ),
        ({"gen_ai.usage.input_tokens": 7, "gen_ai.usage.cache_read_input_tokens": 900}, Usage(7, 900, None, None)),
        ({}, None),
    ],
)
def test_usage_under_its_old_and_new_names(counts: dict[str, Any], usage: Usage | None) -> None:  # bugs 9 and 29
    assert one(span({"gen_ai.operation.name": "chat"} | NEW | counts)).turns[1].usage == usage


def test_tools_that_ran_give_the_last_result() -> None:
    calling = json.dumps([{"role": "assistant", "parts": [PARTS[1]["parts"][1]]}])
    asking = span(BASE | {"gen_ai.input.messages": json.dumps(PARTS[:1]), "gen_ai.output.messages": calling})
    ran = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "weather", "gen_ai.tool.call.id": "c1"}
    tool = span(ran | {"gen_ai.tool.call.result": "rain"}, startTime=[2, 0], endTime=[5, 0])
    run = one(asking, tool | {"spanContext": {"traceId": "t", "spanId": "u"}})
    assert [m.content for m in run.turns[0].tools] == ["rain"]
    assert run.turns[0].tool_wait_s == 3.0


def tagged(value: Any) -> dict[str, Any]:
    """A value in OTLP's form."""
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": key, "value": tagged(each)} for key, each in value.items()]}}
    if isinstance(value, list):
        return {"arrayValue": {"values": [tagged(each) for each in value]}}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


def log(name: str, body: dict[str, Any], at: int) -> dict[str, Any]:
    attributes = [{"key": "event.name", "value": {"stringValue": name}}]
    place = {"traceId": "t", "spanId": "s", "timeUnixNano": str(at)}
    return {**place, "attributes": attributes, "body": tagged(body)}


LOGS = [
    log("gen_ai.system.message", {"content": "Be brief."}, 1),
    log("gen_ai.user.message", {"content": "Weather?"}, 2),
    log("gen_ai.assistant.message", {"content": "I look.", "tool_calls": [CALL]}, 3),
    log("gen_ai.tool.message", {"content": "rain", "id": "c1"}, 4),
    log("gen_ai.choice", {"index": 0, "message": {"role": "assistant", "content": "Rain."}}, 5),
]


def test_events_that_come_as_log_records_belong_to_the_span_they_name() -> None:
    logs = {"resourceLogs": [{"scopeLogs": [{"scope": {}, "logRecords": LOGS}]}]}
    for records in ([logs, span(BASE)], [span(BASE), logs], [*LOGS, span(BASE)]):
        assert formats.detect(records, "f").name == "otel-genai"
        run = one(*records)
        assert [m.content for m in run.messages()] == ["Be brief.", "Weather?", "I look.", "rain", "Rain."]
        assert run.turns[1].usage == Usage(97, None, None, 52)
        assert run.turns[1].duration_s == 1.0
    assert len(one(logs).turns) == 2, "the records alone tell what was said"


def test_one_log_record_may_tell_everything() -> None:
    name = "gen_ai.client.inference.operation.details"
    told = {**BASE, **{key: json.loads(value) for key, value in NEW.items()}}
    record = {"traceId": "t", "spanId": "s", "timeUnixNano": "1", "eventName": name, "body": {}, "attributes": []}
    run = one(record | {"attributes": [{"key": key, "value": tagged(value)} for key, value in told.items()]})
    assert [m.content for m in run.messages()] == ["Be brief.", "Weather?", "I look.", "rain", "Rain."]
    assert (run.turns[1].usage, run.model) == (Usage(97, None, None, 52), "m")


def test_agents_around_their_calls_are_read_only_if_the_calls_are_not() -> None:
    agent = span({"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "Meteo"} | NEW)
    assert one(agent).family == "meteo"
    inner = span(BASE | NEW, parentSpanId="s") | {"spanContext": {"traceId": "t", "spanId": "inner"}}
    assert one(agent, inner).turns[1].usage == Usage(97, None, None, 52)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        (BASE, "messages are not recorded (their capture is opt-in)"),
        (BASE | {"gen_ai.input.messages": NEW["gen_ai.input.messages"]}, "the model's answer is not in the span"),
        (BASE | {"gen_ai.output.messages": NEW["gen_ai.output.messages"]}, "what the model was given is not in"),
        ({"gen_ai.operation.name": "embeddings"}, "no span of a model call"),
        ({"http.method": "GET"}, "no span of a model call"),
    ],
)
def test_what_is_not_recorded_is_said(attributes: dict[str, Any], words: str) -> None:
    assert words in reason(span(attributes))


def test_several_output_messages_are_several_answers() -> None:
    two = [*ANSWER, {"role": "assistant", "parts": [{"type": "text", "content": "Snow."}]}]
    run = one(span(BASE | NEW | {"gen_ai.output.messages": json.dumps(two)}))
    assert run.turns[1].assistant.content == "Rain."
    assert "branches_dropped" in run.losses


def test_a_tool_that_returned_an_object_is_noted() -> None:
    calling = json.dumps([{"role": "assistant", "parts": [PARTS[1]["parts"][1]]}])
    asking = span(BASE | {"gen_ai.input.messages": json.dumps(PARTS[:1]), "gen_ai.output.messages": calling})
    ran = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "weather", "gen_ai.tool.call.id": "c1"}
    tool = span(ran | {"gen_ai.tool.call.result": {"sky": "rain"}}, spanContext={"traceId": "t", "spanId": "u"})
    run = one(asking, tool)
    assert [m.content for m in run.turns[0].tools] == ['{"sky": "rain"}']
    assert "results_were_objects" in run.losses


def test_the_session_goes_before_the_trace() -> None:
    assert "chain" not in one(span(BASE | NEW)).meta, "a call alone in its trace may belong to any other"
    assert one(span(BASE | NEW | {"gen_ai.conversation.id": "conv"})).meta["chain"] == "conv"


def test_tool_definitions_are_the_tools() -> None:
    definition = [{"type": "function", "name": "weather", "description": "d", "parameters": {"type": "object"}}]
    run = one(span(BASE | NEW | {"gen_ai.tool.definitions": json.dumps(definition)}))
    assert run.tools[0]["function"]["name"] == "weather"
    assert "no_tool_schemas" not in run.losses
    llmetry = {"llm.request.functions.0.name": "weather", "llm.request.functions.0.parameters": '{"type":"object"}'}
    assert one(span(BASE | FLAT | llmetry)).tools[0]["function"]["parameters"] == {"type": "object"}


def test_the_real_attribute_maps_read_whole(shared_data: Path) -> None:
    folder = shared_data / "traces/otel-genai"
    said = ["Weather in Paris?", "Absolutely! Let me check the weather for you.", "rainy, 57°F"]
    for name in ("otel_genai_client_span_tool_calls", "otel_genai_deprecated_client_span_tool_calls"):
        record = json.loads((folder / f"{name}.json").read_text())
        assert formats.detect([record], name).name == "otel-genai"
        run = one(record)
        end = "The weather in Paris is currently rainy with a temperature of 57°F."
        assert [m.content for m in run.messages()] == [*said, end]
        assert run.turns[1].usage == Usage(97, None, None, 52)
        assert run.model == "gpt-4-0613"
    tool = json.loads((folder / "otel_genai_tool_execution_span.json").read_text())
    assert reason(tool) == "no span of a model call in this trace"
