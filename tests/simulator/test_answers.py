"""Which policies a plan speaks of when none is named, and what Python may give beside what the command line can."""

from __future__ import annotations

from pathlib import Path

import fabricate
import pytest

from kvmill.errors import UserError
from kvmill.replay.policies.registry import HEADLINE_POLICY
from kvmill.simulator import answers
from kvmill.traces.store import Store


def test_without_a_replay_the_headline_policy_is_planned(tmp_path: Path):
    assert answers.default_policies(Store.open(tmp_path), None) == ("full", HEADLINE_POLICY)


def test_what_the_replay_recommends_is_planned_and_an_undecided_one_recommends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = Store.open(tmp_path)
    run = fabricate.replay(store)
    assert answers.default_policies(store, None) == ("full", HEADLINE_POLICY), "ten trajectories decide nothing"
    asked = []
    monkeypatch.setattr(
        "kvmill.replay.recommend.recommend", lambda _, name: asked.append(name) or {"policy": "te(keep=0.4)"}
    )
    assert answers.default_policies(store, None) == ("full", "te(keep=0.4)")
    assert answers.default_policies(store, run) == ("full", "te(keep=0.4)")
    assert asked == [run, run]
    assert answers.headline_of(["full", "te(keep=0.4)"]) == "te(keep=0.4)", "and the sentence speaks of it"


NAMED = {"workload": "long-agents", "model": "llama-3.1-8b", "gpu": "h100", "slo": "ttft_p95=20"}


@pytest.mark.parametrize(
    ("verb", "options", "said"),
    [
        (answers.simulate, {"gpus": 1, "replications": 0}, "--replications 0: 1 at least"),
        (answers.simulate, {"gpus": 1, "turns": 0}, "--turns 0: 1 at least"),
        (answers.simulate, {"gpus": 1, "agents": 2.5}, "--agents 2.5: a whole number"),
        (answers.simulate, {"gpus": 1, "tp": "2"}, "multiple of the tensor-parallel size 2"),
        (answers.plan_named, {"replications": 1}, "--replications 1: 2 at least"),
        (answers.plan_named, {"turns": 0}, "--turns 0: 1 at least"),
        (answers.plan_named, {"policies": "tea"}, "unknown policy 'tea'"),
        (answers.plan_named, {"sweep": "keeps=0.1"}, "unknown axis 'keeps'"),
    ],
)
def test_what_only_python_can_ask_is_refused_in_the_same_words(tmp_path: Path, verb, options, said):
    with pytest.raises(UserError, match=said):
        verb(**NAMED, store=tmp_path, **options)
