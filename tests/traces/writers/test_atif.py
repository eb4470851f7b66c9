"""Written as ATIF and read again, a trajectory is the same; the documents keep ATIF's own rules."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectories import ids, trajectories

from kvmill.traces import formats, samples
from kvmill.traces.readers import tau_bench
from kvmill.traces.readers.atif import read
from kvmill.traces.record import tool_call
from kvmill.traces.trajectory import Message, RecordedIds, Trajectory, Turn, Usage
from kvmill.traces.writers import atif
from kvmill.traces.writers.lost import lost

OF_A_STEP = {"step_id", "timestamp", "source", "message", "observation", "extra"}
OF_AN_AGENT = OF_A_STEP | {"reasoning_content", "tool_calls", "metrics"}


def again(trajectory: Trajectory) -> Trajectory:
    written = json.loads(json.dumps(atif.document(trajectory), allow_nan=False))
    assert formats.detect([written], "x").name == "atif"
    check(written)
    (back,) = read(written)
    return back


def check(document: dict[str, Any]) -> None:
    """The rules of RFC 0001 that its validator enforces."""
    assert set(document) == {
        "schema_version",
        "session_id",
        "trajectory_id",
        "agent",
        "steps",
        "final_metrics",
        "extra",
    }
    assert {"name", "version"} <= set(document["agent"]) <= {"name", "version", "model_name", "tool_definitions"}
    assert [step["step_id"] for step in document["steps"]] == list(range(1, len(document["steps"]) + 1))
    for step in document["steps"]:
        assert step["source"] in ("system", "user", "agent")
        assert set(step) <= (OF_AN_AGENT if step["source"] == "agent" else OF_A_STEP)
        assert isinstance(step["message"], str)
        made = step.get("tool_calls", [])
        assert all(set(call) <= {"tool_call_id", "function_name", "arguments", "extra"} for call in made)
        assert all(isinstance(call["arguments"], dict) for call in made)
        known = {call["tool_call_id"] for call in made}
        for result in step.get("observation", {}).get("results", []):
            assert set(result) <= {"source_call_id", "content", "extra"}
            assert result.get("source_call_id") in {None, *known}


@given(trajectories())
def test_any_trajectory_comes_back_as_it_was(trajectory: Trajectory) -> None:
    back = again(trajectory)
    assert lost(trajectory, back) == ()
    assert back == trajectory


@given(trajectories(st.none() | ids | st.builds(replace, ids, prompt=st.just(()))))
def test_prompt_ids_after_a_gap_are_the_only_loss(trajectory: Trajectory) -> None:
    back = again(trajectory)
    assert set(lost(trajectory, back)) <= set(atif.LOSES)
    assert [turn.ids and turn.ids.output for turn in back.turns] == [t.ids and t.ids.output for t in trajectory.turns]


def test_the_samples_and_real_runs_come_back_as_they_were(shared_data: Path) -> None:
    runs = samples.load()
    for path in (shared_data / "traces/tau-bench").glob("*.json"):
        runs += [tau_bench.read(raw) for raw in json.loads(path.read_text())]
    assert len(runs) > 150
    for run in runs:
        assert again(run) == run


def one(**turn: Any) -> Trajectory:
    said = Message("assistant", "A", (tool_call("c", "f", '{"a":1}'),))
    last = Turn(said, (Message("tool", "R", tool_call_id="c"),), **turn)
    return Trajectory("t", "s", "airline", (Message("user", "U"),), (last,), model="m")


def test_tokens_follow_atifs_rule_that_the_prompt_includes_the_cache() -> None:
    (_, step) = atif.document(one(usage=Usage(10, 60, 30, 5)))["steps"]
    assert step["metrics"]["prompt_tokens"] == 100
    assert step["metrics"]["cached_tokens"] == 60
    assert step["metrics"]["extra"] == {"cache_creation_input_tokens": 30}
    assert atif.document(one(usage=Usage(10, 60, 30, 5)))["final_metrics"]["total_prompt_tokens"] == 100


def test_other_programs_find_model_call_result_and_whole_prompt() -> None:
    run = one(ids=RecordedIds((1, 2), (3,)))
    run = replace(run, turns=(*run.turns, Turn(Message("assistant", "B"), ids=RecordedIds((4,), (5,)))))
    document = atif.document(run)
    assert (document["agent"]["name"], document["agent"]["model_name"]) == ("airline", "m")
    _, first, second = document["steps"]
    assert first["tool_calls"][0]["arguments"] == {"a": 1}
    assert first["observation"]["results"] == [{"source_call_id": "c", "content": "R"}]
    assert second["metrics"]["prompt_token_ids"] == [1, 2, 3, 4]


def test_times_are_dates_where_the_beginning_is_known() -> None:
    run = replace(one(started_s=90.5), meta={"started_at": "2026-01-05T10:00:00Z"})
    assert atif.document(run)["steps"][1]["timestamp"] == "2026-01-05T10:01:30.500000+00:00"
    assert "timestamp" not in atif.document(one(started_s=90.5))["steps"][1]


def test_too_many_prompt_ids_are_left_out_and_said_to_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atif, "_MOST_PROMPT_IDS", 6)
    turns = [Turn(Message("assistant", "A"), ids=RecordedIds((n, n), (n,))) for n in range(4)]
    run = replace(one(), turns=tuple(turns))
    back = again(run)
    assert lost(run, back) == ("prompt_ids",)
    assert back.turns[0].ids == run.turns[0].ids
