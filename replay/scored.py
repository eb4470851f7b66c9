"""What the accuracy of a run is of: answers with a recorded truth, recall of facts, or both.

`answer_accuracy` is one column. On made probes (`traces/recall`) it is a share of facts recalled, never called the
accuracy of the task; a run of both kinds says so, and its families tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..traces.recall import MADE
from ..traces.store import Store

ANSWERS, RECALL = "answer accuracy", "recall of facts"
_ANSWERS_LEGEND = (
    "answer accuracy: share of probes whose right candidate is the likeliest, with a bootstrap interval over "
    "trajectories"
)
_RECALL_LEGEND = (
    "recall of facts: share of made probes whose right candidate is the likeliest, with a bootstrap interval over "
    "trajectories. A made probe quotes the words before a fact that a tool result stated; the others are values of its "
    "kind and shape from the same run. It says what the cache still holds, not whether the task would be solved"
)
_BOTH_LEGEND = (
    "the probes of runs without recorded ones were made: on them it is recall of facts, not of the task; see --by kind"
)
_SCORERS = (
    "SELECT DISTINCT label_scorer FROM cells WHERE run_id = $1 AND measure = 'quality' AND status = 'ok' "
    "AND label_scorer IS NOT NULL ORDER BY 1"
)
_GUESSES = (
    "SELECT policy, avg(no_op_accuracy) AS no_op_accuracy, avg(chance_accuracy) AS chance_accuracy FROM cells "
    "WHERE run_id = $1 AND measure = 'quality' AND status = 'ok' GROUP BY policy"
)
NO_GUESSES = {"no_op_accuracy": None, "chance_accuracy": None}


def scorers(store: Store, run_id: str) -> list[str]:
    """How the answers of a run were scored: `choice`, `recall` (made probes), or what its labels say."""
    return store.query(_SCORERS, [run_id])["label_scorer"].to_pylist()


def guesses(store: Store, run_id: str) -> dict[str, dict[str, float | None]]:
    """By policy, what needs no cache, on the same trajectories; None where it was not judged, or by older versions.

    `no_op_accuracy` is that of an agent that does nothing, `chance_accuracy` that of guessing among the candidates
    (mean over trajectories).
    """
    return {row.pop("policy"): row for row in store.query(_GUESSES, [run_id]).to_pylist()}


def is_recall(found: Sequence[str]) -> bool:
    """Whether all that was scored is recall of facts."""
    return list(found) == [MADE]


def name_of(found: Sequence[str]) -> str:
    """What the accuracy column of such a run is called."""
    return RECALL if is_recall(found) else ANSWERS


def probes_text(count: int, found: Sequence[str]) -> str:
    """The probes of a run in a few words."""
    if is_recall(found):
        return f"{count} recall probes (made)"
    return f"{count} probes" + (", recall probes (made) among them" if MADE in found else "")


def legend(found: Mapping[str, Any]) -> list[str]:
    """What the accuracy of these results is, and how guessing and an agent that does nothing fare."""
    kinds = found["label_scorers"]
    lines = [_RECALL_LEGEND if is_recall(kinds) else _ANSWERS_LEGEND]
    if MADE in kinds and not is_recall(kinds):
        lines.append(_BOTH_LEGEND)
    chance = _first(found, "chance_accuracy")
    if chance is not None:
        lines.append(f"guessing among the candidates is right on {chance:.1%} of these probes")
    return [*lines, *idle_text(found)]


def idle_text(found: Mapping[str, Any]) -> list[str]:
    """How an agent that does nothing fares, where that was judged."""
    idle = _first(found, "no_op_accuracy")
    return [] if idle is None else [f"an agent that does nothing is right on {idle:.1%} of the same trajectories"]


def _first(found: Mapping[str, Any], name: str) -> float | None:
    """A figure that is the same for all policies of a run."""
    return next((e[name] for e in found["policies"] if e.get(name) is not None), None)
