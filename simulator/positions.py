"""`Positions`: where agents are in the stationary state, and how long sessions last, before any simulation.

A session ends where its logical context reaches the model's window, under every policy: one that cuts the text, or
numbers its rows anew, could go on, but would then serve other turns than the policy that it is compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..replay.policies.base import split_turns
from .session import SessionSpec, turns_in_window

NOMINAL_TPOT_S = 0.03  # only to place agents within their sessions at the start


class Place(NamedTuple):
    """One agent at one moment: in which session, the turn just taken, seconds to the next one, since that turn, and
    since the first.
    """

    session: int
    turn: int
    until_s: float
    since_s: float
    age_s: float


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
        self.owner, self.turn_of = np.array(owner, dtype=int), np.array(turn_of, dtype=int)
        self.cycle_s, self.age_s = np.array(cycles, dtype=float), np.array(ages, dtype=float)
        self.cumulative = np.cumsum(self.cycle_s)
        bounds = np.concatenate([[0.0], self.cumulative])[np.searchsorted(self.owner, np.arange(len(sessions) + 1))]
        self._starts_s, self._lasts_s = bounds[:-1], np.diff(bounds)  # of every session on the axis of `cumulative`

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

    @property
    def longest_session_s(self) -> float:
        """Seconds of the longest session."""
        return float(self._lasts_s.max())

    def draw(self, rng: np.random.Generator, count: int) -> list[Place]:
        """`count` agents, each in a session by the length-biased law and at a uniform moment of it."""
        picks = np.searchsorted(self.cumulative, rng.random(count) * self.cumulative[-1], side="right")
        return self._places(picks, rng.random(count) * self.cycle_s[picks])

    def at(self, sessions: np.ndarray, ages_s: np.ndarray) -> list[Place]:
        """Where those of `sessions` (usable ones) are that are not over `ages_s` seconds after they began."""
        going = ages_s < self._lasts_s[sessions]
        points = (self._starts_s[sessions] + ages_s)[going]
        picks = np.minimum(np.searchsorted(self.cumulative, points, side="right"), len(self.cumulative) - 1)
        return self._places(picks, np.maximum(0.0, self.cumulative[picks] - points))

    def _places(self, picks: np.ndarray, left_s: np.ndarray) -> list[Place]:
        """`left_s` seconds before the end of each picked cycle."""
        since = self.cycle_s[picks] - left_s
        columns = (self.owner[picks], self.turn_of[picks], left_s, since, self.age_s[picks] + since)
        return [Place(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
