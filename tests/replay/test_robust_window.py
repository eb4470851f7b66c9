"""What does not fit the window is skipped or cut by a rule that is said; nothing is silent, nothing is a failure."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from chatter import Chatter
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import save_tiny
from typer.testing import CliRunner

from kvmill import cli
from kvmill.replay.fanout import run_replay
from kvmill.replay.fitting import Fitted, Window
from kvmill.replay.policies.registry import parse_policies
from kvmill.replay.report import summary_text
from kvmill.replay.results import summary
from kvmill.traces.store import Store
from kvmill.traces.tokens import tokenize, tokenize_probe
from kvmill.traces.trajectory import Message, Probe, Trajectory, Turn

REPEAT, TE = "te(proxy=repeat,keep=0.2)", "te(proxy=boundary,keep=0.2)"


def talk(turns: int, tool: int = 60, id: str = "t") -> Trajectory:
    """A probe about every turn."""
    said = tuple(Turn(Message("assistant", f"Look {n}"), (Message("tool", "x" * tool),)) for n in range(turns))
    probes = tuple(Probe(f"p{n}", "k", "Who?", "It is", ("Ann", "Bo"), 0, n) for n in range(turns))
    return Trajectory(id, "test", "f", (Message("user", "Go"),), said, probes=probes)


def whole(run: Trajectory) -> Fitted:
    tokenizer = Chatter()
    return Fitted(run, tokenize(run, tokenizer), tuple(tokenize_probe(p, tokenizer) for p in run.probes))


def needs(found: Fitted, *policies: str, action_tokens: int = 0) -> int:
    """The smallest window that takes it."""
    chosen = parse_policies(list(policies))
    fits = (n for n in range(1, 5000) if not Window("m", n, action_tokens=action_tokens).fit(found, chosen).skipped)
    return next(fits)


def test_probes_copies_and_actions_count_against_the_window() -> None:
    run = whole(talk(3))
    bare = replace(run, trajectory=replace(run.trajectory, probes=()), probes=())
    tokens = run.tokens.tokens
    assert needs(bare) == tokens
    assert needs(run) == tokens + max(len(p.stem) + max(map(len, p.candidates)) - 1 for p in run.probes)
    # The copy of a turn and the words that ask for it are fed when the turn closes.
    turn = sum(len(s.ids) for s in run.tokens.segments if s.turn == 2 and s.kind != "prefix")
    assert needs(bare, REPEAT) >= tokens + turn
    # An action is generated before the last recorded one is fed.
    before = tokens - turn + run.tokens.segments[-2].scored[0]
    assert needs(bare, action_tokens=200) == max(tokens, before + 200)


def test_only_the_policy_that_does_not_fit_is_skipped() -> None:
    run = whole(talk(3))
    window = Window("m", needs(run, TE))
    found = window.fit(run, parse_policies([TE, REPEAT]))
    assert list(found.skipped) == [REPEAT]
    assert f"trajectory t has {run.tokens.tokens} tokens" in found.skipped[REPEAT]
    assert f"model m takes {window.positions}: --long cut drops its last turns" in found.skipped[REPEAT]
    assert (found.cut_turns, found.tokens) == (0, run.tokens)


@settings(max_examples=40)
@given(st.integers(1, 7), st.integers(1, 90), st.integers(30, 900), st.sampled_from([0, 50]), st.booleans())
def test_a_cut_keeps_as_many_whole_turns_as_fit_everybody(
    turns: int, tool: int, positions: int, actions: int, repeat: bool
) -> None:
    run, policies = whole(talk(turns, tool)), parse_policies([REPEAT] if repeat else [])
    found = Window("m", positions, "cut", actions).fit(run, policies)
    kept = turns - found.cut_turns
    bare = Window("m", positions, "skip", actions)
    if found.skipped:
        assert "not even its first turn fits" in found.skipped["full"] if "full" in found.skipped else repeat
        assert bare.fit(run.first_turns(1), policies).skipped
        return
    assert not bare.fit(found, policies).skipped
    assert kept == turns or bare.fit(run.first_turns(kept + 1), policies).skipped
    assert len(found.trajectory.turns) == kept
    assert {s.turn for s in found.tokens.segments} == set(range(kept))
    assert found.tokens.segments == tokenize(talk(kept, tool), Chatter()).segments
    assert [p.fact_turn for p in found.trajectory.probes] == list(range(kept))
    assert len(found.probes) == kept


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A window of 600 positions."""
    folder = save_tiny(tmp_path_factory.mktemp("tiny-model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 600}))
    return str(folder)


def replayed(where: Path, model: str, runs: list[Trajectory], **more: object) -> tuple[Store, str]:
    store = Store.open(where)
    arguments = {"policies": [TE], "dtype": "float32", "threads": 1, "progress": False, **more}
    return store, run_replay(store=store, trajectories=runs, model=model, **arguments)  # type: ignore[arg-type]


def test_a_long_trajectory_is_skipped_and_named_and_the_run_is_complete(tmp_path: Path, model: str) -> None:
    store, run = replayed(tmp_path, model, [talk(2), talk(12, id="long")])
    assert store.info(run).state == "complete"
    found = summary(store, run)
    assert [entry["status"] for entry in found["policies"]] == [{"ok": 1, "failed": 0, "skipped": 1}] * 2
    assert [(s["trajectories"], s["cells"]) for s in found["skipped"]] == [(1, 2)]
    assert "skipped: 2 cells: trajectory long has" in summary_text(found)
    assert found["policies"][0]["n"] == 1


def test_a_cut_says_how_many_turns_and_leaves_their_probes_out(tmp_path: Path, model: str) -> None:
    store, run = replayed(tmp_path, model, [talk(2), talk(12, id="long")], long="cut", measure="both",
                          latency_repeats=1, latency_trajectories=["long"])  # fmt: skip
    cells = store.query("select * from cells order by trajectory_id, policy").to_pylist()
    assert {cell["status"] for cell in cells} == {"ok"}
    cut = {(c["trajectory_id"], c["measure"]): c["cut_turns"] for c in cells}
    gone = cut["long", "quality"]
    assert cut == {("t", "quality"): 0, ("long", "quality"): gone, ("long", "latency"): gone}
    assert 0 < gone < 12
    quality = [c for c in cells if c["trajectory_id"] == "long" and c["measure"] == "quality"]
    assert {(c["turns"], c["probes"]) for c in quality} == {(12 - gone, 12 - gone)}
    ages = store.query("select distinct age_turns from probes where trajectory_id = 'long' order by 1")
    assert ages["age_turns"].to_pylist() == list(range(12 - gone))
    assert f"left out: long ({gone} turns)" in summary_text(summary(store, run))


def test_runs_that_were_compacted_before_are_left_out_unless_asked_for(tmp_path: Path, model: str) -> None:
    runs = [talk(2), replace(talk(2, id="compacted"), already_compacted=True)]
    store, run = replayed(tmp_path, model, runs)
    found = summary(store, run)
    assert found["policies"][1]["status"] == {"ok": 1, "failed": 0, "skipped": 1}
    assert found["skipped"][0]["reason"] == ("already compacted when it was recorded; --include-compacted replays it")
    store, run = replayed(tmp_path, model, runs, include_compacted=True)
    assert summary(store, run)["policies"][1]["status"] == {"ok": 2, "failed": 0, "skipped": 0}


@pytest.mark.parametrize(
    ("mode", "equal_size", "lacking", "why"),
    [
        ("teacher", None, "prefix", "no message before the first reply: there is nothing that it could answer"),
        ("teacher", TE, "turns", "no reply was recorded: there is nothing to replay"),
        ("closed", None, "prefix", "no message before the first reply: there is nothing that it could answer"),
    ],
)
def test_a_run_without_a_beginning_or_without_a_reply_is_skipped(
    tmp_path: Path, model: str, mode: str, equal_size: str | None, lacking: str, why: str
) -> None:
    runs = [talk(3), replace(talk(3, id="begun"), probes=(), **{lacking: ()})]
    more = {"mode": mode, "max_action_tokens": 3} if mode != "teacher" else {}
    store, run = replayed(tmp_path, model, runs, equal_size=equal_size, **more)
    found = summary(store, run)
    assert {tuple(entry["status"].values()) for entry in found["policies"]} == {(1, 0, 1)}
    assert found["skipped"][0]["reason"] == why
    assert why in summary_text(found)
    store, run = replayed(tmp_path, model, runs[1:], equal_size=equal_size, **more)
    assert {tuple(entry["status"].values()) for entry in summary(store, run)["policies"]} == {(0, 0, 1)}


def chat(turns: int) -> str:
    messages = [{"role": "user", "content": "Go"}]
    for n in range(turns):
        messages += [{"role": "assistant", "content": f"Look {n}"}, {"role": "user", "content": "x" * 60}]
    return json.dumps({"messages": messages})


def invoke(app: typer.Typer, *args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["replay", "--policy", "full", "--threads", "1", "--dtype", "float32", *args])
    return result.exit_code, result.stdout, result.stderr


def test_exit_codes_a_skipped_cell_is_no_failure_but_nothing_at_all_is(tmp_path: Path, model: str) -> None:
    app = cli.build()
    for name, lengths in {"some": (2, 12), "none": (12,)}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{chat(turns)}\n" for turns in lengths))
    code, out, _ = invoke(app, "--model", model, "--traces", str(tmp_path / "some.jsonl"), "--json")
    assert code == 0
    assert json.loads(out)["policies"][0]["status"] == {"ok": 1, "failed": 0, "skipped": 1}
    code, out, error = invoke(app, "--model", model, "--traces", str(tmp_path / "none.jsonl"), "--json")
    assert code == 3
    assert json.loads(out)["skipped"][0]["cells"] == 1
    assert "all 1 cells" in error
    assert "--long cut" in error
    code, _, _ = invoke(app, "--model", model, "--traces", str(tmp_path / "none.jsonl"), "--long", "cut")
    assert code == 0
