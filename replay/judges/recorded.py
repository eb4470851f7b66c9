"""What the recorded runs themselves got right, by their labels, and what an agent that does nothing would have.

Before policies are compared on a set of traces this says what its labels can tell: how many runs have one, how hard
they are, whether inaction wins, and how often the judge of actions agrees with the reward that was recorded.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ...console import table
from ...traces.trajectory import Trajectory
from ..statistics import estimate
from .endpoint import Endpoint, Spent
from .model import model_judge
from .registry import LLM, Judgement, judge_recorded, scorer_of

Row = dict[str, Any]
Judged = tuple[Trajectory, Judgement]


def judge_runs(
    trajectories: Sequence[Trajectory], scorer: str | None = None, where: Endpoint | None = None
) -> dict[str, Any]:
    """The object that `kvmill judge --json` prints.

    `groups`: one entry per source, family and scorer, with shares over the runs that could be decided; `verdicts`: one
    entry per labelled run. `where` is asked for the scorer `llm`. UserError for an unknown scorer.
    """
    spent = Spent()
    model = model_judge(where, spent) if where else None
    labelled = [each for each in trajectories if each.label is not None and scorer_of(each) is not None]
    judged = [(each, judge_recorded(each, scorer=scorer, model=model)) for each in labelled]
    groups: dict[tuple[str, str, str], list[Judged]] = defaultdict(list)
    for each, found in judged:
        groups[each.source, each.family, found.scorer].append((each, found))
    return {
        "runs": len(trajectories),
        "labelled": len(labelled),
        "groups": [_group(*key, members) for key, members in sorted(groups.items())],
        "judge": _judge(where, spent) if where else None,
        "verdicts": [_row(each, found) for each, found in judged],
    }


def judged_text(found: Mapping[str, Any]) -> str:
    """The text of `kvmill judge`."""
    lines = [f"{found['labelled']} of {found['runs']} runs have a label to judge by"]
    columns = {
        "source": "source",
        "family": "family",
        "scorer": "scorer",
        "n": "runs",
        "decided": "decided",
        "accuracy": "recorded run right (95 %)",
        "no_op_accuracy": "doing nothing right",
        "reward": "recorded reward",
        "agreement": "agrees with reward",
    }
    if found["groups"]:
        lines += ["", table([_shown(group) for group in found["groups"]], columns), ""]
    lines += [f"undecided: {reason} ({n})" for group in found["groups"] for reason, n in group["undecided"].items()]
    if asked := found["judge"]:
        cost = "cost unknown" if asked["cost_usd"] is None else f"{asked['cost_usd']:.4f} USD"
        lines.append(
            f"judged by {asked['model']}: {asked['calls']} calls, {asked['cached']} known already, "
            f"{asked['input_tokens']} + {asked['output_tokens']} tokens, {cost}"
        )
    return "\n".join(lines)


def _group(source: str, family: str, scorer: str, members: Sequence[Judged]) -> Row:
    right = [float(found.verdict.correct) for _, found in members if found.verdict.correct is not None]
    idle = [float(found.no_op.correct) for _, found in members if found.no_op.correct is not None]
    scores = [found.verdict.score for _, found in members if found.verdict.score is not None]
    pairs = [
        (float(each.label.value), found.verdict.correct)
        for each, found in members
        if each.label and each.label.scorer == "reward" and isinstance(each.label.value, (int, float))
    ]
    agreed = [correct == (reward >= 1.0) for reward, correct in pairs if correct is not None]
    accuracy = estimate(right, [1] * len(right))
    return {
        "source": source,
        "family": family,
        "scorer": scorer,
        "n": len(members),
        "decided": len(right),
        "accuracy": accuracy.value,
        "accuracy_low": accuracy.low,
        "accuracy_high": accuracy.high,
        "score": _mean(scores),
        "no_op_accuracy": _mean(idle),
        "reward": _mean([reward for reward, _ in pairs]),
        "reward_agreement": _mean([float(same) for same in agreed]),
        "undecided": dict(Counter(found.verdict.reason for _, found in members if found.verdict.correct is None)),
    }


def _row(each: Trajectory, found: Judgement) -> Row:
    verdict = found.verdict
    return {
        "trajectory_id": each.id,
        "scorer": found.scorer,
        "correct": verdict.correct,
        "score": verdict.score,
        "reason": verdict.reason,
        "parts": dict(verdict.parts),
        "no_op_correct": found.no_op.correct,
    }


def _judge(where: Endpoint, spent: Spent) -> Row:
    return {
        "url": where.url,
        "model": where.model,
        "calls": spent.calls,
        "cached": spent.cached,
        "input_tokens": spent.input_tokens,
        "output_tokens": spent.output_tokens,
        "cost_usd": spent.cost(where),
    }


def _shown(group: Mapping[str, Any]) -> Row:
    low, high = group["accuracy_low"], group["accuracy_high"]
    span = "" if low is None else f" ({low:.0%}–{high:.0%})"
    return {
        **group,
        "accuracy": None if group["accuracy"] is None else f"{group['accuracy']:.1%}{span}",
        "no_op_accuracy": _percent(group["no_op_accuracy"]),
        "reward": None if group["reward"] is None else f"{group['reward']:.3f}",
        "agreement": _percent(group["reward_agreement"]),
    }


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def needs_endpoint(trajectories: Sequence[Trajectory], scorer: str | None) -> bool:
    """Whether a model is asked: by name, or by a label."""
    return LLM in (scorer, *(scorer_of(each) for each in trajectories if scorer is None))
