"""In stepwise replay the answer is judged where the record ends with one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from acting import recorded, turn
from sessions import chatty
from tiny import save_tiny

from kvmill.replay.behaviour import Columns
from kvmill.replay.engine import BranchRun, replay
from kvmill.replay.fanout import run_replay
from kvmill.replay.forward import Forward
from kvmill.replay.last_answer import answer_columns
from kvmill.replay.policies.registry import parse_policies
from kvmill.replay.report import summary_text
from kvmill.replay.results import summary
from kvmill.replay.stepwise import Asking
from kvmill.traces.store import Store
from kvmill.traces.tokens import tokenize
from kvmill.traces.trajectory import Label, Trajectory

TE = "te(proxy=assistant,delay=1,keep=0.2)"


def judged(trajectory: Trajectory, said: str, most: int = 100) -> list[Columns]:
    """The columns of `full` and of a policy that says `said` at the last turn."""
    model = chatty()
    text = tokenize(trajectory, model.tokenizer)
    runs: list[BranchRun] = replay(Forward(model), text, parse_policies([TE]), [], 0, Asking.of(model, 2, 0.0))
    ids = tuple(model.tokenizer.encode(said, False))
    runs[1].turns[-1] = replace(runs[1].turns[-1], said=ids)
    return answer_columns(trajectory, text, runs, Asking.of(model, most, 0.0), "hermes")


def test_an_answer_is_judged_by_the_label() -> None:
    full, te = judged(recorded(), "It is Seoul.")
    assert (te["answer"], te["answer_scorer"], te["answer_correct"], te["answer_score"]) == (
        ("It is Seoul.", "contains", True, 1.0)
    )
    assert (full["answer_correct"], full["answer_score"]) == (False, 0.0)


@pytest.mark.parametrize(
    ("said", "most"),
    [('<tool_call>\n{"name": "search", "arguments": {"query": "Seoul"}}\n</tool_call>', 100), ("Seoul", 5)],
)
def test_another_call_and_half_an_answer_are_no_answer(said: str, most: int) -> None:
    te = judged(recorded(), said, most)[1]
    assert (te["answer"], te["answer_correct"], te["answer_score"]) == (None, False, 0.0)


@pytest.mark.parametrize(
    "trajectory",
    [
        recorded(turns=recorded().turns[:3]),
        replace(recorded(), label=Label("choice")),
        replace(recorded(), label=Label("actions")),
        replace(recorded(), label=None),
    ],
)
def test_nothing_is_judged_without_a_recorded_answer_or_a_label_of_words(trajectory: Trajectory) -> None:
    assert judged(trajectory, "Seoul") == [{}, {}]


def test_a_run_shows_it_beside_the_actions(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    trajectories = [recorded("a"), recorded("b"), recorded("c", [turn("add", {"a": n, "b": 1}, "2") for n in range(2)])]
    arguments: dict[str, Any] = {"dtype": "float32", "threads": 1, "progress": False, "max_action_tokens": 3}
    model = str(save_tiny(tmp_path / "model"))
    run = run_replay(
        store=store,
        trajectories=trajectories,
        model=model,
        policies=[TE],
        mode="stepwise",
        actions="hermes",
        **arguments,
    )
    found = summary(store, run)
    assert [(e["last_answer_accuracy"], e["last_answer_n"]) for e in found["policies"]] == [(0.0, 2)] * 2
    assert f"right in place of the recorded answer (2 trajectories): full 0%, {TE} 0%" in summary_text(found)
    teacher = run_replay(
        store=store, trajectories=trajectories, model=model, policies=[TE], **arguments | {"max_action_tokens": None}
    )
    assert {entry["last_answer_n"] for entry in summary(store, teacher)["policies"]} == {None}
