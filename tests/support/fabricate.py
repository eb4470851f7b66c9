"""A store with a replay and a plan in it, made of rows written by hand: for tests of what reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvmill.traces.store import Store
from kvmill.traces.tables import SCHEMAS

FULL = "full"
BOUNDARY = "te(proxy=boundary,keep=0.2)"
DELAYED = "te(proxy=assistant,delay=1,keep=0.2)"
# policy → (correct probes of four, rows after each of two turns, peak)
MEASURED = {FULL: (3, (140, 280), 280), BOUNDARY: (1, (70, 100), 210), DELAYED: (2, (140, 170), 280)}
CELL = {"source": "samples", "seed": 0, "model": "smollm2-135m", "dtype": "float32", "device": "cpu", "threads": 2}


def replay(store: Store, *, trajectories: int = 4, state: str = "complete", failed: bool = False) -> str:
    """A replay of `trajectories` under three policies, latency measured on the first. Returns the run's id."""
    config = {"model": "smollm2-135m", "policies": list(MEASURED), "measure": "both", "mode": "teacher"}
    run = store.begin("replay", config | {"dtype": "float32"}, device="cpu")
    for index in range(trajectories):
        tables: dict[str, list[dict[str, Any]]] = {"cells": [], "turn_metrics": [], "probes": []}
        for policy in MEASURED:
            for name, rows in _cell(policy, index).items():
                tables[name] += rows
        run.add(tables, key=f"trajectory-{index}")
    if failed:
        key = {"cell_id": "f", "trajectory_id": "t-broken", "family": "registry", "policy": DELAYED}
        row = {**key, **CELL, "mode": "teacher", "measure": "quality", "status": "failed", "error": "window too short"}
        run.add({"cells": [row]}, key="failed")
    run.finish(state)
    return run.id


def _cell(policy: str, index: int) -> dict[str, list[dict[str, Any]]]:
    correct, rows, peak = MEASURED[policy]
    family = ("registry", "operations")[index % 2]
    key = {"cell_id": f"{policy}-{index}", "trajectory_id": f"t-{index}", "family": family, "policy": policy}
    same = {**key, **CELL, "mode": "teacher", "status": "ok", "turns": 2}
    quality = {
        "measure": "quality",
        "logical_tokens": 280,
        "scored_tokens": 40,
        "nll": 1.0,
        "delta_nll": 0.0 if policy == FULL else 0.1,
        "kl": 0.0 if policy == FULL else 0.2,
        "top1_agreement": 1.0 if policy == FULL else 0.9,
        "probes": 4,
        "answer_accuracy": correct / 4,
        "answer_ll": -4.0 + correct,
        "answer_margin": float(correct - 2),
        "kv_tokens_final": rows[-1],
        "kv_tokens_peak": peak,
        "kv_bytes_peak": peak * 46080,
        "kv_bytes_final": rows[-1] * 46080,
    }
    cells: list[dict[str, Any]] = [{**same, **quality}]
    if index == 0:
        latency = {"ttft_s": 0.5, "tpot_s": 0.04, "prefill_s_per_turn": 0.3, "compaction_s_per_turn": 0.01}
        cells.append({**same, "measure": "latency", "repeats": 3, **latency, "decode_s_per_token": 0.04})
    turns = [
        {**key, "measure": "quality", "turn": turn, "kv_tokens": kept, "kv_tokens_peak": max(kept, 140 * (turn + 1))}
        for turn, kept in enumerate(rows)
    ]
    probes = [
        {
            **key,
            "probe_id": f"t-{index}-{i}",
            "kind": ("one-hop", "two-hop")[i % 2],
            "age_turns": 1 + i,
            "choice": 0,
            "correct": i < correct,
            "answer_ll": -4.0 + correct,
            "answer_margin": float(correct - 2),
        }
        for i in range(4)
    ]
    return {"cells": cells, "turn_metrics": turns, "probes": probes}


PLANS = {FULL: (27, 25, 28, None), BOUNDARY: (12, 11, 13, 15), DELAYED: (14, 13, 15, 13)}


def planned(workload: str = "long-agents") -> dict[str, Any]:
    """What `kvmill plan --json` prints of three policies, as far as others read it."""
    rows = [_plan_row(policy, *figures) for policy, figures in PLANS.items()]
    return {
        "slo": {"ttft_p95": 2.0, "tpot_p95": 0.05},
        "workload": workload,
        "model": "qwen3.5-27b",
        "gpu": "h200",
        "tp": 1,
        "seed": 0,
        "replications": 10,
        "few_replications": False,
        "assumptions": {"workload": ["400 agents (assumed)"], "host_time_s": "0.33 ms per step (assumed)"},
        "plans": rows,
        "answer": f"With te {workload} needs 14.",
        "run": "plan-1",
    }


def _plan_row(policy: str, gpus: int, low: int, high: int, saved: int | None) -> dict[str, Any]:
    return {
        "policy": policy,
        "feasible": True,
        "gpus": gpus,
        "gpus_low": low,
        "gpus_high": high,
        "gpus_searched": 512,
        "gpus_saved": saved,
        "gpus_saved_low": None if saved is None else saved - 1.0,
        "gpus_saved_high": None if saved is None else saved + 1.0,
        "gpus_if_slower": gpus + 1,
        "gpus_if_faster": gpus - 1,
        "binding_constraint": "KV blocks",
        "cost_per_month": gpus * 2000.0,
        "quality_model": "smollm2-135m",
        "quality_n": 4,
        "quality_is_planned_model": False,
        "answer_accuracy": MEASURED[policy][0] / 4,
        "full_accuracy": 0.75,
        "difference": MEASURED[policy][0] / 4 - 0.75,
        "difference_low": None,
        "difference_high": None,
        "extra_turns": None,
        "extra_turns_source": "assumed none: no closed-loop run",
        "turns_break_even": None if saved is None else 0.9,
    }


def plan(store: Store, *, workload: str = "long-agents") -> str:
    """A plan of three policies in the store. Returns the run's id."""
    found = planned(workload)
    config = {k: v for k, v in found.items() if k not in ("plans", "answer", "run", "few_replications")}
    run = store.begin("plan", config | {"policies": list(PLANS)})
    columns = SCHEMAS["plans"].names
    plans, simulations = [], []
    for row in found["plans"]:
        same = {key: found[key] for key in ("workload", "model", "gpu")} | {"policy": row["policy"]}
        plans.append(same | {k: v for k, v in row.items() if k in columns} | {"detail": json.dumps(row)})
        simulations += [
            same
            | {"gpus": row["gpus"] + step, "replicas": row["gpus"] + step, "tp": 1, "seed": seed, "replication": seed}
            | {"ttft_p95_s": 1.9 - 0.2 * step + 0.01 * seed, "tpot_p95_s": 0.04, "kv_used_share": 0.9}
            for step in (-1, 0, 1)
            for seed in range(3)
        ]
    run.add({"plans": plans, "simulations": simulations}, key="plan")
    run.finish()
    return run.id


def filled(where: Path) -> Store:
    """A store with one replay and one plan."""
    store = Store.open(where)
    replay(store)
    plan(store)
    return store
