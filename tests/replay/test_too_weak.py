"""Accuracy of a family is shown only where full answers most of it; rows keep everything, the answer says why."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from kvmill.replay.profiles import profiles
from kvmill.replay.report import summary_text
from kvmill.replay.results import summary
from kvmill.traces.store import Store

TE = "te(proxy=assistant,delay=1,keep=0.2)"
RIGHT = {"strong": (7, 4), "weak": (4, 3)}  # of 8, under full and under te


def cell(family: str, n: int, policy: str, right: int, scorer: str | None) -> dict[str, Any]:
    return {
        "cell_id": f"{family}-{n}-{policy}",
        "trajectory_id": f"{family}-{n}",
        "family": family,
        "policy": policy,
        "measure": "quality",
        "status": "ok",
        "label_scorer": scorer,
        "scored_tokens": 10,
        "delta_nll": 0.5,
        "top1_agreement": 0.75,
        "probes": 8,
        "answer_accuracy": right / 8,
        "answer_ll": -2.0,
        "kv_tokens_peak": 100.0,
    }


def probes(family: str, n: int, policy: str, right: int) -> list[dict[str, Any]]:
    key = {"cell_id": f"{family}-{n}-{policy}", "trajectory_id": f"{family}-{n}", "family": family, "policy": policy}
    each = {"kind": "one-hop", "age_turns": 3, "answer_ll": -2.0, "answer_margin": 0.1}
    return [{**key, **each, "probe_id": str(i), "correct": i < right} for i in range(8)]


def stored(
    where: Path, count: int, scorer: str | None = "choice", families: tuple[str, ...] = ("strong", "weak")
) -> Store:
    store = Store.open(where)
    run = store.begin("replay", {"model": "m", "policies": ["full", TE]}, device="cpu")
    rows: dict[str, list[dict[str, Any]]] = {"cells": [], "probes": []}
    for family, n, i in itertools.product(families, range(count), range(2)):
        policy, right = ("full", TE)[i], RIGHT[family][i]
        rows["cells"].append(cell(family, n, policy, right, scorer))
        rows["probes"] += probes(family, n, policy, right)
    run.add(rows, key="all")
    run.finish()
    return store


def test_a_weak_family_shows_no_accuracy_and_counts_in_no_mean(tmp_path: Path) -> None:
    store = stored(tmp_path, 10)
    found = summary(store, by="family")
    strong, strong_te, weak, weak_te = found["groups"]
    assert (strong["answer_accuracy"], strong_te["answer_accuracy"]) == (7 / 8, 4 / 8)
    for entry in (weak, weak_te):
        assert [entry[f"answer_accuracy{end}"] for end in ("", "_low", "_high")] == [None] * 3
        assert (entry["answer_ll"], entry["top1_agreement"], entry["n"], entry["n_probes"]) == (-2.0, 0.75, 10, 80)
    assert [weak_te[name] for name in ("full_accuracy", "difference", "difference_p")] == [None] * 3
    full, te = found["policies"]
    assert (full["answer_accuracy"], te["answer_accuracy"]) == (7 / 8, 4 / 8)
    assert (te["full_accuracy"], te["difference"], te["difference_n"]) == (7 / 8, -3 / 8, 10)
    assert (te["n"], te["answer_ll"]) == (20, -2.0)
    assert profiles(store)[TE].answer_accuracy == 4 / 8
    kept = store.query("select avg(answer_accuracy) a from cells where family = 'weak' and policy = 'full'").to_pylist()
    assert kept == [{"a": 0.5}], "the rows keep it"


def test_the_answer_says_why(tmp_path: Path) -> None:
    found = summary(stored(tmp_path, 10))
    reason = "accuracy on weak is not shown: full answers 50% of its probes (10 trajectories), less than 60%"
    (said,) = found["accuracy_not_shown"]
    assert (said["family"], said["n"]) == ("weak", 10)
    assert said["reason"].startswith(reason)
    assert reason in summary_text(found)


@pytest.mark.parametrize("by", ["age", "kind"])
def test_probes_of_a_weak_family_count_in_no_group(tmp_path: Path, by: str) -> None:
    full, te = summary(stored(tmp_path, 10), by=by)["groups"]
    assert (full["answer_accuracy"], te["answer_accuracy"]) == (7 / 8, 4 / 8)
    assert te["answer_ll"] == -2.0


@pytest.mark.parametrize(("right", "shown"), [(48, True), (47, False)])
def test_a_family_that_reaches_sixty_percent_is_shown(tmp_path: Path, right: int, shown: bool) -> None:
    store = Store.open(tmp_path)
    run = store.begin("replay", {"model": "m", "policies": ["full"]}, device="cpu")
    each = [right // 10 + (n < right % 10) for n in range(10)]
    run.add({"cells": [cell("f", n, "full", count, "choice") for n, count in enumerate(each)]}, key="all")
    run.finish()
    found = summary(store)
    assert found["policies"][0]["answer_accuracy"] == (right / 80 if shown else None)
    assert (found["accuracy_not_shown"] == []) is shown


def test_alone_it_leaves_no_accuracy_and_nothing_to_compare(tmp_path: Path) -> None:
    found = summary(stored(tmp_path, 10, families=("weak",)))
    assert [entry["answer_accuracy"] for entry in found["policies"]] == [None, None]
    assert found["policies"][1]["difference"] is None
    assert "–" in summary_text(found)


def test_nine_trajectories_are_too_few_to_call_a_family_weak(tmp_path: Path) -> None:
    found = summary(stored(tmp_path, 9))
    assert found["accuracy_not_shown"] == []
    assert found["policies"][0]["answer_accuracy"] == pytest.approx(11 / 16)


@pytest.mark.parametrize("scorer", [None, "recall", "actions"])
def test_only_choices_are_held_to_it(tmp_path: Path, scorer: str | None) -> None:
    assert summary(stored(tmp_path, 10, scorer))["accuracy_not_shown"] == []
