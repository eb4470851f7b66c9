"""What a replay of a million long trajectories costs, and how many of them a recommendation needs.

`kvmill bench scale` computes GPU hours and money from the simulator's cost model (*estimated*), storage from the bytes
per row of a complete replay run (*measured*; `--run RUN --store STORE` measures anew), and draws from campaigns with
known losses (*simulated*). No GPU and no model is needed; `--write` renews the figures and the last section of
docs/scale.md. About a minute on one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvmill.benchmarks.pages.scale import page, tables
from kvmill.console import plain
from kvmill.errors import UserError
from kvmill.replay.noninferior import differences, needed
from kvmill.replay.sequential import bar_for, log_capitals
from kvmill.replay.statistics import FEW
from kvmill.replay.until_decided import BATCH
from kvmill.simulator.cost import CostModel
from kvmill.simulator.deployment import Deployment
from kvmill.simulator.hardware import find_gpu
from kvmill.simulator.models import find_geometry
from kvmill.traces.store import Store

ROOT = Path(__file__).resolve().parents[1]
FIGURES, PAGE = ROOT / "benchmarks" / "results" / "scale.json", ROOT / "docs" / "scale.md"
TRAJECTORIES, TOKENS = 1_000_000, 50_000
TURNS, PROBES, POLICIES = 60, 8, 4  # assumed: 50k tokens at about 830 a turn; four policies beside `full`
PLACES = (("qwen3-8b", "h100"), ("qwen3-8b", "h200"), ("qwen3.5-27b", "h100"), ("qwen3.5-27b", "h200"))
STORAGE_USD = 0.023  # per GB and month of an object store: assumed
TABLES = ("cells", "turn_metrics", "probes", "kept")

MAX_LOSS, FAMILY_LOSS, CONFIDENCE = 0.05, 0.15, 0.95
CAMPAIGNS, DRAWS, SEED, AT_ONCE = 1_000, 2_000, 0, 100
ALIKE = 0.8  # share of probes that come out as with `full` but for the loss: assumed
EFFECTS = (0.0, 0.01, 0.02, 0.10, 0.20, 0.50)
LADDER = (0.50, 0.20, 0.02, 0.0)  # from the smallest policy to the largest


def seconds(model: str, gpu: str) -> float:
    """Prefill of one trajectory of TOKENS tokens on one GPU, in chunks of the usual budget (*estimated*)."""
    place = Deployment(find_geometry(model), find_gpu(gpu))
    cost, total = CostModel.of(place), 0.0
    for start in range(0, TOKENS, place.token_budget):
        fed = min(place.token_budget, TOKENS - start)
        pairs = fed * start + fed * (fed + 1) / 2
        total += cost.step_s(0, 0, 1, fed, pairs, int(start + fed == TOKENS))
    return total


def computing(model: str, gpu: str) -> dict[str, Any]:
    """GPU hours and money of the whole set; every policy beside `full` is counted as dear as `full` (*assumed*)."""
    part, each = find_gpu(gpu), seconds(model, gpu)
    hours = TRAJECTORIES * (1 + POLICIES) * each / 3600
    price = part.price_per_hour or 0.0
    return {
        "model": model,
        "gpu": gpu,
        "tokens_per_s": TOKENS / each,
        "gpu_hours": hours,
        "usd": hours * price,
        "usd_per_hour": price,
        "price_source": part.price_source,
        "error": CostModel.of(Deployment(find_geometry(model), part)).error,
    }


def stored(store: Store, run_id: str) -> dict[str, Any]:
    """Bytes per row of each table of a complete replay run (*measured*: sizes of its files). UserError otherwise."""
    info = store.info(run_id)
    if info.kind != "replay" or info.state != "complete":
        raise UserError(f"run {run_id} is no complete replay run: its files are not what they will be")
    sizes = {name: [entry for entry in info.files if entry.table == name] for name in TABLES}
    rows = {name: sum(entry.rows for entry in sizes[name]) for name in TABLES}
    if missing := [name for name in TABLES if not rows[name]]:
        raise UserError(f"run {run_id} has no rows of {', '.join(missing)}")
    return {
        "model": info.config["model"],
        "traces": info.config.get("traces"),
        "policies": info.config["policies"],
        "rows": rows,
        "bytes_per_row": {name: sum(entry.bytes for entry in sizes[name]) / rows[name] for name in TABLES},
    }


def storage(measured: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows and bytes of one trajectory under all policies, by table."""
    runs = 1 + POLICIES
    rows = {"cells": runs, "turn_metrics": TURNS * runs, "probes": PROBES * runs, "kept": TOKENS * runs}
    each = measured["bytes_per_row"]
    return [{"table": name, "rows": rows[name], "bytes": rows[name] * each[name]} for name in TABLES]


def drawn(rng: np.random.Generator, loss: Sequence[float], draws: int) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Scores of `full` and of policies that lose `loss`, (campaign, policy, draw), a few campaigns at a time.

    PROBES probes a trajectory, of an ease that varies (Beta(3, 1.3)); a policy answers the share ALIKE of them as
    `full` does but for its loss, the rest anew.
    """
    left = (1 - np.array(loss))[:, None, None]
    for _ in range(0, CAMPAIGNS, AT_ONCE):
        ease = rng.beta(3, 1.3, (AT_ONCE, 1, draws, 1))
        coins = rng.random((AT_ONCE, 1, draws, PROBES), dtype=np.float32)
        shape = (AT_ONCE, len(loss), draws, PROBES)
        anew = rng.random(shape, dtype=np.float32)
        mine = np.where(rng.random(shape, dtype=np.float32) < ALIKE, coins, anew)
        full = (coins < ease).mean(-1)
        yield (mine < left * ease).mean(-1), np.broadcast_to(full, shape[:-1])


def first(loss: Sequence[float], draws: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The look at which each policy of each campaign is proven good, and bad (`draws` + 1: never); and all D_i."""
    rng, bar = np.random.default_rng(SEED), bar_for(POLICIES, CONFIDENCE)
    good, bad, values = [], [], []
    for mine, full in drawn(rng, loss, draws):
        limits = {"max_loss": MAX_LOSS, "family_loss": FAMILY_LOSS, "available": TRAJECTORIES, "kinds": 1}
        capitals = log_capitals(mine, full, np.zeros(mine.shape), **limits)
        for found, capital in zip((good, bad), capitals, strict=True):
            reached = np.maximum.accumulate(capital, axis=-1)[..., BATCH - 1 :: BATCH] >= bar
            found.append(np.where(reached.any(-1), BATCH * (reached.argmax(-1) + 1), draws + 1))
        values.append(differences(mine, full, MAX_LOSS))
    return np.concatenate(good), np.concatenate(bad), np.concatenate(values)


def effect(loss: float) -> dict[str, Any]:
    """Draws until one policy among POLICIES is proven good or bad, against a sample whose size is fixed beforehand."""
    good, bad, values = first([loss], DRAWS)
    right, wrong = (bad, good) if loss > MAX_LOSS else (good, bad)
    side = -values if loss > MAX_LOSS else values
    return {
        "loss": loss,
        **_quantiles(right[:, 0]),
        "wrong": float((wrong[:, 0] <= DRAWS).mean()),
        "fixed": max(FEW, needed(side[:50].ravel(), CONFIDENCE, POLICIES) or 0),
        "campaigns": len(right),
    }


def ladder() -> dict[str, Any]:
    """Draws until the answer stands among four policies: every smaller one proven bad, the first that holds good."""
    good, bad, _ = first(LADDER, DRAWS)
    answers = [np.maximum(good[:, at], bad[:, :at].max(axis=1, initial=0)) for at in range(len(LADDER))]
    stop = np.minimum.reduce(answers)
    named = np.argmin(answers, axis=0)
    right = next(i for i, loss in enumerate(LADDER) if loss <= MAX_LOSS)
    decided = stop <= DRAWS
    return {
        "losses": list(LADDER),
        **_quantiles(stop),
        "right": float((named[decided] == right).mean()) if decided.any() else None,
        "campaigns": len(stop),
    }


def at_the_limit() -> dict[str, Any]:
    """The share of campaigns in which a policy that loses exactly the limit is ever named: the error promised."""
    good, _, _ = first([MAX_LOSS] * POLICIES, DRAWS // 4)
    return {"wrong": float((good <= DRAWS // 4).any(axis=1).mean()), "campaigns": len(good), "draws": DRAWS // 4}


def _quantiles(stops: NDArray[Any]) -> dict[str, Any]:
    """Median and 90 % quantile, None where so many did not stop within the draws."""
    half, most = (float(np.quantile(stops, q, method="higher")) for q in (0.5, 0.9))
    known = {"median": half, "most": most}
    return {name: int(value) if value <= DRAWS else None for name, value in known.items()} | {
        "decided": float((stops <= DRAWS).mean())
    }


def figures(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the page says; `measured` is what `stored` returned."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "assumed": {
            "trajectories": TRAJECTORIES,
            "tokens": TOKENS,
            "turns": TURNS,
            "probes": PROBES,
            "policies": POLICIES,
            "storage_usd": STORAGE_USD,
            "alike": ALIKE,
        },
        "limits": {"max_loss": MAX_LOSS, "confidence": CONFIDENCE, "batch": BATCH, "draws": DRAWS, "seed": SEED},
        "computing": [computing(model, gpu) for model, gpu in PLACES],
        "measured": dict(measured),
        "storage": storage(measured),
        "effects": [effect(loss) for loss in EFFECTS],
        "ladder": ladder(),
        "at_the_limit": at_the_limit(),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="kvmill bench scale", description=__doc__)
    parser.add_argument("--run", help="measure the bytes per row on this complete replay run, not as kept")
    parser.add_argument("--store", help="where that run is")
    parser.add_argument("--write", action="store_true", help="renew benchmarks/results and docs/scale.md")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    asked = parser.parse_args()
    measured = stored(Store.open(asked.store), asked.run) if asked.run else json.loads(FIGURES.read_text())["measured"]
    found = plain(figures(measured))
    if asked.write:
        FIGURES.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        PAGE.write_text(page(PAGE.read_text(), found))
    print(json.dumps(found, ensure_ascii=False) if asked.json else tables(found))


if __name__ == "__main__":
    main()
