"""What every policy would have done at a turn, compared with what was recorded and with what the full cache does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..traces.tokens import TokenSegment, TokenTrajectory
from ..traces.trajectory import Trajectory
from .actions.action import Action, begun_thinking
from .actions.choose import GRAMMARS
from .actions.compare import Spoken, agreement

if TYPE_CHECKING:
    from .engine import BranchRun
    from .stepwise import Asking

Columns = dict[str, Any]


def action_columns(
    trajectory: Trajectory, tokens: TokenTrajectory, runs: Sequence[BranchRun], asking: Asking, grammar: str
) -> list[list[Columns]]:
    """For every run, the columns of each of its turns; empty where nothing was generated. `runs[0]` is `full`.

    Recorded calls are read by the same grammar, from the text that the model was fed; where it finds none there, the
    calls that the record names are taken.
    """
    heard = _Hearing(asking, grammar)
    recorded = {
        segment.turn: heard.recorded(segment, trajectory) for segment in tokens.segments if segment.kind == "assistant"
    }
    heads = {s.turn: s.ids[: s.scored[0]] for s in tokens.segments if s.kind == "assistant"}
    full: dict[int, Spoken] = {}
    out: list[list[Columns]] = []
    for run in runs:
        turns: list[Columns] = []
        for record in run.turns if run.error is None else ():
            if record.said is None:
                turns.append({})
                continue
            mine = heard.spoken(heads[record.turn], record.said)
            theirs = full.setdefault(record.turn, mine)
            turns.append(
                {
                    "generated_tokens": len(record.said),
                    "action_parsed": bool(mine.actions),
                    **_named(agreement(mine, recorded[record.turn]), ""),
                    "action_parsed_full": bool(theirs.actions),
                    **_named(agreement(mine, theirs), "_full"),
                }
            )
        out.append(turns)
    return out


def cell_columns(turns: Sequence[Columns]) -> Columns:
    """Means over the turns of a cell: shares of actions that were parsed, and that were the recorded one or full's.

    An action is the same if tools and arguments are equal; turns without an action to compare with are left out.
    """
    asked = [turn for turn in turns if turn]
    if not asked:
        return {}
    return {
        "action_turns": len(asked),
        "action_parsed": _mean(turn["action_parsed"] for turn in asked),
        "action_match": _mean(turn["action_arguments_match"] for turn in asked),
        "action_match_full": _mean(turn["action_arguments_match_full"] for turn in asked),
    }


class _Hearing:
    """Reads ids as words and actions."""

    def __init__(self, asking: Asking, grammar: str) -> None:
        self._asking, self._parse = asking, GRAMMARS[grammar]

    def spoken(self, head: Sequence[int], ids: Sequence[int]) -> Spoken:
        """What was generated after `head`, where the template may have begun a thought."""
        text = self._asking.text(ids)
        return Spoken(text, self._parse(begun_thinking(self._asking.decode(head)) + text))

    def recorded(self, segment: TokenSegment, trajectory: Trajectory) -> Spoken:
        """What was recorded: all of its actions, and of its words as many tokens as may be generated."""
        first, last = segment.scored
        said = segment.ids[first:last]
        if said and said[-1] in self._asking.ending.ids:
            said = said[:-1]
        actions = self.spoken(segment.ids[:first], said).actions
        calls = trajectory.turns[segment.turn].assistant.tool_calls
        named = tuple(Action(call.name, call.arguments, call.parsed) for call in calls)
        return Spoken(self._asking.text(said[: self._asking.most]), actions or named)


def _named(found: Any, against: str) -> Columns:
    return {f"action_{name}{against}": value for name, value in asdict(found).items()}


def _mean(values: Any) -> float | None:
    have = [float(value) for value in values if value is not None]
    return sum(have) / len(have) if have else None
