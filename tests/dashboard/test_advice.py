"""The overview always says what to do next, and never what cannot work."""

from __future__ import annotations

from pathlib import Path

from kvmill import dashboard
from kvmill.dashboard.advice import next_steps


def run(kind: str, state: str = "complete") -> dict[str, str]:
    return {"run": f"{kind}-1", "kind": kind, "state": state}


def commands(runs: list[dict[str, str]]) -> str:
    return "\n".join(step.command for step in next_steps(runs, done(runs)))


def done(runs: list[dict[str, str]]) -> set[str]:
    return {run["kind"] for run in runs if run["state"] == "complete"}


def test_an_empty_store_points_to_the_demo():
    assert "kvmill demo --quick" in commands([])


def test_an_interrupted_replay_is_to_be_resumed_first():
    for state in ("incomplete", "killed"):
        steps = next_steps([run("replay", state), run("plan")], {"plan"})
        assert (steps[0].command, steps[0].page) == ("kvmill replay --resume replay-1", "replay")
        assert any("kvmill replay --traces" in step.command for step in steps), "no quality is known yet"


def test_a_running_replay_is_left_alone():
    assert "--resume" not in commands([run("replay", "running")])


def test_an_old_replay_still_counts_when_the_newest_runs_are_plans():
    steps = next_steps([run("plan")] * 10, {"plan", "replay"})
    assert not any("kvmill replay" in step.command for step in steps)


def test_what_is_missing_is_what_is_advised():
    assert "kvmill plan" in commands([run("replay")])
    assert "kvmill replay" in commands([run("plan")])
    assert "kvmill plan" not in commands([run("replay"), run("plan")])
    assert "kvmill inspect" in commands([run("replay"), run("plan")])


def test_traces_of_ones_own_are_replayed_before_the_samples():
    assert "--traces last" in commands([run("ingest")])
    assert "--traces samples" in commands([run("plan")])


def test_every_page_that_is_pointed_to_exists():
    pages = Path(dashboard.__file__).parent / "app_pages"
    for runs in ([], [run("replay", "killed")], [run("replay"), run("plan")]):
        assert all(step.page is None or (pages / f"{step.page}.py").is_file() for step in next_steps(runs, done(runs)))
