"""A store as large as the dashboard must be quick on: rows drawn at random, in the shape of real ones.

An ingest of bundled samples under new names, two replays of them (the second a later night of fewer policies), a
closed-loop run, and the gate's verdicts of many nights. The figures mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from kvmill.replay.policies.registry import DEMO_POLICIES, QUICK_POLICIES
from kvmill.traces import manifest
from kvmill.traces.rows import trajectory_row, turn_rows
from kvmill.traces.samples import load
from kvmill.traces.store import Run, Store

POLICIES = DEMO_POLICIES[:8]
TURNS, PROBES, TOKENS = 25, 4, 500
MODEL = "smollm2-135m"
CATEGORIES = ("OK", "OK", "OK", "OK", "OK", "OK", "DRIFT", "GAIN", "REGRESSION", "INSUFFICIENT")
_SAME = {"source": "samples", "seed": 0, "model": MODEL, "dtype": "float32", "device": "cpu", "threads": 2}


def fill(store: Store, trajectories: int = 1000, nights: int = 60) -> dict[str, str]:
    """Fill a store; the ids of its runs by what they are. 25 turns × 8 policies: 200 turn rows per trajectory."""
    names = _ingested(store, trajectories)
    return {
        "replay": _replay(store, names, POLICIES, seed=0, timed=trajectories // 50),
        "later": _replay(store, names, QUICK_POLICIES[:2], seed=1, timed=0),
        "closed": _closed(store, names[: trajectories // 10]),
        "gate": _gates(store, sorted({family for _, family in names}), nights),
    }


def _ingested(store: Store, count: int) -> list[tuple[str, str]]:
    """Names and families of what was ingested."""
    known = load()
    made = [replace(known[n % len(known)], id=f"{known[n % len(known)].id}-{n:04d}") for n in range(count)]
    run = store.begin("ingest", {"paths": ["samples"]})
    rows = {
        "trajectories": [trajectory_row(one) for one in made],
        "turns": [row for one in made for row in turn_rows(one)],
    }
    run.add(rows, key="segment-1")
    run.finish()
    return [(one.id, one.family) for one in made]


def _replay(store: Store, names: Sequence[tuple[str, str]], policies: Sequence[str], seed: int, timed: int) -> str:
    rng = np.random.default_rng(seed)
    config = {"model": MODEL, "policies": list(policies), "measure": "both", "mode": "teacher", "dtype": "float32"}
    run = store.begin("replay", config, seed=seed, device="cpu")
    for start in range(0, len(names), 100):
        part = names[start : start + 100]
        tables = dict(_measured(rng, part, policies, start < timed))
        run.add(tables, key=f"part-{start}")
    run.finish()
    return run.id


def _measured(
    rng: np.random.Generator, names: Sequence[tuple[str, str]], policies: Sequence[str], timed: bool
) -> Iterator[tuple[str, pa.Table]]:
    """Rows of every table of a replay, trajectory by trajectory and in it policy by policy, as a replay writes them."""
    n, m = len(names), len(policies)
    cells = n * m
    full = np.tile([policy == "full" for policy in policies], n)
    share = np.tile(np.linspace(1.0, 0.2, m), n)
    correct = rng.random((cells, PROBES)) < (0.45 + 0.35 * share)[:, None]
    logical = np.repeat(rng.integers(60, 140, (n, TURNS)).cumsum(axis=1), m, axis=0) + 200
    held = logical * share[:, None]
    likelihood = -2.0 + correct.mean(axis=1) + rng.normal(0, 0.2, cells)
    key = _keys(names, policies, 1)
    quality = pa.table(
        key
        | {name: [value] * cells for name, value in (_SAME | {"mode": "teacher", "label_scorer": "choice"}).items()}
        | {"measure": ["quality"] * cells, "status": ["ok"] * cells, "turns": [TURNS] * cells}
        | {"scored_tokens": [TURNS * 40] * cells, "logical_tokens": logical[:, -1]}
        | {"nll": 1 + rng.random(cells), "delta_nll": np.where(full, 0, rng.gamma(2, 0.05, cells))}
        | {"kl": np.where(full, 0, rng.gamma(2, 0.05, cells)), "top1_agreement": np.where(full, 1, 0.9)}
        | {"probes": [PROBES] * cells, "answer_accuracy": correct.mean(axis=1), "answer_ll": likelihood}
        | {"kv_tokens_final": held[:, -1], "kv_tokens_peak": held.max(axis=1) * 1.1}
        | {"kv_bytes_peak": (held.max(axis=1) * 46080).astype(int)}
    )
    ttft, decode = rng.gamma(20, 0.02, cells), rng.gamma(20, 0.002, cells)
    latency = quality.select([*key, *_SAME, "mode", "status", "turns"]).append_column(
        "measure", pa.array(["latency"] * cells)
    )
    for name, values in {"ttft_s": ttft, "tpot_s": decode, "prefill_s_per_turn": ttft * 0.8}.items():
        latency = latency.append_column(name, pa.array(values))
    latency = latency.append_column("compaction_s_per_turn", pa.array(ttft * 0.1))
    latency = latency.append_column("decode_s_per_token", pa.array(decode))
    yield "cells", pa.concat_tables([quality, latency], promote_options="default") if timed else quality
    yield "turn_metrics", _turn_metrics(rng, names, policies, logical, held, timed)
    yield (
        "probes",
        pa.table(
            _keys(names, policies, PROBES)
            | {"probe_id": np.tile([f"p{i}" for i in range(PROBES)], cells)}
            | {"kind": np.tile(["one-hop", "two-hop"], cells * PROBES // 2)}
            | {"age_turns": np.repeat(rng.integers(0, TURNS, (n, PROBES)), m, axis=0).ravel()}
            | {"correct": correct.ravel(), "answer_ll": np.repeat(likelihood, PROBES)}
        ),
    )
    yield (
        "kept",
        pa.table(
            _keys(names, policies, TOKENS)
            | {"turn": np.tile(np.repeat(np.arange(TURNS), TOKENS // TURNS), cells)}
            | {"kind": np.tile(np.where(np.arange(TOKENS) % (TOKENS // TURNS) < 8, "assistant", "tool"), cells)}
            | {"position": np.tile(np.arange(TOKENS), cells), "token_id": np.tile(np.arange(TOKENS), cells)}
            | {"text": np.tile([f" w{i % 97}" for i in range(TOKENS)], cells)}
            | {"share": np.minimum(1, np.round(rng.random(cells * TOKENS) + np.repeat(full, TOKENS), 2))}
            | {"mass_full": np.tile(rng.gamma(0.5, 1, TOKENS), cells)}
        ),
    )


def _turn_metrics(
    rng: np.random.Generator,
    names: Sequence[tuple[str, str]],
    policies: Sequence[str],
    logical: np.ndarray[Any, Any],
    held: np.ndarray[Any, Any],
    timed: bool,
) -> pa.Table:
    rows = held.size
    key = _keys(names, policies, TURNS) | {"turn": np.tile(np.arange(TURNS), held.shape[0])}
    full = np.asarray(key["policy"]) == "full"
    quality = pa.table(
        key
        | {"measure": ["quality"] * rows, "logical_tokens": logical.ravel(), "scored_tokens": [40] * rows}
        | {"nll": 1 + rng.random(rows), "delta_nll": np.where(full, 0, rng.gamma(2, 0.05, rows))}
        | {"kl": np.where(full, 0, rng.gamma(2, 0.05, rows)), "top1_agreement": np.where(full, 1, rng.random(rows))}
        | {"kv_tokens": held.ravel(), "kv_tokens_peak": held.ravel() * 1.1, "compactions": [1] * rows}
    )
    if not timed:
        return quality
    parts = rng.gamma(20, 0.01, (rows, 3))
    timings = pa.table(
        key
        | {"measure": ["latency"] * rows, "ttft_s": parts[:, :2].sum(axis=1), "decode_s": parts[:, 2]}
        | {"prefill_s": parts[:, 0], "compaction_s": parts[:, 1], "decode_tokens": [40] * rows}
    )
    return pa.concat_tables([quality, timings], promote_options="default")


def _keys(names: Sequence[tuple[str, str]], policies: Sequence[str], each: int) -> dict[str, Any]:
    """The key columns of `each` rows per trajectory and policy."""
    n, m = len(names), len(policies)
    return {
        "cell_id": np.repeat([f"{name}/{k}" for name, _ in names for k in range(m)], each),
        "trajectory_id": np.repeat([name for name, _ in names], m * each),
        "family": np.repeat([family for _, family in names], m * each),
        "policy": np.tile(np.repeat(list(policies), each), n),
    }


def _closed(store: Store, names: Sequence[tuple[str, str]]) -> str:
    rng = np.random.default_rng(2)
    config = {"model": MODEL, "policies": list(QUICK_POLICIES), "measure": "quality", "mode": "closed"}
    run = store.begin("replay", config | {"dtype": "float32", "seed_turns": 2, "max_turns": 40}, device="cpu")
    count = len(names) * len(QUICK_POLICIES)
    searches = rng.integers(1, 20, count)
    columns = _keys(names, QUICK_POLICIES, 1)
    columns |= {name: [value] * count for name, value in (_SAME | {"mode": "closed", "measure": "quality"}).items()}
    columns |= {"status": ["ok"] * count, "end_reason": np.where(rng.random(count) < 0.9, "answered", "turn_limit")}
    columns |= {"turns": rng.integers(10, 40, count), "recorded_turns": [TURNS] * count, "seed_turns": [2] * count}
    columns |= dict.fromkeys(("calls", "searches", "calls_searched"), searches)
    columns |= {name: [0] * count for name in ("calls_exact", "calls_error", "repeated_calls", "near_repeats")}
    columns |= {"repeated_searches": searches // 4, "generated_tokens": searches * 50}
    run.add({"cells": pa.table(columns)}, key="closed")
    run.finish()
    return run.id


def _gates(store: Store, families: Sequence[str], nights: int) -> str:
    """Nights of verdicts, a run each; the id of the newest."""
    rng = np.random.default_rng(3)
    newest, ids = datetime.now(UTC), list[str]()
    for night in range(nights):
        day = newest - timedelta(days=nights - night)
        run: Run = store.begin("nightly", {"model": MODEL}, run_id=f"nightly-{day:%Y%m%d}-030000-{night:06x}")
        rows = [
            {"policy": policy, "family": family, "category": (category := str(rng.choice(CATEGORIES)))}
            | {"blocks": category == "REGRESSION", "detail": "drawn at random", "metric": "delta_nll", "n": 12}
            | {"loss": (loss := float(rng.normal(0, 0.02))), "low": loss - 0.01, "high": loss + 0.01, "margin": 0.02}
            for policy in POLICIES
            for family in families
        ]
        run.add({"gates": rows}, key="gates")
        run.finish()
        manifest.write(store.folder(run.id), replace(run.info, created_at=day.isoformat(timespec="microseconds")))
        ids.append(run.id)
    return ids[-1]
