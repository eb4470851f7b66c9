"""What several pages ask of the store. Rows come back as plain dictionaries; each page's own questions are beside.

Nothing here is drawn; a damaged store raises UserError, which the pages show.
"""

from __future__ import annotations

import json
from typing import Any

from ..errors import UserError
from ..traces.manifest import RunInfo
from ..traces.store import Store

Rows = list[dict[str, Any]]


def newest_runs(store: Store, limit: int = 10) -> Rows:
    """The newest runs of every kind and their state; a run whose process is gone is `killed`, not `running`."""
    return [
        {
            "run": run.run_id,
            "kind": run.kind,
            "state": "killed" if run.state == "running" and not store.busy(run.run_id) else run.state,
            "started (UTC)": run.created_at[:19].replace("T", " "),
            "model": run.config.get("model"),
            "device": run.device,
            "rows": sum(entry.rows for entry in run.files),
            "revision": (run.git_revision or "")[:10],
        }
        for run in store.runs()[:limit]
    ]


def kinds_done(store: Store) -> set[str]:
    """Kinds of which there is a complete run."""
    return {run.kind for run in store.runs(state="complete")}


def run_ids(store: Store, kind: str, table: str) -> list[str]:
    """Runs of a kind that have rows in a table: complete ones first, newest first."""
    runs = [run for run in store.runs(kind) if any(entry.table == table for entry in run.files)]
    return [run.run_id for run in sorted(runs, key=lambda run: run.state != "complete")]


def origin(info: RunInfo) -> str:
    """Where measured figures come from: model, numbers' type, device."""
    parts = [str(info.config.get("model") or "an unnamed model")]
    parts += [str(info.config[key]) for key in ("dtype", "mode") if info.config.get(key)]
    return f"measured with {', '.join(parts)} on {info.device or 'an unknown device'}, run {info.run_id}"


def plan_rows(store: Store, run_id: str) -> Rows:
    """The rows of one plan as `kvmill plan --json` prints them, with workload, model and GPU beside them."""
    rows = store.query(
        "SELECT * FROM plans WHERE run_id = ? ORDER BY workload, gpus DESC, policy", [run_id]
    ).to_pylist()
    return [_detail(row) | {key: value for key, value in row.items() if key != "detail"} for row in rows]


def _detail(row: dict[str, Any]) -> dict[str, Any]:
    try:
        detail = json.loads(row["detail"] or "{}")
    except ValueError as error:
        raise UserError(f"plan {row['run_id']}: its detail column is not JSON ({error}); plan again") from None
    return detail if isinstance(detail, dict) else {}


def replications(store: Store, run_id: str, policy: str) -> Rows:
    """What happened per fleet size: geometric mean (as the plan's), least and largest p95 over the replications."""
    return store.query(
        """
        SELECT gpus, count(*) AS replications, geomean(ttft_p95_s) AS ttft_p95_s, min(ttft_p95_s) AS ttft_low_s,
               max(ttft_p95_s) AS ttft_high_s, geomean(tpot_p95_s) AS tpot_p95_s, min(tpot_p95_s) AS tpot_low_s,
               max(tpot_p95_s) AS tpot_high_s, avg(kv_used_share) AS kv_used_share
        FROM simulations WHERE run_id = ? AND policy = ?
        GROUP BY gpus ORDER BY gpus
        """,
        [run_id, policy],
    ).to_pylist()


def answer_of(store: Store, run_id: str) -> str | None:
    """The sentence of a plan, written anew from its rows; None where they carry no detail to say it from."""
    from ..simulator.answers import spelled_headline
    from ..simulator.sentence import sentence

    config, rows = store.info(run_id).config, plan_rows(store, run_id)
    if not all("quality_model" in row for row in rows):
        return None
    found = {"plans": rows, **config, "few_replications": config["replications"] < 10}
    return sentence(found, spelled_headline(found))


def assumptions_of(info: RunInfo) -> Rows:
    """What a plan assumed, one row each."""
    found = info.config.get("assumptions") or {}
    return [
        {"what": name.replace("_", " "), "value": str(item)}
        for name, value in found.items()
        for item in (value if isinstance(value, list) else [value])
    ]


def slo_of(info: RunInfo) -> dict[str, float]:
    """The promises of a plan, in seconds."""
    return info.config.get("slo") or {}
