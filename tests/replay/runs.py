"""A small replay run with rows made by hand, so that every figure can be computed with pencil and paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvmill.traces.store import Store

FULL, TE = "full", "te(proxy=assistant,delay=1,keep=0.2)"
# Right answers of 4 probes per trajectory, and KV rows at the peak: (full, te).
RIGHT = {"a/1": (4, 3), "a/2": (3, 3), "b/1": (2, 0)}
PEAK = {"a/1": (1000, 400), "a/2": (1200, 420), "b/1": (1400, 440)}
SCORED = {"a/1": 100, "a/2": 100, "b/1": 300}
NLL = {"a/1": 0.1, "a/2": 0.2, "b/1": 0.4}
CONFIG = {"model": "smollm2-135m", "policies": [FULL, TE], "dtype": "float32", "threads": 2, "mode": "teacher"}


def _key(trajectory: str, policy: str, measure: str) -> dict[str, Any]:
    return {
        "cell_id": f"{trajectory}-{policy}-{measure}",
        "trajectory_id": trajectory,
        "family": trajectory.partition("/")[0],
        "policy": policy,
    }


def rows_of(trajectory: str) -> dict[str, list[dict[str, Any]]]:
    """All quality rows of one trajectory under both policies."""
    rows: dict[str, list[dict[str, Any]]] = {"cells": [], "turn_metrics": [], "probes": [], "kept": []}
    for i, policy in enumerate((FULL, TE)):
        key, right = _key(trajectory, policy, "quality"), RIGHT[trajectory][i]
        rows["cells"].append(
            {
                **key,
                "seed": 0,
                "measure": "quality",
                "status": "ok",
                "scored_tokens": SCORED[trajectory],
                "delta_nll": i * NLL[trajectory],
                "nll": 1.0 + i * NLL[trajectory],
                "kl": i * 0.5,
                "top1_agreement": 1.0 - i * 0.25,
                "probes": 4,
                "answer_accuracy": right / 4,
                "answer_ll": -1.0 - i,
                "answer_margin": 0.5,
                "kv_tokens_peak": float(PEAK[trajectory][i]),
                "kv_bytes_peak": PEAK[trajectory][i] * 1000,
            }
        )
        rows["turn_metrics"] += [
            {**key, "measure": "quality", "turn": t, "scored_tokens": 10, "delta_nll": i * t * 0.1, "kv_tokens": 100.0}
            for t in range(3)
        ]
        rows["probes"] += [
            {
                **key,
                "probe_id": f"p{n}",
                "kind": "one-hop" if n % 2 == 0 else "two-hop",
                "age_turns": 2 + n // 2,
                "choice": 0 if n < right else 1,
                "correct": n < right,
                "answer_ll": -1.0 - i,
                "answer_margin": 0.5,
            }
            for n in range(4)
        ]
        words = ["<|im_start|>", "tool", "\n", "Result", ":", " Alice", " keeps", " Falcon", "<|im_end|>", "\n"]
        rows["kept"] += [
            {
                **key,
                "turn": position // 5,
                "kind": "tool",
                "position": position,
                "token_id": position,
                "text": word,
                "share": 1.0 if i == 0 else (0.0, 0.05, 0.3, 0.6, 0.9)[position % 5],
            }
            for position, word in enumerate(words)
        ]
    return rows


def replay_run(where: Path, *, latency: bool = True, failed: bool = False) -> tuple[Store, str]:
    """A store with one complete replay run."""
    store = Store.open(where)
    run = store.begin("replay", CONFIG, device="cpu")
    for trajectory in RIGHT:
        run.add(rows_of(trajectory), key=trajectory)
    if latency:
        run.add({"cells": _latency(), "turn_metrics": _latency_turns()}, key="latency")
    if failed:
        cell = {**_key("c/1", TE, "quality"), "measure": "quality", "status": "failed", "error": "too long"}
        run.add({"cells": [cell]}, key="c/1")
    run.finish()
    return store, run.id


def _latency() -> list[dict[str, Any]]:
    return [
        {
            **_key(trajectory, policy, "latency"),
            "measure": "latency",
            "status": "ok",
            "ttft_s": 0.2 + i,
            "tpot_s": 0.05,
            "prefill_s_per_turn": 0.2,
            "compaction_s_per_turn": float(i),
            "decode_s_per_token": 0.05,
        }
        for trajectory in ("a/1", "b/1")
        for i, policy in enumerate((FULL, TE))
    ]


def _latency_turns() -> list[dict[str, Any]]:
    return [
        {**_key("a/1", FULL, "latency"), "measure": "latency", "turn": turn, "ttft_s": 1.0, "decode_s": 0.5 * turn}
        for turn in range(3)
    ]
