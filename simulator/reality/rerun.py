"""A recorded run again, on the simulated replica: the same requests at the same moments."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import simpy

from ...replay.policies.registry import parse_policy
from ..cost import CostModel
from ..deployment import BLOCK_TOKENS, GIB, Deployment
from ..live import Live
from ..replica import Replica
from ..session import SessionSpec, compile_session
from ..workload import assemble
from .record import Record


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds per request, (n,) each. `tpot` counts one gap for requests of one token."""

    ttft: np.ndarray
    tpot: np.ndarray
    e2e: np.ndarray

    @classmethod
    def of(cls, arrived: np.ndarray, first: np.ndarray, last: np.ndarray, output: np.ndarray) -> Latencies:
        """From the moments of each request."""
        return cls(first - arrived, (last - first) / np.maximum(1, output - 1), last - arrived)


@dataclass(frozen=True, slots=True)
class Rerun:
    """What the simulated replica did: latencies, preemptions, and at the record's own moments the requests running and
    waiting and the share of the pool that running requests hold.
    """

    latencies: Latencies
    preemptions: int
    running: np.ndarray
    waiting: np.ndarray
    held: np.ndarray


def measured(record: Record) -> Latencies:
    """The latencies of the record itself."""
    return Latencies.of(record.arrived, record.first, record.last, record.output)


def place_of(record: Record, place: Deployment) -> Deployment:
    """The deployment with the engine settings of the run, and with its pool where that was recorded."""
    place = replace(place, token_budget=record.token_budget, max_sequences=record.max_sequences)
    if record.blocks is None:
        return place
    spare = place.cache_gib() - (record.blocks + 0.5) * BLOCK_TOKENS * place.row_bytes() / GIB
    return replace(place, activation_gib=place.activation.gib + spare)


def rerun(record: Record, place: Deployment, cost: CostModel) -> Rerun:
    """Simulate the run on `place` (see `place_of`) at `cost`. No random numbers are drawn."""
    env = simpy.Environment()
    ends: dict[int, float] = {}

    def done(live: Live, _: bool) -> None:
        ends[live.agent] = env.now

    replica = Replica(env, place, cost, done)
    lives: list[Live] = []
    for number, (prompt, output, moment) in enumerate(zip(record.prompt, record.output, record.arrived, strict=True)):
        spec = SessionSpec(assemble(int(prompt), [int(output)], []), (0.0,))
        plan = compile_session(spec, parse_policy("full"), place, cost)
        assert plan is not None, "one turn of a recorded request fits the model's window"
        lives.append(Live(plan, number))
        arrival = env.timeout(float(moment))
        arrival.callbacks = [lambda _, live=lives[-1]: _submit(replica, live)]
    seen: list[tuple[float, float, float]] = []
    env.process(_watch(env, replica, record.moments, seen))
    env.run(until=100.0 * float(record.last.max()))
    first, last = np.array([live.first for live in lives]), np.array([ends[live.agent] for live in lives])
    running, waiting, held = np.array(seen).T
    return Rerun(Latencies.of(record.arrived, first, last, record.output), replica.preemptions, running, waiting, held)


def _submit(replica: Replica, live: Live) -> None:
    live.arrival = replica.env.now
    replica.submit(live)


def _watch(
    env: simpy.Environment, replica: Replica, moments: np.ndarray, seen: list[tuple[float, float, float]]
) -> Generator[simpy.Event, Any, None]:
    for moment in moments:
        yield env.timeout(max(0.0, float(moment) - env.now))
        now = replica.snapshot()
        seen.append((now.running, now.waiting, now.held_blocks / now.total_blocks))
