"""Promises that no number of replicas keeps: what a turn takes alone on an idle replica is the least it ever takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from .bounds import Least, least_of
from .deployment import BLOCK_TOKENS, sizes_of
from .run import Scenario
from .slo import Slo

NO_NUMBER = "no number of replicas helps: "


def hopeless(scenario: Scenario, turns: list[Least] | None = None) -> str | None:
    """Why no number of replicas keeps a promise, in words; None when closed forms do not rule it out.

    A turn takes at least what it takes alone on a replica with its cache in place, and one that is larger than a
    replica's pool is rejected everywhere, so where far more turns than the percentile allows are too slow or too large
    even then, every fleet breaks it. "Far more" is twice as many (for a median, half of the rest): replications draw
    their sessions, and must not be able to draw around it.
    """
    return _beyond(scenario, turns, lambda allowed: allowed + min(allowed, (1 - allowed) / 2))


def out_of_reach(scenario: Scenario, turns: list[Least] | None = None) -> str | None:
    """The same of the sessions as they are, each counted once: why a search found no fleet, where that is why."""
    return _beyond(scenario, turns, lambda allowed: allowed)


def _beyond(scenario: Scenario, turns: list[Least] | None, most: Callable[[float], float]) -> str | None:
    """In words, the first promise that more turns cannot keep than `most` of the share that its percentile allows."""
    turns = least_of(scenario) if turns is None else turns
    large = too_large(scenario)
    for slo in scenario.slos:
        beyond = most(1 - slo.percentile / 100)
        if large > beyond:
            return f"{NO_NUMBER}{_share(large)} of turns are larger than one replica's pool"
        least = least_latencies(slo, turns)
        late = float(np.mean(least > slo.limit_s)) if len(least) else 0.0
        if late > beyond:
            return (
                f"{NO_NUMBER}{_share(late)} of turns take longer than the {slo.limit_s:g} s of {slo.key} even alone on "
                f"a replica, with their caches in place; no limit below {least_limit(slo, least):.3g} s can be kept"
                f"{_at_larger_tp(scenario, slo)} (estimated)"
            )
    return None


def least_latencies(slo: Slo, turns: Sequence[Least]) -> np.ndarray:
    """Seconds of each turn that the promise is about, alone on a replica; those of one token have no TPOT."""
    if slo.metric == "ttft":
        return np.array([turn.prefill_s for turn in turns])
    if slo.metric == "tpot":
        return np.array([turn.tpot_s for turn in turns if turn.outputs > 1])
    return np.array([turn.prefill_s + turn.decode_s for turn in turns])


def least_limit(slo: Slo, least: np.ndarray) -> float:
    """The promise's percentile of the least latencies, in seconds: a fleet of any size has no lower one."""
    return float(np.percentile(least, slo.percentile, method="higher"))


def _at_larger_tp(scenario: Scenario, slo: Slo) -> str:
    """`, 1.2 s with --tp 2`: the smallest larger size within the limit, else the largest; nothing where none is."""
    said = ""
    if scenario.law is not None:  # a law of its own knows no machine
        return said
    for tp in (size for size in sizes_of(scenario.deployment.geometry) if size > scenario.deployment.tp):
        wider = replace(scenario, deployment=replace(scenario.deployment, tp=tp), twin=None)
        limit = least_limit(slo, least_latencies(slo, least_of(wider)))
        said = f", {limit:.3g} s with --tp {tp}"
        if limit <= slo.limit_s:
            break
    return said


def _share(share: float) -> str:
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def too_large(scenario: Scenario) -> float:
    """Share of the turns that are rejected because no replica's pool holds them; a session ends with its first."""
    pool, served, rejected = scenario.deployment.blocks(), 0, 0
    for index in scenario.positions.usable:
        plan = scenario.plan_of(index)
        room = pool - plan.shared // BLOCK_TOKENS
        first = next((j for j in range(plan.begin, plan.turns) if plan.size[j] > room), None)
        served += (plan.turns if first is None else first) - plan.begin
        rejected += first is not None
    return rejected / (served + rejected)
