"""`kvmill judge`: labels, doing nothing, recorded rewards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trajectories
from hypothesis import given
from typer.testing import CliRunner

from kvmill import cli
from kvmill.errors import UserError
from kvmill.replay.judges.recorded import judge_runs, judged_text
from kvmill.replay.judges.registry import JUDGES, judge_answer, scorer_of
from kvmill.traces.record import dump, tool_call
from kvmill.traces.samples import load
from kvmill.traces.trajectory import NOT_JUDGED, Label, Message, Trajectory, Turn

GOLD = (tool_call("g", "cancel_reservation", '{"id": "x"}'),)


def run(id: str, reward: float, *, wrote: bool, gold: bool) -> Trajectory:
    said = Message("assistant", "", GOLD if wrote else ())
    results = (Message("tool", "done", tool_call_id="g"),) if wrote else ()
    label = Label("reward", reward, GOLD if gold else ())
    return Trajectory(id, "tau-bench", "airline", (Message("user", "cancel"),), (Turn(said, results),), label=label)


RUNS = [
    run("a", 1.0, wrote=True, gold=True),
    run("b", 1.0, wrote=False, gold=False),
    run("c", 0.0, wrote=True, gold=False),
    run("d", 1.0, wrote=False, gold=True),
]


def test_recorded_runs_are_judged_beside_doing_nothing_and_held_against_their_reward() -> None:
    found = judge_runs([*RUNS, Trajectory("e", "chat", "f", (Message("user", "hi"),), ())])
    (group,) = found["groups"]
    assert (found["runs"], found["labelled"]) == (5, 4)
    assert (group["scorer"], group["decided"], group["accuracy"]) == ("actions", 4, 0.5)
    assert (group["no_op_accuracy"], group["reward"], group["reward_agreement"]) == (0.5, 0.75, 0.75)
    assert [row["correct"] for row in found["verdicts"]] == [True, True, False, False]
    text = judged_text(found)
    assert "4 of 5 runs have a label" in text
    assert "doing nothing right" in text


def test_what_cannot_be_decided_is_counted_by_its_reason() -> None:
    found = judge_runs(load()[:3])
    assert found["groups"][0]["undecided"] == {"no probe was answered": 3}
    assert found["groups"][0]["accuracy"] is None
    assert "undecided: no probe was answered (3)" in judged_text(found)


def test_a_run_that_says_there_is_nothing_to_judge_is_not_judged() -> None:
    stress = Trajectory("s", "samples", "f", (Message("user", "hi"),), (), label=Label(NOT_JUDGED))
    assert judge_runs([stress])["labelled"] == 0


def test_the_command_prints_the_object_and_a_table(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text(json.dumps([_raw(each) for each in RUNS]))
    app, runner = cli.build(), CliRunner()
    done = runner.invoke(app, ["judge", "--traces", str(path), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["groups"][0]["no_op_accuracy"] == 0.5
    assert found["judge"] is None
    said = runner.invoke(app, ["judge", "--traces", str(path)])
    assert "agrees with reward" in said.stdout


def test_a_model_is_asked_only_where_an_endpoint_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "MODEL"):
        monkeypatch.delenv(f"KVMILL_JUDGE_{name}", raising=False)
    done = CliRunner().invoke(cli.build(), ["judge", "--traces", "samples", "--limit", "1", "--scorer", "llm"])
    assert done.exit_code == 2
    assert "KVMILL_JUDGE_URL" in done.output


def test_an_unknown_scorer_lists_the_known() -> None:
    done = CliRunner().invoke(cli.build(), ["judge", "--traces", "samples", "--limit", "1", "--scorer", "exakt"])
    assert done.exit_code == 2
    assert "Did you mean 'exact'" in done.output


@given(trajectories.trajectories(), trajectories.text)
def test_any_labelled_run_and_answer_gets_a_verdict_or_one_line(trajectory: Trajectory, answer: str) -> None:
    if scorer_of(trajectory) is None:
        return
    for scorer in JUDGES:
        try:
            found = judge_answer(trajectory, answer, scorer=scorer)
        except UserError:
            assert scorer == "item_f1"
            continue
        assert found.verdict.reason
        assert (found.verdict.correct is None) or found.verdict.score is not None


def _raw(each: Trajectory) -> dict[str, object]:
    """A run as tau-bench writes it."""
    kept = json.loads(dump(each))
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in each.turns[0].assistant.tool_calls
    ]
    said = {"role": "assistant", "content": f"Run {each.id}.", **({"tool_calls": calls} if calls else {})}
    results = [{"role": "tool", "tool_call_id": "g", "name": "cancel_reservation", "content": "done"}] if calls else []
    gold = [{"name": call.name, "kwargs": dict(call.parsed or {})} for call in each.label.gold_actions if each.label]  # type: ignore[union-attr]
    return {
        "task_id": ord(each.id),
        "reward": kept["label"]["value"],
        "trial": 0,
        "traj": [
            {"role": "system", "content": "# Airline Agent Policy"},
            {"role": "user", "content": f"cancel {each.id}"},
            said,
            *results,
        ],
        "info": {"task": {"actions": gold}},
    }
