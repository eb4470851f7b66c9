"""Replays whose kept tokens are written by hand, with text that would do harm if a page took it for markup."""

from __future__ import annotations

from typing import Any

import fabricate

from kvmill.traces.store import Store

HARM = "<script>alert(1)</script>"
WORDS = ("You", " help", HARM, " pic![x](http://evil.example/p.png)", "\u202eabc", "&amp;", "\n", " end")
SHARES = {fabricate.FULL: 1.0, fabricate.BOUNDARY: 0.25, fabricate.DELAYED: 0.75}
TURNS = 3


def kept_replay(
    store: Store, *, trajectories: tuple[str, ...] = ("t-0", "t-1"), worse: float = 0.0, mass: bool = False
) -> str:
    """A replay under three policies, three turns of eight tokens each, and the id of its run.

    `worse` is added to the NLL of the policies from turn 1 on. The policies but full depart from full at turn 1.
    """
    config = {"model": "smollm2-135m", "policies": list(SHARES), "measure": "quality", "mode": "teacher"}
    run = store.begin("replay", config | {"dtype": "float32", "explain": mass}, device="cpu")
    for name in trajectories:
        tables: dict[str, list[dict[str, Any]]] = {"cells": [], "turn_metrics": [], "kept": []}
        for policy, share in SHARES.items():
            key = {"cell_id": f"{policy}-{name}", "trajectory_id": name, "family": "registry", "policy": policy}
            full = policy == fabricate.FULL
            more = 0.0 if full else worse
            tables["cells"].append(
                {**key, **fabricate.CELL, "mode": "teacher", "measure": "quality", "status": "ok", "turns": TURNS}
                | {"logical_tokens": TURNS * len(WORDS), "scored_tokens": 2, "nll": 1.0 + more, "kv_tokens_peak": 24.0}
            )
            tables["turn_metrics"] += [
                {**key, "measure": "quality", "turn": turn, "scored_tokens": 1, "nll": 1.0 + (more if turn else 0.0)}
                | {
                    "kv_tokens": 8.0 * (turn + 1) * share,
                    "kv_tokens_peak": 8.0 * (turn + 1),
                    "compactions": int(not full),
                }
                | {"top1_agreement": 1.0 if full or not turn else 0.5}
                for turn in range(TURNS)
            ]
            tables["kept"] += [
                {
                    **key,
                    "turn": at // len(WORDS),
                    "kind": "prefix" if at < 2 else "tool",
                    "position": at,
                    "token_id": at,
                }
                | {"text": WORDS[at % len(WORDS)], "share": share, "mass_full": float(at) if mass else None}
                for at in range(TURNS * len(WORDS))
            ]
        run.add(tables, key=name)
    run.finish()
    return run.id


def night(store: Store, rows: list[dict[str, Any]], verdict: str = "green", **more: str) -> str:
    """A gated night with these findings, and the id of its run."""
    run = store.begin("nightly", {"name": "night", "verdict": verdict, **more})
    run.add({"gates": rows}, key="gates")
    run.finish()
    return run.id
