"""What must hold in a recorded run or a request log, and what does not, in words."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from .trajectory import Request, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Finding:
    """One oddity: a stable `code`, where it is, and what was seen."""

    code: str
    where: str
    text: str


# Sources that list the actions a task asks for: where none is listed, none is asked for. Others do not say.
_ACTIONS_RECORDED = ("tau-bench", "tau2-bench")


def unmatched(turn: Turn) -> tuple[list[str], list[str]]:
    """Call ids without a result, and result ids without a call. Results without ids are matched by their number;
    after an assistant message without calls they answer a call made in its text.
    """
    calls = [call.id for call in turn.assistant.tool_calls]
    if calls == [m.tool_call_id for m in turn.tools]:
        return [], []
    named = Counter(m.tool_call_id for m in turn.tools if m.tool_call_id)
    free = sum(1 for m in turn.tools if not m.tool_call_id)
    open_calls = list((Counter(calls) - named).elements())
    orphans = list((named - Counter(calls)).elements())
    if not calls:
        return [], orphans
    if free >= len(open_calls):
        return [], orphans + ["(no id)"] * (free - len(open_calls))
    return open_calls[free:], orphans


def trajectory_findings(trajectory: Trajectory) -> list[Finding]:
    """Broken pairs of calls and results, empty turns, times that run backwards, arguments that are no object, rewards
    that say little.
    """
    found: list[Finding] = []
    clock = -math.inf
    for n, turn in enumerate(trajectory.turns):
        where = f"turn {n}"
        calls, results = unmatched(turn)
        code = "ends_with_call" if n == len(trajectory.turns) - 1 and not turn.tools else "call_without_result"
        found += [Finding(code, where, f"call {id} has no result") for id in calls]
        found += [Finding("result_without_call", where, f"result {id} answers no call") for id in results]
        said = turn.assistant
        if not (said.content.strip() or said.reasoning or said.tool_calls):
            found.append(Finding("empty_turn", where, "the assistant said nothing and called nothing"))
        found += [
            Finding("arguments_not_an_object", where, f"the arguments of {call.name} are no JSON object")
            for call in said.tool_calls
            if call.parsed is None
        ]
        if turn.started_s is not None:
            if turn.started_s < clock:
                found.append(Finding("time_runs_backwards", where, f"starts at {turn.started_s} s, after {clock} s"))
            clock = turn.started_s
        spans = (("duration", turn.duration_s), ("tool wait", turn.tool_wait_s))
        found += [Finding("negative_time", where, f"{name} of {value} s") for name, value in spans if (value or 0) < 0]
    return found + _label_findings(trajectory)


def _label_findings(trajectory: Trajectory) -> list[Finding]:
    """Rewards that doing nothing would have won as well, or that were won without an action that was asked for."""
    label = trajectory.label
    if label is None or label.scorer != "reward" or not isinstance(label.value, (int, float)) or label.value <= 0:
        return []
    if not label.gold_actions and trajectory.source not in _ACTIONS_RECORDED:
        return []
    if not label.gold_actions:
        text = "a reward for a task that asks for no action: an agent that does nothing gets it too"
        return [Finding("reward_without_action", "label", text)]
    made = {call.name for turn in trajectory.turns for call in turn.assistant.tool_calls}
    missing = sorted({call.name for call in label.gold_actions} - made)
    if not missing:
        return []
    return [Finding("reward_without_gold_action", "label", f"a reward although {', '.join(missing)} was never called")]


def request_findings(request: Request) -> list[Finding]:
    """A number of prefix blocks that does not fit the length."""
    if request.prefix_blocks is None or not request.block_tokens:
        return []
    expected = math.ceil(request.input_tokens / request.block_tokens)
    if len(request.prefix_blocks) == expected:
        return []
    text = f"{len(request.prefix_blocks)} blocks for {request.input_tokens} tokens, expected {expected}"
    return [Finding("block_count_differs", f"request {request.id}", text)]
