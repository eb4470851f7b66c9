"""`kvmill replay --explain`: every token's attention mass in the full run is stored, and nothing else changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import save_tiny

from kvmill.errors import UserError
from kvmill.replay.fanout import run_replay
from kvmill.replay.start import replay_named
from kvmill.traces import samples
from kvmill.traces.store import Store

TE = "te(proxy=assistant,delay=1,keep=0.2)"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, dict[bool, str]]:
    """The same replay without and with."""
    model, store = save_tiny(tmp_path_factory.mktemp("model")), Store.open(tmp_path_factory.mktemp("store"))
    run = samples.load()[0]
    cut = replace(run, turns=run.turns[:3], probes=tuple(p for p in run.probes if p.fact_turn < 2))
    fixed: dict[str, Any] = {"policies": [TE, "random"], "dtype": "float32", "threads": 1, "progress": False}
    return store, {
        explain: run_replay(store=store, trajectories=[cut], model=str(model), explain=explain, **fixed)
        for explain in (False, True)
    }


def test_nothing_but_the_mass_differs(ran: tuple[Store, dict[bool, str]]) -> None:
    store, run = ran

    def rows(explain: bool, table: str) -> list[str]:
        found = store.query(f"select * from {table} where run_id = ? order by all", [run[explain]]).to_pylist()
        return sorted(json.dumps({k: v for k, v in r.items() if k not in ("run_id", "mass_full")}) for r in found)

    for table in ("cells", "turn_metrics", "probes", "kept"):
        assert rows(False, table) == rows(True, table)
        assert rows(True, table)
    assert [store.info(run[explain]).config["explain"] for explain in (False, True)] == [False, True]


def test_every_policy_has_the_mass_of_the_full_run(ran: tuple[Store, dict[bool, str]]) -> None:
    store, run = ran
    question = "select policy, position, mass_full from kept where run_id = ? order by policy, position"
    by_policy: dict[str, list[float]] = {}
    for row in store.query(question, [run[True]]).to_pylist():
        by_policy.setdefault(row["policy"], []).append(row["mass_full"])
    assert set(by_policy) == {"full", TE, "random"}
    full = by_policy["full"]
    assert all(masses == full for masses in by_policy.values())
    assert min(full) >= 0
    assert full[-1] == 0
    assert 0 < sum(full) < len(full)
    without = store.query("select count(*) as n, count(mass_full) as m from kept where run_id = ?", [run[False]])
    assert without["n"][0].as_py() > 0
    assert without["m"][0].as_py() == 0


def test_latency_has_no_tokens_to_explain(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--explain is about the tokens of quality cells"):
        replay_named(Store.open(tmp_path), traces="samples", measure="latency", explain=True)
