"""Claude Code sessions: an answer of several lines is one call with one usage; trees, compactions and subagents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sources import Beside, items, jsonl

from kvmill.traces import checks, formats
from kvmill.traces.readers.claude_code import FORMAT, sniff
from kvmill.traces.reading import Bad
from kvmill.traces.trajectory import Trajectory, Usage

ALWAYS = {"no_system_prompt", "no_tool_schemas", "prompt_not_exact"}


def line(uuid: str, parent: str | None, kind: str, content: Any, **values: Any) -> dict[str, Any]:
    seconds = values.pop("at", 0)
    message = {"role": kind, "content": content, **values.pop("message", {})}
    stamp = f"2026-01-01T10:00:{seconds:06.3f}Z"
    named = {"uuid": uuid, "parentUuid": parent, "sessionId": "s", "timestamp": stamp, "isSidechain": False}
    return {"type": kind, **named, "message": message, **values}


def user(uuid: str, parent: str | None, content: Any, **values: Any) -> dict[str, Any]:
    return line(uuid, parent, "user", content, **values)


def answer(uuid: str, parent: str | None, *blocks: Any, **values: Any) -> dict[str, Any]:
    id, usage = values.pop("id", uuid), values.pop("usage", {"input_tokens": 9, "output_tokens": 2})
    return line(uuid, parent, "assistant", list(blocks), message={"id": id, "model": "m-1", "usage": usage}, **values)


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def use(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "Bash", "input": {"command": "ls"}}


def result(id: str, content: Any) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": id, "content": content}]


def runs(values: list[Any], source: Beside | None = None) -> list[Trajectory]:
    made = [item.value for item in items(FORMAT, values, source) if isinstance(item.value, Trajectory)]
    assert made
    return made


def said(run: Trajectory) -> list[str]:
    return [m.content for m in run.messages()]


def test_an_answer_of_several_lines_is_one_call_with_the_last_output() -> None:  # bug 8
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    first = {"input_tokens": 1, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 5, "output_tokens": 1}
    last = {**first, "input_tokens": 9, "output_tokens": 30}
    (run,) = runs(
        [
            user("u1", None, "Go."),
            answer("a1", "u1", thinking, id="m", usage=first, at=2),
            answer("a2", "a1", text("Look."), id="m", usage=first, at=2.5),
            answer("a3", "a2", use("t"), id="m", usage=last, at=3),
            user("u2", "a3", result("t", "a.py"), at=4),
            answer("a4", "u2", text("Done."), at=6),
        ]
    )
    assert len(run.turns) == 2
    assert run.turns[0].usage == Usage(9, 20, 5, 30)
    assert (run.turns[0].assistant.reasoning, run.turns[0].assistant.content) == ("Hm.", "Look.")
    assert [m.content for m in run.turns[0].tools] == ["a.py"]
    assert (run.turns[0].duration_s, run.turns[0].tool_wait_s, run.turns[1].duration_s) == (3.0, 1.0, 2.0)
    assert set(run.losses) == ALWAYS | {"arguments_were_objects", "duplicate_usage"}
    assert checks.trajectory_findings(run) == []


def test_a_block_that_a_later_line_repeats_is_taken_once() -> None:
    lines = [answer("a1", "u1", text("Look."), id="m"), answer("a2", "a1", text("Look."), use("t"), id="m")]
    (run,) = runs([user("u1", None, "Go."), *lines])
    assert run.turns[0].assistant.content == "Look."
    assert len(run.turns[0].assistant.tool_calls) == 1


def test_a_placeholder_of_one_token_is_no_count() -> None:  # bug 8
    (run,) = runs([user("u", None, "Go."), answer("a", "u", text("x"), usage={"input_tokens": 1, "output_tokens": 7})])
    assert run.turns[0].usage == Usage(None, None, None, 7)
    cached = {"input_tokens": 1, "cache_read_input_tokens": 900, "output_tokens": 7}
    (run,) = runs([user("u", None, "Go."), answer("a", "u", text("x"), usage=cached)])
    assert run.turns[0].usage == Usage(1, 900, None, 7)


def test_parallel_calls_keep_all_their_results() -> None:
    (run,) = runs(
        [
            user("u1", None, "Go."),
            answer("a1", "u1", use("t1"), id="m"),
            answer("a2", "a1", use("t2"), id="m"),
            user("r1", "a1", result("t1", "1")),
            user("r2", "a2", result("t2", "2")),
            answer("a3", "r2", text("Done.")),
        ]
    )
    assert [m.content for m in run.turns[0].tools] == ["1", "2"]
    assert not any(loss.startswith("branches_dropped") for loss in run.losses)


def test_of_a_rewound_session_the_branch_that_ends_last_is_read() -> None:
    (run,) = runs(
        [
            user("u1", None, "Go."),
            answer("a1", "u1", text("Where?")),
            user("u2", "a1", "Left."),
            answer("a2", "u2", text("A wall.")),
            user("u3", "a1", "Right."),
            answer("a3", "u3", text("A door.")),
            user("u4", "a1", "Back."),
            {"type": "progress", "uuid": "p", "parentUuid": "u4", "sessionId": "s"},
            answer("a4", "p", text("Home.")),
        ]
    )
    assert said(run) == ["Go.", "Where?", "Back.", "Home."]
    assert "branches_dropped:2" in run.losses


def test_lines_that_name_no_parent_are_in_the_order_of_the_file() -> None:
    (run,) = runs(
        [user("1", None, "Go."), answer("2", None, text("x")), user("3", None, "On."), answer("4", None, text("y"))]
    )
    assert said(run) == ["Go.", "x", "On.", "y"]


def test_a_broken_line_is_refused_and_does_not_cut_the_run() -> None:  # bug 16
    found = items(
        FORMAT,
        [
            user("u1", None, "Go."),
            answer("a1", "u1", text("x")),
            Bad(3, "no valid JSON", '{"type":'),
            answer("a2", "u2", text("y")),
            {"type": "user", "uuid": "u9", "sessionId": "s", "message": "error"},
            42,
            {"silly": "this"},
        ],
    )
    assert [(item.place, item.reason) for item in found if item.value is None] == [
        (3, "no valid JSON"),
        (5, "the message of this user line is not an object"),
        (6, "not an object"),
        (7, "a line without a type"),
    ]
    (run,) = [item.value for item in found if isinstance(item.value, Trajectory)]
    assert said(run) == ["Go.", "x", "y"]


def test_repeated_lines_of_a_resumed_session_count_once() -> None:
    lines = [user("u1", None, "Go."), answer("a1", "u1", text("x"))]
    (run,) = runs([*lines, *lines, user("u2", "a1", "On."), answer("a2", "u2", text("y"))])
    assert said(run) == ["Go.", "x", "On.", "y"]


def test_an_interrupted_call_is_said() -> None:  # bug 18
    stop = [text("[Request interrupted by user for tool use]")]
    talk = [
        user("u1", None, "Go."),
        answer("a1", "u1", use("t")),
        user("u2", "a1", stop),
        answer("a2", "u2", text("x")),
    ]
    (run,) = runs(talk)
    assert {"interrupted", "call_without_result"} <= set(run.losses)


def test_answers_of_the_program_and_lines_that_were_only_shown_are_left_out() -> None:
    error = answer("a1", "u1", text("API Error: 529"))
    error["message"]["model"] = "<synthetic>"
    shown = user("u2", "a1", "Only shown.", isVisibleInTranscriptOnly=True)
    (run,) = runs([user("u1", None, "Go."), error, shown, answer("a2", "u2", text("x"))])
    assert said(run) == ["Go.", "x"]
    assert "synthetic_answers" in run.losses


def test_output_of_local_commands_is_told_to_the_model() -> None:
    told = {"type": "system", "subtype": "local_command", "content": "<local-command-stdout>3</local-command-stdout>"}
    told |= {"uuid": "c", "parentUuid": "u1", "sessionId": "s"}
    (run,) = runs([user("u1", None, "Go."), told, answer("a1", "c", text("x"))])
    assert said(run) == ["Go.", "<local-command-stdout>3</local-command-stdout>", "x"]


def test_moved_results_stay_as_the_model_saw_them_and_their_files_count_as_read() -> None:
    shown = "<persisted-output>\nOutput too large. Full output saved to: /x/s/tool-results/b.txt\n\nPreview:\na"
    source = Beside({"s/tool-results/b.txt": "aaaa"}, "s.jsonl")
    (run,) = runs([user("u1", None, "Go."), answer("a1", "u1", use("t")), user("u2", "a1", result("t", shown))], source)
    assert run.turns[0].tools[0].content == shown
    assert "results_moved" in run.losses
    assert source.opened == ["s/tool-results/b.txt"]


def test_the_stream_of_the_command_line_is_read_too() -> None:
    talk = [
        {"type": "system", "subtype": "init", "session_id": "s", "uuid": "i", "tools": ["Bash"]},
        {
            "type": "assistant",
            "session_id": "s",
            "message": {"id": "m0", "role": "assistant", "content": [text("Hi.")]},
        },
        {"type": "user", "session_id": "s", "message": {"role": "user", "content": "Go."}},
        {"type": "assistant", "session_id": "s", "message": {"id": "m1", "role": "assistant", "content": [text("x")]}},
        {"type": "result", "subtype": "success", "session_id": "s", "uuid": "e", "result": "x"},
    ]
    assert formats.detect(talk, "x").name == "claude-code"
    (run,) = runs(talk)
    assert said(run) == ["Hi.", "Go.", "x"]
    assert run.meta == {"session": "s"}


def test_a_session_without_an_answer_is_refused() -> None:
    (item,) = items(FORMAT, [user("u1", None, "Go."), {"type": "summary", "summary": "x", "leafUuid": "u1"}])
    assert item.reason == "no answer of the model in this session"
    (item,) = items(FORMAT, [{"type": "summary", "summary": "x", "leafUuid": "u1"}])
    assert item.reason == "no answer of the model in this session"
    assert not sniff({"type": "message", "role": "user", "content": "x"})


def test_hand_made_sessions_of_another_project_read_whole(shared_data: Path) -> None:
    folder = shared_data / "traces/claude-code"
    values = jsonl(folder / "representative_messages.jsonl")
    assert formats.detect(values, "x").name == "claude-code"
    (run,) = runs(values)
    assert (len(run.turns), sum(len(t.assistant.tool_calls) for t in run.turns)) == (5, 2)
    assert [t.usage.output_tokens for t in run.turns if t.usage] == [120, 85, 95, 35, 110]
    texts = [b["text"] for v in values if "message" in v for b in v["message"]["content"] if b["type"] == "text"]
    assert [c for c in said(run) if c in texts] == texts[:-1], "only the last question, unanswered, is not there"
    found = items(FORMAT, jsonl(folder / "edge_cases.jsonl"))
    assert [item.place for item in found if item.value is None] == [10, 11, 13, 14, 15, 16]
    (run,) = [item.value for item in found if isinstance(item.value, Trajectory)]
    assert len(run.turns) == 4
