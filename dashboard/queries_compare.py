"""What the page Compare asks of the store: results of a run, groups with intervals, latency by turn, behaviour.

Figures of whole policies are those of `kvmill results` and `kvmill recommend`. Groups (families, ages of facts) are
many, so their intervals are not resampled but computed where the rows are: a ratio of sums over trajectories r = ΣT/ΣB
has the standard error √(n/(n−1)·Σ(T−rB)²)/ΣB (Cochran, Sampling Techniques, section 6.3), times Student's quantile.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from ..errors import unknown
from ..replay.closed.results import behaviour_entries, is_closed, model_too_weak
from ..traces.store import Store
from .snapshot import at_once, rows_of

Row = dict[str, Any]
Rows = list[Row]
METRICS = {
    "answer_accuracy": "probes",
    "answer_ll": "probes",
    "delta_nll": "scored_tokens",
    "kl": "scored_tokens",
    "top1_agreement": "scored_tokens",
}
"""Columns of `cells` that can be told by family, and what each is a mean over."""
OF_PROBES = {"answer_accuracy": "correct::INT", "answer_ll": "answer_ll"}
"""Those that can be told by the age of the fact, and how a probe spells them."""
_IN_SHARE = ("answer_accuracy", "top1_agreement")
_BUCKET = "CASE WHEN age_turns <= 0 THEN -1 ELSE ceil(log2(age_turns))::INT END"  # -1: 0; k: 2^(k-1) + 1 to 2^k


def replays(store: Store) -> list[str]:
    """Replays that have cells: complete ones first, of recorded turns before closed-loop ones, newest first."""
    runs = [run for run in store.runs("replay") if run.rows("cells")]
    return [run.run_id for run in sorted(runs, key=lambda run: (run.state != "complete", is_closed(run)))]


def measured(store: Store, run_id: str) -> Row:
    """The object that `kvmill results RUN --json` prints; remembered until the run changes."""
    return _measured(store.where, run_id, store.info(run_id).generation)


def recommended(store: Store, run_id: str) -> Row | None:
    """The object that `kvmill recommend RUN --json` prints, with its usual limits; None for a closed-loop run."""
    info = store.info(run_id)
    return None if is_closed(info) else _recommended(store.where, run_id, info.generation)


@functools.lru_cache(maxsize=16)
def _measured(where: str, run_id: str, generation: int) -> Row:
    from ..replay.results import summary

    return at_once(Store.open(where), lambda store: summary(store, run_id))


@functools.lru_cache(maxsize=16)
def _recommended(where: str, run_id: str, generation: int) -> Row:
    from ..replay.recommend import recommend

    return at_once(Store.open(where), lambda store: recommend(store, run_id))


def by_family(store: Store, run_id: str, metric: str, hidden: Sequence[str] = ()) -> Rows:
    """`metric` by family (`grp`) and policy: `value`, `low`, `high`, `n` trajectories. `hidden` families are left out.

    UserError for a metric that cells do not have.
    """
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    own = (
        f"SELECT policy, family AS grp, trajectory_id, sum({metric} * {METRICS[metric]}) AS top, "
        f"sum({METRICS[metric]}) AS bottom FROM cells WHERE run_id = $1 AND measure = 'quality' AND status = 'ok' "
        f"AND {metric} IS NOT NULL AND NOT list_contains($2, family) GROUP BY ALL"
    )
    return _ratios(store, own, [run_id, list(hidden)], metric)


def by_age(store: Store, run_id: str, metric: str, hidden: Sequence[str] = ()) -> Rows:
    """`metric` by the age of the fact in turns (`grp`: 0, 1, 2, 3–4, 5–8 …) and policy, as `by_family` gives it."""
    if metric not in OF_PROBES:
        raise unknown("metric", metric, OF_PROBES)
    spelled = OF_PROBES[metric]
    own = (
        f"SELECT policy, {_BUCKET} AS grp, trajectory_id, sum({spelled})::DOUBLE AS top, count({spelled}) AS bottom "
        "FROM probes WHERE run_id = $1 AND age_turns IS NOT NULL AND NOT list_contains($2, family) GROUP BY ALL"
    )
    return [row | {"grp": _ages(row["grp"])} for row in _ratios(store, own, [run_id, list(hidden)], metric)]


def _ages(bucket: int) -> str:
    if bucket < 0:
        return "0 turns"
    first, last = 2 ** (bucket - 1) + 1 if bucket > 0 else 1, 2**bucket
    return f"{first} turn{'s' if first > 1 else ''}" if first == last else f"{first} to {last} turns"


def _ratios(store: Store, own: str, params: Sequence[Any], metric: str) -> Rows:
    """Ratios of sums by `grp` and policy; `own` has a row per group, policy and trajectory with `top` and `bottom`."""
    rows = rows_of(
        store,
        f"""
        WITH own AS ({own}),
        whole AS (
            SELECT policy, grp, sum(top) / sum(bottom) AS value, count(*) AS n, sum(bottom) AS bottoms
            FROM own WHERE bottom > 0 GROUP BY ALL
        )
        SELECT policy, grp, value, n, bottoms::BIGINT AS weight,
               CASE WHEN n > 1 THEN sqrt(n / (n - 1) * sum((top - value * bottom) ** 2)) / bottoms END AS error
        FROM own JOIN whole USING (policy, grp) WHERE bottom > 0
        GROUP BY policy, grp, value, n, bottoms ORDER BY grp, policy
        """,
        params,
    )
    bounds = {"least": 0.0, "most": 1.0} if metric in _IN_SHARE else {}
    return [with_interval(row, **bounds) for row in rows]


def with_interval(row: Row, *, least: float = -math.inf, most: float = math.inf, confidence: float = 0.95) -> Row:
    """A row with `low` and `high` from its `value`, standard `error` and `n`, within what is possible at all."""
    if row["error"] is None:
        return row | {"low": None, "high": None}
    from scipy.special import stdtrit

    half = float(stdtrit(row["n"] - 1, 1 - (1 - confidence) / 2)) * row["error"]
    return row | {"low": max(least, row["value"] - half), "high": min(most, row["value"] + half)}


def latency_parts(store: Store, run_id: str) -> Rows:
    """Mean seconds of a model call by part, per policy, over all timed turns but the first; whole with its interval."""
    rows = rows_of(
        store,
        """
        WITH own AS (
            SELECT policy, trajectory_id, sum(ttft_s + decode_s) AS top, count(*) AS bottom,
                   sum(compaction_s) AS compaction, sum(prefill_s) AS prefill, sum(decode_s) AS decode
            FROM turn_metrics
            WHERE run_id = ? AND measure = 'latency' AND turn > 0 AND ttft_s IS NOT NULL AND decode_s IS NOT NULL
            GROUP BY ALL
        ),
        whole AS (
            SELECT policy, sum(top) / sum(bottom) AS value, count(*) AS n, sum(bottom) AS bottoms,
                   sum(compaction) / bottoms AS compaction_s, sum(prefill) / bottoms AS prefill_s,
                   sum(decode) / bottoms AS decode_s
            FROM own GROUP BY ALL
        )
        SELECT policy, value, n, bottoms::BIGINT AS turns, compaction_s, prefill_s, decode_s,
               CASE WHEN n > 1 THEN sqrt(n / (n - 1) * sum((top - value * bottom) ** 2)) / bottoms END AS error
        FROM own JOIN whole USING (policy)
        GROUP BY policy, value, n, bottoms, compaction_s, prefill_s, decode_s ORDER BY value
        """,
        [run_id],
    )
    return [with_interval(row, least=0.0) | {"turn_s": row["value"]} for row in rows]


def ttft_over_turns(store: Store, run_id: str) -> Rows:
    """Median, 10th and 90th percentile of the time to first token by turn and policy. Turns count from 1."""
    return rows_of(
        store,
        """
        SELECT policy, turn + 1 AS turn, median(ttft_s) AS ttft_s, quantile_cont(ttft_s, 0.1) AS ttft_p10_s,
               quantile_cont(ttft_s, 0.9) AS ttft_p90_s, count(*) AS trajectories
        FROM turn_metrics WHERE run_id = ? AND measure = 'latency' AND ttft_s IS NOT NULL
        GROUP BY ALL ORDER BY policy, turn
        """,
        [run_id],
    )


def kv_over_turns(store: Store, run_id: str) -> Rows:
    """Mean KV rows in use after each turn, per policy, with the 10th and 90th percentile of the trajectories.

    `trajectories` is how many still ran. Turns count from 1.
    """
    return rows_of(
        store,
        """
        SELECT policy, turn + 1 AS turn, avg(kv_tokens) AS kv_tokens, avg(kv_tokens_peak) AS kv_tokens_peak,
               quantile_cont(kv_tokens, 0.1) AS kv_tokens_p10, quantile_cont(kv_tokens, 0.9) AS kv_tokens_p90,
               count(DISTINCT trajectory_id) AS trajectories
        FROM turn_metrics WHERE run_id = ? AND measure = 'quality' AND kv_tokens IS NOT NULL
        GROUP BY ALL ORDER BY policy, turn
        """,
        [run_id],
    )


def failures(store: Store, run_id: str) -> Rows:
    """Cells that failed, and why."""
    return rows_of(
        store,
        "SELECT trajectory_id, policy, measure, error FROM cells WHERE run_id = ? AND status = 'failed' ORDER BY ALL",
        [run_id],
    )


def acted(store: Store, run_id: str) -> list[str]:
    """Closed-loop runs that go with a run: itself, if it is one, and the complete ones of its model, newest first."""
    info = store.info(run_id)
    model = info.config.get("model")
    others = [run for run in store.runs("replay", "complete") if is_closed(run) and run.config.get("model") == model]
    return list(dict.fromkeys(run.run_id for run in [*([info] if is_closed(info) else []), *others]))


def behaviour(store: Store, run_id: str) -> Row:
    """How policies changed what the model did in a closed-loop run; remembered until the run changes.

    `model_too_weak` (a reason, or None) and the `policies` that ran to an end, with these figures as `kvmill results`
    gives them.
    """
    return _behaviour(store.where, run_id, store.info(run_id).generation)


@functools.lru_cache(maxsize=16)
def _behaviour(where: str, run_id: str, generation: int) -> Row:
    def of(store: Store) -> Row:
        given = {policy: place for place, policy in enumerate(store.info(run_id).config.get("policies", []))}
        found = [{"policy": policy, **entry} for (_, policy), entry in behaviour_entries(store, run_id).items()]
        ran = [row for row in found if row["turns_mean"] is not None]
        ran.sort(key=lambda row: (given.get(row["policy"], len(given)), row["policy"]))
        return {"model_too_weak": model_too_weak(store, run_id), "policies": ran}

    return at_once(Store.open(where), of)
