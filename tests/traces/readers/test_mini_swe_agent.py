"""mini-swe-agent runs, v1 and v2: what a command printed is a result; nothing of `extra` is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvmill.traces import checks, formats
from kvmill.traces.readers.mini_swe_agent import read, sniff
from kvmill.traces.reading import Reject
from kvmill.traces.trajectory import Usage

ASKED = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
CALL = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}


def run(messages: list[Any], version: str = "2.0.0") -> Any:
    record = {"info": {"mini_version": version, "exit_status": "Submitted"}, "messages": [*ASKED, *messages]}
    assert sniff(record)
    return read(record)


def test_what_a_command_in_the_text_printed_is_its_result() -> None:
    made = run(
        [{"role": "assistant", "content": "```bash\nls\n```"}, {"role": "user", "content": "<output>a</output>"}]
    )
    assert [(m.role, m.content, m.tool_call_id) for m in made.turns[0].tools] == [("tool", "<output>a</output>", None)]
    assert made.losses == ("results_as_user",)
    assert made.meta == {"exit_status": "Submitted", "mini_version": "2.0.0"}


def test_what_a_person_says_after_a_result_stays_theirs() -> None:
    said = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "out"}, {"role": "user", "content": "!"}]
    made = run([*said, {"role": "assistant", "content": "b"}])
    assert [m.content for m in made.turns[0].tools] == ["out"]
    assert [m.content for m in made.turns[1].user] == ["!"]


def test_native_calls_and_their_times() -> None:
    made = run(
        [
            {"role": "assistant", "content": None, "tool_calls": [CALL], "extra": {"timestamp": 100.0}},
            {"role": "tool", "tool_call_id": "c", "content": "a.py", "extra": {"timestamp": 100.5, "raw_output": "a"}},
            {"role": "assistant", "content": "b", "extra": {"timestamp": 103.0}},
            {"role": "exit", "content": "patch", "extra": {"exit_status": "Submitted"}},
        ]
    )
    assert made.turns[0].assistant.tool_calls[0].arguments == '{"command":"ls"}'
    assert made.turns[1].duration_s == 2.5
    assert made.losses == ("no_tool_schemas",)
    assert len(made.messages()) == 5


def test_objects_of_the_responses_api_are_answers() -> None:
    response = {
        "object": "response",
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "function_call", "call_id": "c", "id": "fc_1", "name": "bash", "arguments": "{}"},
        ],
        "usage": {"input_tokens": 30, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 10}},
        "extra": {"timestamp": 5.0},
    }
    made = run([response, {"type": "function_call_output", "call_id": "c", "output": "a.py", "extra": {}}])
    assert made.turns[0].assistant.reasoning == "Hm."
    assert [m.content for m in made.turns[0].tools] == ["a.py"]
    assert checks.trajectory_findings(made) == []
    assert made.turns[0].usage == Usage(20, 10, None, 4)


def test_a_run_of_several_segments_was_compacted() -> None:
    record = {"info": {"mini_version": "2"}, "messages": [*ASKED, {"role": "assistant", "content": "a"}]}
    assert not read(record).already_compacted
    made = read({**record, "segments": [{"kind": "solver", "messages": []}] * 2})
    assert made.already_compacted
    assert "already_compacted" in made.losses


def test_a_run_without_messages_is_refused() -> None:
    with pytest.raises(Reject, match="no messages"):
        read({"info": {}})


def test_the_real_run_keeps_every_character_and_its_usage(shared_data: Path) -> None:
    (path,) = (shared_data / "traces/mini-swe-agent").glob("*.json")
    record = json.loads(path.read_text())
    assert formats.detect([record], "x").name == "mini-swe-agent"
    made = read(record)
    texts = [c if isinstance(c, str) else c[0]["text"] for c in (m["content"] for m in record["messages"])]
    assert [m.content for m in made.messages()] == texts
    assert [turn.usage for turn in made.turns] == [Usage(752, 0, 0, 69), Usage(841, 0, 0, 53), Usage(919, 0, 0, 77)]
    assert [len(turn.tools) for turn in made.turns] == [1, 1, 1]
    assert made.model == "anthropic/claude-3-5-sonnet-20241022"
