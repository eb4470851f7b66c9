"""Families in which the model is too weak for accuracy to say anything about a policy.

Where `full` itself answers less than 60 % of the probes of a family by choice, there is little left to lose, and what
is lost and what is guessed look alike. The rows keep what was measured; the answer leaves that family's accuracy out
and says why. Log-likelihood and agreement stay. Below ten trajectories nothing is known about a family yet, and its
accuracy stays, marked as rough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..traces.store import Store
from .statistics import FEW

LEAST = 0.60
_OF_FULL = (
    "SELECT family, count(*) AS n, list(trajectory_id) AS ids, sum(answer_accuracy * probes) / sum(probes) AS accuracy "
    "FROM cells WHERE run_id = $1 AND policy = 'full' AND measure = 'quality' AND status = 'ok' "
    "AND label_scorer = 'choice' AND answer_accuracy IS NOT NULL AND probes > 0 "
    "GROUP BY family HAVING n >= $2 AND accuracy < $3 ORDER BY family"
)


def too_weak(store: Store, run_id: str) -> list[dict[str, Any]]:
    """Such families of a run: `family`, `n`, `accuracy` of full, `reason` in words, and the trajectories' `ids`."""
    rows = store.query(_OF_FULL, [run_id, FEW, LEAST]).to_pylist()
    return [row | {"reason": _reason(row)} for row in rows]


def without_accuracy(rows: Iterable[Mapping[str, Any]], weak: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with `answer_accuracy` null on trajectories of the weak families; each row has a `trajectory_id`."""
    ids = {name for family in weak for name in family["ids"]}
    return [{**row, "answer_accuracy": None} if row["trajectory_id"] in ids else dict(row) for row in rows]


def _reason(row: Mapping[str, Any]) -> str:
    return (
        f"accuracy on {row['family']} is not shown: full answers {row['accuracy']:.0%} of its probes ({row['n']} "
        f"trajectories), less than {LEAST:.0%}; look at the log-likelihood and at the agreement"
    )
