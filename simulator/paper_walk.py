"""From the paper's static batch to continuous batching, one difference at a time, in sessions per hour of one replica.

`walk` is arithmetic on means (*estimated*): so many sequences decode all the time on average rows, and prefills and
compactions stop them. `carried` simulates the same sessions in a fleet: queues, evictions, preemptions and all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .cost import CostModel
from .deployment import BLOCK_TOKENS
from .outcome import SimResult
from .paper_static import Decodes, Static, StepTable
from .paper_table import HOUR_S, per_hour
from .run import Scenario, run_fleet
from .search import mean_meets
from .session import SessionPlan
from .slo import geometric_mean

PRESENT, FLEET = 400, 16  # about so many agents on so many replicas at most: of few, the chance of long ones decides
SEEDS = 2
TURNS = 4000  # measured turns of one run
STRIDE = 2**0.5  # between the numbers of agents that are tried
MOST_TRIED = 10  # of them, upward and downward each


@dataclass(frozen=True, slots=True)
class Means:
    """A mean session under a policy, its cache never lost: tokens decoded, rows held, seconds.

    `decoding` rows while it decodes, `waiting` rows while its tools run for `wait_s` in all, `state` rows at all times,
    `beside` rows of captured queries and the like. `shared` rows of its prefix can be held once for all sessions, which
    takes `once` rows.
    """

    tokens: float
    decoding: float
    waiting: float
    wait_s: float
    state: float
    beside: float
    shared: float
    once: int
    prefill_s: float
    compaction_s: float


def means_of(plans: Sequence[SessionPlan], decodes: Decodes, cost: CostModel, state_blocks: int, batch: int) -> Means:
    """Means over sessions, each counted once. A prefill takes what it adds to a step of `batch` decodes."""
    wait_s = waiting = beside = prefill_s = compaction_s = 0.0
    rows = batch * decodes.mean_rows
    plain = cost.fixed_s(batch) + cost.decode_attention_s(batch, rows)
    for plan in plans:
        for j in range(plan.begin, plan.turns):
            here = j > plan.begin  # the first request finds the shared prefix and nothing else
            feed, base = (plan.feed[j], plan.base[j]) if here else (plan.raw[j] - plan.shared, plan.shared)
            pairs = feed * (base + (plan.peak[j] if here else plan.top[j])) / 2
            prefill_s += cost.step_s(batch, rows, 1, feed, pairs, 1) - plain
            compaction_s += plan.pay[j] if here else plan.repay[j]
            beside += plan.out[j] * (plan.extra[j] - state_blocks) * BLOCK_TOKENS
            if j + 1 < plan.turns:
                wait_s += plan.wait[j]
                waiting += plan.wait[j] * plan.rows(j)
    count = len(plans)
    return Means(
        tokens=decodes.tokens,
        decoding=decodes.mean_rows,
        waiting=waiting / wait_s if wait_s else 0.0,
        wait_s=wait_s / count,
        state=state_blocks * BLOCK_TOKENS,
        beside=beside / count / decodes.tokens,
        shared=sum(plan.shared for plan in plans) / count,
        once=sum({plan.group: plan.shared for plan in plans}.values()),
        prefill_s=prefill_s / count,
        compaction_s=compaction_s / count,
    )


def rate(means: Means, cost: CostModel, batch: float, stopped_s: float) -> float:
    """Sessions per hour while `batch` sequences decode, but for `stopped_s` seconds of each session."""
    low = max(1, int(batch))
    first, second = (cost.fixed_s(n) + cost.decode_attention_s(n, n * means.decoding) for n in (low, low + 1))
    step = first + max(0.0, batch - low) * (second - first)
    return HOUR_S / (means.tokens * step / batch + stopped_s)


def kept_batch(means: Means, cost: CostModel, cap: int, pool_tokens: int) -> float:
    """The decoding batch at which its rows, and those of the sessions waiting for tools meanwhile, fill the pool.

    By Little's law, sessions per second times seconds of waits are waiting at once; they grow with the batch.
    """
    own, stopped = means.state + means.beside - means.shared, means.prefill_s + means.compaction_s
    low, high = 0.0, float(cap)
    for _ in range(50):
        batch = (low + high) / 2
        absent = rate(means, cost, batch, stopped) / HOUR_S * means.wait_s
        full = batch * (means.decoding + own) + absent * (means.waiting + own) > pool_tokens - means.once
        low, high = (low, batch) if full else (batch, high)
    return low


def walk(
    means: Means, decodes: Decodes, cost: CostModel, found: Static, cap: int, pool_tokens: int
) -> list[dict[str, Any]]:
    """`[{key, what, batch, sessions_per_hour, label}]`: each line changes one thing of the line above it."""
    table = StepTable.of(cost, found.admissible, decodes.peak)
    seconds = float(table.spans_s(decodes.starts, decodes.steps).sum()) / decodes.sessions
    own, room = means.decoding + means.state, pool_tokens - means.once
    mean = min(float(cap), pool_tokens / own)
    capped = f", {cap} sequences at most" if mean == cap else ""
    once = min(float(cap), room / (own - means.shared))
    less = min(float(cap), room / (own - means.shared + means.beside))
    stopped = means.prefill_s + means.compaction_s
    kept = kept_batch(means, cost, cap, pool_tokens)
    lines = [
        ("paper", "the static batch of the paper", float(found.batch), found.per_hour),
        ("unrounded", "not rounded to a power of two", float(found.admissible), per_hour(found.admissible, seconds)),
        ("mean", f"room for the mean KV, not for the largest{capped}", mean, rate(means, cost, mean, 0.0)),
        ("shared", "a prefix that sessions share held once", once, rate(means, cost, once, 0.0)),
        ("prefill", "prefill of prompts and tool outputs charged", once, rate(means, cost, once, means.prefill_s)),
        ("compaction", "compaction and captured queries charged", less, rate(means, cost, less, stopped)),
        ("waits", "caches kept while tools run, none ever lost", kept, rate(means, cost, kept, stopped)),
    ]
    return [{"key": k, "what": w, "batch": b, "sessions_per_hour": r, "label": "estimated"} for k, w, b, r in lines]


@dataclass(frozen=True, slots=True)
class Carried:
    """What one replica of a fleet carries: `agents` at work all the time, sessions per hour, runs that showed it."""

    agents: float
    sessions_per_hour: float
    results: list[SimResult]

    def line(self, key: str, what: str) -> dict[str, Any]:
        """As a line of the walk."""
        batch = sum(r.batch_mean for r in self.results) / len(self.results)
        return {
            "key": key,
            "what": f"{what}, {self.agents:,.{0 if self.agents >= 100 else 1}f} agents",
            "batch": batch,
            "sessions_per_hour": self.sessions_per_hour,
            "label": "simulated",
        }


def carried(scenario: Scenario, start: float, seed: int, tick: Callable[[str], None]) -> tuple[Carried, Carried | None]:
    """(the most sessions per hour, the most that keeps the promises) of one replica in a fleet, over numbers of agents.

    The agents per replica go from `start` upward by half powers of two until sessions per hour have fallen twice in a
    row, and downward until they are below the best and the promises are kept; then half a stride to either side of what
    was found. The second is None when none keeps the promises, or there are none.
    """
    replicas = min(FLEET, math.ceil(PRESENT / start))
    tried: dict[int, Carried] = {}

    def served(agents: float) -> float:
        count = max(1, round(agents * replicas))
        if count not in tried:
            tried[count] = _run(scenario, count, replicas, seed)
            tick(f"{count} agents on {replicas} replicas, {scenario.policy}")
        return tried[count].sessions_per_hour

    served(start)
    for step in range(2, MOST_TRIED):
        if served(start * STRIDE**step) <= served(start * STRIDE ** (step - 1)) <= served(start * STRIDE ** (step - 2)):
            break
    for step in range(1, MOST_TRIED):
        best = max(found.sessions_per_hour for found in tried.values())
        if served(start * STRIDE**-step) < best and (not scenario.slos or _keeping(tried, scenario)):
            break
    for found in (list(tried.values()), _keeping(tried, scenario)):
        if found:
            middle = _best(found).agents
            served(middle * STRIDE**0.5)
            served(middle / STRIDE**0.5)
    keeping = _keeping(tried, scenario)
    return _best(list(tried.values())), _best(keeping) if keeping else None


def _keeping(tried: dict[int, Carried], scenario: Scenario) -> list[Carried]:
    """Those that keep the promises; none where nothing is promised."""
    return [found for found in tried.values() if scenario.slos and mean_meets(found.results, scenario.slos)]


def _best(found: Sequence[Carried]) -> Carried:
    return max(found, key=lambda one: one.sessions_per_hour)


def _run(scenario: Scenario, agents: int, replicas: int, seed: int) -> Carried:
    """A fleet under a closed workload of so many agents; the sessions and their turns stay as they are."""
    load = replace(scenario.load, agents=agents, rate=None, burstiness=1.0, scale_load=1.0)
    closed = replace(scenario, workload=load, extra_turns=0.0, turns=TURNS, twin=scenario)
    results = [run_fleet(closed, replicas, seed * 1000 + r) for r in range(SEEDS)]
    turns = geometric_mean([r.throughput_requests_per_s for r in results]) / replicas
    return Carried(agents / replicas, turns / scenario.positions.mean_turns * HOUR_S, results)
