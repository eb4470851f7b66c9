"""Answers as rows of the store: plans with the simulations of their brackets, single simulations with their series."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from ..console import plain
from ..traces.store import Store
from .outcome import SimResult
from .run import Scenario

Runs = Sequence[tuple[Scenario, SimResult]]
FLAT = ("ttft_s", "tpot_s", "e2e_s")
# The frame of an answer: what it is an answer to, so that the same question is recognised later.
_CONFIG = (
    "workload", "model", "gpu", "tp", "slo", "dtype", "kv_dtype", "utilisation", "max_model_len", "token_budget",
    "max_sequences", "retention", "preemption", "compaction", "coarse_tokens", "router", "agents", "rate", "contexts",
    "compactable_share", "pool_tokens", "weights_gib", "price_per_hour", "price_source", "replications", "statistic",
    "model_error", "model_error_source", "assumptions", "other_shapes",
)  # fmt: skip
_PLAN_COLUMNS = (
    "policy",
    "feasible",
    "gpus",
    "gpus_low",
    "gpus_high",
    "gpus_saved",
    "gpus_saved_low",
    "gpus_saved_high",
    "binding_constraint",
    "cost_per_month",
)
_DEPLOYMENT = ("dtype", "kv_dtype", "retention", "preemption", "compaction")
_RESULT = (
    "gpus", "replicas", "tp", "seed", "requests", "rejected", "simulated_s", "batch_mean", "batch_max",
    "throughput_requests_per_s", "throughput_tokens_per_s", "goodput_requests_per_s", "kv_used_share",
    "kv_active_share", "preemptions", "evictions", "miss_share", "busy_share", "unserved_share", "queue_growth",
    "waiting_mean", "saturated", "binding_constraint",
)  # fmt: skip


def save_plan(store: Store, found: Mapping[str, Any], runs: Runs, seed: int) -> str:
    """Store a plan: one row per policy, one per simulation of its brackets. Returns the run's id."""
    config = {key: found[key] for key in _CONFIG if key in found}
    run = store.begin("plan", config | {"policies": [row["policy"] for row in found["plans"]]}, seed=seed)
    rows = [
        {key: row.get(key) for key in _PLAN_COLUMNS}
        | {"workload": found["workload"], "model": found["model"], "gpu": found["gpu"]}
        | {"detail": json.dumps(plain(row))}
        for row in found["plans"]
    ]
    run.add({"plans": rows, "simulations": [simulation_row(*pair) for pair in runs]}, key="plan")
    run.finish()
    return run.id


def save_loads(store: Store, found: Mapping[str, Any], runs: Runs, seed: int) -> str:
    """Store the simulations behind a largest load, each with its agents or its rate. Returns the run's id."""
    config = {key: found[key] for key in (*_CONFIG, "gpus", "load_unit") if key in found}
    loads = {row["policy"]: row["max_load"] for row in found["plans"]}
    run = store.begin("max-load", config | {"max_load": loads}, seed=seed)
    run.add({"simulations": [simulation_row(*pair) for pair in runs]}, key="max-load")
    run.finish()
    return run.id


def save_simulation(
    store: Store,
    found: Mapping[str, Any],
    runs: Runs,
    seed: int,
    series: Sequence[Mapping[str, Any]] = (),
    turns: Sequence[tuple[int, pa.Table]] = (),
) -> str:
    """Store simulations of one fleet: a row each, with what they looked like over time and every turn, if asked for.

    `turns` come with the seed of their replication. Returns the run's id.
    """
    run = store.begin("simulate", {key: found[key] for key in (*_CONFIG, "policy") if key in found}, seed=seed)
    rows = [simulation_row(*pair) for pair in runs]
    same = {key: rows[0][key] for key in ("workload", "model", "gpu", "policy", "gpus", "replicas", "tp")}
    tables: dict[str, Any] = {"simulations": rows}
    if series:
        tables["intervals"] = [same | dict(row) for row in series]
    if turns:
        tables["sim_turns"] = pa.concat_tables([_labelled(table, rows[0], seed) for seed, table in turns])
    run.add(tables, key="simulate")
    run.finish()
    return run.id


def _labelled(turns: pa.Table, row: Mapping[str, Any], seed: int) -> pa.Table:
    """The turns of one replication with the columns that say whose they are."""
    for name, value in (("policy", row["policy"]), ("gpus", row["gpus"]), ("seed", seed)):
        turns = turns.append_column(name, pa.array([value] * turns.num_rows))
    return turns


def simulation_row(scenario: Scenario, result: SimResult) -> dict[str, Any]:
    """One simulation as a row of the `simulations` table."""
    deployment = scenario.deployment
    row: dict[str, Any] = {
        "workload": scenario.workload.name,
        "agents": scenario.workload.agents,
        "rate": scenario.workload.rate,
        "model": deployment.geometry.name,
        "gpu": deployment.gpu.name,
        "policy": scenario.policy,
        "router": scenario.router,
        "replication": result.seed % 1000,
        "meets": result.meets(scenario.slos),
    }
    row |= {name: getattr(deployment, name) for name in _DEPLOYMENT}
    for name in FLAT:
        levels = getattr(result, name)
        row |= {f"{name[:-2]}_{q}_s": levels[q] for q in levels}
    return row | {name: getattr(result, name) for name in _RESULT}
