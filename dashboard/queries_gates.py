"""What the page Regressions asks of the store: verdicts of nights, and what differs between two replays.

Two runs are compared trajectory by trajectory. The standard error of a difference of two ratios over the same
trajectories is √(n/(n−1)·Σ((T₂−r₂B₂)/ΣB₂ − (T₁−r₁B₁)/ΣB₁)²), times Student's quantile.
"""

from __future__ import annotations

from typing import Any

from ..errors import unknown
from ..replay.gate_nouns import CATEGORIES
from ..traces.store import Store
from .queries_compare import with_interval
from .snapshot import rows_of

Row = dict[str, Any]
Rows = list[Row]
ALL = "all families"
METRICS = {
    "answer_accuracy": "probes",
    "answer_ll": "probes",
    "nll": "scored_tokens",
    "delta_nll": "scored_tokens",
    "kl": "scored_tokens",
    "top1_agreement": "scored_tokens",
    "kv_tokens_peak": "1",
}
"""Columns of `cells` in which two runs are compared, and what each is a mean over."""
OF_TURNS = ("nll", "delta_nll", "kl", "top1_agreement", "kv_tokens", "kv_tokens_peak", "compactions")
OF_CALLS = ("ttft_s", "prefill_s", "compaction_s", "decode_s")
SAME = 1e-9  # relative: what two sums of the same numbers may differ by

_PAIRS = """
    one AS (
        SELECT policy, family, trajectory_id, sum({metric} * {weight}) AS top, sum({weight})::DOUBLE AS bottom
        FROM cells WHERE run_id = $1 AND measure = 'quality' AND status = 'ok' AND {metric} IS NOT NULL GROUP BY ALL
    ),
    other AS (
        SELECT policy, trajectory_id, sum({metric} * {weight}) AS top, sum({weight})::DOUBLE AS bottom
        FROM cells WHERE run_id = $2 AND measure = 'quality' AND status = 'ok' AND {metric} IS NOT NULL GROUP BY ALL
    ),
    pairs AS (
        SELECT policy, family, trajectory_id, one.top AS t1, one.bottom AS b1, other.top AS t2, other.bottom AS b2
        FROM one JOIN other USING (policy, trajectory_id) WHERE one.bottom > 0 AND other.bottom > 0
    )"""


def gates(store: Store, nights: int = 90) -> Rows:
    """Findings of the newest nights, oldest first, worst first in a night: run, when (UTC), and the columns of `gates`.

    `loss` is positive where a night is worse than its baseline; null where a finding is not about a figure.
    """
    return rows_of(
        store,
        """
        SELECT left(replace(r.created_at, 'T', ' '), 16) AS night, policy, family, category,
               coalesce(blocks, false) AS blocks, detail, metric, n, before, now, loss, low, high, margin,
               g.run_id AS run
        FROM gates g JOIN runs r USING (run_id)
        WHERE run_id IN (SELECT run_id FROM runs WHERE run_id IN (SELECT run_id FROM gates)
                         ORDER BY created_at DESC LIMIT $1)
        ORDER BY r.created_at, run, coalesce(list_position($2, category), 0), policy, family, metric
        """,
        [nights, list(CATEGORIES)],
    )


def night_of(store: Store, run_id: str) -> Row:
    """What a night says of itself: `verdict` (green, regression, incomplete, undecided), `replay`, `baseline_replay`.

    None for what it does not say.
    """
    config = store.info(run_id).config
    return {name: config.get(name) for name in ("verdict", "replay", "baseline_replay")}


def circumstances(store: Store, before: str, after: str) -> Rows:
    """In what two runs were not alike: settings, device, revision, versions."""
    one, other = store.info(before), store.info(after)
    told = [
        {**run.config, "seed": run.seed, "device": run.device, "revision": run.git_revision, "state": run.state}
        | {f"version of {name}": version for name, version in run.versions.items()}
        for run in (one, other)
    ]
    return [
        {"what": name, "before": _short(told[0].get(name)), "after": _short(told[1].get(name))}
        for name in dict.fromkeys([*told[0], *told[1]])
        if told[0].get(name) != told[1].get(name)
    ]


def _short(value: Any) -> str:
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    text = "–" if value is None else str(value)
    return text if len(text) <= 200 else text[:199] + "…"


def differences(store: Store, before: str, after: str, metric: str) -> Rows:
    """`metric` of both runs per policy and family (`grp`), on the trajectories that both have.

    `before`, `after`, their difference as `value` with `low` and `high`, `n` trajectories. The families together are
    the group `ALL`. UserError for an unknown metric.
    """
    rows = rows_of(
        store,
        f"""
        WITH {_pairs(metric)},
        grouped AS (SELECT *, family AS grp FROM pairs UNION ALL SELECT *, '{ALL}' AS grp FROM pairs),
        whole AS (
            SELECT policy, grp, sum(t1) / sum(b1) AS r1, sum(t2) / sum(b2) AS r2, sum(b1) AS s1, sum(b2) AS s2,
                   count(*) AS n
            FROM grouped GROUP BY ALL
        )
        SELECT policy, grp, r1 AS before, r2 AS after, r2 - r1 AS value, n,
               CASE WHEN n > 1
                    THEN sqrt(n / (n - 1) * sum(((t2 - r2 * b2) / s2 - (t1 - r1 * b1) / s1) ** 2)) END AS error
        FROM grouped JOIN whole USING (policy, grp)
        GROUP BY policy, grp, r1, r2, s1, s2, n ORDER BY grp <> '{ALL}', grp, policy
        """,
        [before, after],
    )
    return [with_interval(row) for row in rows]


def changed_trajectories(store: Store, before: str, after: str, policy: str, metric: str, most: int = 100) -> Rows:
    """The trajectories of a policy that changed, by how much: `before`, `after`, `value` = their difference."""
    return rows_of(
        store,
        f"""
        WITH {_pairs(metric)}
        SELECT trajectory_id, family, t1 / b1 AS before, t2 / b2 AS after, t2 / b2 - t1 / b1 AS value
        FROM pairs WHERE policy = $3 ORDER BY abs(value) DESC, trajectory_id LIMIT $4
        """,
        [before, after, policy, most],
    )


def changed_states(store: Store, before: str, after: str) -> Rows:
    """Cells that ended in another state, or that only one of the runs has (of the policies that both were asked)."""
    asked = [set(map(str, store.info(run).config.get("policies", []))) for run in (before, after)]
    return rows_of(
        store,
        """
        WITH one AS (SELECT * FROM cells WHERE run_id = $1 AND list_contains($3, policy)),
        other AS (SELECT * FROM cells WHERE run_id = $2 AND list_contains($3, policy))
        SELECT policy, coalesce(one.family, other.family) AS family, trajectory_id, measure,
               coalesce(one.status, 'absent') AS before, coalesce(other.status, 'absent') AS after,
               coalesce(other.error, one.error) AS error
        FROM one FULL JOIN other USING (policy, trajectory_id, measure)
        WHERE one.status IS DISTINCT FROM other.status ORDER BY ALL
        """,
        [before, after, sorted(asked[0] & asked[1])],
    )


def turns(store: Store, before: str, after: str, policy: str, trajectory_id: str) -> Rows:
    """Turn by turn (from 0), what a trajectory was like in both runs: `NAME before` and `NAME after`.

    `changed` lists the names in which the turn is not the same; times, which never repeat, are not looked at.
    """
    names = [*OF_TURNS, *OF_CALLS]
    both = ", ".join(f'one.{name} AS "{name} before", other.{name} AS "{name} after"' for name in names)
    merged = ", ".join(f"any_value({name}) AS {name}" for name in names)
    rows = rows_of(
        store,
        f"""
        WITH own AS (
            SELECT run_id, turn, {merged} FROM turn_metrics
            WHERE run_id IN ($1, $2) AND policy = $3 AND trajectory_id = $4 GROUP BY ALL
        )
        SELECT turn, {both} FROM (SELECT * FROM own WHERE run_id = $1) one
        FULL JOIN (SELECT * FROM own WHERE run_id = $2) other USING (turn) ORDER BY turn
        """,
        [before, after, policy, trajectory_id],
    )
    return [row | {"changed": [name for name in OF_TURNS if _differs(row, name)]} for row in rows]


def _differs(row: Row, name: str) -> bool:
    one, other = row[f"{name} before"], row[f"{name} after"]
    if one is None or other is None:
        return one is not other
    return abs(one - other) > SAME * max(abs(one), abs(other))


def _pairs(metric: str) -> str:
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    return _PAIRS.format(metric=metric, weight=METRICS[metric])


def common_policies(store: Store, before: str, after: str) -> list[str]:
    """Policies that both runs hold, as the later one was asked."""
    rows = rows_of(
        store,
        "SELECT policy FROM cells WHERE run_id IN ($1, $2) GROUP BY policy HAVING count(DISTINCT run_id) = 2",
        [before, after],
    )
    present = {row["policy"] for row in rows}
    asked = [str(policy) for policy in store.info(after).config.get("policies", [])]
    return [*(policy for policy in asked if policy in present), *sorted(present.difference(asked))]
