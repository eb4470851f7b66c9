"""When sessions arrive, and which session an agent draws.

Open workloads are renewal processes with Gamma gaps: `burstiness` is the coefficient of variation of the gaps, 1 is
Poisson, above it arrivals come in bursts. Recorded starts are kept, or gone through faster.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import UserError

MOST_STARTED = 2_000_000  # sessions of a scaled log: a minute or two of a simulation
MOST_PAST = 50_000_000  # arrivals looked back at for the start of a bursty workload
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Renewal:
    """Independent Gamma gaps of mean 1/`rate` seconds and coefficient of variation `burstiness`.

    A Gamma law of shape k and scale θ has mean kθ and coefficient of variation 1/√k.
    """

    rate: float
    burstiness: float = 1.0

    @property
    def shape(self) -> float:
        """k."""
        return self.burstiness**-2

    @property
    def scale_s(self) -> float:
        """θ, in seconds."""
        return self.burstiness**2 / self.rate

    def before(self, rng: np.random.Generator, reach_s: float) -> tuple[np.ndarray, float]:
        """(seconds since each arrival of the last `reach_s`, latest first; seconds to the next one), now.

        The moment "now" of a process that has always been going falls into a gap by the length-biased law, which for
        a Gamma gap is Gamma of shape k + 1, and at a uniform place in it.
        """
        if reach_s * self.rate > MOST_PAST:
            raise UserError(
                f"--rate {self.rate:g}: {reach_s * self.rate:,.0f} sessions begin while the longest of them, of "
                f"{reach_s:,.0f} s, is under way; plan a share of the load and scale the answer"
            )
        around = rng.gamma(self.shape + 1, self.scale_s)
        since = around * rng.random()
        ages: np.ndarray = np.array([since])
        while ages[-1] < reach_s:
            gaps = rng.gamma(self.shape, self.scale_s, int((reach_s - ages[-1]) * self.rate) + 16)
            ages = np.concatenate([ages, ages[-1] + np.cumsum(gaps)])
        return ages[ages < reach_s], float(around - since)

    def times(self, rng: random.Random, first_s: float) -> Iterator[float]:
        """The times of arrivals from `first_s` on, for ever."""
        now = first_s
        while True:
            yield now
            now += rng.gammavariate(self.shape, self.scale_s)


def recorded(starts_s: np.ndarray, scale: float, rng: np.random.Generator) -> np.ndarray:
    """The recorded starts in order, or `scale` times as many in the same span of time.

    Scaled, the log is gone through `scale` times as fast from a random place on, again and again until the span is
    over. So the gaps keep their coefficient of variation and the order in which they come; copies laid over each
    other, or starts left out at random, would be smoothed towards a Poisson process. UserError when they are too many.
    """
    starts_s = np.sort(starts_s)
    if scale == 1:
        return starts_s
    if scale * len(starts_s) > MOST_STARTED:
        raise UserError(
            f"--scale-load {scale:g}: {scale * len(starts_s):,.0f} sessions in one simulation; up to {MOST_STARTED:,}: "
            "plan a share of the load and scale the answer"
        )
    first, span = starts_s[0], starts_s[-1] - starts_s[0]
    count = len(starts_s)
    if span <= 0:
        return np.full(max(1, round(count * scale)), first)
    period = span * count / (count - 1)  # the gap that closes the circle is a mean one
    around = np.sort((starts_s - first - rng.random() * period) % period) / scale
    laps = np.arange(int(scale) + 2) * (period / scale)
    times = (laps[:, None] + around[None, :]).ravel()
    return first + times[times <= span]


def pick(seed: int, agent: int, draw: int, count: int) -> int:
    """A number below `count` for an agent's draw, by a hash: no generator has to be kept for each agent.

    SplitMix64's finaliser (Steele, Lea and Flood 2014), once for each of the three.
    """
    return (_mixed(_mixed(_mixed(seed & _WORD) ^ agent) ^ draw) * count) >> 64


def neighbour(seed: int, agent: int, count: int) -> int:
    """The session, of `count` in the order of a log, that the log's next start gets.

    Stretches of √count neighbours are drawn, not single sessions (the moving-block bootstrap, Künsch 1989): forks of
    one conversation, which share a prefix, begin soon after one another, and so does what else goes together.
    """
    stretch = max(1, math.isqrt(count))
    block, place = divmod(agent, stretch)
    return (pick(seed, block, 0, count) + place) % count


def _mixed(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)
