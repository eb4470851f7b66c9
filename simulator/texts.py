"""A plan and a simulation as text: the answer first, then what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..console import table
from .answer_table import table_text
from .attribution import attribution_text
from .stored import FLAT
from .words import fewer_text, guessed_text, promised_text, room_text, series_text, short_text, sizes_text

Found = Mapping[str, Any]


def plan_text(found: Found) -> str:
    """The sentence, the table, why not fewer, what the saving is made of, the sizes looked at, what was assumed."""
    rows, slo = found["plans"], found["slo"]
    parts = [found["answer"], table_text(found), fewer_text(rows, slo), room_text(rows)]
    if any(row.get("attribution") and row["gpus_saved"] for row in rows):
        parts.append(f"GPUs that each effect of compaction saves (costs, below 0):\n{attribution_text(rows)}")
    if found["other_shapes"]:
        parts.append(f"GPUs if the workload were shaped otherwise:\n{shapes_text(found)}")
    parts += [
        f"Fleet sizes looked at ({found['statistic']}):\n{sizes_text(rows, slo)}",
        guessed_text(rows, slo),
        assumed_text(found),
    ]
    return "\n\n".join(part for part in parts if part)


def simulate_text(found: Found) -> str:
    """One screen about one fleet."""
    kept = "keeps" if found["meets"] else "does not keep"
    promises = ", ".join(f"{key} ≤ {limit:g} s" for key, limit in found["slo"].items())
    growing = "\nSaturated: latencies depend on how long one looks." if found["saturated"] else ""
    replicas = "1 replica" if found["replicas"] == 1 else f"{found['replicas']} replicas"
    head = (
        f"{found['gpus']} × {found['gpu'].upper()} ({replicas} of {found['model']}) serving "
        f"{found['workload']} under {found['policy']} {kept} {promises}.\nBinding: {found['binding_constraint']}."
    )
    runs = "1 replication" if found["replications"] == 1 else f"{found['replications']} replications"
    sample = f"Simulated: {runs}, {found['requests']:,} turns in all, seed {found['seed']}."
    levels = [{"metric": name[:-2].upper(), **found[name]} for name in FLAT]
    body = table(levels, {"metric": "seconds", "p50": "p50", "p95": "p95", "p99": "p99"})
    rates = (
        f"{found['throughput_requests_per_s']:.2f} requests/s, {found['throughput_tokens_per_s']:,.0f} tokens/s, "
        f"{found['goodput_requests_per_s']:.2f} requests/s within the promises\n"
        f"batch {found['batch_mean']:.1f} (at most {found['batch_max']}), KV blocks {found['kv_used_share']:.0%} used, "
        f"{found['preemptions']} preemptions, {found['miss_share']:.1%} of turns found some of their cache gone"
    )
    parts = [
        head + growing,
        sample,
        body,
        promised_text(found),
        short_text(found),
        guessed_text([found], found["slo"]),
        rates,
        series_text(found.get("series") or ()),
        assumed_text(found),
    ]
    return "\n\n".join(part for part in parts if part)


def shapes_text(found: Found) -> str:
    """The answer for other shapes of the workload, one line each."""
    policies = {name: name for row in found["other_shapes"] for name in row if name != "what"}
    return table(found["other_shapes"], {"what": "if"} | policies)


def assumed_text(found: Found) -> str:
    """What was assumed, line by line."""
    lines = []
    if found.get("contexts"):
        lines.append("contexts: " + ", ".join(f"{q} {tokens:,} tokens" for q, tokens in found["contexts"].items()))
        lines.append(f"compactable: {found['compactable_share']:.0%} of a session's memory at the median context")
    for name, value in found["assumptions"].items():
        lines += [f"{name}: {item}" for item in (value if isinstance(value, list) else [value])]
    if found["price_per_hour"] is None:
        lines.append("price: not known for this GPU (give --price)")
    else:
        lines.append(f"price {found['price_per_hour']:g} USD per GPU-hour ({found['price_source']})")
    return "Assumed:\n" + "\n".join(f"  {line}" for line in lines)
