"""Gold actions, the no-op beside them, recorded rewards."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvmill.replay.actions.action import Action
from kvmill.replay.judges.calls import TAU_BENCH_WRITES, actions, choice, recorded_actions, reward
from kvmill.replay.judges.registry import JUDGES, judge_answer, judge_named, judge_recorded, scorer_of
from kvmill.replay.judges.verdict import Context
from kvmill.traces.files import read_file
from kvmill.traces.record import tool_call
from kvmill.traces.trajectory import Label, Message, ToolCall, Trajectory, Turn

WRITING = frozenset({"book", "cancel"})


def call(name: str, **arguments: Any) -> ToolCall:
    return tool_call("c", name, json.dumps(arguments))


def verdict(gold: list[ToolCall], done: list[ToolCall], writing: frozenset[str] | None = WRITING) -> Any:
    return actions(Label("reward", 1.0, tuple(gold)), "", Context(actions=tuple(done), writing=writing))


def test_the_same_writes_in_another_order_and_spelling_are_right() -> None:
    gold = [call("book", seat=1, who={"a": 1, "b": 2}), call("cancel", id="x")]
    done = [tool_call("d", "cancel", '{"id":"x"}'), tool_call("e", "book", '{"who":{"b":2.0,"a":1},"seat":1.0}')]
    assert verdict(gold, done).correct
    assert verdict(gold, [Action(c.name, c.arguments, c.parsed) for c in done]).correct  # type: ignore[list-item]


def test_a_write_too_many_too_few_or_twice_is_wrong() -> None:
    gold = [call("book", seat=1)]
    assert verdict(gold, []).parts == {"missing": 1, "extra": 0}
    assert verdict(gold, [*gold, *gold]).parts == {"missing": 0, "extra": 1}
    assert verdict(gold, [call("book", seat=2)]).parts == {"missing": 1, "extra": 1}
    assert verdict(gold, [call("book", seat="1")]).correct is False


def test_lists_in_arguments_keep_their_order() -> None:
    assert verdict([call("book", seats=[1, 2])], [call("book", seats=[2, 1])]).correct is False


def test_look_ups_do_not_count() -> None:
    assert verdict([call("look", id=1), call("book", seat=1)], [call("look", id=9), call("book", seat=1)]).correct


def test_without_a_list_the_gold_actions_tell_what_writes() -> None:
    assert verdict([call("book", seat=1)], [call("book", seat=1), call("cancel", id="x")], None).correct
    assert verdict([], [call("cancel", id="x")], None).correct is None


def test_doing_nothing_is_right_where_nothing_is_to_be_written() -> None:
    assert verdict([call("look", id=1)], []).correct
    assert verdict([], [call("cancel", id="x")]).correct is False


def test_a_recorded_reward_is_a_fact_and_no_verdict() -> None:
    found = reward(Label("reward", 0.5), "anything", Context())
    assert (found.correct, found.score) == (None, 0.5)
    assert reward(Label("reward", None), "", Context()).score is None


def test_choice_is_the_share_of_probes() -> None:
    assert choice(Label("choice"), "", Context(choices=(True, False, True, True))).score == 0.75
    assert choice(Label("choice"), "", Context()).score is None


def run(source: str, label: Label | None, *turns: Turn) -> Trajectory:
    return Trajectory("r", source, "f", (Message("user", "do it"),), turns, label=label)


def test_calls_that_were_refused_were_not_carried_out() -> None:
    said = Message("assistant", "", (tool_call("1", "book", "{}"), tool_call("2", "cancel", "{}")))
    turn = Turn(said, (Message("tool", "Error: no seat", tool_call_id="1"), Message("tool", "ok", tool_call_id="2")))
    assert [c.name for c in recorded_actions(run("x", None, turn))] == ["cancel"]


def test_each_judgement_has_the_one_of_doing_nothing_beside_it() -> None:
    label = Label("reward", 0.0, (call("cancel_reservation", id="x"),))
    found = judge_answer(run("tau-bench", label), "Done.", label.gold_actions)
    assert (found.scorer, found.verdict.correct, found.no_op.correct) == ("actions", True, False)
    idle = judge_answer(run("tau-bench", replace(label, gold_actions=())), "Done.", label.gold_actions)
    assert (idle.verdict.correct, idle.no_op.correct) == (False, True)


def test_a_reward_without_gold_actions_stays_a_reward_where_writing_tools_are_unknown() -> None:
    assert scorer_of(run("harbor", Label("reward", 1.0))) == "reward"
    assert scorer_of(run("harbor", None)) is None


def test_thinking_is_no_part_of_an_answer() -> None:
    found = judge_answer(run("x", Label("contains", "Oslo")), "<think>Oslo?</think>Paris")
    assert found.verdict.correct is False


def test_unknown_scorers_and_runs_without_a_label_say_so() -> None:
    with pytest.raises(Exception, match=r"unknown scorer 'exakt'.*Did you mean 'exact'.*contains"):
        judge_named("exakt")
    with pytest.raises(Exception, match="off: name an endpoint"):
        judge_named("llm")
    with pytest.raises(Exception, match="has no label"):
        judge_answer(run("x", None), "")
    assert {"exact", "contains", "flag", "choice", "item_f1", "actions", "reward"} == set(JUDGES)


@pytest.mark.parametrize("trial", [0, 1])
def test_the_judge_of_actions_agrees_with_almost_every_recorded_reward(shared_data: Path, trial: int) -> None:
    _, items, _ = read_file(shared_data / f"traces/tau-bench/gpt-4o-airline.trial{trial}.json")
    runs = [item.value for item in items if isinstance(item.value, Trajectory)]
    found = [(judge_recorded(each), each.label) for each in runs]
    agreed = Counter(judged.verdict.correct == (label.value == 1.0) for judged, label in found if label)
    assert agreed[True] >= 0.94 * len(runs)
    # Inaction is right in 20 of the 50 tasks: no figure on this set says anything without it.
    assert sum(judged.no_op.correct is True for judged, _ in found) == 20
    gold = {action.name for each in runs if each.label for action in each.label.gold_actions}
    assert gold & TAU_BENCH_WRITES
    assert {name for name in gold if name.startswith(("get_", "search_"))}.isdisjoint(TAU_BENCH_WRITES)


def test_the_flags_of_real_challenges_are_found_with_and_without_their_wrapper(shared_data: Path) -> None:
    wrapped = {}
    for name in ("ctf__forensics__flash", "ctf__misc__networking_1"):
        _, items, _ = read_file(shared_data / f"traces/swe-agent/{name}.traj")
        found = [judge_recorded(item.value) for item in items if isinstance(item.value, Trajectory)]
        assert [(f.scorer, f.verdict.correct, f.no_op.correct) for f in found] == [("flag", True, False)]
        wrapped[name] = found[0].verdict.parts["wrapped"]
    assert wrapped == {"ctf__forensics__flash": 1.0, "ctf__misc__networking_1": 0.0}
