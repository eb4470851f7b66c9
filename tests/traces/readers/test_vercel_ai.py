"""The Vercel AI SDK's spans: the inner of two records of a call, answers of every kind, tools that ran."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sources import items

from kvmill.traces import formats
from kvmill.traces.ingest import ingest
from kvmill.traces.readers.vercel_ai import FORMAT
from kvmill.traces.store import Store
from kvmill.traces.trajectory import Trajectory, Usage

PROMPT = {"ai.prompt.messages": json.dumps([{"role": "user", "content": [{"type": "text", "text": "Weather?"}]}])}


def span(id: str, operation: str, start: int = 0, parent: str | None = None, **attributes: Any) -> dict[str, Any]:
    context = {"spanContext": {"traceId": "t", "spanId": id}, "parentSpanId": parent}
    times = {"startTime": [100 + start, 0], "endTime": [101 + start, 0]}
    return {"name": operation, **context, **times, "attributes": {"ai.operationId": operation, **attributes}}


def inner(**attributes: Any) -> dict[str, Any]:
    return span("b", "ai.generateText.doGenerate", 0, "a", **PROMPT, **attributes)


def one(*records: Any) -> Trajectory:
    (item,) = items(FORMAT, list(records))
    assert isinstance(item.value, Trajectory), item.reason
    return item.value


def test_text_objects_thoughts_and_calls_are_the_answer() -> None:
    assert one(inner(**{"ai.response.text": "Rain."})).turns[0].assistant.content == "Rain."
    assert one(inner(**{"ai.response.object": '{"a":  1}'})).turns[0].assistant.content == '{"a":  1}'
    calls = json.dumps([{"toolCallId": "c1", "toolName": "weather", "input": '{"city":"Oslo"}'}])
    thinking = {"ai.response.text": "I look.", "ai.response.toolCalls": calls, "ai.response.reasoning": "Hm."}
    said = one(inner(**thinking)).turns[0].assistant
    assert (said.content, said.reasoning) == ("I look.", "Hm.")
    assert said.tool_calls[0].arguments == '{"city":"Oslo"}'


def test_a_call_and_the_request_inside_it_count_once() -> None:
    outer = span("a", "ai.generateText", **{"ai.prompt": '{"prompt":"Weather?"}', "ai.response.text": "Rain."})
    counts = {"ai.usage.inputTokens": 40, "ai.usage.cachedInputTokens": 16, "ai.usage.outputTokens": 3}
    run = one(outer, inner(**{"ai.response.text": "Rain.", "ai.telemetry.functionId": "meteo"}, **counts))
    assert run.turns[0].usage == Usage(24, 16, None, 3)
    assert run.family == "meteo"
    assert [m.content for m in one(outer).messages()] == ["Weather?", "Rain."]


def test_old_usage_names_are_known() -> None:  # bug 29
    run = one(inner(**{"ai.response.text": "Rain.", "ai.usage.promptTokens": 14, "ai.usage.completionTokens": 20}))
    assert run.turns[0].usage == Usage(14, None, None, 20)


def test_the_tool_that_ran_gives_the_last_result() -> None:
    calls = json.dumps([{"toolCallId": "c1", "toolName": "weather", "input": "{}"}])
    ran = {
        "ai.toolCall.name": "weather",
        "ai.toolCall.id": "c1",
        "ai.toolCall.result": '{"type":"text","value":"rain"}',
    }
    run = one(inner(**{"ai.response.toolCalls": calls}), span("c", "ai.toolCall", 2, "a", **ran))
    assert [m.content for m in run.turns[0].tools] == ["rain"]
    assert run.turns[0].tool_wait_s == 2.0


def test_what_was_not_recorded_is_said() -> None:
    (item,) = items(FORMAT, [inner()])
    assert "answer is not in the span (recordOutputs may be off)" in item.reason
    (item,) = items(FORMAT, [span("a", "ai.embed.doEmbed", **{"ai.values": ["x"]})])
    assert item.reason == "no span of a model call in this trace"


def test_the_real_file_reads_every_call_and_refuses_embeddings(shared_data: Path) -> None:
    records = json.loads((shared_data / "traces/openinference/vercel-v6__all-spans.json").read_text())
    assert formats.detect(records, "x").name == "vercel-ai"
    made = items(FORMAT, records)
    runs = [item.value for item in made if isinstance(item.value, Trajectory)]
    # The recording gave every span a trace of its own: only ingest can tell that outer and inner are one call.
    assert len(runs) == 8
    assert [item.place for item in made if item.value is None] == [9, 10]
    answers = [
        r["attributes"].get("ai.response.text") or r["attributes"].get("ai.response.object") for r in records[:8]
    ]
    assert [run.turns[-1].assistant.content for run in runs] == answers
    assert all(run.turns[-1].usage is not None for run in runs)
    assert [m.content for m in runs[2].messages()][:-1] == [
        "You are a helpful assistant.",
        "What is 2 + 2?",
        "2 + 2 equals 4.",
        "And what is 3 + 3?",
    ]


def test_outer_and_inner_spans_of_different_traces_are_joined_at_ingest(tmp_path: Path, shared_data: Path) -> None:
    report = ingest(Store.open(tmp_path), [shared_data / "traces/openinference/vercel-v6__all-spans.json"])
    assert (report.accepted, report.chained, report.rejected) == (4, 4, 2)
