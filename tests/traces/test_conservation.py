"""Characters in are characters out, and where not, the difference has a name."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.traces import samples
from kvmill.traces.check_files import check_files
from kvmill.traces.conservation import characters_of, conservation, said, solid, spoken, unkept
from kvmill.traces.files import read_file
from kvmill.traces.readers import openai_chat
from kvmill.traces.trajectory import Trajectory

TEXT = st.text('ab \n\t{}"\\é<>', max_size=20)
PARTS = st.lists(st.builds(lambda text: {"type": "text", "text": text}, TEXT), max_size=3)
CALL = st.builds(
    lambda arguments: {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}},
    TEXT | st.dictionaries(TEXT, TEXT, max_size=2),
)
ASSISTANT = st.builds(
    lambda content, thought, calls: {
        "role": "assistant",
        "content": content,
        "reasoning": thought,
        "tool_calls": calls,
    },
    TEXT | PARTS | st.none(),
    TEXT,
    st.lists(CALL, max_size=2),
)
OTHER = st.builds(
    lambda role, content: {"role": role, "content": content, "tool_call_id": "c"},
    st.sampled_from(["user", "tool", "system", "developer"]),
    TEXT | PARTS,
)


@given(st.lists(OTHER | ASSISTANT, max_size=8), ASSISTANT)
def test_chat_messages_of_any_form_keep_every_character(between: list[Any], last: Any) -> None:
    messages = [{"role": "user", "content": "go"}, *between, last]
    trajectory = openai_chat.read({"messages": messages})
    assert conservation(said(messages), trajectory) == []


@pytest.mark.parametrize(("kept", "code"), [("firs", "content_lost"), ("first!", "content_added")])
def test_one_character_less_or_more_is_found(kept: str, code: str) -> None:
    messages = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "yes"}]
    whole = openai_chat.read({"messages": messages})
    changed = replace(whole, prefix=(replace(whole.prefix[0], content=kept),))
    assert [(finding.code, finding.where) for finding in conservation(said(messages), changed)] == [(code, "user")]


def test_what_a_reader_forgets_is_found_by_role_and_called_unexplained() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "first"}, {"type": "text", "text": "second"}]},
        {"role": "assistant", "content": "yes", "reasoning_content": "because"},
    ]
    whole = openai_chat.read({"messages": messages})
    forgetful = replace(whole, prefix=(replace(whole.prefix[0], content="first"),))
    found = conservation(said(messages), forgetful)
    assert [(f.code, f.where) for f in found] == [("content_lost", "user")]
    assert found[0].text == "6 of 11 characters are not in the trajectory: unexplained"


def test_a_loss_of_the_record_is_the_cause_that_is_named() -> None:
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "thanks"},
    ]
    found = conservation(said(messages), openai_chat.read({"messages": messages}))
    assert [f.text for f in found] == [
        "6 of 8 characters are not in the trajectory: user messages at the end that nothing answers"
    ]


def test_text_that_is_there_twice_is_found_too() -> None:
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "done"}]
    whole = openai_chat.read({"messages": messages})
    twice = replace(whole, turns=(*whole.turns, *whole.turns))
    assert [(f.code, f.where, f.text) for f in conservation(said(messages), twice)] == [
        ("content_added", "assistant", "4 characters more than the 4 of the record")
    ]


def test_counts_leave_blanks_out_and_tell_thinking_from_words() -> None:
    assert solid(" a\n b\t") == 2
    assert said([{"role": "assistant", "content": "<think>hm</think>\n\nyes"}]) == {"reasoning": 2, "assistant": 3}
    assert said([{"role": "user", "content": [{"type": "thinking", "thinking": "hm"}, "yes"]}]) == {
        "reasoning": 2,
        "user": 3,
    }


def test_unkept_says_where_text_of_a_record_stayed_behind() -> None:
    long = "a sentence that is certainly long enough to be looked for"
    record = {
        "messages": [{"role": "user", "content": long}, {"role": "assistant", "content": "ok"}],
        "other": {"notes": [long + " elsewhere"], "packed": json.dumps({"inner": long + " and more"})},
    }
    trajectory = openai_chat.read(record)
    assert [(u.path, u.characters) for u in unkept(record, [trajectory])] == [
        ("other.notes[]", len(long) + 10),
        ("other.packed.inner", len(long) + 9),
    ]
    assert characters_of(record) == 3 * len(long) + 19


def test_samples_speak_as_their_records_do() -> None:
    for run in samples.load()[:10]:
        messages = [{"role": m.role, "content": m.content} for m in run.messages()]
        assert said(messages) == spoken(run.messages())


def trajectories(path: Path) -> list[Trajectory]:
    _, items, _ = read_file(path)
    return [item.value for item in items if isinstance(item.value, Trajectory)]


@pytest.mark.parametrize("trial", [0, 1])
def test_real_airline_runs_lose_only_a_last_word_of_the_user(shared_data: Path, trial: int) -> None:
    path = shared_data / f"traces/tau-bench/gpt-4o-airline.trial{trial}.json"
    for raw, run in zip(json.loads(path.read_text()), trajectories(path), strict=True):
        found = conservation(said(raw["traj"]), run)
        assert {f.where for f in found} <= {"user"}
        assert all("user messages at the end" in f.text for f in found)


# Text of these files that is in no trajectory, by its place: settings, evaluations, copies in another form.
ELSEWHERE = {
    "atif/*.json": r"steps\[\]\.(observation\.results\[\]\.subagent_trajectory_ref\[\].*|message)",
    "harbor-traces-export/*.json": r"",
    "swe-agent/ctf__*.traj": r"",
    "swe-agent/function_calling_simple.traj": r"history\[\]\.action",
    "mini-swe-agent/*.json": r"info\.config\..*|messages\[\]\.extra\.response\.id",
    "openhands/sdk__fncall-llm-message.json": r"",
    "openhands/sdk__llm-logs__*.json": r"kwargs\.extra_body\..*|response\.id",
    "openhands/v0.58-*.json": r"\[\]\.message",
    "gemini-cli/*.json": r"projectHash",
    "otel-genai/*_span_tool_calls.json": r"",
    "openinference/openinference_*.json": r"",
}


@pytest.mark.parametrize("pattern", ELSEWHERE)
def test_real_files_keep_every_long_text_but_those_of_known_places(shared_data: Path, pattern: str) -> None:
    paths = sorted((shared_data / "traces").glob(pattern))
    assert paths
    for path in paths:
        left = unkept(json.loads(path.read_text()), trajectories(path))
        assert [u for u in left if not re.fullmatch(ELSEWHERE[pattern], u.path)] == [], path.name


def test_check_names_the_long_texts_that_no_run_holds(tmp_path: Path) -> None:
    long = "a sentence that is certainly long enough to be looked for"
    record = {"messages": [{"role": "user", "content": long}, {"role": "assistant", "content": "ok"}], "note": long * 2}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(record) + "\n")
    (file,) = check_files([path])["files"]
    assert file["left_out"] == [{"path": "note", "characters": 2 * len(long)}]
