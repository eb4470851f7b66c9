"""Parts of the answer in words: why not fewer, how much more load, what could not be told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..console import table

Row = Mapping[str, Any]
MOST_LINES = 10  # of a run over time


def level_words(level: Sequence[float | None]) -> str:
    """`2.3 (2.1–2.6)`: a mean and its interval. What has no end, null once it was stored, is ∞."""
    mean, low, high = ("∞" if value in (None, math.inf) else f"{value:.3g}" for value in level)
    return f"{mean} ({low}–{high})"


def promised_text(found: Row) -> str:
    """The promised latencies with their intervals over replications; empty where one replication has none."""
    lines = [
        f"  {key} {level_words([level['mean'], level['low'], level['high']])} s of {found['slo'][key]:g}"
        for key, level in found["promises"].items()
        if level["low"] is not None
    ]
    return f"Promises ({found['statistic']}):\n" + "\n".join(lines) if lines else ""


def fewer_text(rows: Sequence[Row], slo: Mapping[str, float]) -> str:
    """Why not one replica fewer: what happens there, a line per policy."""
    lines = []
    for row in rows:
        below = row.get("one_fewer")
        if below is None:
            continue
        figures = ", ".join(f"{key} {level_words(below[f'{key}_s'])} s of {limit:g}" for key, limit in slo.items())
        growing = ", its queue grows" if below.get("saturated") else ""
        lines.append(f"  {row['policy']}: {gpus_words(below['gpus'])} {_verdict(below)}: {figures}{growing}")
    return "Why not one replica fewer:\n" + "\n".join(lines) if lines else ""


def gpus_words(count: int) -> str:
    """`1 GPU`, `8 GPUs`."""
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _verdict(size: Row) -> str:
    one = {"fails": "fails", "meets": "meets", "undecided": "is undecided"}
    several = {"fails": "fail", "meets": "meet", "undecided": "are undecided"}
    return (one if size["gpus"] == 1 else several)[size["verdict"]]


def room_text(rows: Sequence[Row]) -> str:
    """How much more load each answer carries, in one line."""
    parts = [
        f"{row['policy']} {'at least ' if row['headroom_note'] else ''}{row['headroom']:+.0%}"
        for row in rows
        if row.get("headroom") is not None
    ]
    return f"Headroom, more load before a promise breaks: {', '.join(parts)}." if parts else ""


def short_text(found: Row) -> str:
    """Percentiles that too few turns could tell, and how many more they need; empty when none."""
    missing = found.get("turns_short") or {}
    if not missing:
        return ""
    needs = ", ".join(f"{name} {count:,} turns more" for name, count in missing.items())
    return f"Not told from so few turns (ten must lie beyond a percentile): {needs} in every replication."


def guessed_text(rows: Sequence[Row], slo: Mapping[str, float]) -> str:
    """Promises that were judged by the largest value, because too few turns could tell their percentile."""
    lines = []
    for row in rows:
        for key in slo:
            more = (row.get("turns_short") or {}).get(key.partition("_")[2])
            if more:
                lines.append(f"  {row['policy']}, {key}: {more:,} turns more are needed in every replication")
    head = "Judged by the largest value, an upper bound, for want of turns:"
    return "\n".join([head, *lines]) if lines else ""


def series_text(rows: Sequence[Row]) -> str:
    """How the run went over time, in ten lines at most, evenly apart."""
    if not rows:
        return ""
    shown = [rows[i] for i in range(0, len(rows), -(-len(rows) // MOST_LINES))]
    columns = {
        "start_s": "from s",
        "batch": "batch",
        "waiting": "waiting",
        "kv_used_share": "KV used",
        "hit_share": "hits",
        "requests": "turns",
        "preemptions": "preempted",
        "ttft_p50_s": "p50 TTFT s",
        "tpot_p50_s": "p50 TPOT s",
    }
    return f"Over time ({len(rows)} intervals, some of them):\n{table(shown, columns)}"


def sizes_text(rows: Sequence[Row], slo: Mapping[str, float]) -> str:
    """Every fleet size looked at, with its verdict."""
    lines = [
        {"policy": row["policy"], "gpus": size["gpus"], "verdict": _judged(size)}
        | {key: level_words(size[f"{key}_s"]) for key in slo}
        for row in rows
        for size in row["sizes"]
    ]
    return table(lines, {"policy": "policy", "gpus": "GPUs", "verdict": "verdict"} | {k: f"{k} s" for k in slo})


def _judged(size: Row) -> str:
    return f"{size['verdict']}, saturated" if size.get("saturated") else size["verdict"]
