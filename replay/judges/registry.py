"""Judges by scorer name, and a judgement of a run beside that of an agent that does nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...errors import UserError, unknown
from ...traces.trajectory import NOT_JUDGED, Trajectory
from ..actions.action import without_thinking
from .calls import actions, choice, recorded_actions, reward, writing_tools
from .table import item_f1
from .verdict import Call, Context, Judge, Verdict
from .words import contains, exact, flag

LLM = "llm"
JUDGES: Mapping[str, Judge] = {
    "exact": exact,
    "contains": contains,
    "flag": flag,
    "choice": choice,
    "item_f1": item_f1,
    "actions": actions,
    "reward": reward,
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict of `scorer` on an answer, and on no answer and no action for the same task."""

    scorer: str
    verdict: Verdict
    no_op: Verdict


def judge_named(name: str, model: Judge | None = None) -> Judge:
    """The judge of a scorer. `llm` needs `model` (`model.model_judge`). UserError lists the known names."""
    if name == LLM:
        if model is None:
            raise UserError("a model as judge is off: name an endpoint (KVMILL_JUDGE_URL, KVMILL_JUDGE_MODEL)")
        return model
    if name not in JUDGES:
        raise unknown("scorer", name, [*JUDGES, LLM])
    return JUDGES[name]


def scorer_of(trajectory: Trajectory) -> str | None:
    """How a trajectory's answer is judged: as its label says; `actions` where a reward comes with gold actions.

    With a known list of tools that write, no gold action means that nothing may be written. None without a label, and
    where it says that there is nothing to judge.
    """
    label = trajectory.label
    if label is None or label.scorer == NOT_JUDGED:
        return None
    if label.scorer == "reward" and (label.gold_actions or writing_tools(trajectory) is not None):
        return "actions"
    return label.scorer


def judge_answer(
    trajectory: Trajectory,
    answer: str,
    done: Sequence[Call] = (),
    *,
    scorer: str | None = None,
    model: Judge | None = None,
    choices: Sequence[bool] = (),
) -> Judgement:
    """How right an answer and the calls carried out are, by the trajectory's label or by `scorer`.

    Thinking is no part of an answer. UserError for a trajectory without a label, and an unknown scorer.
    """
    name = scorer or scorer_of(trajectory)
    if trajectory.label is None or name is None:
        raise UserError(f"trajectory {trajectory.id} has no label to judge by")
    judge = judge_named(name, model)
    context = Context(_question(trajectory), tuple(done), writing_tools(trajectory), tuple(choices))
    verdict = judge(trajectory.label, without_thinking(answer).strip(), context)
    return Judgement(name, verdict, judge(trajectory.label, "", replace(context, actions=(), choices=())))


def judge_recorded(trajectory: Trajectory, *, scorer: str | None = None, model: Judge | None = None) -> Judgement:
    """The judgement of what the recorded run itself said last and did."""
    answer = trajectory.turns[-1].assistant if trajectory.turns else None
    said = "" if answer is None else "\n".join([answer.content, *(call.arguments for call in answer.tool_calls)])
    return judge_answer(trajectory, said, recorded_actions(trajectory), scorer=scorer, model=model)


def _question(trajectory: Trajectory) -> str:
    return "\n".join(message.content for message in trajectory.prefix if message.role == "user")
