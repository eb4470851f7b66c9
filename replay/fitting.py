"""What of a trajectory fits the model's window: all of it, all but its last turns, or nothing. Never silently.

Positions count, not rows: a compacted cache still knows how long the text is. Beyond the trajectory itself a probe
takes some after the last turn, a policy that scores by a copy takes some at the close of a turn, and a generated
action takes some before a recorded one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..traces.tokens import ProbeTokens, TokenTrajectory
from ..traces.trajectory import Trajectory
from .policies.base import Policy
from .segments import sizes_of

LONG = ("skip", "cut")


@dataclass(frozen=True, slots=True)
class Fitted:
    """A trajectory as it is replayed. `cut_turns` of its last turns were dropped, and the probes about them.

    `skipped` says, by the policy's text, why a policy cannot be replayed on it.
    """

    trajectory: Trajectory
    tokens: TokenTrajectory
    probes: tuple[ProbeTokens, ...]
    cut_turns: int = 0
    skipped: Mapping[str, str] = field(default_factory=dict)

    def first_turns(self, count: int) -> Fitted:
        """Only its first turns."""
        turns = len(self.trajectory.turns)
        about = [probe.fact_turn < count for probe in self.trajectory.probes]
        return Fitted(
            replace(
                self.trajectory,
                turns=self.trajectory.turns[:count],
                probes=tuple(p for p, kept in zip(self.trajectory.probes, about, strict=True) if kept),
            ),
            replace(
                self.tokens, segments=tuple(s for s in self.tokens.segments if s.kind == "prefix" or s.turn < count)
            ),
            tuple(p for p, kept in zip(self.probes, about, strict=True) if kept),
            self.cut_turns + turns - count,
        )


@dataclass(frozen=True, slots=True)
class Window:
    """How many positions a model takes, and the rule for what is longer. `action_tokens`: of a generated action."""

    model: str
    positions: int
    long: str = "skip"
    action_tokens: int = 0

    def fit(self, whole: Fitted, policies: Sequence[Policy]) -> Fitted:
        """`skip`: policies that do not fit are named in `skipped`. `cut`: turns are dropped until all policies fit."""
        needs = self._needs(whole, policies)
        if max(needs.values(), default=0) <= self.positions:
            return whole
        if self.long == "cut":
            for count in range(len(whole.trajectory.turns) - 1, 0, -1):
                part = whole.first_turns(count)
                if self._own(part) <= self.positions and max(self._needs(part, policies).values()) <= self.positions:
                    return part
        how = "not even its first turn fits" if self.long == "cut" else "--long cut drops its last turns"
        tokens, name = whole.tokens.tokens, whole.trajectory.id
        return replace(
            whole,
            skipped={
                policy: f"trajectory {name} has {tokens} tokens and needs {need} positions with its probes, copies "
                f"and actions; model {self.model} takes {self.positions}: {how}"
                for policy, need in needs.items()
                if need > self.positions
            },
        )

    def _needs(self, found: Fitted, policies: Sequence[Policy]) -> dict[str, int]:
        """Positions by the policy's text."""
        own, sizes, ends = self._own(found), sizes_of(found.tokens), list(_turn_ends(found.tokens))
        return {
            str(policy): max(
                own,
                *(end + turn.transient_rows for end, turn in zip(ends, policy.footprint(sizes), strict=True)),
            )
            for policy in policies
        }

    def _own(self, found: Fitted) -> int:
        """Positions that every policy needs."""
        asked = max((len(p.stem) + max(map(len, p.candidates)) - 1 for p in found.probes), default=0)
        need, at = found.tokens.tokens + asked, 0
        for segment in found.tokens.segments:
            if segment.kind == "assistant" and segment.turn > 0 and self.action_tokens:
                need = max(need, at + segment.scored[0] + self.action_tokens)
            at += len(segment.ids)
        return need


def _turn_ends(tokens: TokenTrajectory) -> Iterator[int]:
    """Logical tokens at the close of every turn."""
    count = 1 + max((segment.turn for segment in tokens.segments), default=-1)
    at = 0
    for turn in range(count):
        at += sum(len(segment.ids) for segment in tokens.segments if segment.turn == turn)
        yield at
