"""Rows of software-engineering data sets: lists or JSON strings, resolved or not known, older names of roles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvmill.traces import formats
from kvmill.traces.files import read_file
from kvmill.traces.readers.swe_rebench import read, sniff
from kvmill.traces.reading import Reject
from kvmill.traces.trajectory import Trajectory

CALL = {"id": "c1", "type": "function", "function": {"name": "execute_bash", "arguments": '{"command":  "ls"}'}}
SAID: list[dict[str, Any]] = [
    {"role": "system", "content": "You are an agent.", "name": None, "tool_call_id": None, "tool_calls": None},
    {"role": "user", "content": "Fix it.", "name": None, "tool_call_id": None, "tool_calls": None},
    {"role": "assistant", "content": "Look.", "name": None, "tool_call_id": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "a.py", "name": "execute_bash", "tool_call_id": "c1", "tool_calls": None},
    {"role": "assistant", "content": "Done.", "name": None, "tool_call_id": None, "tool_calls": None},
]
TOOLS = [{"type": "function", "function": {"name": "execute_bash", "parameters": {"type": "object"}}}]
ROW: dict[str, Any] = {
    "trajectory_id": "chat-1",
    "instance_id": "a__b-1",
    "repo": "a/b",
    "trajectory": SAID,
    "tools": TOOLS,
    "model_patch": "diff",
    "exit_status": "submit",
    "resolved": 1,
}


def test_a_row_of_lists_and_nulls_is_a_run_with_its_reward() -> None:
    assert formats.detect([ROW], "x").name == "swe-rebench"
    run = read(ROW)
    assert [m.role for m in run.messages()] == ["system", "user", "assistant", "tool", "assistant"]
    assert run.turns[0].assistant.tool_calls[0].arguments == '{"command":  "ls"}'
    assert run.turns[0].tools[0].name == "execute_bash"
    assert run.tools == tuple(TOOLS)
    assert run.label is not None
    assert (run.label.scorer, run.label.value) == ("reward", 1.0)
    assert run.meta == {"trajectory_id": "chat-1", "instance_id": "a__b-1", "repo": "a/b", "exit_status": "submit"}
    assert run.losses == ()


def test_strings_of_json_read_like_the_lists_they_hold() -> None:
    strings = {**ROW, "trajectory": json.dumps(SAID), "tools": json.dumps(TOOLS)}
    assert formats.detect([strings], "x").name == "swe-rebench"
    assert read(strings) == read(ROW)
    messages = {"messages": json.dumps(SAID), "instance_id": "a__b-1", "resolved": False, "model": "m", "traj_id": "t"}
    assert formats.detect([messages], "x").name == "swe-rebench"
    run = read(messages)
    assert run.label is not None
    assert run.label.value == 0.0
    assert run.model == "m"
    assert run.losses == ("no_tool_schemas",)


def test_older_rows_say_ai_and_text() -> None:
    said = [
        {"role": "system", "system_prompt": "Setting.", "text": None, "mask": False},
        {"role": "user", "system_prompt": None, "text": "Issue.", "mask": False},
        {"role": "ai", "system_prompt": None, "text": "ls", "mask": True},
    ]
    run = read({"instance_id": "x", "model_name": "llama", "target": True, "trajectory": said, "exit_status": "early"})
    assert [(m.role, m.content) for m in run.messages()] == [
        ("system", "Setting."),
        ("user", "Issue."),
        ("assistant", "ls"),
    ]
    assert (run.model, run.label and run.label.value) == ("llama", 1.0)


@pytest.mark.parametrize("resolved", [None, 0.5, "yes", 2])
def test_an_outcome_nobody_knows_is_no_label(resolved: Any) -> None:
    run = read({**ROW, "resolved": resolved})
    assert run.label is None
    assert "no_reward" in run.losses


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**ROW, "trajectory": "[{"}, "trajectory is a string without a list: no valid JSON"),
        ({**ROW, "trajectory": "[" * 300 + "]" * 300}, "trajectory is a string without a list: nested"),
        ({**ROW, "trajectory": '"hello"'}, "not a list of messages"),
        ({**ROW, "trajectory": []}, "no messages"),
        ({**ROW, "tools": "["}, "tools is a string"),
        ({**ROW, "trajectory": SAID[:2]}, "no assistant message"),
    ],
)
def test_what_cannot_be_read_is_rejected_with_a_reason(row: Any, reason: str) -> None:
    with pytest.raises(Reject, match=reason):
        read(row)


def test_a_parquet_file_of_rows_reads_like_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    strings = {**ROW, "trajectory": json.dumps(SAID), "tools": json.dumps(TOOLS)}
    for row in (ROW, strings):
        pq.write_table(pa.Table.from_pylist([{**row, "resolved": n} for n in (0, 1)]), path)
        found, made, _ = read_file(path)
        assert found.name == "swe-rebench"
        runs = [item.value for item in made]
        assert [run.label.value for run in runs if isinstance(run, Trajectory) and run.label] == [0.0, 1.0]
        assert runs[1] == read(ROW)


def test_a_typed_tables_nulls_are_no_part_of_a_schema() -> None:
    def tool(name: str, **properties: Any) -> dict[str, Any]:
        parameters = {"type": "object", "properties": properties}
        return {"type": "function", "function": {"name": name, "parameters": parameters}}

    text, number = {"type": "string", "enum": None, "default": None}, {"type": "number", "enum": [None, 1]}
    filled = [tool("bash", command=text, line=None), tool("view", command=None, line=number)]
    assert list(read({**ROW, "tools": filled}).tools) == [
        tool("bash", command={"type": "string"}),
        tool("view", line=number),
    ]
    whole = [tool("bash", command=text)]
    assert list(read({**ROW, "tools": whole}).tools) == whole, "a null that no table put there stays"


def test_swe_agent_files_are_not_taken_for_rows() -> None:
    assert not sniff({"trajectory": [], "history": [], "info": {"exit_status": "x"}, "environment": "e"})
    assert not sniff({"messages": SAID})
