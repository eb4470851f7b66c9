"""What the page Inspector asks: shares by turn, tokens a page at a time, and where a policy departed."""

from __future__ import annotations

from pathlib import Path

import fabricate
import kept_rows
import pytest

from kvmill.dashboard import queries_inspect as queries
from kvmill.replay.inspect import inspect
from kvmill.traces.store import Store

BOTH = ["full", fabricate.BOUNDARY]


def test_only_replays_of_recorded_turns_with_kept_tokens_are_offered(tmp_path: Path):
    store = Store.open(tmp_path)
    fabricate.replay(store)
    run = kept_rows.kept_replay(store)
    assert queries.replays(store) == [run]
    assert [row["trajectory_id"] for row in queries.trajectories(store, run)] == ["t-0", "t-1"]


def test_shares_by_turn_are_those_of_the_command_line(tmp_path: Path):
    store = Store.open(tmp_path)
    run = kept_rows.kept_replay(store)
    found = {
        (r["policy"], r["turn"], r["kind"]): (r["tokens"], r["kept"]) for r in queries.turn_shares(store, run, "t-0")
    }
    said = inspect(store, run, "t-0")["turns"]
    assert found == {(r["policy"], r["turn"], r["kind"]): (r["tokens"], r["kept"]) for r in said}


def test_tokens_are_those_of_the_command_line_with_their_goals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = Store.open(tmp_path)
    run = kept_rows.kept_replay(store, trajectories=("operations-00",))
    found = queries.tokens(store, run, "operations-00", 1, BOTH)
    said = inspect(store, run, "operations-00", turn=1)["tokens"]
    assert found["pages"] == 1
    for policy in BOTH:
        assert [{k: t[k] for k in ("position", "text", "share", "goal")} for t in found["tokens"][policy]] == [
            {k: t[k] for k in ("position", "text", "share", "goal")} for t in said[policy]
        ]
    monkeypatch.setattr(queries, "PAGE_TOKENS", 3)
    pages = [queries.tokens(store, run, "operations-00", 1, BOTH, page) for page in range(3)]
    assert pages[0]["pages"] == 3
    assert [t["position"] for page in pages for t in page["tokens"]["full"]] == list(range(8, 16))


def test_goal_tokens_are_flagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = Store.open(tmp_path)
    run = kept_rows.kept_replay(store)
    monkeypatch.setattr(queries, "goal_words", lambda *_: {1: {kept_rows.HARM}})
    monkeypatch.setattr(queries, "goal_messages", lambda *_: {})
    found = queries.tokens(store, run, "t-0", 1, [fabricate.BOUNDARY])["tokens"][fabricate.BOUNDARY]
    assert [token["text"] for token in found if token["goal"] == "answer"] == [kept_rows.HARM]


def test_departures_name_the_turn_and_what_was_lost(tmp_path: Path):
    store = Store.open(tmp_path)
    run = kept_rows.kept_replay(store, mass=True)
    (entry,) = queries.departures(store, run, "t-0", BOTH)
    assert (entry["policy"], entry["diverged_turn"]) == (fabricate.BOUNDARY, 1)
    assert "likeliest next token" in entry["by"]
    assert [token["position"] for token in entry["lost"]] == list(range(7, -1, -1)), "of turn 0, most mass first"
    said = next(e for e in inspect(store, run, "t-0")["explained"] if e["policy"] == fabricate.BOUNDARY)
    assert {key: entry[key] for key in said} == said
    assert queries.departures(store, run, "t-0", ["full"]) == []


def test_actions_are_of_stepwise_runs_only(tmp_path: Path):
    store = Store.open(tmp_path)
    run = kept_rows.kept_replay(store)
    assert queries.actions(store, run, "t-0") == []
    stepwise = store.begin("replay", {"policies": ["full"], "mode": "stepwise"})
    row = {"policy": "full", "trajectory_id": "t", "measure": "quality", "turn": 0, "generated_tokens": 9}
    stepwise.add({"turn_metrics": [row | {"action_parsed": True}]}, key="a")
    stepwise.finish()
    assert [row["action_parsed"] for row in queries.actions(store, stepwise.id, "t")] == [True]
