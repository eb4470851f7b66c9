"""The commands as a user calls them: answers on stdout, one clear line and an exit code otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from kvmill import cli
from kvmill.replay import fanout
from kvmill.replay.policies.registry import DEMO_POLICIES, POLICIES, QUICK_POLICIES
from kvmill.traces.store import Store

from .runs import FULL, TE, replay_run, rows_of


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    return cli.build()


def call(app: typer.Typer, *args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == code, (result.output, result.exception)
    return result


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def test_policies_lists_every_policy_with_its_defaults(app: typer.Typer) -> None:
    found = json.loads(call(app, "policies", "--json").stdout)["policies"]
    assert [policy["name"] for policy in found] == list(POLICIES)
    te = next(policy for policy in found if policy["name"] == "te")
    assert set(te["options"]["delay"]) == {"type", "default", "doc"}
    assert te["footprint"] == "exact"
    assert {"formula", "source"} <= set(te)
    assert "te: " in call(app, "policies").stdout


def test_models_list_says_what_is_here(app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVMILL_CACHE", str(tmp_path))
    found = json.loads(call(app, "models", "list", "--json").stdout)["models"]
    assert {m["name"]: m["present"] for m in found} == {"smollm2-135m": False, "gemma3-270m": False}
    result = call(app, "models", "pull", "smollm3", code=2)
    assert "unknown model alias 'smollm3'" in result.stderr


def test_results_prints_the_object_or_the_table(app: typer.Typer, own_store: Path) -> None:
    _, run = replay_run(own_store)
    found = json.loads(call(app, "results", "--json").stdout)
    assert (found["run"], [p["policy"] for p in found["policies"]]) == (run, [FULL, TE])
    assert TE in call(app, "results", run).stdout
    by_kind = json.loads(call(app, "results", "--by", "kind", "--json").stdout)
    assert {group["kind"] for group in by_kind["groups"]} == {"one-hop", "two-hop"}


@pytest.mark.parametrize("args", [("results",), ("inspect", "last", "a/1")])
def test_an_empty_store_is_one_line_and_exit_2(app: typer.Typer, args: tuple[str, ...]) -> None:
    result = call(app, *args, code=2)
    assert result.stdout == ""
    assert len(lines(result.stderr)) == 1
    assert "run `kvmill replay` first" in result.stderr


def test_failed_cells_are_printed_first_and_end_with_exit_6(app: typer.Typer, own_store: Path) -> None:
    replay_run(own_store, failed=True)
    result = call(app, "results", "--json", code=6)
    assert json.loads(result.stdout)["policies"][1]["status"] == {"ok": 5, "failed": 1, "skipped": 0}
    assert "incomplete: 1 of 11 cells" in result.stderr


def test_inspect_shows_kept_text_plain_dropped_text_as_dots_and_shares_below(
    app: typer.Typer, own_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay_run(own_store)
    monkeypatch.setattr("kvmill.replay.inspect.goal_words", lambda *_: {1: {"Falcon"}})
    table = lines(call(app, "inspect", "last", "a/1").stdout.split("Where a policy departs")[0])
    assert sum(line.startswith(TE) for line in table) == 2  # two turns
    text = call(app, "inspect", "last", "a/1", "--turn", "1").stdout
    full, te = text.split("Where a policy departs")[0].split(f"{TE}:")
    assert " Alice keeps Falcon<|im_end|>⏎" in full
    shown = te.splitlines()
    assert shown[0].strip() == "37% of 5 tokens kept"
    # Shares of the five tokens: 0, .05, .3, .6, .9.
    assert shown[2] == " ····· ····· ······<|im_end|>⏎"
    assert shown[3] == "      " + "000000" + "3333333" + "6666666666" + "9"
    assert shown[4] == " " * 12 + "^^^^^^^"
    lower = call(app, "inspect", "last", "a/1", "--turn", "1", "--at-least", "0.3", "--policy", TE).stdout
    assert " ····· ····· Falcon<|im_end|>⏎" in lower
    assert "full:" not in lower


def test_inspect_as_json_holds_every_token_of_the_turn(app: typer.Typer, own_store: Path) -> None:
    replay_run(own_store)
    found = json.loads(call(app, "inspect", "last", "b/1", "--turn", "0", "--json").stdout)
    assert "".join(token["text"] for token in found["tokens"][TE]) == "<|im_start|>tool\nResult:"
    assert [token["share"] for token in found["tokens"][TE]] == [0.0, 0.05, 0.3, 0.6, 0.9]
    assert [entry["kept"] for entry in found["turns"] if entry["policy"] == FULL] == [1.0, 1.0]
    assert "unknown trajectory 'b/2'" in call(app, "inspect", "last", "b/2", code=2).stderr
    assert "turns run from 0 to 1" in call(app, "inspect", "last", "b/1", "--turn", "7", code=2).stderr
    assert "unknown run" in call(app, "inspect", "nope", "b/1", code=2).stderr


def test_sql_answers_and_explains_its_errors(app: typer.Typer, own_store: Path) -> None:
    replay_run(own_store)
    question = "SELECT policy, count(*) AS cells FROM cells GROUP BY policy ORDER BY policy"
    found = json.loads(call(app, "sql", question, "--json").stdout)
    assert found["rows"] == [{"policy": FULL, "cells": 5}, {"policy": TE, "cells": 5}]
    assert "(2 rows)" in call(app, "sql", question).stdout
    assert "cells, turn_metrics" in call(app, "sql", "SELECT * FROM sells", code=2).stderr
    for written in (f"COPY cells TO '{own_store}/x.csv'", "SELECT 1; SELECT 2", "", "CREATE TABLE t AS SELECT 1"):
        assert "the store is only read here" in call(app, "sql", written, code=2).stderr
    assert "column_name" in call(app, "sql", "DESCRIBE cells").stdout


def test_doctor_names_what_is_here_and_finds_damage(app: typer.Typer, own_store: Path) -> None:
    store, run = replay_run(own_store)
    found = json.loads(call(app, "doctor", "--json").stdout)
    assert found["versions"]["torch"]
    assert found["torch"]["threads"] >= 1
    assert found["store"] == {"path": str(own_store), "runs": 1, "complete": 1}
    assert found["problems"] == []
    next(iter(store.folder(run).glob("cells*.parquet"))).unlink()
    assert any("cells" in problem for problem in json.loads(call(app, "doctor", "--json").stdout)["problems"])
    assert "problem" in call(app, "doctor").stdout


def test_store_check_and_compact(app: typer.Typer, own_store: Path) -> None:
    store, run = replay_run(own_store)
    assert "no problems in 1 runs" in call(app, "store", "check").stdout
    stray = store.folder(run) / "cells.stray.parquet"
    stray.write_bytes(b"half a file")
    assert json.loads(call(app, "store", "check", "--json", code=2).stdout)["problems"]
    assert json.loads(call(app, "store", "compact", "--json").stdout)["removed"] == 1
    assert not stray.exists()
    call(app, "store", "check")


class Engine:
    """Takes the place of the engine: notes what it was asked, writes a run with hand-made rows."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    def __call__(self, *, store: Store, **asked: Any) -> str:
        self.asked = asked
        ids = [trajectory.id for trajectory in asked["trajectories"]]
        settings = {k: v for k, v in asked.items() if k not in ("trajectories", "config", "resume", "progress")}
        run = store.begin("replay", settings | asked["config"] | {"trajectory_ids": ids, "mode": "teacher"})
        run.add(rows_of("a/1"), key="a/1")
        run.finish()
        return run.id


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine()
    monkeypatch.setattr(fanout, "run_replay", engine)
    return engine


def test_replay_has_the_documented_defaults_and_prints_results(app: typer.Typer, engine: Engine) -> None:
    found = json.loads(call(app, "replay", "--traces", "samples", "--limit", "4", "--json").stdout)
    assert found["policies"][0]["policy"] == FULL
    asked = engine.asked
    assert asked["policies"] == list(DEMO_POLICIES)
    assert (asked["model"], asked["measure"], asked["seed"]) == ("smollm2-135m", "quality", 0)
    assert (asked["dtype"], asked["device"], asked["threads"], asked["resume"]) == ("auto", "auto", None, None)
    assert asked["config"] == {"traces": "samples", "limit": 4, "asked": list(DEMO_POLICIES), "probes": "auto"}
    assert (asked["equal_size"], asked["equal_by"]) == (None, None)
    families = [trajectory.family for trajectory in asked["trajectories"]]
    assert (len(families), len(set(families))) == (4, 2)


def test_in_closed_mode_few_policies_act_by_default(app: typer.Typer, engine: Engine) -> None:
    call(app, "replay", "--traces", "samples", "--limit", "2", "--mode", "closed")
    assert engine.asked["policies"] == list(QUICK_POLICIES)
    call(app, "replay", "--traces", "samples", "--limit", "2", "--mode", "stepwise")
    assert engine.asked["policies"] == list(DEMO_POLICIES)


def test_both_times_one_trajectory_of_each_family(app: typer.Typer, engine: Engine) -> None:
    call(app, "replay", "--traces", "samples", "--limit", "6", "--policy", "full", "--measure", "both")
    chosen = {t.id: t.family for t in engine.asked["trajectories"]}
    assert sorted(chosen[name] for name in engine.asked["latency_trajectories"]) == sorted(set(chosen.values()))
    call(app, "replay", "--traces", "samples", "--limit", "2", "--policy", "full", "--measure", "latency")
    assert engine.asked["latency_trajectories"] is None


def test_resume_takes_the_runs_settings_over(app: typer.Typer, engine: Engine, own_store: Path) -> None:
    flags = ["--policy", TE, "--seed", "7", "--measure", "both", "--dtype", "float32", "--threads", "1"]
    call(app, "replay", "--traces", "samples", "--limit", "3", *flags)
    first = engine.asked
    run = Store.open(own_store).runs("replay")[0].run_id
    call(app, "replay", "--resume", run)
    assert engine.asked == {**first, "resume": run}


def test_resume_needs_the_trajectories_it_began_with(app: typer.Typer, engine: Engine, own_store: Path) -> None:
    store = Store.open(own_store)
    run = store.begin("replay", {"traces": "last", "trajectory_ids": ["tau-1"], "policies": [FULL]})
    run.finish("incomplete")
    assert "trajectories tau-1 are no longer in" in call(app, "replay", "--resume", run.id, code=2).stderr
    assert engine.asked == {}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--mode", "closed", "--measure", "both"], "--mode closed measures what the model does"),
        (["--mode", "open"], "unknown mode 'open'"),
        (["--measure", "speed"], "unknown measure 'speed'"),
        (["--policy", "tee"], "unknown policy 'tee'"),
        (["--policy", "te(kep=0.2)"], "unknown option 'kep'"),
        (["--resume", "replay-1"], "unknown run 'replay-1'"),
    ],
)
def test_wrong_flags_are_one_line_and_exit_2(app: typer.Typer, engine: Engine, args: list[str], said: str) -> None:
    result = call(app, "replay", "--traces", "samples", *args, code=2)
    assert said in result.stderr
    assert len(lines(result.stderr)) == 1
    assert engine.asked == {}


def test_an_interrupted_replay_says_how_to_go_on(
    app: typer.Typer, own_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*, store: Store, **_: Any) -> str:
        store.begin("replay", {}).finish("incomplete")
        raise KeyboardInterrupt

    monkeypatch.setattr(fanout, "run_replay", interrupted)
    result = call(app, "replay", "--traces", "samples", "--limit", "1", code=130)
    assert f"kvmill replay --resume {Store.open(own_store).runs('replay')[0].run_id}" in result.stderr
