"""Closed-loop runs on real caches: seed turns as replay feeds them, replies side by side, scripted words, failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from acting import GRAMMARS, call, recorded, sample, turn
from chatter import CHATML, Chatter
from sessions import chatting, chatty, same_rows
from stepping import walk

from kvmill.replay.closed.agent import Speech
from kvmill.replay.closed.beginning import begin
from kvmill.replay.closed.run import Closed, Loop
from kvmill.replay.decoding import Asked, Draft
from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.model import LoadedModel
from kvmill.replay.policies.registry import parse_policies
from kvmill.replay.policies.te_state import TokenEvictionState
from kvmill.replay.profiles import profiles
from kvmill.replay.results import summary
from kvmill.replay.rows import Rows, Who
from kvmill.replay.session import Session
from kvmill.traces.store import Store
from kvmill.traces.tokens import tokenize, tokenize_probe
from kvmill.traces.trajectory import Label, Message, Probe, Trajectory, Turn

TE = "te(proxy=assistant,delay=1,keep=0.2)"
LOOKING = "attention(keep=0.3,trigger=tokens:30)"  # evicts while a reply grows
SOME = [TE, LOOKING, "truncate(keep=0.3)", "sink_window(keep=0.3)"]
PROBE = Probe("p", "one-hop", "Where does Sophie live?", "Sophie lives in", ("Lima", "Seoul"), 1, 1)
BROKEN = "<tool_call>{"


def loop(model: LoadedModel, trajectory: Trajectory, policies: Sequence[str], most: int = 40, **options: Any) -> Rows:
    """The rows of a run."""
    settings = Closed(options.pop("seeds", 2), options.pop("max_turns", None))
    speech = Speech(most, options.pop("temperature", 0.0), options.pop("seed", 0))
    run = Loop(Forward(model), [trajectory], GRAMMARS, settings, speech)
    identity = Who.of(model, speech.seed, "closed", {trajectory.source: run.spelled}).identity(trajectory)
    return run.rows(identity, trajectory, parse_policies(list(policies)))


def scripted(monkeypatch: pytest.MonkeyPatch, said: Mapping[str, Sequence[str]]) -> None:
    """Each policy's model says its lines, whatever was generated; the caches hold the lines."""
    places = dict.fromkeys(said, 0)
    answer = Session.answer

    def taking(self: Session, asked: Asked, draft: Draft) -> str:
        policy = str(self.run.branches[0].policy)
        line = said[policy][places[policy]]
        places[policy] += 1
        ids, most = Chatter().encode(line, False), asked.rules.most
        return answer(self, asked, Draft(tuple(ids[:most]), 0, "end" if len(ids) <= most else asked.rules.limit))

    monkeypatch.setattr(Session, "answer", taking)


@pytest.mark.parametrize("seeds", [0, 1, 3])
def test_seed_turns_are_fed_as_replay_feeds_them(seeds: int) -> None:
    model, whole = chatty(), recorded()
    greeted = (*whole.prefix, Message("assistant", "Hello!"), Message("user", "Go on."))
    for run in (sample(), replace(whole, prefix=greeted)):
        policies = parse_policies(SOME)
        cut = replace(run, turns=run.turns[:seeds])
        for session, policy in zip(begin(Forward(model), run, policies, seeds, 0, 4096), policies, strict=True):
            assert isinstance(session, Session)
            assert list(session.messages) == cut.messages()
            assert len(session.held) == seeds
            text = tokenize(cut, model.tokenizer)
            assert session.run.trajectory.segments == text.segments
            step = Lockstep(Forward(model), text, [policy], 0, room=4096)
            same_rows(session, walk(step) if seeds else walk_prefix(step), within=1e-4)


def walk_prefix(step: Lockstep) -> Lockstep:
    """Feed the prefix; no turn closes."""
    for chunk in step.chunks(step.trajectory.segments[0]):
        step.feed(chunk)
        step.look(chunk)
    return step


@pytest.mark.parametrize(("name", "temperature"), [("tiny", 0.0), ("tiny", 1.2), ("gemma3", 1.2), ("qwen3_5", 1.2)])
def test_policies_side_by_side_do_what_they_do_alone(name: str, temperature: float) -> None:
    model = chatting(name)
    run = replace(sample(), probes=(PROBE,))
    together = loop(model, run, ["full", *SOME], most=12, temperature=temperature, max_turns=5)
    assert [cell["status"] for cell in together["cells"]] == ["ok"] * 5
    ids = [cell["cell_id"] for cell in together["cells"]]
    for policy, cell_id in zip(["full", *SOME], ids, strict=True):
        alone = loop(model, run, [policy], most=12, temperature=temperature, max_turns=5)
        of_it = {table: [row for row in rows if row["cell_id"] == cell_id] for table, rows in together.items()}
        again = {table: [row for row in rows if row["cell_id"] == cell_id] for table, rows in alone.items()}
        for table in ("turn_metrics", "cells"):
            for one, other in zip(of_it[table], again[table], strict=True):
                exact = {k: v for k, v in one.items() if k not in ("answer_ll", "answer_margin")}
                assert exact == {k: other[k] for k in exact}
        assert of_it["probes"][0]["answer_ll"] == pytest.approx(again["probes"][0]["answer_ll"], abs=1e-3)


def test_equal_seeds_draw_equal_replies_and_others_draw_others() -> None:
    model = chatty()
    runs = [loop(model, sample(), ["full"], most=20, temperature=1.0, seed=seed, max_turns=4) for seed in (1, 1, 2)]
    said = [[row.get("said") for row in rows["turn_metrics"]] for rows in runs]
    assert said[0] == said[1] != said[2]
    assert said[0][:2] == [None, None]
    assert len(set(said[0][2:])) == 2


def test_a_scripted_run_is_counted_as_it_went(monkeypatch: pytest.MonkeyPatch) -> None:
    found = "I found it. Sophie lives in Seoul."
    asks = ["Search: home of Sophie", "Search: home of sophie", "Search: the home of Sophie", "cat x", "Search: zzz"]
    scripted(monkeypatch, {"full": ["Search: keeper of Maple station", found], TE: [*asks, "Lima."]})
    run = replace(sample(), probes=(PROBE,))
    rows = loop(chatty(), run, ["full", TE], max_turns=9)
    full, te = rows["cells"]
    assert (full["end_reason"], full["turns"], full["seed_turns"], full["recorded_turns"]) == ("answered", 4, 2, 3)
    assert (full["answer"], full["answer_scorer"], full["answer_correct"], full["answer_score"]) == (
        (found, "contains", True, 1.0)
    )
    assert (full["calls"], full["calls_exact"], full["searches"], full["near_repeats"]) == (1, 1, 1, 0)
    assert (te["end_reason"], te["turns"], te["answer_correct"], te["answer_score"]) == ("answered", 8, False, 0.0)
    assert (te["calls"], te["calls_exact"], te["calls_searched"], te["calls_error"]) == (5, 1, 3, 1)
    assert (te["searches"], te["repeated_searches"], te["near_repeats"], te["repeated_calls"]) == (4, 2, 2, 1)
    assert te["generated_tokens"] == sum(map(len, [*asks, "Lima."]))
    turns = [row for row in rows["turn_metrics"] if row["policy"] == TE]
    assert [row["turn"] for row in turns] == list(range(8))
    assert [row.get("reply") for row in turns] == [None, None, *["calls"] * 5, "answer"]
    assert [row.get("said") for row in turns][2:] == [*asks, "Lima."]
    assert te["kv_tokens_peak"] == max(row["kv_tokens_peak"] for row in turns)
    assert te["kv_tokens_final"] == turns[-1]["kv_tokens"] < te["logical_tokens"]
    assert (full["probes"], te["probes"], len(rows["probes"])) == (1, 1, 2)
    assert all("age_turns" not in row for row in rows["probes"])


def test_scripted_runs_reach_the_profile_exactly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ten trajectories, 4 turns each under full and 6 under te, which searches for the same twice more."""
    again, found = "Search: keeper of Maple station", "Sophie lives in Seoul."
    scripted(monkeypatch, {"full": [again, found] * 10, TE: [again, again, again, found] * 10})
    store = Store.open(tmp_path)
    run = store.begin("replay", {"model": "tiny", "policies": ["full", TE], "mode": "closed"})
    for number in range(10):
        run.add(loop(chatty(), sample(f"s-{number}"), ["full", TE]), key=str(number))
    run.finish()
    te = summary(store)["policies"][1]
    assert (te["turns_mean"], te["extra_turns"], te["extra_turns_low"], te["extra_turns_high"]) == (6, 0.5, 0.5, 0.5)
    assert (te["searches"], te["repeated_searches"], te["near_repeats"]) == (3, 2 / 3, 2 / 3)
    assert (te["closed_accuracy"], te["end_reasons"], te["tool_errors"]) == (1, {"answered": 10}, 0)
    profile = profiles(store)[TE]
    assert profile.extra_turns == 0.5
    assert profile.extra_turns_source == (
        f"closed-loop run {run.id} with tiny: +50% turns, 95 % interval +50% to +50%, 10 of 10 pairs with full tell"
    )


def test_every_turn_of_every_trajectory_has_its_own_draw_and_all_policies_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: dict[tuple[object, ...], list[int]] = {}
    ask, runs = Session.ask, [("s", 0), ("t", 0), ("s", 1)]

    def noting(self: Session, **more: Any) -> Asked:
        drawn.setdefault((run, sum(message.role == "assistant" for message in self.messages)), []).append(more["seed"])
        return ask(self, **more)

    monkeypatch.setattr(Session, "ask", noting)
    for run in runs:
        loop(chatty(), sample(run[0]), ["full", TE], most=3, temperature=1.0, max_turns=5, seed=run[1])
    assert [*drawn] == [(run, turn) for run in runs for turn in (2, 3, 4)]
    assert {len(set(each)) for each in drawn.values()} == {1}
    assert max(map(len, drawn.values())) == 2
    assert len({each[0] for each in drawn.values()}) == 9


def booking(*calls: str, results: Sequence[str] = ("done",) * 9) -> Trajectory:
    """One recorded write per turn; the gold actions are the first two."""
    turns = [turn("book", {"seat": seat}, result) for seat, result in zip(calls, results, strict=False)]
    gold = tuple(turns[number].assistant.tool_calls[0] for number in range(2))
    return replace(recorded(turns=[*turns, Turn(Message("assistant", "Done."))]), label=Label("actions", None, gold))


@pytest.mark.parametrize(
    ("seeds", "said", "results", "correct", "idle"),
    [
        (1, ["Done."], ("ok", "ok", "ok"), False, False),
        (1, ["B", "Done."], ("ok", "ok", "ok"), True, False),
        (1, ["A", "B", "Done."], ("ok", "ok", "ok"), False, False),
        (1, ["B", "C", "Done."], ("ok", "ok", "Error: no"), True, False),
        (1, ["B", "D", "Done."], ("ok", "ok", "ok"), False, False),
        (2, ["Done."], ("ok", "ok", "ok"), True, True),
        (2, ["Done."], ("Error: no", "ok", "ok"), False, False),
    ],
)
def test_calls_are_judged_with_those_recorded_before_beside_who_does_nothing_more(
    monkeypatch: pytest.MonkeyPatch, seeds: int, said: list[str], results: Sequence[str], correct: bool, idle: bool
) -> None:
    """D was never recorded: whoever calls it tried to write something else. A refused call wrote nothing."""
    scripted(monkeypatch, {"full": [call("book", seat=each) if len(each) == 1 else each for each in said]})
    run = booking("A", "B", "C", results=results)
    (cell,) = loop(chatty(), run, ["full"], most=90, seeds=seeds)["cells"]
    assert (cell["end_reason"], cell["answer_correct"], cell["no_op_accuracy"]) == ("answered", correct, float(idle))


def test_a_thought_that_the_template_began_is_no_part_of_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    thinking = CHATML.replace("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>\n'").replace(
        "m['content'] +", "('<think>\n' if m['role'] == 'assistant' else '') + m['content'] +"
    )
    scripted(monkeypatch, {"full": [call("add", a=1, b=2) + "</think>Seoul."]})
    (cell,) = loop(chatty(thinking), recorded(), ["full"], most=120)["cells"]
    assert (cell["end_reason"], cell["answer"], cell["calls"]) == ("answered", "Seoul.", 0)


@pytest.mark.parametrize("scorer", ["llm", "none", "zzz", "reward"])
def test_a_label_that_cannot_be_judged_here_gives_no_score(monkeypatch: pytest.MonkeyPatch, scorer: str) -> None:
    scripted(monkeypatch, {"full": ["Seoul."]})
    (cell,) = loop(chatty(), replace(recorded(), label=Label(scorer, 1.0)), ["full"])["cells"]
    assert (cell["status"], cell.get("answer_score"), cell.get("answer_correct")) == ("ok", None, None)
    assert ("answer_verdict" in cell) == (scorer in ("zzz", "reward"))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_recorded_turns_leave_the_last_one_to_the_model(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    scripted(monkeypatch, {"full": ["Seoul."], TE: ["Lima."]})
    run = replace(recorded(), turns=tuple(Turn(Message("assistant", "Hello.")) for _ in range(count)))
    for cell in loop(chatty(), run, ["full", TE], seeds=9)["cells"]:
        assert (cell["status"], cell["end_reason"], cell["seed_turns"]) == ("ok", "answered", max(0, count - 1))
        assert (cell["turns"], cell["searches"], cell["near_repeats"]) == (cell["seed_turns"] + 1, 0, 0)


def test_what_the_model_did_is_judged_with_what_was_recorded_before(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, {"full": [BROKEN] * 3})
    (cell,) = loop(chatty(), recorded(), ["full"])["cells"]
    assert (cell["end_reason"], cell["answer"], cell["answer_correct"]) == ("no_action", None, False)
    assert cell["no_op_accuracy"] == 0.0


def test_a_policy_that_fails_is_a_row_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such head")

    monkeypatch.setattr(TokenEvictionState, "choose", broken)
    rows = loop(chatty(), sample(), ["full", TE, "truncate(keep=0.3)"], most=6, max_turns=4)
    assert [cell["status"] for cell in rows["cells"]] == ["ok", "failed", "ok"]
    assert "RuntimeError: no such head" in rows["cells"][1]["error"]
    assert {row["policy"] for row in rows["turn_metrics"]} == {"full", "truncate(keep=0.3)"}


def test_what_exceeds_the_window_is_skipped_or_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    model = chatty()
    scripted(monkeypatch, {"full": ["Search: home of Sophie"] * 99})
    short = replace(model, max_positions=1200)
    run = replace(sample(), probes=(PROBE,))
    (cell,) = loop(short, run, ["full"], max_turns=50)["cells"]
    assert (cell["status"], cell["end_reason"], cell["answer"]) == ("ok", "window", None)
    asked = tokenize_probe(PROBE, model.tokenizer)
    longest = len(asked.stem) + max(map(len, asked.candidates))
    assert 1000 < cell["logical_tokens"] <= 1200 - longest, "room for the probes was kept"
    assert cell["probes"] == 1
    (cell,) = loop(replace(model, max_positions=150), run, ["full"])["cells"]
    assert cell["status"] == "skipped"
    assert cell["error"].startswith("the first 2 turns of trajectory s, beside its probes: 255 tokens, and model")


def test_identities_differ_by_settings_and_trace_set() -> None:
    model = Forward(chatty())
    speech = Speech(9, 0.0, 0)
    spelled = {
        Loop(model, runs, GRAMMARS, settings, speech).spelled
        for runs in ([sample()], [sample(), recorded()])
        for settings in (Closed(2, None), Closed(1, None), Closed(2, 9))
    }
    assert len(spelled) == 6
