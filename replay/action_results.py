"""What a stepwise run found about actions: how often a policy does what was recorded, and what the full cache does.

Shares are of turns that have an action to compare with; intervals are over trajectories. Agreement is not accuracy:
another action may be as good as the recorded one, and the full cache may be wrong.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ..traces.store import Store
from .statistics import estimate

Row = dict[str, Any]

WITH_INTERVAL = {"action_match": "action_arguments_match", "action_match_full": "action_arguments_match_full"}
PLAIN = {
    "action_parsed": "action_parsed",
    "action_name_match": "action_name_match",
    "action_name_match_full": "action_name_match_full",
    "action_field_share": "action_field_share",
    "action_field_share_full": "action_field_share_full",
    "action_text_similarity": "action_text_similarity",
    "action_text_similarity_full": "action_text_similarity_full",
}
GROUPS = {"policy": "NULL", "turn": "turn", "family": "family"}
NOT_MEASURED: Row = {
    **{f"{name}{end}": None for name in WITH_INTERVAL for end in ("", "_low", "_high")},
    **dict.fromkeys(PLAIN),
    "action_turns": 0,
    "action_compared": 0,
    "actions_cut": None,
    "generated_tokens": None,
}


def action_entries(
    store: Store, run_id: str, by: str = "policy", most: int | None = None
) -> dict[tuple[Any, str], Row]:
    """The figures by (group, policy); empty where nothing was generated, or for a grouping that is about probes.

    `most` is the longest action, in tokens: `actions_cut` is the share that ran to it.
    """
    if by not in GROUPS:
        return {}
    sums = ", ".join(
        f"sum({column}::DOUBLE) AS {name}, count({column}) AS {name}_count"
        for name, column in {**WITH_INTERVAL, **PLAIN}.items()
    )
    found = store.query(
        f"SELECT policy, {GROUPS[by]} AS grp, trajectory_id, {sums}, "
        "sum(generated_tokens)::DOUBLE AS generated_tokens, count(generated_tokens) AS turns, "
        "count(*) FILTER (generated_tokens >= $2) AS cut "
        "FROM turn_metrics WHERE run_id = $1 AND measure = 'quality' AND action_parsed IS NOT NULL "
        "GROUP BY ALL ORDER BY ALL",
        [run_id, most],
    ).to_pylist()
    members: dict[tuple[Any, str], list[Row]] = defaultdict(list)
    for row in found:
        members[row["grp"], row["policy"]].append(row)
    return {key: _entry(rows) for key, rows in members.items()}


def _entry(rows: list[Row]) -> Row:
    out: Row = dict(NOT_MEASURED)
    for name in (*WITH_INTERVAL, *PLAIN):
        have = [row for row in rows if row[f"{name}_count"]]
        tops, counts = [row[name] for row in have], [row[f"{name}_count"] for row in have]
        if name in WITH_INTERVAL:
            found = estimate(tops, counts)
            out |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
        elif have:
            out[name] = sum(tops) / sum(counts)
    turns = sum(row["turns"] for row in rows)
    out["action_turns"] = turns
    out["action_compared"] = sum(row["action_match_count"] for row in rows)
    out["actions_cut"] = sum(row["cut"] for row in rows) / turns
    out["generated_tokens"] = sum(row["generated_tokens"] for row in rows) / turns
    return out
