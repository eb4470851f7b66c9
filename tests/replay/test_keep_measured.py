"""How much a policy with a loss target kept, and that a plan follows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvmill.errors import UserError
from kvmill.replay.policies.base import SegmentSize
from kvmill.replay.policies.registry import parse_policy
from kvmill.replay.profiles import profiles
from kvmill.simulator.answers import plan_named, simulate
from kvmill.traces.store import Store

LOSS = "adaptive(loss=0.1,delay=2)"
CELL = {"measure": "quality", "status": "ok", "source": "s", "seed": 0, "model": "m", "dtype": "float32"}


def store_with(where: Path, shares: list[float]) -> Store:
    """One trajectory per policy whose tool tokens, four of each turn, are kept by `shares`; the rest is kept whole."""
    store = Store.open(where)
    policies = ["full", LOSS, "te"]
    run = store.begin("replay", {"model": "m", "policies": policies, "measure": "quality", "mode": "teacher"})
    tables: dict[str, list[dict[str, object]]] = {"cells": [], "kept": []}
    for policy in policies:
        key = {"cell_id": policy, "trajectory_id": "t", "family": "f", "policy": policy}
        tables["cells"].append({**key, **CELL, "turns": len(shares), "kv_tokens_peak": 9})
        places = [(0, "prefix", 1.0)] * 5
        for turn, share in enumerate(shares):
            places += [(turn, "user", 1.0)] * 3 + [(turn, "tool", share)] * 4
        rows = [{"turn": turn, "kind": kind, "share": share} for turn, kind, share in places]
        tables["kept"] += [{**key, **row, "position": i} for i, row in enumerate(rows)]
    run.add(tables, key="t")
    run.finish()
    return store


def test_only_turns_old_enough_to_be_compacted_count(tmp_path: Path) -> None:
    found = profiles(store_with(tmp_path, [0.25, 0.75, 1.0, 1.0]))
    assert found[LOSS].keep_measured == pytest.approx(0.5)
    assert found["te"].keep_measured is None


def test_a_trajectory_that_ended_inside_the_delay_measures_nothing(tmp_path: Path) -> None:
    store = store_with(tmp_path, [1.0, 1.0])
    assert profiles(store)[LOSS].keep_measured is None
    with pytest.raises(UserError, match="replay it first"):
        simulate("samples", "qwen3.5-27b", "h200", 1, policy=LOSS, agents=4, store=store, save=False)


def test_a_plan_follows_the_measured_share(tmp_path: Path) -> None:
    store = store_with(tmp_path, [0.25, 0.75, 1.0, 1.0])
    found = simulate("samples", "qwen3.5-27b", "h200", 1, policy=LOSS, agents=4, store=store, save=False)
    fixed = simulate("samples", "qwen3.5-27b", "h200", 1, policy="adaptive(keep=0.5,delay=2)", agents=4, store=store)
    assert found["keep_measured"] == pytest.approx(0.5)
    assert found["assumptions"]["kept"].startswith("50.0% of the tokens")
    assert "kept" not in fixed["assumptions"]
    assert found["kv_used_share"] == fixed["kv_used_share"]
    kinds = ("prefix", "assistant", "tool", "assistant", "tool", "assistant", "tool")
    sizes = [SegmentSize(kind, 40, 2) for kind in kinds]  # type: ignore[arg-type]
    rows = parse_policy(LOSS).as_measured(found["keep_measured"]).footprint(sizes)
    assert [step.kv_rows for step in rows] == [120, 200, 240]


def test_the_answer_says_that_memory_follows_a_measured_share(tmp_path: Path) -> None:
    store = store_with(tmp_path, [0.25, 0.75, 1.0, 1.0])
    slo = {"ttft_p95": 2.0, "tpot_p95": 0.05}
    found = plan_named(
        "samples", "qwen3.5-27b", "h200", slo=slo, policies=[LOSS], agents=4, store=store, save=False, replications=2,
        sensitivity=False, turns=300,
    )  # fmt: skip
    assert "Its memory follows the 50% of tokens that replay saw it keep." in found["answer"]
