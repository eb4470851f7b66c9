"""`Positions`: where agents are in the stationary state, and how long sessions last, before any simulation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..replay.policies.base import split_turns
from .session import SessionSpec, turns_in_window

NOMINAL_TPOT_S = 0.03  # only to place agents within their sessions at the start


class Positions:
    """Every turn of every session, weighted by how long its cycle lasts: decoding at the nominal speed, then the wait.

    No wait follows the last turn: a session is over when its last turn is.
    """

    def __init__(self, sessions: Sequence[SessionSpec], window: int) -> None:
        self.turns: list[int] = []
        owner, turn_of, cycles, ages = [], [], [], []
        cut = 0
        for index, spec in enumerate(sessions):
            turns = split_turns(spec.segments)
            count = turns_in_window(turns, window)
            self.turns.append(count)
            cut += count < len(turns)
            age = 0.0
            for j in range(spec.begin, count):
                owner.append(index)
                turn_of.append(j)
                wait = spec.waits[j] if j + 1 < count else 0.0
                cycles.append(turns[j].assistant.tokens * NOMINAL_TPOT_S + wait)
                ages.append(age)
                age += cycles[-1]
        self.usable = [i for i, count in enumerate(self.turns) if count > sessions[i].begin]
        self.cut_share = cut / len(sessions)  # sessions that the window ends before their last turn
        self.owner, self.turn_of = np.array(owner), np.array(turn_of)
        self.cycle_s, self.age_s = np.array(cycles), np.array(ages)
        self.cumulative = np.cumsum(self.cycle_s)

    @property
    def mean_cycle_s(self) -> float:
        """Mean seconds of one turn, decoding at the nominal speed and waiting."""
        return float(self.cycle_s.mean())

    @property
    def mean_session_s(self) -> float:
        """Mean seconds of one session."""
        return float(self.cycle_s.sum() / len(self.usable))

    @property
    def mean_turns(self) -> float:
        """Mean turns of one session, as far as the window lets it go."""
        return len(self.cycle_s) / len(self.usable)

    def draw(self, rng: np.random.Generator, count: int) -> list[tuple[int, int, float, float, float]]:
        """`count` agents: (session, turn just taken, seconds to the next one, since that turn, since the first)."""
        picks = np.searchsorted(self.cumulative, rng.random(count) * self.cumulative[-1], side="right")
        left = rng.random(count) * self.cycle_s[picks]
        return [
            (
                int(self.owner[p]),
                int(self.turn_of[p]),
                float(r),
                float(self.cycle_s[p] - r),
                float(self.age_s[p] + self.cycle_s[p] - r),
            )
            for p, r in zip(picks, left, strict=True)
        ]
