"""The table of a plan: a line per policy, and what its columns mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..console import table

Row = Mapping[str, Any]

COLUMNS = {
    "policy": "policy",
    "gpus": "GPUs",
    "interval": "95 %",
    "gpus_saved": "saved",
    "saved_interval": "95 %",
    "slower_faster": "if slower/faster",
    "turns": "turns ×",
    "cost": "USD/month",
    "ttft": "p95 TTFT s",
    "tpot": "p95 TPOT s",
    "batch": "batch",
    "accuracy": "answer accuracy",
    "binding": "binding constraint",
}


def table_text(found: Row) -> str:
    """The table of `kvmill plan`, and below it what its figures are: how they came about, over how much."""
    rows = found["plans"]
    measured = next((row for row in rows if row["answer_accuracy"] is not None), None)
    columns = COLUMNS | ({} if measured is None else {"accuracy": measured["quality_of"]})
    lines = [
        table(table_rows(rows), columns),
        f"GPUs, saved, TTFT, TPOT, batch (requests at once in a replica): simulated, {found['replications']} "
        "replications. if slower/faster: GPUs if every second is longer or shorter by the cost model's error. turns ×: "
        "how many times the turns agents may take before nothing is saved",
    ]
    if measured is not None:
        lines.append(
            f"{measured['quality_of']}: measured with {measured['quality_model']}, run {measured['quality_run']}, "
            f"{measured['quality_n']} trajectories"
        )
    return "\n".join(lines)


def table_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows of `plan` in the columns of `COLUMNS`, for a terminal."""
    out = []
    for row in rows:
        out.append(
            {
                "policy": row["policy"],
                "gpus": row["gpus"] if row["feasible"] else "none",
                "interval": _pair(row["gpus_low"], row["gpus_high"]),
                "gpus_saved": row["gpus_saved"],
                "saved_interval": _pair(row["gpus_saved_low"], row["gpus_saved_high"]),
                "slower_faster": _pair(row["gpus_if_slower"], row["gpus_if_faster"], "/"),
                "turns": _growth(row),
                "cost": None if row["cost_per_month"] is None else f"{row['cost_per_month']:,.0f}",
                "ttft": row["ttft_s"]["p95"],
                "tpot": row["tpot_s"]["p95"],
                "batch": row["batch_mean"],
                "accuracy": row["answer_accuracy"],
                "binding": row["binding_constraint"],
            }
        )
    return out


def _growth(row: Row) -> str | None:
    growth, least = row.get("turns_break_even"), "≥ " if row.get("turns_break_even_note") else ""
    return None if growth is None else f"{least}{1 + growth:.2f}"


def _pair(low: float | None, high: float | None, join: str = "–") -> str | None:
    if low is None and high is None:
        return None
    return join.join("?" if end is None else f"{end:.0f}" for end in (low, high))
