"""BrowseComp-Plus runs: the question comes from beside, thinking stays with what follows, nothing said is lost."""

from __future__ import annotations

from typing import Any

import pytest
from sources import Beside, items

from kvmill.traces import checks, formats
from kvmill.traces.readers.browsecomp_plus import FORMAT
from kvmill.traces.trajectory import Trajectory

HITS = '[{"docid": "7", "score": 1.5, "snippet": "Oslo"}]'
RESULT: list[dict[str, Any]] = [
    {"type": "reasoning", "tool_name": None, "arguments": None, "output": [{"text": "where?", "type": "summary_text"}]},
    {"type": "reasoning", "tool_name": None, "arguments": None, "output": ["search", "first"]},
    {"type": "tool_call", "tool_name": "search", "arguments": '{"query":"city"}', "output": HITS},
    {"type": "tool_call", "tool_name": "get_document", "arguments": {"docid": "7"}, "output": "full text"},
    {"type": "reasoning", "tool_name": None, "arguments": None, "output": "so it is"},
    {"type": "output_text", "tool_name": None, "arguments": None, "output": "Exact Answer: Oslo"},
]
RUN: dict[str, Any] = {
    "metadata": {"model": "gpt-oss-20b", "output_dir": "runs"},
    "query_id": "12",
    "tool_call_counts": {"search": 1},
    "status": "completed",
    "retrieved_docids": ["7"],
    "usage": {"input_tokens": 900, "input_tokens_cached": 100, "included_reasoning_tokens": None},
    "result": RESULT,
}
QUERIES = {"queries.tsv": '11\tOther?\n12\tWhich city?\n13\t"The ""last"" one"\nbroken line\n'}


def read(run: Any, files: dict[str, Any] | None = None) -> Trajectory:
    (item,) = items(FORMAT, [run], Beside(QUERIES if files is None else files))
    assert isinstance(item.value, Trajectory), item.reason
    return item.value


def test_the_question_is_joined_and_calls_are_turns() -> None:
    assert formats.detect([RUN], "x").name == "browsecomp-plus"
    run = read(RUN)
    assert [(m.role, m.content, m.reasoning) for m in run.messages()] == [
        ("user", "Which city?", None),
        ("assistant", "", "where?\nsearch\nfirst"),
        ("tool", HITS, None),
        ("assistant", "", None),
        ("tool", "full text", None),
        ("assistant", "Exact Answer: Oslo", "so it is"),
    ]
    assert [c.arguments for t in run.turns for c in t.assistant.tool_calls] == ['{"query":"city"}', '{"docid": "7"}']
    assert set(run.losses) == {
        "arguments_were_objects",
        "batching_unknown",
        "no_system_prompt",
        "no_tool_schemas",
        "prompt_unknown",
    }
    assert run.model == "gpt-oss-20b"
    assert run.meta == {
        "query_id": "12",
        "status": "completed",
        "usage": {"input_tokens": 900, "input_tokens_cached": 100},
    }
    assert checks.trajectory_findings(run) == []


def test_without_the_list_the_question_is_a_loss() -> None:
    run = read(RUN, {})
    assert run.prefix[0].content == ""
    assert "no_query" in run.losses
    assert read({**RUN, "query_id": "13"}).prefix[0].content == 'The "last" one'


def test_stored_messages_are_read_as_they_are() -> None:
    raw = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Which city?"},
        {"role": "assistant", "content": "<think>x</think><answer>Oslo</answer>"},
    ]
    run = read({**RUN, "raw_messages": raw})
    assert [m.role for m in run.prefix] == ["system", "user"]
    assert run.turns[0].assistant.reasoning == "x"
    assert run.losses == ()


@pytest.mark.parametrize(
    ("result", "finding"),
    [
        ([{"type": "tool_call", "tool_name": "search", "arguments": "{}", "output": None}], "ends_with_call"),
        ([RESULT[2], {"type": "tool_call", "tool_name": None, "output": "stray"}], None),
        ([{"type": "output_text", "output": "a"}, RESULT[1]], None),
    ],
)
def test_calls_without_output_and_stray_outputs_are_kept(result: list[Any], finding: str | None) -> None:
    run = read({**RUN, "result": result})
    assert finding is None or finding in run.losses
    assert len(run.messages()) == 1 + len(result) + (finding is None and "tool_call" in str(result))


def test_a_run_that_stopped_early_is_marked() -> None:
    assert "interrupted" in read({**RUN, "status": "incomplete"}).losses
    assert "interrupted" not in read(RUN).losses


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (["x"], "result 0 is not an object"),
        ([{"type": "image"}], "result 0 has the unknown type 'image'"),
        ([], "no assistant message"),
        (None, "no list of results"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(result: Any, reason: str) -> None:
    (item,) = items(FORMAT, [{**RUN, "result": result}], Beside(QUERIES))
    assert item.value is None
    assert reason in item.reason
