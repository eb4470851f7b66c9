"""Which policies a plan speaks of when none is named."""

from __future__ import annotations

from pathlib import Path

import fabricate
import pytest

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
