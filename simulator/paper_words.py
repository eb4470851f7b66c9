"""The paper's method in words: the answer, what its ratio leaves out, a screen of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..console import table

Row = Mapping[str, Any]
SAME = 0.005  # of a ratio, from 1
NOT_CHARGED = (
    "queues (every sequence decodes all the time, no latency is promised)",
    "prefill of prompts, of tool outputs and of lost caches",
    "compaction, and the queries captured for it",
    "tool waits (caches that stay meanwhile fill the pool, those that go are prefilled again)",
)


def paper_answer(found: Mapping[str, Any]) -> str:
    """One sentence about the last policy, and one about what continuous batching makes of it."""
    full, row = found["plans"][0], found["plans"][-1]
    gpu = f"{found['tp']} × {str(found['gpu']).upper()}"
    if not row["feasible"]:
        return (
            f"By the paper's method no static batch of {row['policy']} fits {gpu}: its largest turn holds "
            f"{row['peak_kv_tokens']:,} tokens, the pool {found['pool_tokens']:,}."
        )
    head = f"By the paper's method one replica ({gpu}) serves {row['sessions_per_hour']:.0f} sessions/h of "
    if row is full or row["ratio"] is None:
        return f"{head}{found['workload']} with `{row['policy']}` in a static batch of {row['batch']}."
    head += (
        f"{found['workload']} with `{row['policy']}` instead of {full['sessions_per_hour']:.0f}: {row['ratio']:.2g} × "
        f"(batch {full['batch']} → {row['batch']})."
    )
    ratio = ratio_of(row, "promises") or ratio_of(row, "batching")
    if ratio is None:
        return head
    terms = " within the promises" if ratio_of(row, "promises") else ""
    return f"{head} Continuous batching of the same sessions{terms} says {ratio:.2g} × (simulated)."


def ratio_of(row: Row, key: str) -> float | None:
    """The ratio against `full` in one line of the walk; None when there is no such line."""
    return next((line["ratio"] for line in row["walk"] if line["key"] == key), None)


def explained(row: Row, full: Row) -> list[str]:
    """Why the ratio moves from line to line of the walk; empty where there is no ratio."""
    if row["ratio"] is None or row["policy"] == full["policy"]:
        return []
    if all(abs(line["ratio"] - 1) < SAME for line in row["walk"] if line["ratio"] is not None):
        return ["No line differs: on these sessions the policy holds as much as full."]
    said = [
        f"Rounding: batches {full['batch']} → {row['batch']} are {row['batch'] / full['batch']:.2g} ×, those that fit, "
        f"{full['batch_admissible']} → {row['batch_admissible']}, are "
        f"{row['batch_admissible'] / full['batch_admissible']:.2g} × ({_to(row, 'unrounded')}).",
        f"The largest turn sets the batch: {full['peak_kv_tokens']:,} tokens with full, {row['peak_kv_tokens']:,} with "
        f"the policy, while a decoding session holds {full['mean_kv_tokens']:,.0f} and {row['mean_kv_tokens']:,.0f} on "
        f"average. An engine fills the room between ({_to(row, 'mean')}).",
        f"A prefix that sessions share is counted in each of them; an engine holds it once ({_to(row, 'shared')}).",
        f"Prefill, not charged, stops decoding for {full['prefill_s_per_session']:.1f} and "
        f"{row['prefill_s_per_session']:.1f} s per session ({_to(row, 'prefill')}).",
        f"Compaction, not charged, takes {row['compaction_s_per_session']:.2f} s per session, and captured queries "
        f"hold the room of {row['captured_kv_tokens']:,.0f} tokens ({_to(row, 'compaction')}).",
        f"Tools run for {row['tool_wait_s_per_session']:.0f} s per session, during which its cache fills the pool and "
        f"nothing is decoded ({_to(row, 'waits')}).",
    ]
    if row["extra_turns"]:
        said.append(
            f"The decodes of {row['extra_turns']:.0%} more turns are in the ratio; their prefill and their tool waits "
            "are in it only from those lines on."
        )
    for key, what in (("batching", "at the most agents can do"), ("promises", "within the promises")):
        ratio = ratio_of(row, key)
        if ratio is not None:
            said.append(f"Simulated {what}, with queues, evictions and preemptions: {ratio:.2g} ×.")
    return said


def _to(row: Row, key: str) -> str:
    return f"the ratio becomes {ratio_of(row, key) or 0:.2g} ×"


def paper_text(found: Mapping[str, Any]) -> str:
    """The sentence, the paper's table, the walk to continuous batching, the reasons."""
    rows = [
        {
            "policy": row["policy"],
            "turns": row["turns"],
            "peak": f"{row['peak_kv_tokens']:,}",
            "mean": f"{row['mean_kv_tokens']:,.0f}",
            "fits": row["batch_admissible"],
            "batch": row["batch"],
            "rate": row["sessions_per_hour"],
            "ratio": row["ratio"],
            "gpus": row["gpus"],
        }
        for row in found["plans"]
    ]
    heads = {"policy": "policy", "turns": "turns", "peak": "peak KV", "mean": "mean KV", "fits": "fits"}
    heads |= {"batch": "batch", "rate": "sessions/h", "ratio": "×", "gpus": "GPUs"}
    parts = [found["answer"], table(rows, heads)]
    lines = [{"policy": row["policy"]} | line for row in found["plans"] for line in row["walk"]]
    if lines:
        columns = {"policy": "policy", "what": "counting", "batch": "batch", "sessions_per_hour": "sessions/h"}
        parts.append(
            "One replica, one thing more counted in each line:\n"
            + table(lines, columns | {"ratio": "× full", "label": "label"})
        )
    for row in found["plans"][1:]:
        if row["explained"]:
            parts.append("\n".join([f"{row['policy']}:", *(f"  {said}" for said in row["explained"])]))
    return "\n\n".join(parts)
