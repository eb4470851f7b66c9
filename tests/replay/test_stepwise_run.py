"""`kvmill replay --mode stepwise`: rows, identity, results and text of whole runs with a tiny model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chatter import Chatter
from tiny import save_tiny

from kvmill.errors import UserError
from kvmill.replay.fanout import run_replay
from kvmill.replay.report import summary_text
from kvmill.replay.results import summary
from kvmill.replay.start import replay_named
from kvmill.replay.stepwise import longest_reply
from kvmill.traces import samples
from kvmill.traces.record import tool_call
from kvmill.traces.store import Store
from kvmill.traces.trajectory import Message, Trajectory, Turn

TE = "te(proxy=assistant,delay=1,keep=0.2)"
NEW = ("generated_tokens", "action_", "cut_turns", "mode", "cell_id", "run_id")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("tiny-model")))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, model: str) -> tuple[Store, dict[str, str]]:
    """The same two trajectories, teacher-forced and in steps."""
    store = Store.open(tmp_path_factory.mktemp("store"))
    return store, {mode: replay(store, model, mode=mode, max_action_tokens=6) for mode in ("teacher", "stepwise")}


def replay(store: Store, model: str, **more: Any) -> str:
    cut = []
    for run in samples.load()[:1] + samples.load()[-1:]:
        probes = tuple(p for p in run.probes if p.fact_turn < 2)
        cut.append(replace(run, turns=run.turns[:3], probes=probes))
    arguments: dict[str, Any] = {"policies": [TE], "dtype": "float32", "threads": 1, "progress": False, **more}
    return run_replay(store=store, trajectories=cut, model=model, **arguments)


def rows(store: Store, run: str, table: str) -> list[str]:
    found = store.query(f"select * from {table} where run_id = ?", [run]).to_pylist()
    return sorted(json.dumps({k: v for k, v in row.items() if not k.startswith(NEW)}) for row in found)


def test_a_reply_is_at_most_twice_the_longest_recorded_message() -> None:
    def saying(*texts: str) -> list[Trajectory]:
        return [replace(samples.load()[0], turns=tuple(Turn(Message("assistant", text)) for text in texts))]

    assert longest_reply(saying("a" * 20, "b" * 40), Chatter()) == 80
    assert (longest_reply(saying("a"), Chatter()), longest_reply(saying(), Chatter())) == (32, 32)
    assert longest_reply(saying("a" * 900), Chatter()) == 128
    called = Turn(Message("assistant", "aa", (tool_call("c", "add", "{}"),)))
    assert longest_reply([replace(samples.load()[0], turns=(called,) * 2)], Chatter()) == 32
    long = Turn(Message("assistant", "aa", (tool_call("c", "add", '{"a": "' + "x" * 30 + '"}'),)))
    said = 2 * len('aa\nadd {"a": ""}' + "x" * 30)
    assert longest_reply([replace(samples.load()[0], turns=(long,))], Chatter()) == said


def test_what_teacher_measures_is_the_same_in_steps(ran: tuple[Store, dict[str, str]]) -> None:
    store, run = ran
    for table in ("cells", "turn_metrics", "probes", "kept"):
        assert rows(store, run["teacher"], table) == rows(store, run["stepwise"], table)
    ids = {mode: set(store.query("select cell_id from cells where run_id = ?", [run[mode]])["cell_id"]) for mode in run}
    assert not ids["teacher"] & ids["stepwise"]


def test_every_turn_from_the_second_on_has_an_action(ran: tuple[Store, dict[str, str]]) -> None:
    store, run = ran
    turns = store.query("select * from turn_metrics where run_id = ? order by all", [run["stepwise"]]).to_pylist()
    assert {turn["turn"]: turn["generated_tokens"] is not None for turn in turns} == {0: False, 1: True, 2: True}
    asked = [turn for turn in turns if turn["turn"]]
    assert all(1 <= turn["generated_tokens"] <= 6 for turn in asked)
    # A random model says nothing that can be read: never agreement, and nothing of full's to agree with.
    assert {(t["action_parsed"], t["action_arguments_match"], t["action_field_share"]) for t in asked} == {
        (False, False, 0.0)
    }
    assert {t["action_arguments_match_full"] for t in asked} == {None}
    assert all(t["action_text_similarity_full"] == 1.0 for t in asked if t["policy"] == "full")
    cells = store.query("select * from cells where run_id = ?", [run["stepwise"]]).to_pylist()
    assert {(c["mode"], c["action_turns"], c["action_match"], c["action_match_full"]) for c in cells} == {
        ("stepwise", 2, 0.0, None)
    }
    teacher = store.query("select * from cells where run_id = ?", [run["teacher"]]).to_pylist()
    assert all(c["action_turns"] is c["action_match"] is None for c in teacher)


def test_the_run_says_how_actions_were_generated_and_read(ran: tuple[Store, dict[str, str]]) -> None:
    store, run = ran
    config = store.info(run["stepwise"]).config
    assert config["actions"] == {"samples": "samples"}
    assert (config["temperature"], config["max_action_tokens"]) == (0.0, 6)
    found = summary(store, run["stepwise"])
    entry = found["policies"][1]
    assert (entry["action_match"], entry["action_match_low"], entry["action_turns"]) == (0.0, 0.0, 4)
    assert (entry["action_match_full"], entry["action_match_full_low"]) == (None, None)
    text = summary_text(found)
    assert "stepwise replay (actions: greedy, at most 6 tokens, read as samples) of 2 trajectories" in text
    assert "same action (95 %)" in text
    turns = store.query(
        "select policy, generated_tokens from turn_metrics where run_id = ?", [run["stepwise"]]
    ).to_pylist()
    cut = [turn["generated_tokens"] == 6 for turn in turns if turn["policy"] == TE and turn["generated_tokens"]]
    assert entry["actions_cut"] == sum(cut) / 4
    assert "cut at 6 tokens (--max-action-tokens): full" in text
    assert "Agreement with the record is not accuracy" in text
    by_turn = summary(store, run["stepwise"], by="turn")
    assert [g["action_turns"] for g in by_turn["groups"]] == [0, 0, 2, 2, 2, 2]
    teacher = summary(store, run["teacher"])
    assert {teacher["policies"][0][key] for key in ("action_match", "action_match_full")} == {None}
    assert "same action" not in summary_text(teacher)


def test_other_settings_make_other_cells_and_a_resumed_run_keeps_its_own(tmp_path: Path, model: str) -> None:
    store = Store.open(tmp_path)
    more = {"mode": "stepwise", "max_action_tokens": 3, "policies": ["full"]}
    runs = [
        replay(store, model, **more),
        replay(store, model, **more, temperature=0.7),
        replay(store, model, **more, actions="hermes"),
    ]
    ids = [set(store.query("select cell_id from cells where run_id = ?", [run])["cell_id"].to_pylist()) for run in runs]
    assert len(set.union(*ids)) == 6
    assert store.info(runs[2]).config["actions"] == {"samples": "hermes"}
    assert replay(store, model, **more, resume=runs[0]) == runs[0]
    with pytest.raises(UserError, match=r"max_action_tokens was 3, now 4"):
        replay(store, model, **{**more, "max_action_tokens": 4}, resume=runs[0])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mode": "step"}, "unknown mode 'step'"),
        ({"temperature": 0.5}, "--temperature: only for --mode stepwise or closed"),
        ({"mode": "teacher", "actions": "hermes"}, "--actions: only for --mode stepwise or closed"),
        ({"mode": "stepwise", "actions": "json"}, "unknown action grammar 'json'"),
        ({"mode": "stepwise", "max_action_tokens": 0}, "--max-action-tokens must be at least 1"),
        ({"long": "drop"}, "unknown rule 'drop' in --long.*Known: cut, skip"),
    ],
)
def test_bad_settings_are_one_clear_line(tmp_path: Path, model: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        replay_named(Store.open(tmp_path), traces="samples", limit=1, model=model, progress=False, **given)
