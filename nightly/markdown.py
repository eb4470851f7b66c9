"""The verdict as Markdown, for a job summary: GitHub drops one above 1 MiB whole, so rows and cells are cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..console import duration

ROWS = 50
_CELL = 600  # characters; with ROWS rows a page stays far below 1 MiB whatever is in it
_SIGNS = {"green": "✅", "undecided": "❔", "regression": "❌", "incomplete": "⚠️"}


def markdown(found: Mapping[str, Any]) -> str:
    """Verdict, then the rows (blocking ones first), latency, GPUs, and where the rest is."""
    against = found["baseline"] or found["baseline_replay"] or "no accepted baseline"
    lines = [
        f"# {_SIGNS[found['verdict']]} {_cell(found['name'])}: {found['verdict']}",
        "",
        f"Run `{found['run']}` against `{against}`{', measured again tonight' if found['rerun'] else ''}: "
        f"{found['trajectories']} trajectories in {duration(found['duration_s'])} on {_cell(found['machine'])}.",
        *(["", *(f"- {_cell(text)}" for text in found["notes"][:ROWS])] if found["notes"] else []),
        "",
    ]
    columns = {"category": "verdict", "policy": "policy", "family": "family", "detail": "detail"}
    lines += _table(found["rows"], columns)
    if found["latency"]:
        lines += [
            "",
            "## Latency",
            "",
            *_table(found["latency"], {"policy": "policy", "family": "family", "detail": "detail"}),
        ]
    if found["plan"]:
        lines += ["", "## GPUs needed", "", _cell(found["plan"]["answer"]), ""]
        columns = {"policy": "policy", "gpus_before": "in the baseline", "gpus": "tonight", "gpus_change": "change"}
        lines += _table(found["plan"]["rows"], columns)
    lines += ["", f"All rows: `kvmill sql \"select * from gates where run_id = '{found['run']}'\"`"]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> list[str]:
    lines = [f"| {' | '.join(columns.values())} |", f"|{' --- |' * len(columns)}"]
    lines += [f"| {' | '.join(_cell(row[key]) for key in columns)} |" for row in rows[:ROWS]]
    return lines + ([f"\n… and {len(rows) - ROWS} more rows"] if len(rows) > ROWS else [])


def _cell(value: Any) -> str:
    text = "–" if value is None else " ".join(str(value).split())
    text = text if len(text) <= _CELL else text[: _CELL - 1] + "…"
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "\\`")
