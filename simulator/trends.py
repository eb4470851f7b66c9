"""Orders that must hold between runs with the same seeds: more replicas serve better, more kept rows take more room,
more sessions find less of their cache. The value is the largest step against the order; a small one is let pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from .deployment import Deployment
from .fleet import Fleet
from .hardware import find_gpu
from .identities import Identity, crowd, crowded
from .models import find_geometry
from .run import Scenario, run_fleet
from .session import SessionSpec
from .workload import Workload, assemble

TOLERANCE = 0.02
SEEDS = (0, 1, 2)
FLEETS = (1, 2, 3, 4, 6)
KEEPS = (0.1, 0.2, 0.4, 0.7, 1.0)
# 20 rounds of 1,500 tokens in and 200 out, 5 s between them, on one H100: another simulator's hit rate falls from 90 %
# to 7 % between these sessions per second. Once the pool is passed, prefilling again takes what time there was.
SESSION_RATES = (0.05, 0.1, 0.2, 0.5, 2.0)


def trend_checks() -> Iterable[Identity]:
    """Every order."""
    yield from by_fleet_size()
    yield from by_keep()
    yield from by_session_rate()


def against(values: Sequence[float]) -> float:
    """The largest relative fall from one value to the next: 0 when they never fall."""
    return max(0.0, *(1 - after / before for before, after in pairwise(values)))


def by_fleet_size() -> Iterable[Identity]:
    """Forty agents in pools that are too small: the same seeds on more and more replicas."""
    scenario = Scenario(crowd(400, 300), "full", crowded(25_000), turns=2000)
    runs = [[run_fleet(scenario, count, seed) for seed in SEEDS] for count in FLEETS]
    done = [float(np.mean([run.throughput_requests_per_s for run in group])) for group in runs]
    late = [float(np.mean([run.e2e_s["p50"] or 0.0 for run in group])) for group in runs]
    name = f"{FLEETS[0]} to {FLEETS[-1]} replicas, same seeds"
    yield f"{name}: turns/s never fall", against(done), 0.0, TOLERANCE
    yield f"{name}: median time of a turn never rises", against(late[::-1]), 0.0, TOLERANCE


def by_keep() -> Iterable[Identity]:
    """The same agents under te at more and more kept, compaction taking no time: blocks used, and turns served."""
    roomy, tight = ([by_keep_in(pool, keep) for keep in KEEPS] for pool in (300_000, 40_000))
    name = f"keep {KEEPS[0]:g} to {KEEPS[-1]:g}, same seeds"
    yield f"{name}: blocks in use never fall, in a roomy pool", against([used for used, _ in roomy]), 0.0, TOLERANCE
    done = [rate for _, rate in tight]
    yield f"{name}: turns/s never rise, in a tight pool", against(done[::-1]), 0.0, TOLERANCE


def by_keep_in(pool_tokens: int, keep: float) -> tuple[float, float]:
    """(share of the pool in use, turns per second), means over `SEEDS`."""
    policy = f"te(proxy=assistant,delay=1,keep={keep:g})"
    free = frozenset({"seconds"})
    scenario = Scenario(crowd(800, 200), policy, crowded(pool_tokens), turns=1000, without=free)
    runs = [run_fleet(scenario, 2, seed) for seed in SEEDS]
    return float(np.mean([r.kv_used_share for r in runs])), float(np.mean([r.throughput_requests_per_s for r in runs]))


def by_session_rate() -> Iterable[Identity]:
    """Multi-turn sessions arrive faster and faster: the share of a prompt that is still in the cache falls."""
    shares = [float(np.mean([hit_share(rate, seed) for seed in SEEDS])) for rate in SESSION_RATES]
    rise = max(0.0, *(after - before for before, after in pairwise(shares)))
    name = f"{SESSION_RATES[0]:g} to {SESSION_RATES[-1]:g} sessions/s"
    yield f"{name}: the share of prompts found in the cache never rises", rise, 0.0, TOLERANCE
    yield f"{name}: nearly all of them are found at first", shares[0], 1.0, 0.1
    yield f"{name}: and nearly none at last", shares[-1], 0.0, 0.1


def hit_share(rate: float, seed: int, seconds: float = 1000.0) -> float:
    """Share of the earlier turns' tokens that one H100 need not prefill again, from the stationary start on."""
    spec = SessionSpec(assemble(1500, [200] * 20, [1500] * 19), (5.0,) * 20)
    place = Deployment(find_geometry("llama-3.1-8b"), find_gpu("h100"))
    scenario = Scenario(Workload("rounds", (spec,), rate=rate), "full", place)
    plan = scenario.plan_of(0)
    fleet = Fleet(scenario.load, scenario.positions, scenario.plan_of, place, scenario.cost, 1, seed)
    fleet.env.run(until=seconds)
    known = sum(plan.raw[int(t[7])] - plan.feed[int(t[7])] for t in fleet.turns)
    return 1 - fleet.measured()["again_tokens"] / known
