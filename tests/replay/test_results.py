"""The results of a run whose rows were made by hand: every figure by pencil and paper."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvmill.console import plain
from kvmill.errors import UserError
from kvmill.replay.profiles import profiles
from kvmill.replay.results import find_run, summary
from kvmill.traces.store import Store

from .runs import FULL, TE, replay_run, rows_of

KEYS = [
    "policy",
    "n",
    "n_probes",
    "answer_accuracy",
    "answer_accuracy_low",
    "answer_accuracy_high",
    "answer_ll",
    "delta_nll",
    "kl",
    "top1_agreement",
    "kv_tokens_peak",
    "kv_tokens_peak_max",
    "kv_bytes_peak",
    "ttft_s",
    "tpot_s",
    "prefill_s_per_turn",
    "compaction_s_per_turn",
    "decode_s_per_token",
    "status",
]


def test_the_object_has_the_agreed_keys_and_the_figures_of_the_rows(tmp_path: Path) -> None:
    store, run = replay_run(tmp_path)
    found = summary(store)
    assert (found["run"], found["model"], found["device"]) == (run, "smollm2-135m", "cpu")
    full, te = found["policies"]
    assert (full["policy"], te["policy"]) == (FULL, TE)
    assert set(KEYS) <= set(te)
    assert (te["n"], te["n_probes"]) == (3, 12)
    assert te["answer_accuracy"] == pytest.approx(6 / 12)
    assert te["full_accuracy"] == full["answer_accuracy"] == pytest.approx(9 / 12)
    assert te["difference"] == pytest.approx(-3 / 12)
    # Per scored token over all trajectories, not the mean of the trajectories' means.
    assert te["delta_nll"] == pytest.approx((100 * 0.1 + 100 * 0.2 + 300 * 0.4) / 500)
    assert (full["delta_nll"], full["kl"], full["top1_agreement"]) == (0, 0, 1)
    assert (te["kv_tokens_peak"], te["kv_tokens_peak_max"]) == (420, 440)
    assert te["kv_saved"] == pytest.approx(1 - 1260 / 3600)
    assert te["ttft_s"] == pytest.approx(1.2)
    assert full["turn_s"] == pytest.approx(1.75)  # the first turn does not count
    assert te["status"] == {"ok": 5, "failed": 0, "skipped": 0}


def test_intervals_are_over_trajectories_and_hold_the_value(tmp_path: Path) -> None:
    store, _ = replay_run(tmp_path)
    te = summary(store)["policies"][1]
    assert te["answer_accuracy_low"] == 0  # the draw of b/1 alone has probability 1/27 > 2.5 %
    assert te["answer_accuracy_high"] == 0.75
    assert (te["difference_low"], te["difference_high"]) == (-0.5, 0)
    assert te["few"] is True
    # Three differences −1/4, 0, −1/2: of 8 sign patterns those with both non-zero signs equal are as extreme.
    assert te["difference_p"] == pytest.approx(0.5)
    assert te["difference_p_holm"] == pytest.approx(0.5)
    # Three trajectories never give a smaller p than 1/4.
    assert te["detectable_difference"] is None


def test_what_was_not_measured_is_null(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    run = store.begin("replay", {"model": "m", "policies": ["full"]}, device="cpu")
    cell: dict[str, Any] = {"cell_id": "x", "trajectory_id": "t", "family": "f", "policy": "full", "status": "ok"}
    run.add({"cells": [{**cell, "measure": "quality", "scored_tokens": 0, "probes": 0}]}, key="t")
    run.finish()
    found = json.loads(json.dumps(plain(summary(store)), allow_nan=False))["policies"][0]
    measured = {key for key in KEYS if found[key] not in (None, 0)}
    assert measured == {"policy", "n", "status"}
    assert [found[key] for key in ("answer_accuracy", "delta_nll", "kv_tokens_peak", "ttft_s")] == [None] * 4


def test_one_trajectory_has_a_value_but_no_interval(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    run = store.begin("replay", {"policies": [FULL, TE]})
    run.add(rows_of("a/1"), key="a/1")
    run.finish()
    te = summary(store)["policies"][1]
    assert te["answer_accuracy"] == 0.75
    assert te["difference"] == -0.25
    assert [te[f"{key}_{end}"] for key in ("answer_accuracy", "difference") for end in ("low", "high")] == [None] * 4
    assert te["difference_p"] is None
    assert te["detectable_difference"] is None


def test_failed_cells_are_counted_with_their_reason_and_enter_no_figure(tmp_path: Path) -> None:
    store, _ = replay_run(tmp_path, failed=True)
    te = summary(store)["policies"][1]
    assert te["status"] == {"ok": 5, "failed": 1, "skipped": 0}
    assert te["error"] == "too long"
    assert te["n"] == 3


@pytest.mark.parametrize(
    ("by", "groups"),
    [("turn", [0, 1, 2]), ("age", [2, 3]), ("kind", ["one-hop", "two-hop"]), ("family", ["a", "b"])],
)
def test_grouped_figures_add_up_to_the_whole(tmp_path: Path, by: str, groups: list[Any]) -> None:
    store, _ = replay_run(tmp_path)
    found = summary(store, by=by)
    assert [(g[by], g["policy"]) for g in found["groups"]] == [(g, p) for g in groups for p in (FULL, TE)]
    te = [g for g in found["groups"] if g["policy"] == TE]
    if by == "turn":
        assert [g["delta_nll"] for g in te] == pytest.approx([0, 0.1, 0.2])
        assert all(g["answer_accuracy"] is None for g in te)
    else:
        assert sum(g["n_probes"] for g in te) == 12
        assert sum(g["answer_accuracy"] * g["n_probes"] for g in te) == pytest.approx(6)


def test_profiles_carry_the_model_the_run_and_the_paired_difference(tmp_path: Path) -> None:
    assert profiles(Store.open(tmp_path / "empty")) == {}
    store, run = replay_run(tmp_path / "store")
    profile = profiles(store)[TE]
    assert (profile.run, profile.model, profile.n) == (run, "smollm2-135m", 3)
    assert profile.difference == pytest.approx(-0.25)
    assert profile.full_accuracy == pytest.approx(0.75)
    assert profile.extra_turns is None  # only closed-loop runs may say otherwise


def test_the_newest_complete_run_is_meant_unless_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no complete replay run in .*: run `kvmill replay` first"):
        find_run(Store.open(tmp_path / "empty"))
    store, complete = replay_run(tmp_path / "store")
    broken = store.begin("replay", {"policies": ["full"]})
    assert find_run(store).run_id == complete
    assert find_run(store, broken.id).run_id == broken.id
    ingest = store.begin("ingest", {})
    with pytest.raises(UserError, match="is of kind ingest"):
        find_run(store, ingest.id)
    with pytest.raises(UserError, match="unknown grouping 'model'"):
        summary(store, by="model")


def test_results_need_no_torch() -> None:
    code = (
        "import kvmill.replay.results, kvmill.replay.report, sys;"
        "print([m for m in ('torch', 'transformers', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
