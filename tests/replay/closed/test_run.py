"""`kvmill replay --mode closed`: rows, identity, resume, results and text of whole runs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import save_tiny

from kvmill.errors import UserError
from kvmill.replay.fanout import run_replay
from kvmill.replay.report import summary_text
from kvmill.replay.results import summary
from kvmill.replay.start import replay_named
from kvmill.replay.weights import ALIASES, cached_file
from kvmill.traces import samples
from kvmill.traces.store import Store
from kvmill.traces.trajectory import Trajectory

TE = "te(proxy=assistant,delay=1,keep=0.2)"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("tiny-model")))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, model: str) -> tuple[Store, str]:
    store = Store.open(tmp_path_factory.mktemp("store"))
    return store, replay(store, model)


def some() -> list[Trajectory]:
    chosen = samples.load()[:1] + samples.load()[-1:]
    return [replace(run, turns=run.turns[:3], probes=run.probes[:2]) for run in chosen]


def replay(store: Store, model: str, **more: Any) -> str:
    arguments: dict[str, Any] = {"policies": [TE], "dtype": "float32", "threads": 1, "progress": False, **more}
    arguments = {"mode": "closed", "max_action_tokens": 5, "max_turns": 4, **arguments}
    return run_replay(store=store, trajectories=some(), model=model, **arguments)


def test_a_random_model_is_too_weak_and_every_cell_says_how_it_ended(ran: tuple[Store, str]) -> None:
    store, run = ran
    cells = store.query("select * from cells order by all").to_pylist()
    assert [cell["policy"] for cell in cells].count(TE) == 2
    assert {(c["mode"], c["measure"], c["status"], c["seed_turns"], c["recorded_turns"]) for c in cells} == {
        ("closed", "quality", "ok", 2, 3)
    }
    assert {cell["end_reason"] for cell in cells} <= {"turn_limit", "answered"}
    assert all(cell["nll"] is cell["delta_nll"] is cell["action_match"] is None for cell in cells)
    assert all(cell["kv_tokens_peak"] > 0 and cell["probes"] == 2 for cell in cells)
    turns = store.query("select * from turn_metrics order by all").to_pylist()
    assert {(turn["turn"] < 2, turn["said"] is None, turn["generated_tokens"] is None) for turn in turns} == {
        (True, True, True),
        (False, False, False),
    }
    assert {probe["age_turns"] for probe in store.query("select * from probes").to_pylist()} == {None}
    found = summary(store, run)
    assert str(found["model_too_weak"]).startswith("model too weak: full itself ended without an answer in 2 of 2 runs")
    text = summary_text(found)
    assert (
        "closed-loop replay (2 recorded turns first, at most 4; actions: greedy, at most 5 tokens, read as samples)"
        in text
    )
    assert "model too weak" in text
    for by in ("turn", "age", "kind", "family"):
        grouped = summary(store, run, by)
        json.dumps(grouped)
        assert summary_text(grouped)


def test_the_same_run_again_is_the_same(tmp_path: Path, ran: tuple[Store, str], model: str) -> None:
    store, _ = ran
    again = Store.open(tmp_path)
    replay(again, model)
    for table in ("cells", "turn_metrics", "probes"):
        one, other = (
            place.query(f"select * exclude (run_id) from {table} order by all").to_pylist() for place in (store, again)
        )
        assert one == other


def test_settings_are_part_of_the_identity_and_a_resumed_run_keeps_its_own(tmp_path: Path, model: str) -> None:
    store = Store.open(tmp_path)
    more: dict[str, Any] = {"policies": ["full"]}
    runs = [replay(store, model, **more, **extra) for extra in ({}, {"seed_turns": 1}, {"max_turns": 5})]
    ids = [set(store.query("select cell_id from cells where run_id = ?", [run])["cell_id"].to_pylist()) for run in runs]
    assert len(set.union(*ids)) == 6
    assert replay(store, model, **more, resume=runs[0]) == runs[0]
    with pytest.raises(UserError, match="max_turns was 5, now 4"):
        replay(store, model, **more, resume=runs[2])
    config = store.info(runs[1]).config
    assert (config["seed_turns"], config["max_turns"], config["actions"]) == (1, 4, {"samples": "samples"})


def test_the_run_says_how_long_a_reply_may_be(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvmill.replay.asked.longest_reply", lambda *_: 3)
    store = Store.open(tmp_path)
    run = replay(store, model, policies=["full"], max_action_tokens=None, max_turns=3)
    assert store.info(run).config["max_action_tokens"] == 3
    assert store.query("select max(generated_tokens) as n from turn_metrics").to_pylist() == [{"n": 3}]
    stepwise = replay(store, model, policies=["full"], mode="stepwise", max_action_tokens=None, max_turns=None)
    assert store.info(stepwise).config["max_action_tokens"] == 3


def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvmill.replay.closed.run import Loop

    store, rows, calls = Store.open(tmp_path), Loop.rows, list[str]()

    def interrupted(self: Loop, identity: Any, trajectory: Trajectory, policies: Any) -> Any:
        calls.append(trajectory.id)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return rows(self, identity, trajectory, policies)

    monkeypatch.setattr(Loop, "rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replay(store, model)
    (begun,) = store.runs("replay", "incomplete")
    assert replay(store, model, resume=begun.run_id) == begun.run_id
    assert calls == [some()[0].id, some()[1].id, some()[1].id]
    assert store.query("select count(*) as n from cells").to_pylist() == [{"n": 4}]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mode": "closed", "measure": "latency"}, "--mode closed measures what the model does"),
        ({"mode": "closed", "explain": True}, "--explain is about recorded tokens"),
        ({"mode": "closed", "equal_size": "te(keep=0.2)"}, "--equal-size solves keep ratios on recorded tokens"),
        ({"mode": "closed", "long": "cut"}, "--long is about recorded turns"),
        ({"mode": "closed", "max_turns": 2}, "--max-turns 2 leaves no turn to the model after 2 recorded ones"),
        ({"mode": "stepwise", "seed_turns": 1}, "--seed-turns: only for --mode closed"),
        ({"max_turns": 9}, "--max-turns: only for --mode closed"),
    ],
)
def test_bad_settings_are_one_clear_line(tmp_path: Path, model: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        replay_named(Store.open(tmp_path), traces="samples", limit=1, model=model, progress=False, **given)


@pytest.mark.skipif(not cached_file(ALIASES["smollm2-135m"]).exists(), reason="smollm2-135m is not in the cache")
@pytest.mark.parametrize(
    ("turns", "probes", "asked"), [(3, "none", 0), pytest.param(4, "recorded", 16, marks=pytest.mark.slow)]
)
def test_the_bundled_model_acts_on_the_samples(tmp_path: Path, turns: int, probes: str, asked: int) -> None:
    command = [sys.executable, "-m", "kvmill", "replay", "--mode", "closed", "--limit", "2", "--traces", "samples"]
    command += ["--policy", TE, "--max-turns", str(turns), "--max-action-tokens", "30", "--probes", probes]
    done = subprocess.run([*command, "--store", str(tmp_path), "--json"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["mode"], [entry["status"]["ok"] for entry in found["policies"]]) == ("closed", [2, 2])
    for entry in found["policies"]:
        assert sum(entry["end_reasons"].values()) == 2
        assert 3 <= entry["turns_mean"] <= turns
        assert entry["calls"] > 0
        assert entry["n_probes"] == asked
