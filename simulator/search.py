"""How a fleet is sized: interval per fleet size, bracketed search, a lower bound that no search may undercut."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .bench import Bench, Variant
from .cost import CostModel
from .outcome import SimResult
from .run import Scenario
from .session import SessionPlan
from .slo import LEAST_S, Slo, geometric_mean

Verdict = Literal["meets", "fails", "undecided"]
PILOT_SEEDS = 2
WIDEST = 12  # sizes looked at on either side of the pilot's, before the bracket is left open


@dataclass(frozen=True, slots=True)
class Level:
    """One SLO metric at one fleet size, in seconds: geometric mean over replications and its 95 % interval.

    The interval is Student's t on logarithms (near saturation latencies scatter by factors, and none is negative),
    so the mean that belongs to it is the geometric one: it lies inside, always, and what "meets" has a mean that meets.
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Level:
        """An interval of no width for one value; infinite mean and upper end where a value is infinite."""
        mean = geometric_mean(values)
        if not math.isfinite(mean):
            return cls(mean, min(values), mean)
        if len(values) < 2:
            return cls(mean, mean, mean)
        from scipy.special import stdtrit

        spread = float(np.std(np.log(np.maximum(values, LEAST_S)), ddof=1))
        factor = math.exp(float(stdtrit(len(values) - 1, 0.975)) * spread / math.sqrt(len(values)))
        return cls(mean, mean / factor, mean * factor)


def levels(results: Sequence[SimResult], slos: Sequence[Slo]) -> dict[str, Level]:
    """Every SLO metric over the replications of one fleet size."""
    return {slo.key: Level.of([r.values[slo.key] for r in results]) for slo in slos}


def verdict(results: Sequence[SimResult], slos: Sequence[Slo]) -> Verdict:
    """meets: every interval's upper end is within its limit; fails: some lower end is beyond; else undecided."""
    found = levels(results, slos)
    if any(found[slo.key].low > slo.limit_s for slo in slos):
        return "fails"
    if all(found[slo.key].high <= slo.limit_s for slo in slos):
        return "meets"
    return "undecided"


def mean_meets(results: Sequence[SimResult], slos: Sequence[Slo]) -> bool:
    """Whether every metric's geometric mean over the replications is within its limit; implied by "meets"."""
    found = levels(results, slos)
    return all(found[slo.key].mean <= slo.limit_s for slo in slos)


def lower_bound(scenario: Scenario) -> int:
    """Replicas below which no fleet can keep its promises: busy seconds that the turns demand in each second.

    Seconds per turn: the least it can take, whatever it shares a step with — its prefill, its compaction, and for each
    output token the dense work, the rows read, the state and the host time of one sequence. Turns per second: as the
    sessions arrive (open, recorded); in a closed workload at least agents / (mean wait + TTFT limit + mean output ·
    TPOT limit), since a fleet whose mean latencies are within the limits turns its agents round no slower. A closed
    workload without a limit on both has no such rate, and the bound is 1.
    """
    busy_s = waits_s = outputs = 0.0
    turns = 0
    for index in scenario.positions.usable:
        plan = scenario.plan_of(index)
        busy_s += _busy_s(plan, scenario.cost)
        waits_s += sum(plan.wait[plan.begin : -1])
        outputs += sum(plan.out[plan.begin :])
        turns += plan.turns - plan.begin
    per_second = _turns_per_s(scenario, waits_s / turns, outputs / turns)
    return max(1, math.ceil(per_second * busy_s / turns - 1e-9))


def _busy_s(plan: SessionPlan, cost: CostModel) -> float:
    """The least seconds of a replica that a session takes, its cache never lost."""
    busy = 0.0
    token_s = cost.token_s + cost.head_s + cost.host_sequence_s + cost.state_s
    for j in range(plan.begin, plan.turns):
        here = j > plan.begin  # the first request finds the shared prefix and nothing else
        feed, base = (plan.feed[j], plan.base[j]) if here else (plan.raw[j] - plan.shared, plan.shared)
        busy += feed * (cost.token_s + cost.local_s) + (plan.pay[j] if here else plan.repay[j])
        busy += feed * (base + (plan.peak[j] if here else plan.top[j])) / 2 * cost.pair_s
        busy += (plan.out[j] - 1) * (token_s + (plan.after[j] + plan.out[j] / 2 - 1) * cost.row_s)
    return busy


def _turns_per_s(scenario: Scenario, wait_s: float, output: float) -> float:
    """Turns per second that a fleet within its limits serves at least; 0 when nothing says."""
    load, positions = scenario.load, scenario.positions
    if load.kind == "open":
        return (load.rate or 0.0) * positions.mean_turns
    if load.kind == "recorded":
        return positions.mean_turns * len(positions.usable) / max(1e-9, scenario.horizon_s()[1])
    limits = {s.metric: s.limit_s for s in scenario.slos if s.percentile >= 90}  # a median says little of the mean
    if not {"ttft", "tpot"} <= limits.keys():
        return 0.0
    return (load.agents or 0) / (wait_s + limits["ttft"] + output * limits["tpot"])


def resident_guess(scenario: Scenario) -> int:
    """Replicas whose pools hold every agent's cache at once: where the search starts."""
    positions, deployment = scenario.positions, scenario.deployment
    picks = positions.draw(np.random.default_rng(0), 400)
    blocks = [scenario.plan_of(i).blocks(j, scenario.plan_of(i).rows(j)) for i, j, *_ in picks]
    agents = scenario.load.agents or scenario.load.sessions_per_s * positions.mean_session_s
    return max(1, round(float(np.mean(blocks)) * agents / max(1, deployment.blocks())))


def smallest(meets: Callable[[int], bool], low: int, high: int, start: int, stride: int | None = None) -> int | None:
    """The smallest n in low…high with `meets(n)`, for a monotone `meets`; None when `high` does not meet.

    Gallops from `start` (by `stride` at first, an eighth of it unless given), then bisects.
    """
    n = min(max(start, low), high)
    step = stride or max(1, n // 8)
    if meets(n):
        good = n
        while good > low:
            below = max(low, good - step)
            if not meets(below):
                return _bisect(meets, below, good)
            good, step = below, step * 2
        return good
    bad = n
    while bad < high:
        above = min(high, bad + step)
        if meets(above):
            return _bisect(meets, bad, above)
        bad, step = above, step * 2
    return None


def _bisect(meets: Callable[[int], bool], bad: int, good: int) -> int:
    while good - bad > 1:
        middle = (bad + good) // 2
        if meets(middle):
            good = middle
        else:
            bad = middle
    return good


@dataclass(frozen=True, slots=True)
class Side:
    """One policy's answer in replicas. `results` holds every size of the bracket with all its replications."""

    variant: Variant
    bound: int
    count: int | None
    low: int | None
    high: int | None
    results: dict[int, list[SimResult]]

    def smallest_in(self, replication: int, slos: tuple[Slo, ...]) -> int:
        """The smallest size that meets in that replication alone; one beyond the bracket when none does."""
        sizes = sorted(self.results)
        return next((n for n in sizes if self.results[n][replication].meets(slos)), sizes[-1] + 1)


def bracket(bench: Bench, variant: Variant, seeds: Sequence[int], most: int) -> Side:
    """Size one scenario: a pilot on two replications, then every size between *fails* and *meets* on all.

    Where the pilot was too hopeful the search goes on upward, so that no answer up to `most` is missed.
    """
    scenario = bench.shelf.get(variant)
    slos = scenario.slos
    bound = min(lower_bound(scenario), most)
    few = seeds[:PILOT_SEEDS]
    first = smallest(
        lambda n: mean_meets(bench.run(variant, n, few), slos), bound, most, max(bound, resident_guess(scenario))
    )
    results: dict[int, list[SimResult]] = {}
    while True:
        results |= _neighbours(lambda n: bench.run(variant, n, seeds), first or most, bound, most, slos)
        low, count, high = _settled(results, slos)
        beyond = max(results) + 1
        if count is not None or beyond > most:
            return Side(variant, bound, count, low, high, results)
        first = smallest(lambda n: mean_meets(bench.run(variant, n, seeds), slos), beyond, most, beyond)


def _neighbours(
    run: Callable[[int], list[SimResult]], first: int, bound: int, most: int, slos: Sequence[Slo]
) -> dict[int, list[SimResult]]:
    """The sizes around `first`, up to one that meets and down to one that fails."""
    found = {first: run(first)}
    while verdict(found[max(found)], slos) != "meets" and max(found) < min(most, first + WIDEST):
        found[max(found) + 1] = run(max(found) + 1)
    while verdict(found[min(found)], slos) != "fails" and min(found) > max(bound, first - WIDEST):
        found[min(found) - 1] = run(min(found) - 1)
    return found


def _settled(results: dict[int, list[SimResult]], slos: Sequence[Slo]) -> tuple[int | None, int | None, int | None]:
    """(low, count, high): the smallest size above all that fail, the smallest from there whose mean meets, and the
    smallest from there that meets. All None when no mean meets above all that fail.
    """
    failing = [n for n in results if verdict(results[n], slos) == "fails"]
    low = max(failing) + 1 if failing else min(results)
    count = next((n for n in sorted(results) if n >= low and mean_meets(results[n], slos)), None)
    if count is None:
        return None, None, None
    return low, count, next((n for n in sorted(results) if n >= count and verdict(results[n], slos) == "meets"), None)
