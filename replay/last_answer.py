"""Stepwise replay: what every policy says in place of the recorded answer, judged by the run's label.

Only where the record ends with an answer and the label judges words. Another last action than an answer is none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..traces.store import Store
from ..traces.tokens import TokenTrajectory
from ..traces.trajectory import Trajectory, Turn
from .actions.action import begun_thinking
from .closed.reply import ENDING_TOOLS, read_reply
from .judges.registry import judge_answer, scorer_of
from .statistics import estimate

if TYPE_CHECKING:
    from .engine import BranchRun
    from .stepwise import Asking

Columns = dict[str, Any]

_OF_WORDS = ("exact", "contains", "flag", "item_f1")
NOT_MEASURED: Columns = dict.fromkeys(
    f"last_answer_{name}" for name in ("accuracy", "accuracy_low", "accuracy_high", "n")
)
_SCORES = (
    "SELECT policy, {group} AS grp, answer_score FROM cells WHERE run_id = $1 AND mode = 'stepwise' "
    "AND answer_score IS NOT NULL ORDER BY ALL"
)
_GROUPS = {"policy": "NULL", "family": "family"}


def answer_columns(
    trajectory: Trajectory, tokens: TokenTrajectory, runs: Sequence[BranchRun], asking: Asking, grammar: str
) -> list[Columns]:
    """For every run the columns of its cell; empty where nothing was generated or nothing can be judged."""
    last = tokens.segments[-1].turn
    head = next((s.ids[: s.scored[0]] for s in tokens.segments if s.kind == "assistant" and s.turn == last), ())
    judged = scorer_of(trajectory) in _OF_WORDS and _answers(trajectory.turns[-1], grammar)
    out: list[Columns] = []
    for run in runs:
        said = run.turns[-1].said if judged and run.error is None else None
        if said is None:
            out.append({})
            continue
        text = begun_thinking(asking.decode(head)) + asking.text(said)
        reply = read_reply(text, len(said) < asking.most, grammar)
        found = judge_answer(trajectory, reply.answer)
        out.append(
            {
                "answer": reply.answer if reply.kind == "answer" else None,
                "answer_scorer": found.scorer,
                "answer_correct": found.verdict.correct,
                "answer_score": found.verdict.score,
                "answer_verdict": found.verdict.reason,
            }
        )
    return out


def answer_entries(store: Store, run_id: str, by: str = "policy") -> dict[tuple[Any, str], Columns]:
    """Mean scores by (group, policy) with their intervals; empty for other runs and groupings."""
    if by not in _GROUPS:
        return {}
    scores: dict[tuple[Any, str], list[float]] = defaultdict(list)
    for row in store.query(_SCORES.format(group=_GROUPS[by]), [run_id]).to_pylist():
        scores[row["grp"], row["policy"]].append(row["answer_score"])
    out: dict[tuple[Any, str], Columns] = {}
    for key, each in scores.items():
        found = estimate(each)
        values = (found.value, found.low, found.high, found.n)
        out[key] = dict(zip(NOT_MEASURED, values, strict=True))
    return out


def answers_text(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line about the answers of a run, none where nothing was judged."""
    judged = [entry for entry in entries if entry.get("last_answer_n")]
    if not judged:
        return []
    said = ", ".join(f"{entry['policy']} {entry['last_answer_accuracy']:.0%}" for entry in judged)
    return [f"right in place of the recorded answer ({judged[0]['last_answer_n']} trajectories): {said}"]


def _answers(turn: Turn, grammar: str) -> bool:
    """Whether a recorded turn is an answer."""
    if calls := turn.assistant.tool_calls:
        return any(call.name.lower() in ENDING_TOOLS for call in calls)
    return read_reply(turn.assistant.content, True, grammar).kind == "answer"
