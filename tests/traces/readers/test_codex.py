"""Codex rollouts: the story is taken once, tokens go to the call that used them, compactions and rollbacks are seen."""

from __future__ import annotations

from typing import Any

from sources import items

from kvmill.traces import checks, formats
from kvmill.traces.readers.codex import FORMAT, sniff
from kvmill.traces.reading import Bad
from kvmill.traces.trajectory import Trajectory, Usage


def line(kind: str, at: float = 0, **payload: Any) -> dict[str, Any]:
    return {"timestamp": f"2026-01-01T10:00:{at:06.3f}Z", "type": kind, "payload": payload}


def message(role: str, said: str, at: float = 0) -> dict[str, Any]:
    part = {"type": "output_text" if role == "assistant" else "input_text", "text": said}
    return line("response_item", at, type="message", role=role, content=[part])


def call(id: str, at: float = 0) -> dict[str, Any]:
    return line("response_item", at, type="function_call", name="exec_command", arguments='{"cmd":"ls"}', call_id=id)


def output(id: str, said: Any, at: float = 0) -> dict[str, Any]:
    return line("response_item", at, type="function_call_output", call_id=id, output=said)


def tokens(total: tuple[int, int, int], last: tuple[int, int, int] | None, at: float = 0) -> dict[str, Any]:
    names = ("input_tokens", "cached_input_tokens", "output_tokens")
    info = {"total_token_usage": dict(zip(names, total, strict=True))}
    if last:
        info["last_token_usage"] = dict(zip(names, last, strict=True))
    return line("event_msg", at, type="token_count", info=info)


META = line("session_meta", id="s", cli_version="0.128.0", base_instructions={"text": "You code."})
CONTEXT = line("turn_context", model="m-1")
ASKED = message("user", "Go.")


def runs(values: list[Any]) -> list[Trajectory]:
    found = items(FORMAT, values)
    assert all(item.value is not None for item in found), [item.reason for item in found]
    return [item.value for item in found if isinstance(item.value, Trajectory)]


def said(run: Trajectory) -> list[str]:
    return [m.content for m in run.messages()]


def test_the_story_is_taken_once_with_its_times_and_tokens() -> None:
    shown = line("event_msg", type="agent_message", message="Done.")
    thought = line("response_item", 2, type="reasoning", summary=[{"type": "summary_text", "text": "Hm."}])
    (run,) = runs(
        [
            META,
            CONTEXT,
            ASKED,
            line("event_msg", type="user_message", message="Go."),
            thought,
            call("a", 2.5),
            call("b", 3),
            output("a", "1", 4),
            output("b", "2", 5),
            tokens((100, 60, 9), (100, 60, 9), 5.1),
            message("assistant", "Done.", 8),
            shown,
            tokens((250, 160, 14), (150, 100, 5), 8.1),
            line("event_msg", type="task_complete", last_agent_message="Done."),
        ]
    )
    assert said(run) == ["You code.", "Go.", "", "1", "2", "Done."]
    assert [c.arguments for c in run.turns[0].assistant.tool_calls] == ['{"cmd":"ls"}'] * 2
    assert run.turns[0].assistant.reasoning == "Hm."
    assert [turn.usage for turn in run.turns] == [Usage(40, 60, None, 9), Usage(50, 100, None, 5)]
    assert (run.turns[0].duration_s, run.turns[0].tool_wait_s, run.turns[1].duration_s) == (3.0, 2.0, 3.0)
    assert (run.model, run.meta, run.losses) == ("m-1", {"session": "s", "version": "0.128.0"}, ("no_tool_schemas",))
    assert checks.trajectory_findings(run) == []


def test_counts_that_are_sent_again_or_only_as_totals() -> None:
    talk = [META, ASKED, call("a"), output("a", "1"), tokens((100, 0, 9), None), tokens((100, 0, 9), None)]
    null = line("event_msg", type="token_count", info=None)
    (run,) = runs([*talk, null, message("assistant", "x"), tokens((250, 60, 14), None)])
    assert [turn.usage for turn in run.turns] == [Usage(100, 0, None, 9), Usage(90, 60, None, 5)]
    assert "missing_calls" not in run.losses


def test_counts_that_come_before_their_answers() -> None:
    talk = [
        META,
        ASKED,
        tokens((100, 0, 9), (100, 0, 9)),
        call("a"),
        output("a", "1"),
        tokens((250, 60, 14), (150, 60, 5)),
    ]
    (run,) = runs([*talk, message("assistant", "x")])
    assert [turn.usage for turn in run.turns] == [Usage(100, 0, None, 9), Usage(90, 60, None, 5)]
    assert "missing_calls" not in run.losses


def test_a_count_without_an_answer_is_a_call_that_is_missing() -> None:
    talk = [META, ASKED, message("assistant", "x"), tokens((9, 0, 1), (9, 0, 1))]
    (run,) = runs([*talk, tokens((20, 0, 3), (11, 0, 2))])
    assert run.turns[0].usage == Usage(9, 0, None, 1)
    assert "missing_calls" in run.losses


def test_tokens_written_to_the_cache_are_inside_the_input() -> None:
    usage = {"input_tokens": 1000, "cached_input_tokens": 300, "cache_write_input_tokens": 200, "output_tokens": 50}
    count = line("event_msg", type="token_count", info={"total_token_usage": usage, "last_token_usage": usage})
    (run,) = runs([META, ASKED, message("assistant", "x"), count])
    assert run.turns[0].usage == Usage(500, 300, 200, 50)


def test_patches_keep_their_text() -> None:
    patch = line("response_item", type="custom_tool_call", name="apply_patch", input="*** Begin Patch\n", call_id="p")
    done = line("response_item", type="custom_tool_call_output", call_id="p", output="Success.")
    (run,) = runs([META, ASKED, patch, done])
    assert run.turns[0].assistant.tool_calls[0].arguments == "*** Begin Patch\n"
    assert [m.content for m in run.turns[0].tools] == ["Success."]


def test_a_compaction_cuts_the_rollout() -> None:
    history = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "So far: x."}]},
    ]
    talk = [META, ASKED, message("assistant", "x"), line("compacted", message="", replacement_history=history)]
    first, second = runs([*talk, message("user", "On."), message("assistant", "y")])
    assert said(first) == ["You code.", "Go.", "x"]
    assert not first.already_compacted
    assert [m.content for m in second.prefix] == ["You code.", "Go.", "So far: x.", "On."]
    assert [turn.assistant.content for turn in second.turns] == ["y"]
    assert second.already_compacted
    assert second.meta["part"] == 1
    assert {"already_compacted", "missing_calls"} <= set(second.losses)
    talk[-1] = line("compacted", message="So far: x.")
    assert said(runs([*talk, message("assistant", "y")])[1]) == ["You code.", "So far: x.", "y"]
    assert len(runs(talk)) == 1, "nothing was said after the compaction"


def test_turns_that_were_rolled_back_are_no_part_of_the_run() -> None:
    context = message("user", "<environment_context>…</environment_context>")
    back = line("event_msg", type="thread_rolled_back", num_turns=1)
    talk = [META, context, ASKED, message("assistant", "x"), message("user", "Left."), message("assistant", "y"), back]
    (run,) = runs([*talk, message("user", "Right."), message("assistant", "z")])
    assert said(run) == ["You code.", "<environment_context>…</environment_context>", "Go.", "x", "Right.", "z"]
    assert "branches_dropped" in run.losses


def test_thinking_that_was_rolled_back_is_gone() -> None:
    thought = line("response_item", type="reasoning", summary=[{"type": "summary_text", "text": "Hm."}])
    back = line("event_msg", type="thread_rolled_back", num_turns=1)
    (run,) = runs([META, ASKED, thought, tokens((9, 0, 1), None), back, ASKED, message("assistant", "x")])
    assert [(turn.assistant.reasoning, turn.assistant.content) for turn in run.turns] == [(None, "x")]


def test_aborted_turns_and_subagents_are_said() -> None:
    spawned = {"subagent": {"thread_spawn": {"parent_thread_id": "p", "depth": 1}}}
    meta = line("session_meta", id="s", source=spawned)
    (run,) = runs([meta, ASKED, call("a"), line("event_msg", type="turn_aborted"), message("assistant", "x")])
    assert (run.family, run.meta) == ("codex-subagent", {"session": "s", "parent": "p"})
    assert {"interrupted", "call_without_result", "no_system_prompt"} <= set(run.losses)


def test_the_oldest_rollouts_have_items_as_lines() -> None:
    values = [
        {"id": "s", "timestamp": "2025-05-01T10:00:00Z", "instructions": None},
        ASKED["payload"],
        {"record_type": "state"},
        call("a")["payload"],
        output("a", "1")["payload"],
        message("assistant", "x")["payload"],
    ]
    assert formats.detect(values, "x").name == "codex"
    (run,) = runs(values)
    assert said(run) == ["Go.", "", "1", "x"]


def test_broken_lines_are_refused_and_the_others_read() -> None:  # bug 16
    broken = [{"type": "response_item", "payload": "x"}, 7, {"silly": "this"}, Bad(5, "no valid JSON", "{")]
    found = items(FORMAT, [META, *broken, ASKED, message("assistant", "x")])
    assert [(item.place, item.reason) for item in found if item.value is None] == [
        (2, "a response_item line without a payload"),
        (3, "not an object"),
        (4, "neither a line of a rollout nor an item"),
        (5, "no valid JSON"),
    ]
    (item,) = items(FORMAT, [META, ASKED])
    assert item.reason == "no assistant message to replay"
    assert not sniff({"type": "message", "role": "user", "content": "x"})
