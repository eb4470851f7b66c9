"""What the accuracy of a run is called: answers, recall of facts, both; and the agent that does nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvmill.replay.profiles import profiles
from kvmill.replay.recommend import recommend
from kvmill.replay.report import recommendation_text, summary_text
from kvmill.replay.results import summary
from kvmill.replay.scored import ANSWERS, RECALL
from kvmill.simulator.models import find_geometry
from kvmill.simulator.report import quality
from kvmill.traces.store import Store

from .runs import CONFIG, FULL, RIGHT, TE, rows_of


def run_of(where: Path, kinds: dict[str, str | None], **columns: Any) -> Store:
    """The run of `runs.py`, its trajectories scored as `kinds` says."""
    store = Store.open(where)
    run = store.begin("replay", CONFIG, device="cpu")
    for trajectory in RIGHT:
        rows = rows_of(trajectory)
        for cell in rows["cells"]:
            cell |= {"label_scorer": kinds.get(trajectory), **columns}
        run.add(rows, key=trajectory)
    run.finish()
    return store


def test_made_probes_are_called_recall_and_never_answer_accuracy(tmp_path: Path) -> None:
    store = run_of(tmp_path, dict.fromkeys(RIGHT, "recall"))
    found = summary(store)
    assert found["label_scorers"] == ["recall"]
    for text in (summary_text(found), summary_text(summary(store, by="kind"))):
        assert "4 recall probes (made)" in text or "12 recall probes (made)" in text
        assert "recall of facts (95 %)" in text
        assert "not whether the task would be solved" in text
        assert "answer accuracy" not in text


def test_recorded_probes_are_answers(tmp_path: Path) -> None:
    text = summary_text(found := summary(run_of(tmp_path, dict.fromkeys(RIGHT, "choice"))))
    assert found["label_scorers"] == ["choice"]
    assert "answer accuracy (95 %)" in text
    assert "recall" not in text


def test_a_run_of_both_says_so(tmp_path: Path) -> None:
    found = summary(run_of(tmp_path, {"a/1": "recall", "a/2": "choice", "b/1": None}))
    text = summary_text(found)
    assert found["label_scorers"] == ["choice", "recall"]
    assert "recall probes (made) among them" in text
    assert "on them it is recall of facts" in text


@pytest.mark.parametrize(("kind", "name"), [("recall", RECALL), ("choice", ANSWERS)])
def test_a_plan_calls_quality_what_it_is(tmp_path: Path, kind: str, name: str) -> None:
    profile = profiles(run_of(tmp_path, dict.fromkeys(RIGHT, kind)))["full"]
    assert quality(profile, find_geometry("qwen3.5-27b"))["quality_of"] == name


def test_the_agent_that_does_nothing_is_reported_beside_every_policy(tmp_path: Path) -> None:
    found = summary(run_of(tmp_path, {}, no_op_accuracy=0.4))
    assert [entry["no_op_accuracy"] for entry in found["policies"]] == [pytest.approx(0.4)] * 2
    assert "an agent that does nothing is right on 40.0% of the same trajectories" in summary_text(found)
    silent = summary(run_of(tmp_path / "other", {}))
    assert silent["policies"][0]["no_op_accuracy"] is None
    assert "does nothing" not in summary_text(silent)


def test_an_accuracy_is_shown_with_what_guessing_gives(tmp_path: Path) -> None:
    found = summary(run_of(tmp_path, {}, chance_accuracy=0.25))
    assert [entry["chance_accuracy"] for entry in found["policies"]] == [pytest.approx(0.25)] * 2
    assert "guessing among the candidates is right on 25.0% of these probes" in summary_text(found)
    older = summary(run_of(tmp_path / "other", {}))
    assert older["policies"][0]["chance_accuracy"] is None
    assert "guessing" not in summary_text(older)


@pytest.mark.parametrize(("kind", "claimed"), [("recall", False), ("choice", True)])
def test_a_recommendation_from_recall_claims_nothing_about_the_task(tmp_path: Path, kind: str, claimed: bool) -> None:
    store = Store.open(tmp_path)
    run = store.begin("replay", CONFIG | {"policies": [FULL, TE]}, device="cpu")
    cell = {"measure": "quality", "status": "ok", "probes": 8, "label_scorer": kind, "source": "s", "seed": 0}
    cells = [
        {**cell, "cell_id": f"{policy}{i}", "trajectory_id": f"t{i}", "family": "a", "policy": policy}
        | {"answer_accuracy": (6 + i % 3) / 8, "kv_tokens_peak": peak}
        for policy, peak in ((FULL, 900.0), (TE, 300.0))
        for i in range(60)
    ]
    run.add({"cells": cells}, key="all")
    run.finish()
    found = recommend(store)
    assert (found["policy"], found["label_scorers"]) == (TE, [kind])
    assert ("is not claimed" in recommendation_text(found)) is not claimed
