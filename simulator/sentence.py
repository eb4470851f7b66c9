"""The answer in one sentence: what is saved, on what terms, at what measured cost in quality, and what binds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .slo import parse_slo, words

DRAWN = "drawn until the recommendation was decided, which the interval does not allow for"
"""Said of a sample of `kvmill replay --until-decided`: its intervals are those of a fixed one."""

Row = Mapping[str, Any]
CALLED = {"last": "the newest ingest", "all": "the whole store", "requests": "the newest request log"}
HELD = {
    "lru": "without offloading to host memory",
    "ttl": "with caches dropped after {seconds} s, without offloading to host memory",
    "offload": "with caches offloaded to host memory",
}


def sentence(plan: Mapping[str, Any], policy: str) -> str:
    """The answer about `policy` against `full` from the object that `plan` returns (rows may carry more keys)."""
    rows = {row["policy"]: row for row in plan["plans"]}
    row, full = rows[policy], rows["full"]
    gpu, terms, held = str(plan["gpu"]).upper(), words(parse_slo(plan["slo"])), held_words(plan)
    load = CALLED.get(plan["workload"], plan["workload"])
    if not row["feasible"]:
        instead = f"; without compaction {full['gpus']} do" if full["feasible"] else ""
        why = row.get("infeasible_because")
        never = f" {why[:1].upper()}{why[1:]}." if why else ""
        return (
            f"No fleet of up to {row['gpus_searched']} × {gpu} serves {load} with {policy} at {terms}"
            f"{instead}.{never}{_best_shown(row, plan['slo'], gpu)} Binding constraint: {row['binding_constraint']}."
        )
    if not full["feasible"]:
        head = (
            f"With `{policy}` {load} needs {row['gpus']} × {gpu}{_interval(row)} at {terms} {held}; "
            f"without compaction no fleet of up to {full['gpus_searched']} does"
        )
    elif row is full or row["gpus_saved"] == 0:
        also = "Without compaction" if row is full else f"With `{policy}`, as without it ({_saved(row)}),"
        head = f"{also} {load} needs {row['gpus']} × {gpu}{_interval(row)} at {terms} {held}"
    else:
        head = (
            f"With `{policy}` {load} needs {row['gpus']} × {gpu} instead of {full['gpus']} "
            f"({_saved(row)}) at {terms} {held}{_turns(row)}"
        )
    few = f" Only {plan['replications']} replications: a first look." if plan["few_replications"] else ""
    binds = dict.fromkeys(r["binding_constraint"].partition(":")[0] for r in (full, row))
    return f"{head}. {_quality(row, plan['model'])}Binding constraint: {' → '.join(binds)}.{few}"


def _best_shown(row: Row, slo: Mapping[str, float], gpu: str) -> str:
    """Of a row without an answer: what the largest fleet shows of the promises it misses, where it was simulated."""
    largest = max(row.get("sizes") or (), key=lambda size: size["gpus"], default=None)
    if largest is None or largest["gpus"] < row["gpus_searched"]:
        return ""
    shown = {promise: largest[f"{promise.key}_s"][0] for promise in parse_slo(slo)}
    told = {promise: s for promise, s in shown.items() if s not in (None, float("inf"))}  # null once it was stored
    missed = [f"p{p.percentile} {p.metric.upper()} {s:.3g} s" for p, s in told.items() if p.limit_s < s]
    return f" {largest['gpus']} × {gpu} show {' and '.join(missed)} (simulated)." if missed else ""


def held_words(plan: Mapping[str, Any]) -> str:
    """What becomes of waiting agents' KV, in a few words; a plan that does not say kept it until evicted."""
    kind, _, seconds = str(plan.get("retention") or "lru").partition(":")
    return HELD[kind].format(seconds=seconds)


def _interval(row: Row) -> str:
    return f" ({_span(row['gpus_low'], row['gpus_high'])})"


def _span(low: float | None, high: float | None) -> str:
    ends = ["?" if end is None else f"{end:.0f}" for end in (low, high)]
    return f"95 % interval {ends[0]}–{ends[1]}"


def _saved(row: Row) -> str:
    saved = row["gpus_saved"]
    what = f"{saved} saved" if saved > 0 else "none saved" if saved == 0 else f"{-saved} more"
    low, high = row["gpus_saved_low"], row["gpus_saved_high"]
    if saved < 0 and low is not None and high is not None:
        low, high = -high, -low
    return f"{what}, {_span(low, high)}"


def _turns(row: Row) -> str:
    if row["extra_turns"] is not None:
        return f", {1 + row['extra_turns']:.2g} × the turns counted"
    growth, note = row.get("turns_break_even"), row.get("turns_break_even_note")
    if growth is None or row["gpus_saved"] <= 0:
        return ""
    if note:
        return f", up to at least {1 + growth:.1f} × the turns ({note})"
    if not growth:
        return ", as long as agents need no more turns"
    return f", as long as agents need less than {1 + growth:.1f} × the turns"


def _quality(row: Row, model: str) -> str:
    kept = row.get("keep_measured")
    share = "" if kept is None else f"Its memory follows the {kept:.0%} of tokens that replay saw it keep. "
    return share + _measured(row, model)


def _measured(row: Row, model: str) -> str:
    if row["quality_model"] is None:
        return "Quality was not measured: no complete replay run has this policy. "
    where = f"Quality measured with {row['quality_model']}"
    if not row["quality_is_planned_model"]:
        where += f", not with the planned {model}"
    if row["answer_accuracy"] is None:
        return f"{where}: no probes answered. "
    what = row.get("quality_of") or "answer accuracy"
    if row["policy"] == "full" or row["difference"] is None:
        return f"{where}: {what} {row['answer_accuracy']:.0%} ({_sample(row)}). "
    points = f"{row['difference'] * 100:+.0f} points".replace("-", "−")
    if row["difference_low"] is not None:
        ends = f"{row['difference_low'] * 100:+.0f}…{row['difference_high'] * 100:+.0f}".replace("-", "−")
        points += f", {ends}"
    return (
        f"{where}: {what} {row['full_accuracy']:.0%} → {row['answer_accuracy']:.0%} "
        f"(paired difference {points}, {_sample(row)}). "
    )


def _sample(row: Row) -> str:
    return f"{row['quality_n']} trajectories" + (f" {DRAWN}" if row.get("quality_until_decided") else "")
