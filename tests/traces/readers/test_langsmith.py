"""LangSmith runs: LangChain's serialised messages, trees and rows, in the order of their dotted order."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sources import items

from kvmill.traces.readers.langsmith import FORMAT, sniff
from kvmill.traces.trajectory import Trajectory, Usage

RAW = '{"city":  "Oslo"}'


def lc(kind: str, **values: Any) -> dict[str, Any]:
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", kind], "kwargs": values}


ASKED = [lc("SystemMessage", content="Be brief."), lc("HumanMessage", content=[{"type": "text", "text": "Weather?"}])]
CALLING = lc(
    "AIMessage",
    content="",
    additional_kwargs={
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": RAW}}]
    },
    tool_calls=[{"name": "weather", "args": {"city": "Oslo"}, "id": "c1", "type": "tool_call"}],
    usage_metadata={
        "input_tokens": 20,
        "output_tokens": 5,
        "input_token_details": {"cache_read": 8, "cache_creation": 4},
    },
)
RESULT = lc("ToolMessage", content="rain", tool_call_id="c1", name="weather", id="m3")
SAID = lc("AIMessage", content="Rain.")


def llm(id: str, messages: list[Any], answer: Any, at: int, **more: Any) -> dict[str, Any]:
    return {
        "id": id,
        "trace_id": "t",
        "parent_run_id": "root",
        "run_type": "llm",
        "name": "ChatOpenAI",
        "dotted_order": f"20250101T0000000{at}0000Zroot.20250101T00000{at}000000Z{id}",
        "start_time": f"2025-01-01T00:00:0{at}.000000",
        "end_time": f"2025-01-01T00:00:0{at + 1}.000000",
        "inputs": {"messages": [messages]},
        "outputs": {"generations": [[{"text": "", "message": answer}]]},
        **more,
    }


FIRST = llm("a", ASKED, CALLING, 1)
SECOND = llm("b", [*ASKED, CALLING, RESULT], SAID, 4)


def one(*records: Any) -> Trajectory:
    (item,) = items(FORMAT, list(records))
    assert isinstance(item.value, Trajectory), item.reason
    return item.value


def check(run: Trajectory) -> None:
    said = [(m.role, m.content) for m in run.messages()]
    assert said == [
        ("system", "Be brief."),
        ("user", "Weather?"),
        ("assistant", ""),
        ("tool", "rain"),
        ("assistant", "Rain."),
    ]
    assert run.turns[0].assistant.tool_calls[0].arguments == RAW, "the model's own string, not LangChain's parsed one"
    assert run.turns[0].usage == Usage(8, 8, 4, 5)
    assert [turn.started_s for turn in run.turns] == [0.0, 3.0]
    assert run.turns[0].tool_wait_s == 2.0


def test_rows_in_any_order_are_one_run() -> None:
    assert sniff(FIRST)
    check(one(SECOND, FIRST))


def test_tables_hold_json_texts_and_local_exports_another_id() -> None:
    def row(run: dict[str, Any]) -> dict[str, Any]:
        renamed = {("run_id" if key == "id" else key): value for key, value in run.items()}
        return {key: json.dumps(value) if isinstance(value, (dict, list)) else value for key, value in renamed.items()}

    check(one(row(FIRST), row(SECOND)))


def test_a_tree_is_read_to_its_leaves() -> None:
    tool = {"id": "x", "run_type": "tool", "name": "weather", "inputs": {}, "outputs": {"output": "rain"}}
    agent = {
        "id": "agent",
        "run_type": "chain",
        "name": "a",
        "inputs": {},
        "outputs": {},
        "child_runs": [SECOND, tool, FIRST],
    }
    root = {"id": "root", "trace_id": "t", "run_type": "chain", "name": "Meteo", "inputs": {}, "child_runs": [agent]}
    run = one(root)
    check(run)
    assert run.family == "meteo"


def test_the_order_of_the_dotted_order_holds_without_start_times() -> None:
    bare = [{key: value for key, value in run.items() if key != "start_time"} for run in (SECOND, FIRST)]
    assert [turn.started_s for turn in one(*bare).turns] == [0.0, 3.0]


def test_a_tool_that_ran_last_gives_its_result() -> None:
    message = {"type": "tool", "content": "rain", "tool_call_id": "c1"}
    tool = {**llm("x", [], None, 3), "run_type": "tool", "name": "weather", "outputs": {"output": message}}
    run = one(FIRST, tool)
    assert [m.content for m in run.turns[0].tools] == ["rain"]


def test_a_thread_goes_before_the_trace() -> None:
    assert one(FIRST | {"extra": {"metadata": {"thread_id": "th"}}}).meta["chain"] == "th"
    assert one(FIRST, SECOND).meta["chain"] == "t"


@pytest.mark.parametrize(
    ("outputs", "usage"),
    [
        (
            {
                "choices": [{"message": {"role": "assistant", "content": "Rain."}}],
                "usage": {"prompt_tokens": 9, "completion_tokens": 2},
            },
            Usage(9, None, None, 2),
        ),
        ({"role": "assistant", "content": "Rain."}, None),
        (
            {"messages": [SAID], "llm_output": {"token_usage": {"prompt_tokens": 9, "completion_tokens": 2}}},
            Usage(9, None, None, 2),
        ),
    ],
)
def test_wrapped_sdks_answer_in_their_own_shape(outputs: Any, usage: Usage | None) -> None:
    run = one(llm("a", ASKED, None, 1, outputs=outputs))
    assert run.turns[0].assistant.content == "Rain."
    assert run.turns[0].usage == usage


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"outputs": None, "error": "RateLimitError(429)"}, "the run has no outputs: RateLimitError(429)"),
        ({"inputs": None, "outputs": None, "inputs_s3_urls": {"ROOT": "x"}}, "references to an object store"),
        ({"inputs": {}}, "messages are not recorded"),
        ({"run_type": "chain"}, "no span of a model call"),
        ({"run_type": None}, "not a run"),
    ],
)
def test_what_cannot_be_read_is_said(change: dict[str, Any], words: str) -> None:
    (item,) = items(FORMAT, [FIRST | change])
    assert words in item.reason
