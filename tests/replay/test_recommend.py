"""The smallest policy within the limits is named, with what guarantees it; otherwise what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import kvmill
from kvmill import cli
from kvmill.console import plain
from kvmill.errors import UserError
from kvmill.replay.recommend import recommend
from kvmill.traces.store import Store

SMALL, MIDDLE, LARGE = "te(delay=1,keep=0.1)", "te(delay=1,keep=0.2)", "te(delay=1,keep=0.4)"


def stored(path: Path, scores: dict[str, Any], count: int = 40, **more: Any) -> Store:
    """A store with one replay: policy → (peak, score of trajectory i)."""
    store = Store.open(path)
    run = store.begin("replay", {"model": "smollm2-135m", "policies": list(scores)}, device="cpu")
    cells, turns = [], []
    for policy, (peak, score) in scores.items():
        for i in range(count):
            key = {
                "cell_id": f"{policy}-{i}",
                "trajectory_id": f"t-{i}",
                "family": ("a", "b")[i % 2],
                "policy": policy,
            }
            cell = {"source": "s", "seed": 0, "measure": "quality", "status": "ok", "probes": 10}
            cells.append({**key, **cell, "answer_accuracy": score(i), "kv_tokens_peak": float(peak)})
        for turn, seconds in enumerate(more.get("seconds", {}).get(policy, [])):
            turns.append({**key, "measure": "latency", "turn": turn, "ttft_s": seconds, "decode_s": 0.0})
    if "failed" in more:
        cells[-1] |= {"policy": more["failed"], "cell_id": "f", "status": "failed", "error": "too long"}
    run.add({"cells": cells, "turn_metrics": turns}, key="all")
    run.finish()
    return store


def full(i: int) -> float:
    return (6 + i % 4) / 10


def slightly_worse(i: int) -> float:
    return full(i) - (0.1 if i % 25 == 3 else 0)


def much_worse(i: int) -> float:
    return full(i) / 2


def test_the_smallest_policy_within_the_limits(tmp_path: Path) -> None:
    store = stored(
        tmp_path, {"full": (900, full), LARGE: (500, full), MIDDLE: (300, slightly_worse), SMALL: (200, much_worse)}
    )
    found = recommend(store)
    assert found["policy"] == MIDDLE
    assert found["guarantee"] == "paired-interval"
    assert found["kv_saved"] == pytest.approx(1 - 300 / 900)
    assert found["enough_trajectories"]
    assert found["latency"] is None
    assert [c["policy"] for c in found["candidates"]] == [SMALL, MIDDLE, LARGE]
    assert found["candidates"][0]["loss"] == pytest.approx(0.5)
    assert found["worst_family"]["loss"] < 0.05
    assert "could have gone unseen" in found["reason"]


def test_with_many_trajectories_the_guarantee_needs_no_distribution(tmp_path: Path) -> None:
    store = stored(tmp_path, {"full": (900, full), MIDDLE: (300, full)}, count=600)
    assert recommend(store)["guarantee"] == "learn-then-test"
    assert recommend(store, max_loss=0.001)["guarantee"] != "learn-then-test"


def test_a_family_that_collapses_is_not_hidden_by_the_others(tmp_path: Path) -> None:
    store = stored(tmp_path, {"full": (900, lambda i: 0.5), MIDDLE: (300, lambda i: 0.9 if i % 2 else 0.3)})
    found = recommend(store)
    assert found["policy"] is None
    assert f"{MIDDLE}: family a loses 40%, more than 15%" in found["reason"], "whom it is about"
    assert recommend(store)["limits"]["max_family_loss"] == 0.15, "0.05 + 0.10, as people add"
    assert recommend(store, max_family_loss=0.5)["policy"] == MIDDLE
    assert recommend(store, max_family_loss=0.5)["worst_family"]["family"] == "a"


def test_the_loss_of_a_family_lies_inside_its_interval(tmp_path: Path) -> None:
    store = stored(tmp_path, {"full": (900, full), MIDDLE: (300, lambda i: full(i) - (0.2 if i % 8 == 1 else 0))})
    worst = recommend(store, max_loss=0.3)["worst_family"]
    assert worst["family"] == "b"
    assert 0 <= worst["low"] < worst["loss"] < worst["high"]


def test_too_few_trajectories_say_how_many_more(tmp_path: Path) -> None:
    noisy = {"full": (900, full), MIDDLE: (300, lambda i: min(1.0, max(0.0, full(i) + (0.3, -0.32)[i // 2 % 2])))}
    found = recommend(stored(tmp_path / "a", noisy, count=16))
    assert found["policy"] is None
    assert not found["enough_trajectories"]
    assert found["more_trajectories"] > 16
    assert f"about {found['more_trajectories']} more would decide" in found["reason"]
    few = recommend(stored(tmp_path / "b", {"full": (900, full), MIDDLE: (300, full)}, count=6))
    assert few["policy"] is None
    assert "fewer than 10 decide nothing" in few["candidates"][0]["verdict"]
    assert few["more_trajectories"] == 10 - 6
    bad = recommend(stored(tmp_path / "bad", {"full": (900, full), SMALL: (200, much_worse)}, count=6))
    assert bad["more_trajectories"] == 10 - 6
    assert "4 more are the least" in bad["reason"], "that a policy loses half will not change with them"


@pytest.mark.parametrize(("count", "named"), [(9, None), (10, MIDDLE)])
def test_ten_trajectories_may_decide_and_nine_may_not(tmp_path: Path, count: int, named: str | None) -> None:
    store = stored(tmp_path, {"full": (900, full), MIDDLE: (300, full)}, count=count)
    assert recommend(store, max_loss=0.1)["policy"] == named


def test_policies_tested_together_need_more_than_one_alone(tmp_path: Path) -> None:
    """p is 0.036 for either: enough at 95 % for one, not for two (Holm)."""

    def near(i: int) -> float:
        return full(i) - (0.1 if i % 2 == 0 else 0)

    alone = stored(tmp_path / "one", {"full": (900, full), MIDDLE: (300, near)}, count=20)
    assert recommend(alone, max_loss=0.1)["policy"] == MIDDLE
    both = stored(tmp_path / "two", {"full": (900, full), MIDDLE: (300, near), SMALL: (200, near)}, count=20)
    assert recommend(both, max_loss=0.1)["policy"] is None


def test_a_policy_that_is_too_slow_or_failed_is_not_named(tmp_path: Path) -> None:
    both = {"full": (900, full), MIDDLE: (300, full)}
    slow = stored(tmp_path / "a", both, seconds={"full": [9.0, 1.0], MIDDLE: [9.0, 1.2]})
    assert recommend(slow)["policy"] is None
    assert "the median turn takes +20%, more than +10%" in recommend(slow)["reason"]
    assert recommend(slow, max_latency=0.25)["latency"] == pytest.approx(0.2)
    failed = recommend(stored(tmp_path / "b", both, failed=MIDDLE))
    assert "1 cells failed" in failed["reason"]


def test_agreement_is_never_taken_for_accuracy(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    run = store.begin("replay", {"model": "m", "policies": ["full", MIDDLE]}, device="cpu")
    rows = [
        {
            "cell_id": f"{p}{i}",
            "trajectory_id": f"t{i}",
            "family": "a",
            "policy": p,
            "measure": "quality",
            "status": "ok",
        }
        | {"top1_agreement": 1.0, "probes": 0, "kv_tokens_peak": 9.0}
        for p in ("full", MIDDLE)
        for i in range(20)
    ]
    run.add({"cells": rows}, key="all")
    run.finish()
    found = recommend(store)
    assert found["policy"] is None
    assert "agreement with the uncompacted run is not accuracy" in found["reason"]


@pytest.mark.parametrize("limits", [{"max_loss": 0}, {"max_loss": 1.0}, {"max_latency": -0.1}, {"confidence": 1.0}])
def test_limits_that_are_none_are_usage_errors(limits: dict[str, float], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--"):
        recommend(Store.open(tmp_path), **limits)


def test_the_command_prints_the_object_and_exits_with_4_where_nothing_is_decided(own_store: Path) -> None:
    stored(own_store, {"full": (900, full), MIDDLE: (300, full), SMALL: (200, much_worse)})
    app = cli.build()
    good = CliRunner().invoke(app, ["recommend", "--json"])
    assert good.exit_code == 0, good.output
    found = json.loads(good.stdout)
    assert found["policy"] == MIDDLE
    assert {"reason", "guarantee", "kv_saved", "enough_trajectories", "worst_family"} <= set(found)
    assert {"family", "loss", "low", "high"} <= set(found["worst_family"])
    assert found == json.loads(json.dumps(plain(kvmill.recommend(store=own_store))))
    said = CliRunner().invoke(app, ["recommend"]).stdout
    assert "guarantee: paired-interval" in said
    assert "nothing is claimed about it" in said
    stored(own_store, {"full": (900, full), SMALL: (200, much_worse)})
    none = CliRunner().invoke(app, ["recommend", "--json"])
    assert none.exit_code == 4
    assert json.loads(none.stdout)["policy"] is None
    assert "no answer:" in none.stderr
