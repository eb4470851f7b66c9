"""ATIF: calls and results of merged steps in order, copied context no turns, usage and ids by ATIF's own rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvmill.traces import checks, formats
from kvmill.traces.readers.atif import read
from kvmill.traces.reading import Reject
from kvmill.traces.trajectory import RecordedIds, Trajectory, Usage

CALL = {"tool_call_id": "c1", "function_name": "bash", "arguments": {"cmd": "ls"}}
STEPS: list[dict[str, Any]] = [
    {"step_id": 1, "source": "system", "message": "Be exact."},
    {"step_id": 2, "source": "user", "message": [{"type": "text", "text": "List."}]},
    {
        "step_id": 3,
        "timestamp": "2026-01-05T10:00:00Z",
        "source": "agent",
        "message": "Looking.",
        "reasoning_content": "ls does it",
        "tool_calls": [CALL],
        "observation": {"results": [{"source_call_id": "c1", "content": "a.txt"}]},
        "metrics": {"prompt_tokens": 100, "completion_tokens": 5, "cached_tokens": 60},
    },
    {"step_id": 4, "timestamp": "2026-01-05T10:00:07Z", "source": "agent", "message": "One file."},
]
DOCUMENT: dict[str, Any] = {
    "schema_version": "ATIF-v1.7",
    "session_id": "s1",
    "trajectory_id": "t1",
    "agent": {"name": "Coder", "version": "1", "model_name": "m", "tool_definitions": [{"function": {"name": "bash"}}]},
    "steps": STEPS,
}


def one(document: Any) -> Trajectory:
    (run,) = read(document)
    return run


def agent(message: str, **more: Any) -> dict[str, Any]:
    return {"source": "agent", "message": message, **more}


def test_steps_become_messages_and_turns() -> None:
    assert formats.detect([DOCUMENT], "x").name == "atif"
    run = one(DOCUMENT)
    assert [(m.role, m.content) for m in run.messages()] == [
        ("system", "Be exact."),
        ("user", "List."),
        ("assistant", "Looking."),
        ("tool", "a.txt"),
        ("assistant", "One file."),
    ]
    assert (run.family, run.model, len(run.tools)) == ("coder", "m", 1)
    first = run.turns[0]
    assert first.assistant.reasoning == "ls does it"
    assert (first.assistant.tool_calls[0].arguments, first.tools[0].tool_call_id) == ('{"cmd": "ls"}', "c1")
    assert [turn.started_s for turn in run.turns] == [0.0, 7.0]
    assert run.losses == ("arguments_were_objects",)
    assert run.meta == {"session_id": "s1", "trajectory_id": "t1", "started_at": "2026-01-05T10:00:00Z"}
    assert checks.trajectory_findings(run) == []


@pytest.mark.parametrize("version", ["1.0", "1.3", "1.5", "1.6", "1.7", "1.8"])
def test_every_version_of_the_first_line_is_read(version: str) -> None:
    document = {**DOCUMENT, "schema_version": f"ATIF-v{version}"}
    assert formats.detect([document], "x").name == "atif"
    assert len(one(document).turns) == 2


@pytest.mark.parametrize(
    ("metrics", "usage"),
    [
        ({"prompt_tokens": 100, "completion_tokens": 5}, Usage(100, None, None, 5)),
        ({"prompt_tokens": 100, "cached_tokens": 60, "completion_tokens": 5}, Usage(40, 60, None, 5)),
        (
            {"prompt_tokens": 100, "cached_tokens": 60, "extra": {"cache_creation_input_tokens": 30}},
            Usage(10, 60, 30, None),
        ),
        ({"completion_tokens": 7, "prompt_tokens": "many"}, Usage(None, None, None, 7)),
        ({"cost_usd": 1.0}, None),
    ],
)
def test_cached_tokens_are_inside_the_prompt(metrics: Any, usage: Usage | None) -> None:
    assert one({**DOCUMENT, "steps": [STEPS[1], agent("x", metrics=metrics)]}).turns[0].usage == usage


def test_copied_steps_are_context_and_never_counted() -> None:  # bug 23
    copied = [{**step, "is_copied_context": True} for step in STEPS]
    run = one({**DOCUMENT, "steps": [*copied, agent("Go on.", metrics={"prompt_tokens": 9}), {**STEPS[3]}]})
    assert [m.content for m in run.prefix] == ["Be exact.", "List.", "Looking.", "a.txt", "One file."]
    assert [turn.assistant.content for turn in run.turns] == ["Go on.", "One file."]
    assert run.turns[0].usage == Usage(fresh_input_tokens=9)
    assert run.already_compacted
    assert {"copied_context", "already_compacted"} <= set(run.losses)
    late = one({**DOCUMENT, "steps": [*STEPS, copied[2]]})
    assert [turn.assistant.content for turn in late.turns] == ["Looking.", "One file."]
    assert "copied_context_dropped" in late.losses


def test_calls_with_one_id_stay_two_calls() -> None:  # bug 23
    twice = {**STEPS[2], "tool_calls": [CALL, CALL], "observation": {"results": STEPS[2]["observation"]["results"] * 2}}
    run = one({**DOCUMENT, "steps": [*STEPS[:2], twice]})
    assert [call.id for call in run.turns[0].assistant.tool_calls] == ["c1", "c1"]
    assert [message.content for message in run.turns[0].tools] == ["a.txt", "a.txt"]
    assert checks.trajectory_findings(run) == []


def test_a_result_without_an_id_answers_its_step() -> None:
    results = {"results": [{"content": "out"}, {"content": [{"type": "image", "source": {}}]}]}
    run = one({**DOCUMENT, "steps": [STEPS[1], agent("run ls", observation=results)]})
    assert [(m.tool_call_id, m.content) for m in run.turns[0].tools] == [(None, "out"), (None, "")]
    assert "non_text_content" in run.losses


def test_recorded_ids_are_what_each_call_appended() -> None:
    def call(prompt: list[int], output: list[int]) -> dict[str, Any]:
        return agent("x", metrics={"prompt_token_ids": prompt, "completion_token_ids": output})

    steps = [STEPS[1], call([1, 2], [3]), call([1, 2, 3, 4], [5]), call([9, 9, 9], [7]), call([9, 9, 9, 7, 8], [1])]
    run = one({**DOCUMENT, "steps": steps})
    assert [turn.ids for turn in run.turns] == [
        RecordedIds((1, 2), (3,)),
        RecordedIds((4,), (5,)),
        RecordedIds((), (7,)),
        RecordedIds((), (1,)),
    ]
    assert "ids_not_append_only" in run.losses
    assert "ids_not_append_only" not in one({**DOCUMENT, "steps": steps[:3]}).losses
    late = one({**DOCUMENT, "steps": [STEPS[1], agent("x"), *steps[1:3]]})
    assert [turn.ids for turn in late.turns] == [None, RecordedIds((1, 2), (3,)), RecordedIds((4,), (5,))]
    only_output = one({**DOCUMENT, "steps": [STEPS[1], agent("x", metrics={"completion_token_ids": [3]})]})
    assert only_output.turns[0].ids == RecordedIds((), (3,))
    assert "ids_not_append_only" not in only_output.losses


def test_sub_agents_are_runs_of_their_own() -> None:
    child = {**DOCUMENT, "trajectory_id": "t2", "steps": [STEPS[1], agent("child")]}
    ref = {"results": [{"source_call_id": "c1", "subagent_trajectory_ref": [{"trajectory_id": "t2"}]}]}
    parent = {**DOCUMENT, "steps": [STEPS[1], {**STEPS[2], "observation": ref}]}
    whole = list(read({**parent, "subagent_trajectories": [child]}))
    assert [run.meta.get("parent") for run in whole] == [None, "t1"]
    assert whole[1].turns[0].assistant.content == "child"
    assert "missing_calls" not in whole[0].losses
    assert "missing_calls" in one(parent).losses
    broken = read({**parent, "subagent_trajectories": [{**child, "steps": []}, child]})
    assert next(broken).meta["trajectory_id"] == "t1"
    assert next(broken).meta["parent"] == "t1"
    with pytest.raises(Reject, match="no assistant message"):
        next(broken)


def test_summaries_and_continuations_mark_the_run_as_compacted() -> None:
    refs = [{"session_id": "x", "extra": {"summary": "Context summarization 1"}}]
    handoff = {
        "source": "system",
        "message": "Handoff.",
        "observation": {"results": [{"subagent_trajectory_ref": refs}]},
    }
    assert one({**DOCUMENT, "steps": [*STEPS, handoff, agent("on")]}).already_compacted
    assert one({**DOCUMENT, "continued_trajectory_ref": "next.json"}).already_compacted
    assert not one(DOCUMENT).already_compacted


def test_calls_that_no_step_shows_are_missing() -> None:
    more = {**DOCUMENT, "final_metrics": {"total_prompt_tokens": 101}}
    assert "missing_calls" in one(more).losses
    assert "missing_calls" not in one({**DOCUMENT, "final_metrics": {"total_prompt_tokens": 100}}).losses
    assert "missing_calls" in one({**DOCUMENT, "steps": [*STEPS, agent("x", llm_call_count=3)]}).losses
    assert "steps_without_call" in one({**DOCUMENT, "steps": [*STEPS, agent("x", llm_call_count=0)]}).losses


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([{"source": "robot", "message": "x"}], "step 1 has the unknown source 'robot'"),
        (["x"], "step 1 is not an object"),
        ([STEPS[1]], "no assistant message"),
        ([agent("x", tool_calls=[{"tool_call_id": "c"}])], "no function name"),
        ([agent("x", tool_calls="ls")], "tool_calls is not a list"),
        ([agent("x", observation={"results": ["a"]})], "a result is not an object"),
    ],
)
def test_what_cannot_be_read_is_rejected_with_a_reason(steps: list[Any], reason: str) -> None:
    with pytest.raises(Reject, match=reason):
        list(read({**DOCUMENT, "steps": steps}))


def test_the_real_files_read_whole(shared_data: Path) -> None:
    told = {}
    for path in sorted((shared_data / "traces/atif").glob("*.json")):
        document = json.loads(path.read_text())
        assert formats.detect([document], "x").name == "atif"
        run = one(document)
        dropped = "trailing_user_dropped" in run.losses
        steps = document["steps"][:-1] if dropped else document["steps"]
        results = [r for step in steps for r in step.get("observation", {}).get("results", [])]
        said = [step["message"] for step in steps] + [r["content"] for r in results if "content" in r]
        assert sorted(m.content for m in run.messages()) == sorted(said)
        told[path.name.partition("world")[2]] = (
            len(run.turns),
            sum(len(turn.assistant.tool_calls) for turn in run.turns),
            sum(turn.usage.fresh_input_tokens or 0 for turn in run.turns if turn.usage),
            run.already_compacted,
        )
    assert told == {
        ".trajectory.json": (2, 2, 220, False),
        "-context-summarization-linear-history.trajectory.json": (3, 0, 2252, True),
        "-context-summarization-linear-history.trajectory.cont-1.json": (4, 0, 4250, True),
        "-context-summarization.trajectory.json": (7, 7, 6502, True),
    }
