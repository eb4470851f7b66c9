"""What closed forms say of a fleet before anything is simulated: a size no answer may undercut, and where to begin the
search.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .cost import CostModel
from .run import Scenario
from .session import SessionPlan


class Least(NamedTuple):
    """The least that one turn can take of a replica, its cache never lost, whatever it shares its steps with.

    `busy_s` seconds of the replica that no other turn can share; `prefill_s` and `decode_s` from arrival to the first
    token and from there to the last; `block_s` blocks of its own times seconds of decoding; `outputs` tokens; `wait_s`
    the tool wait after it, 0 after the last turn.
    """

    busy_s: float
    prefill_s: float
    decode_s: float
    block_s: float
    outputs: int
    wait_s: float

    @property
    def tpot_s(self) -> float:
        """Seconds per output token; 0 of a turn with one token."""
        return self.decode_s / (self.outputs - 1) if self.outputs > 1 else 0.0


def least_of(scenario: Scenario) -> list[Least]:
    """`Least` of every turn of every session that fits the window."""
    return [turn for index in scenario.positions.usable for turn in _turns(scenario, scenario.plan_of(index))]


def _turns(scenario: Scenario, plan: SessionPlan) -> Iterator[Least]:
    cost, budget = scenario.cost, scenario.deployment.token_budget
    token_s = cost.token_s + cost.head_s + cost.host_sequence_s + cost.state_s
    for j in range(plan.begin, plan.turns):
        here = j > plan.begin  # the first request finds the shared prefix and nothing else
        feed, base = (plan.feed[j], plan.base[j]) if here else (plan.raw[j] - plan.shared, plan.shared)
        end, pay = (plan.peak[j], plan.pay[j]) if here else (plan.top[j], plan.repay[j])
        rows, more = plan.after[j], plan.out[j] - 1
        busy = feed * (cost.token_s + cost.local_s) + feed * (base + end) / 2 * cost.pair_s
        busy += more * (token_s + (rows + more / 2) * cost.row_s)
        if scenario.deployment.compaction == "inline":
            busy += pay
        step_s = cost.fixed_s(1) + cost.decode_attention_s(1, rows)
        yield Least(
            busy,
            _prefill_s(cost, feed, base, end, budget),
            more * step_s,
            more * step_s * plan.blocks(j, rows),
            plan.out[j],
            plan.wait[j] if j + 1 < plan.turns else 0.0,
        )


def _prefill_s(cost: CostModel, feed: int, base: int, end: int, budget: int) -> float:
    """Seconds of a prefill that is alone on its replica, in chunks of `budget` tokens, compaction left out."""
    slope = max(0, end - base) / feed if feed else 0.0
    at, left, spent = float(base), feed, 0.0
    while left > 0:
        size = min(left, budget)
        left -= size
        spent += cost.step_s(0, 0.0, 1, size, size * (at + slope * size / 2), int(left == 0))
        at += slope * size
    return spent


def lower_bound(scenario: Scenario, turns: list[Least] | None = None) -> int:
    """Replicas below which no fleet can keep its promises: `demand` in whole replicas, one at least."""
    return max(1, math.ceil(demand(scenario, turns) - 1e-9))


def demand(scenario: Scenario, turns: list[Least] | None = None) -> float:
    """Replicas that the load asks for at least: demand over capacity, the largest of three. 0 when nothing says.

    Turns per second times what each takes at least (`Least`) is what a fleet must give in every second:
    *seconds* (prefill, compaction, and for each output token the dense work, the rows read, the state and the host
    time of one sequence), of which a replica has one; *blocks held while decoding* (a turn holds its own rows from its
    first token to its last, and no decode step is shorter than a lone one; Little's law), of which it has its pool;
    *sequences decoding* (the same), of which it runs `max_sequences`. Caches of waiting agents are left out: they may
    be evicted, so they bound nothing.

    Turns per second: as the sessions arrive (open, recorded); in a closed workload at least agents / (mean wait + TTFT
    limit + mean output · TPOT limit), since a fleet whose mean latencies are within the limits turns its agents round
    no slower. A closed workload without a limit on both has no such rate.
    """
    turns = least_of(scenario) if turns is None else turns
    mean = np.array(turns, dtype=float).mean(axis=0)
    busy_s, _, decode_s, block_s, outputs, wait_s = (float(value) for value in mean)
    per_second = _turns_per_s(scenario, wait_s, outputs)
    deployment = scenario.deployment
    return per_second * max(busy_s, block_s / max(1, deployment.blocks()), decode_s / deployment.max_sequences)


def _turns_per_s(scenario: Scenario, wait_s: float, output: float) -> float:
    """Turns per second that a fleet within its limits serves at least; 0 when nothing says."""
    load, positions = scenario.load, scenario.positions
    if load.kind == "open":
        return (load.rate or 0.0) * positions.mean_turns
    if load.kind == "recorded":
        sessions = load.scale_load * len(positions.usable)
        return positions.mean_turns * sessions / max(1e-9, scenario.horizon_s()[1])
    limits = {s.metric: s.limit_s for s in scenario.slos if s.percentile >= 90}  # a median says little of the mean
    if not {"ttft", "tpot"} <= limits.keys():
        return 0.0
    return (load.agents or 0) / (wait_s + limits["ttft"] + output * limits["tpot"])


def resident_guess(scenario: Scenario) -> int:
    """Replicas whose pools hold every agent's cache at once: where the search starts."""
    return max(1, round(resident_blocks(scenario) / max(1, scenario.deployment.blocks())))


def resident_blocks(scenario: Scenario) -> float:
    """Blocks that the caches of all agents take in the mean, waiting or not, if none is ever evicted."""
    positions = scenario.positions
    picks = positions.draw(np.random.default_rng(0), 400)
    blocks = [scenario.plan_of(i).blocks(j, scenario.plan_of(i).rows(j)) for i, j, *_ in picks]
    agents = scenario.load.agents or scenario.load.sessions_per_s * positions.mean_session_s
    return float(np.mean(blocks)) * agents
