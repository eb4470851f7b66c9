"""The real engine under step laws that queueing theory can solve: step = a + b·n, one-token prompts, roomy pool."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from .cost import CostModel
from .deployment import Deployment
from .fleet import Fleet
from .hardware import find_gpu
from .models import find_geometry
from .run import Scenario
from .session import SessionSpec
from .workload import Workload, assemble

POPULATION = 4000
TURNS_PER_SESSION = 300


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
        """A small model on a large GPU: memory never binds, no window ends a session."""
        shape = replace(find_geometry("smollm2-135m"), max_positions=1 << 40)
        return Deployment(shape, find_gpu("h200"), max_sequences=self.cap, token_budget=1 << 30)


@dataclass(frozen=True, slots=True)
class Observed:
    """Per turn in order of arrival: time in the system; per slice of time: mean number present and completions/s."""

    times: np.ndarray
    present: np.ndarray
    rates: np.ndarray


def geometric(mean: float, count: int) -> list[int]:
    """`count` evenly spaced quantiles of the geometric law on 1, 2, … with that mean."""
    levels = (np.arange(count) + 0.5) / count
    values = np.ceil(np.log1p(-levels) / np.log1p(-1 / mean))
    return [int(v) for v in np.maximum(1, values)]


def open_queue(law: Law, rate: float, tokens: float, requests: int, seed: int) -> Observed:
    """Poisson arrivals of single-turn requests with geometric outputs."""
    outs = geometric(tokens, POPULATION)
    specs = tuple(SessionSpec(assemble(1, [out], []), (0.0,)) for out in outs)
    return observe(law, Workload("open", specs, rate=rate), requests, seed)


def closed_queue(law: Law, agents: int, think_s: float, tokens: float, requests: int, seed: int) -> Observed:
    """`agents` that think for an exponential time between turns of geometric outputs, in very long sessions."""
    rng = np.random.default_rng(seed)
    specs = []
    for _ in range(agents):
        outs = rng.permutation(geometric(tokens, TURNS_PER_SESSION)).tolist()
        waits = -think_s * np.log1p(-(rng.permutation(TURNS_PER_SESSION) + 0.5) / TURNS_PER_SESSION)
        specs.append(SessionSpec(assemble(1, outs, [1] * (TURNS_PER_SESSION - 1)), tuple(waits.tolist())))
    return observe(law, Workload("closed", tuple(specs), agents=agents), requests, seed)


def observe(law: Law, workload: Workload, requests: int, seed: int, slices: int = 300) -> Observed:
    """Run the engine on one replica and cut the measured time into slices."""
    scenario = Scenario(workload, "full", law.deployment(), turns=requests, law=law.cost())
    warm, end = scenario.horizon_s()
    fleet = Fleet(scenario.load, scenario.positions, scenario.plan_of, scenario.deployment, scenario.cost, 1, seed)
    fleet.env.run(until=end)
    turns = np.array(sorted((t[0], t[3]) for t in fleet.turns))
    arrivals, ends = turns[:, 0], turns[:, 0] + turns[:, 1]
    edges: np.ndarray = np.linspace(warm, end * 0.98, slices + 1)  # what arrives last is not all finished yet
    rates = np.histogram(ends, edges)[0] / np.diff(edges)
    overlap = [
        np.clip(np.minimum(ends, high) - np.maximum(arrivals, low), 0, None).sum() / (high - low)
        for low, high in pairwise(edges)
    ]
    keep = (arrivals >= warm) & (arrivals <= end * 0.98)
    return Observed(turns[keep, 1], np.array(overlap), rates)
