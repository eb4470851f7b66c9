"""Langfuse traces agree with the messages that Langfuse's own tests expect of them, and become one run each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sources import items

from kvmill.traces import checks
from kvmill.traces.readers.langfuse import FORMAT, sniff
from kvmill.traces.readers.messages import answered, given
from kvmill.traces.trajectory import Trajectory, Usage

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def observation(id: str, **more: Any) -> dict[str, Any]:
    base = {"id": id, "traceId": "t", "type": "GENERATION", "name": "llm", "parentObservationId": None}
    times = {"startTime": "2025-01-01T00:00:00.000Z", "endTime": "2025-01-01T00:00:02.000Z"}
    return {**base, **times, "input": ASKED, "output": "Hello.", **more}


def runs(*records: Any) -> list[Trajectory]:
    return [item.value for item in items(FORMAT, list(records)) if isinstance(item.value, Trajectory)]


def reasons(*records: Any) -> list[str]:
    return [item.reason for item in items(FORMAT, list(records)) if item.value is None]


def trace(*observations: Any, **about: Any) -> dict[str, Any]:
    return {"trace": {"id": "t", **about}, "observations": list(observations)}


def value(text: Any) -> Any:
    """A text by what it says: JSON is spaced differently by different programs."""
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return "" if text is None else text


def flat(content: Any) -> str:
    parts = content if isinstance(content, list) else [content]
    return "\n".join(part["text"] if isinstance(part, dict) else part for part in parts if part is not None)


def said(messages: list[dict[str, Any]], ours: bool) -> list[Any]:
    """Role, words and calls of each message, in order, in one spelling."""
    out = []
    for message in messages:
        role = {"model": "assistant"}.get(message["role"], message["role"])
        calls = [call["function"] if ours else call for call in message.get("tool_calls") or []]
        text = value(flat(message.get("content")))
        # Langfuse gives Gemini's function responses to the user; here they are what they are.
        role = "user" if role == "tool" and ours and not message.get("tool_call_id") else role
        out.append((role, text, [(call["name"], value(call["arguments"])) for call in calls]))
    return out


def test_every_trace_agrees_with_its_chatml(shared_data: Path) -> None:
    folder = shared_data / "traces/langfuse"
    inputs = outputs = 0
    for path in sorted(folder.glob("*.trace.json")):
        expected = json.loads(path.with_name(path.name.replace(".trace.", ".chatml.")).read_text())
        for each in json.loads(path.read_text())["observations"]:
            told = expected.get(each["id"], {})
            asked, answer = told.get("input", {}).get("data", []), told.get("output", {}).get("data", [])
            if asked and all("role" in message for message in asked):
                ours = [message for message in given(each["input"]).messages if message]
                assert said(ours, True) == said(asked, False), (path.name, each["id"])
                inputs += 1
            if len(answer) == 1 and answer[0].get("role") in ("assistant", "model"):
                ours, _ = answered(each["output"])
                assert ours is not None
                assert said([ours], True) == said(answer, False), (path.name, each["id"])
                outputs += 1
    assert (inputs, outputs) == (16, 14)


@pytest.mark.parametrize(
    ("name", "turns", "calls", "results"),
    [
        ("agno-2025-06-11", 2, 1, 1),
        ("autogen-2025-06-06", 1, 0, 0),
        ("crewai-2025-07-11", 1, 0, 0),
        ("google-adk-2025-08-28", 2, 1, 1),
        ("langgraph-python-2025-08-22", 2, 1, 1),
        ("openai-agents-2025-09-30", 2, 1, 1),
        ("pydantic-ai-tools-2025-06-06", 1, 0, 0),
        ("vercel-aisdk-2025-11-17", 1, 1, 1),
    ],
)
def test_every_real_trace_is_one_run(shared_data: Path, name: str, turns: int, calls: int, results: int) -> None:
    record = json.loads((shared_data / f"traces/langfuse/{name}.trace.json").read_text())
    assert sniff(record)
    (run,) = runs(record)
    assert reasons(record) == []
    assert len(run.turns) == turns
    assert sum(len(turn.assistant.tool_calls) for turn in run.turns) == calls
    assert sum(len(turn.tools) for turn in run.turns) == results
    assert checks.trajectory_findings(run) == []
    assert all(turn.usage is not None and turn.duration_s for turn in run.turns)
    assert run.turns[0].started_s == 0.0


def test_the_last_generation_of_a_real_trace_is_the_run_to_the_last_character(shared_data: Path) -> None:
    folder = shared_data / "traces/langfuse"
    expected = json.loads((folder / "openai-agents-2025-09-30.chatml.json").read_text())["90d94774e8e3724d"]
    (run,) = runs(json.loads((folder / "openai-agents-2025-09-30.trace.json").read_text()))
    messages = [*expected["input"]["data"], *expected["output"]["data"]]
    assert [m.content for m in run.messages()] == [
        "You are a helpful agent.",
        *(m.get("content", "") for m in messages),
    ]
    assert run.tools[0]["function"]["name"] == "get_weather"
    assert run.turns[0].tool_wait_s == 0.002


def test_a_message_that_an_instrumentation_dropped_is_found_in_the_call_before(shared_data: Path) -> None:
    (run,) = runs(json.loads((shared_data / "traces/langfuse/agno-2025-06-11.trace.json").read_text()))
    assert [c.arguments for c in run.turns[0].assistant.tool_calls] == ['{"query":"currently trending on Twitter"}']
    assert run.turns[0].usage == Usage(163, 0, None, 20), "the response's own counts, not Langfuse's estimate"
    assert "truncated_source" not in run.losses


def test_a_download_without_input_and_output_is_refused_as_such() -> None:
    (reason,) = reasons(trace(observation("a", input=None, output=None)))
    assert "leaves out input and output" in reason
    (reason,) = reasons(trace(observation("a", output=None, statusMessage="429 slow down")))
    assert reason == "the generation has no output: 429 slow down"
    assert reasons(trace(observation("a", type="SPAN"))) == ["no span of a model call in this trace"]


@pytest.mark.parametrize(
    ("counts", "usage", "disagrees"),
    [
        ({"input": 20, "output": 5, "total": 25}, Usage(20, None, None, 5), False),
        ({"input": 20, "input_cached_tokens": 16, "output": 5, "total": 41}, Usage(20, 16, None, 5), False),
        ({"input": 20, "input_cached_tokens": 16, "output": 5, "total": 25}, Usage(4, 16, None, 5), False),
        ({"input": 5, "output": 5, "output_reasoning": 7, "total": 17}, Usage(5, None, None, 12), False),
        ({"input": 20, "cache_read_input_tokens": 90, "output": 5}, Usage(20, 90, None, 5), False),
        ({"input": 5, "output": 845, "total": 2023}, Usage(5, None, None, 845), True),
    ],
)
def test_buckets_are_read_so_that_they_add_up(counts: Any, usage: Usage, disagrees: bool) -> None:  # bug 9
    (run,) = runs(trace(observation("a", usageDetails=counts)))
    assert run.turns[0].usage == usage
    assert ("usage_disagrees" in run.losses) == disagrees
    assert run.meta.get("usage") == (counts if disagrees else None)


def test_a_call_recorded_twice_counts_once_and_the_inner_record_wins() -> None:
    outer = observation("a", input={"prompt": "Hi"}, usageDetails={"input": 99, "output": 99})
    inner = observation("b", parentObservationId="a", usageDetails={"input": 9, "output": 2})
    (run,) = runs(trace(outer, inner, name="Greeter", sessionId="s"))
    assert run.turns[0].usage == Usage(9, None, None, 2)
    assert (run.family, run.meta["chain"]) == ("greeter", "s")


def test_a_text_of_role_lines_gives_way_to_messages() -> None:
    text = observation("b", parentObservationId="a", input="system: Be brief.\nuser: Hi")
    (run,) = runs(trace(observation("a"), text))
    assert "roles_from_text" not in run.losses
    (alone,) = runs(trace(text))
    assert [(m.role, m.content) for m in alone.prefix] == [("system", "Be brief."), ("user", "Hi")]
    assert "roles_from_text" in alone.losses


def test_rows_of_observations_are_put_together_by_their_trace() -> None:
    def row(id: str, trace: str, at: int, **more: Any) -> dict[str, Any]:
        time = {"start_time": f"2025-01-01T00:00:0{at}Z", "end_time": f"2025-01-01T00:00:0{at}.5Z"}
        return {"id": id, "trace_id": trace, "type": "GENERATION", "output": "A.", **time, **more}

    second = [*ASKED, {"role": "assistant", "content": "A."}, {"role": "user", "content": "And?"}]
    rows = [row("a", "1", 2, input=second, output="B."), row("b", "2", 0, input=ASKED), row("c", "1", 0, input=ASKED)]
    made = runs(*rows)
    assert [len(run.turns) for run in made] == [2, 1]
    assert [turn.started_s for turn in made[0].turns] == [0.0, 2.0]
    assert made[0].turns[0].tool_wait_s == 1.5


def test_scores_of_judges_are_no_ground_truth() -> None:
    (run,) = runs(trace(observation("a"), scores=[{"name": "toxicity", "value": 0.8, "source": "EVAL"}]))
    assert run.label is None
    assert run.meta["scores"] == {"toxicity": 0.8}
