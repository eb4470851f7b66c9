"""The real engine under step laws that queueing theory can solve: step = a + b·n, one-token prompts, roomy pool.

One request is served in as many steps as it has output tokens. Outputs of thousands of tokens make the step
under way, whose end an arrival waits for and closed forms know nothing of, about 10⁻⁴ of a service.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .cost import CostModel
from .deployment import Deployment
from .fleet import Fleet
from .hardware import find_gpu
from .models import find_geometry
from .run import Scenario
from .session import SessionSpec
from .workload import Workload, assemble

WARM = 0.05  # of the measured time, before it


@dataclass(frozen=True, slots=True)
class Law:
    """A step with n sequences takes `step_s` + `sequence_s`·n seconds; at most `cap` run at once."""

    step_s: float = 0.0
    sequence_s: float = 0.0
    cap: int = 256

    def cost(self) -> CostModel:
        """Only host time is left of the roofline."""
        return CostModel(host_s=self.step_s, host_sequence_s=self.sequence_s)

    def deployment(self) -> Deployment:
        """A small model on a GPU as large as it takes: memory never binds, no window ends a session."""
        shape = replace(find_geometry("smollm2-135m"), max_positions=1 << 60)
        gpu = replace(find_gpu("h200"), usable_gib=1e9)
        return Deployment(shape, gpu, max_sequences=self.cap, token_budget=1 << 30)


@dataclass(frozen=True, slots=True)
class Observed:
    """All turns in order of arrival, (n, 3): arrival, time in the system, output tokens; and the span that counts."""

    turns: np.ndarray
    span: tuple[float, float]

    def counted(self, column: int) -> np.ndarray:
        """One column of the turns that arrived inside the span."""
        return self.turns[self.inside, column]

    @property
    def times(self) -> np.ndarray:
        """Time in the system of the turns that count."""
        return self.counted(1)

    @property
    def tokens(self) -> np.ndarray:
        """Their output tokens."""
        return self.counted(2)

    @property
    def gaps(self) -> np.ndarray:
        """Seconds between each of them and the arrival before it."""
        return np.diff(self.turns[:, 0], prepend=0.0)[self.inside]

    def present(self, moments: np.ndarray) -> np.ndarray:
        """How many turns were in the system at each moment."""
        arrivals, ends = self.turns[:, 0], np.sort(self.turns[:, 0] + self.turns[:, 1])
        return np.searchsorted(arrivals, moments, side="right") - np.searchsorted(ends, moments, side="right")

    def moments(self, apart: float) -> np.ndarray:
        """Moments of the span, `apart` seconds from one to the next."""
        return np.arange(self.span[0], self.span[1], apart)

    def rates(self, slices: int) -> np.ndarray:
        """Turns ended per second, over equal slices of the span."""
        edges: np.ndarray = np.linspace(*self.span, slices + 1)
        return np.histogram(self.turns[:, 0] + self.turns[:, 1], edges)[0] / np.diff(edges)

    @property
    def inside(self) -> np.ndarray:
        """Which of the turns count."""
        return (self.turns[:, 0] >= self.span[0]) & (self.turns[:, 0] <= self.span[1])


def geometric(mean: float, count: int) -> list[int]:
    """`count` evenly spaced quantiles of the geometric law on 1, 2, … with that mean."""
    levels = (np.arange(count) + 0.5) / count
    values = np.ceil(np.log1p(-levels) / np.log1p(-1 / mean))
    return [int(v) for v in np.maximum(1, values)]


def exponential(mean: float, count: int) -> np.ndarray:
    """`count` values that share the exponential law evenly: the mean of each of its `count` equally likely parts."""
    rest = 1 - np.arange(count + 1) / count
    below = 1 - rest + rest * np.log(np.maximum(rest, 1e-300))  # ∫ of the quantile function up to there
    return mean * count * np.diff(below)


def open_queue(law: Law, rate: float, outs: Sequence[int], requests: int, seed: int) -> Observed:
    """About `requests` Poisson arrivals of single-turn requests, their outputs drawn from `outs`."""
    specs = tuple(SessionSpec(assemble(1, [out], []), (0.0,)) for out in outs)
    return observe(law, Workload("open", specs, rate=rate), requests / rate, seed)


def closed_queue(
    law: Law, agents: int, think_s: float, outs: Sequence[int], seconds: float, seed: int
) -> tuple[Observed, float]:
    """`agents` that think for an exponential time between turns; and their mean think time.

    A session has a turn for each of `outs`, in an order of its own. No thinking follows its last turn.
    """
    rng = np.random.default_rng(seed)
    waits = exponential(think_s, len(outs))
    specs, thought = [], 0.0
    for _ in range(agents):
        own = rng.permutation(waits)
        thought += float(own[:-1].sum()) / len(outs) / agents
        turns = rng.permutation(outs).tolist()
        specs.append(SessionSpec(assemble(1, turns, [1] * (len(outs) - 1)), tuple(own.tolist())))
    return observe(law, Workload("closed", tuple(specs), agents=agents), seconds, seed), thought


def observe(law: Law, workload: Workload, seconds: float, seed: int) -> Observed:
    """Run the engine on one replica; every turn that arrives within `seconds` after the warm-up counts, to its end."""
    scenario = Scenario(workload, "full", law.deployment(), law=law.cost())
    warm, end = WARM * seconds, (1 + WARM) * seconds
    fleet = Fleet(scenario.load, scenario.positions, scenario.plan_of, scenario.deployment, scenario.cost, 1, seed)
    fleet.env.run(until=end)
    while any(session.pending and session.arrival <= end for session in fleet.live):
        fleet.env.run(until=fleet.env.now + WARM * seconds)
    if any(replica.preemptions for replica in fleet.replicas):
        raise RuntimeError(f"{workload.name}: memory was to bind nowhere, yet requests were preempted")
    return Observed(np.array(sorted((t[0], t[3], t[4]) for t in fleet.turns)), (warm, end))
