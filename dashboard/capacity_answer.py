"""A plan's row in the words and tables of the page Capacity and of its report. No store, no Streamlit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..simulator.sentence import sentence
from ..simulator.words import level_words
from .capacity_bounds import Bound

Row = Mapping[str, Any]
Rows = Sequence[Row]
NOT = "–"
FEW = 10
LATENCIES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}
EFFECTS = {
    "held": "rows not held",
    "prefix": "caches not found again",
    "seconds": "seconds of compaction",
    "turns": "extra turns",
    "together": "together, beyond the sum",
}
TOLERANCES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number on the page: what it is with where it is from, and what hangs on it."""

    label: str
    value: str
    note: str = ""


def spoken(frame: Row, full: Row | None, row: Row) -> str | None:
    """The answer in one sentence; None where the rows carry too little to say it from."""
    if full is None or "quality_model" not in row or "quality_model" not in full:
        return None
    count = row.get("replications") or frame.get("replications") or 0
    rows = [full] if row["policy"] == "full" else [full, row]
    found = {**frame, "plans": rows, "replications": count, "few_replications": count < FEW}
    return sentence(found, row["policy"])


def figures(row: Row) -> list[Figure]:
    """The figures of one policy, the most asked for first; all simulated but for the price."""
    saved = _whole(row.get("gpus_saved"))
    return [
        Figure("GPUs needed · simulated", _whole(row.get("gpus")), _between(row, "gpus")),
        Figure("GPUs saved · simulated", saved, _between(row, "gpus_saved")),
        Figure("USD per month · assumed price", _whole(row.get("cost_per_month")), _month(row)),
        Figure("Turns to break even · simulated", _turns(row), str(row.get("turns_break_even_note") or "")),
        Figure("GPUs slower / faster · simulated", _pair(row), "machines, by the error of the cost model (estimated)"),
        Figure("Headroom in load · simulated", _headroom(row), str(row.get("headroom_note") or "")),
        Figure("Batch, mean · simulated", _short(row.get("batch_mean")), f"at most {_whole(row.get('batch_max'))}"),
        Figure("Tokens per second · simulated", _whole(row.get("throughput_tokens_per_s")), _rates(row)),
    ]


def bound_figures(bound: Bound, full: Bound, price: float | None) -> list[Figure]:
    """What closed forms say of one policy while nothing was simulated."""
    month = None if price is None else bound.holding() * price * 730
    return [
        Figure("GPUs at least · estimated bound", _whole(bound.least()), "no answer can be below it"),
        Figure("GPUs for every cache · estimated", _whole(bound.holding()), "where nothing is ever evicted"),
        Figure(
            "GPUs saved · estimated",
            _whole(full.holding() - bound.holding()),
            f"against {full.holding()} of the full cache, both by the caches they hold",
        ),
        Figure("USD per month · estimated", _whole(month), "of the fleet that holds every cache, at the assumed price"),
    ]


def latency_rows(rows: Rows) -> list[dict[str, Any]]:
    """Percentiles of the three latencies at each policy's fleet, in seconds (simulated)."""
    return [
        {"policy": row["policy"], "GPUs": row.get("gpus"), "latency": name}
        | {f"{q} (s)": (row.get(key) or {}).get(q) for q in ("p50", "p95", "p99")}
        for row in rows
        for key, name in LATENCIES.items()
        if row.get(key)
    ]


def size_rows(rows: Rows, slo: Mapping[str, float]) -> list[dict[str, Any]]:
    """Every fleet size that was looked at, with its verdict."""
    return [_size(row["policy"], size, slo) for row in rows for size in row.get("sizes") or ()]


def why_not_fewer(row: Row, slo: Mapping[str, float]) -> str:
    """One sentence about the fleet of one replica less."""
    if not row.get("feasible"):
        return f"No fleet keeps the promises: {row.get('infeasible_because') or row.get('binding_constraint') or NOT}."
    tp, gpus = row.get("tp") or 1, row.get("gpus")
    if not gpus:
        return "Smaller fleets were not looked at."
    if gpus == tp:
        return "One replica is the least there is."
    sizes = {size["gpus"]: size for size in (row.get("one_fewer"), *(row.get("sizes") or ())) if size}
    below = sizes.get(gpus - tp)
    if below is None:
        least = row.get("gpus_bound")
        if least and gpus - tp < least:
            return f"{gpus - tp} GPUs were not simulated: the load takes {least} at the very least (estimated bound)."
        return f"{gpus - tp} GPUs were not simulated for this plan: plan again to see why they do not do."
    happened = [
        f"{key} is {level_words(below[f'{key}_s'])} s where {limit:g} s is promised"
        for key, limit in slo.items()
        if below.get(f"{key}_s") and below[f"{key}_s"][2] > limit
    ]
    word = {"fails": "break a promise", "undecided": "may break a promise", "meets": "keep it too"}
    grows = "; the queue grows" if below.get("saturated") else ""
    because = ": " + ", ".join(happened) if happened else ""
    binds = below.get("binding_constraint") or row.get("binding_constraint") or NOT
    return f"{below['gpus']} GPUs {word[below['verdict']]}{because}{grows}. Binds: {binds}."


def by_tolerance(rows: Rows) -> list[dict[str, Any]]:
    """The smallest fleet by the accuracy that may be lost, as shares: by the estimate, and with the interval's end.

    `full` loses nothing. Policies whose loss was not measured are in neither.
    """
    out: list[dict[str, Any]] = []
    for tolerance in TOLERANCES:
        for reading, key in (("estimate", "difference"), ("95 % interval", "difference_low")):
            able = [
                row
                for row in rows
                if row.get("gpus")
                and (row["policy"] == "full" or (row.get(key) is not None and row[key] >= -tolerance - 1e-12))
            ]
            if able:
                best = min(able, key=lambda row: row["gpus"])
                out.append({"tolerance": tolerance, "reading": reading, "gpus": best["gpus"], "policy": best["policy"]})
    return out


def effect_rows(row: Row) -> list[dict[str, Any]]:
    """What the saving is made of, in GPUs; empty where that was not asked."""
    worth, low, high = (row.get(key) or {} for key in ("attribution", "attribution_low", "attribution_high"))
    return [
        {"effect": words, "GPUs saved": worth.get(name), "low": low.get(name), "high": high.get(name)}
        for name, words in EFFECTS.items()
        if name in worth
    ]


def _size(policy: str, size: Row, slo: Mapping[str, float]) -> dict[str, Any]:
    levels = {
        f"{key} (s)": level_words(size[f"{key}_s"]) if size.get(f"{key}_s") else None for key in slo
    }  # fmt: skip
    return (
        {"policy": policy, "GPUs": size["gpus"], "verdict": size["verdict"]}
        | levels
        | {"binds": size.get("binding_constraint")}
    )


def _whole(value: float | None) -> str:
    return NOT if value is None else f"{value:,.0f}"


def _short(value: float | None) -> str:
    return NOT if value is None else f"{value:,.3g}"


def _between(row: Row, key: str) -> str:
    low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
    if low is None and high is None:
        return ""
    ends = ["?" if end is None else f"{end:,.0f}" for end in (low, high)]
    return f"95 % interval {ends[0]} to {ends[1]}"


def _month(row: Row) -> str:
    cost, gpus, saved = row.get("cost_per_month"), row.get("gpus"), row.get("gpus_saved")
    return f"{cost / gpus * saved:,.0f} saved against full" if cost and gpus and saved else ""


def _turns(row: Row) -> str:
    growth = row.get("turns_break_even")
    if growth is None or not row.get("gpus_saved") or row["gpus_saved"] < 0:
        return NOT
    return f"{'≥ ' if row.get('turns_break_even_note') else ''}{1 + growth:.2f} ×"


def _pair(row: Row) -> str:
    ends = [row.get("gpus_if_slower"), row.get("gpus_if_faster")]
    return NOT if ends == [None, None] else " / ".join(_whole(end) for end in ends)


def _headroom(row: Row) -> str:
    room = row.get("headroom")
    return NOT if room is None else f"{'≥ ' if row.get('headroom_note') else ''}{room:+.0%}"


def _rates(row: Row) -> str:
    good, all_ = row.get("goodput_requests_per_s"), row.get("throughput_requests_per_s")
    return "" if good is None or all_ is None else f"{all_:.3g} turns per second, {good:.3g} within the promises"
