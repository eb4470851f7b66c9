"""`SimResult`: what one simulation showed, taken from a fleet that has run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from .cost import CostModel
from .fleet import Fleet
from .saturation import BUSY, CROWDED, GROWING, crowding, growth
from .slo import Slo, enough, percentile

UNSERVED = 0.05  # share of turns never served, beyond which a fleet is said to be saturated
MOSTLY = 0.7  # of a limit that a lone decode step takes, beyond which no fleet size helps much
NEAR = 0.5  # of its limit: below it a promise needs no lever
LIGHT_LOAD = 0.3  # share of time busy, below which waiting is no cause
MISS_SHARE = 0.01  # turns that find their cache gone, beyond which residency is said to bind
ALONE = "; long prompts are slow even alone (raise --tp)"
STRETCHED = "; prefills stretch the decode steps beside them (try a smaller --token-budget)"
SPENT_ON = {"prefill": "prefill compute", "kv": "decode bandwidth", "host": "host time", "compaction": "compaction"}


@dataclass(frozen=True, slots=True)
class SimResult:
    """What one run showed. Latencies in seconds by percentile, None from too few turns; shares in [0, 1].

    `values` holds the percentile of each SLO (infinite when more turns than it allows were rejected, when the run
    ends with turns that no replica works to serve, and when no turn was served at all).
    `unserved_share` is the share of turns still waiting for their first token at the end, `queue_growth` the share of
    the arriving turns by which the queue grew, `waiting_mean` the turns that waited for a first token in the mean.
    `saturated`: beyond a few percent of either, latencies depend on how long one looks; a closed workload, whose queue
    cannot grow, is saturated when many of its agents wait for machines that are busy. Nothing includes the warm-up.
    """

    replicas: int
    gpus: int
    tp: int
    seed: int
    requests: int
    rejected: int
    simulated_s: float
    wall_s: float
    batch_mean: float
    batch_max: int
    throughput_requests_per_s: float
    throughput_tokens_per_s: float
    goodput_requests_per_s: float
    ttft_s: dict[str, float | None]
    tpot_s: dict[str, float | None]
    e2e_s: dict[str, float | None]
    kv_used_share: float
    kv_active_share: float
    preemptions: int
    evictions: int
    miss_share: float
    busy_share: float
    unserved_share: float
    queue_growth: float
    waiting_mean: float
    saturated: bool
    shares: dict[str, float]
    values: dict[str, float]
    binding_constraint: str

    def meets(self, slos: tuple[Slo, ...]) -> bool:
        """Whether this run alone keeps every promise."""
        return all(self.values[slo.key] <= slo.limit_s for slo in slos)

    def row(self) -> dict[str, Any]:
        """As a dictionary."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Observed:
    """Turns that arrived after the warm-up. `finished` (n, 9) as `Turns`; latencies in seconds, ready for percentiles.

    `unserved` turns had no first token at the end, `open` turns had one and were still decoding.
    """

    finished: np.ndarray
    ttft: np.ndarray
    tpot: np.ndarray
    e2e: np.ndarray
    rejected: int
    unserved: int
    open: int


def observe(fleet: Fleet, warm: float, end: float) -> Observed:
    """The latencies that are known, and what is known of the others.

    A turn that waits or decodes at the end counts with its age, a lower bound, once that exceeds the median of the
    known ones (leaving it out would hide the slowest). A rejected turn counts as infinitely late.
    """
    finished = fleet.turns.columns()
    finished = finished[finished[:, 0] >= warm]
    live = [s for s in fleet.live if s.pending and s.arrival >= warm]
    decoding = [s.first - s.arrival for s in live if s.first >= 0]
    waiting = [end - s.arrival for s in live if s.first < 0]
    rejected = sum(arrival >= warm for arrival in fleet.rejected)
    lost = np.full(rejected, np.inf)
    ttft, tpot = np.concatenate([finished[:, 1], decoding]), finished[:, 2][~np.isnan(finished[:, 2])]
    return Observed(
        finished,
        np.concatenate([ttft, _late(waiting, ttft), lost]),
        np.concatenate([tpot, lost]),
        np.concatenate([finished[:, 3], _late([end - s.arrival for s in live], finished[:, 3]), lost]),
        rejected,
        len(waiting),
        len(decoding),
    )


def _queue(fleet: Fleet) -> tuple[np.ndarray, np.ndarray]:
    """(arrival, first token) of every turn so far, in seconds; infinite without a first token."""
    finished, live = fleet.turns.columns(), [s for s in fleet.live if s.pending]
    arrivals = np.concatenate([finished[:, 0], [s.arrival for s in live]])
    firsts = np.concatenate([finished[:, 0] + finished[:, 1], [s.first if s.first >= 0 else np.inf for s in live]])
    return arrivals, firsts


def _late(ages: Sequence[float], known: np.ndarray) -> list[float]:
    typical = float(np.median(known)) if len(known) else 0.0
    return [age for age in ages if age > typical]


def summarise(
    fleet: Fleet, slos: Sequence[Slo], cost: CostModel, *, warm: float, end: float, tp: int, seed: int, wall_s: float
) -> SimResult:
    """The figures of one run between the end of the warm-up and the end."""
    seen, books = observe(fleet, warm, end), fleet.measured()
    span, count = end - warm, len(fleet.replicas)
    busy = max(1e-12, books["busy_s"])
    room = max(1e-12, sum(r.pool.total for r in fleet.replicas) * span)
    turns = fleet.turns.columns()
    outputs = turns[turns[:, 0] + turns[:, 3] >= warm, 4]
    samples = {"ttft": seen.ttft, "tpot": seen.tpot, "e2e": seen.e2e}
    queue = _queue(fleet)
    busy_share, rise, waiting = books["busy_s"] / (span * count), growth(*queue, warm, end), crowding(*queue, warm, end)
    unserved = seen.unserved / max(1, len(seen.finished) + seen.unserved + seen.open)
    values = {slo.key: _value(samples[slo.metric], slo) for slo in slos}
    if (out := _out(fleet)) or not len(seen.finished) + seen.open:  # what waits has an age, and was not served
        values = dict.fromkeys(values, float("inf"))
    crowded = waiting > CROWDED * (fleet.workload.agents or float("inf")) and busy_share > BUSY
    result = SimResult(
        replicas=count,
        gpus=count * tp,
        tp=tp,
        seed=seed,
        requests=len(seen.finished),
        rejected=seen.rejected,
        simulated_s=end,
        wall_s=wall_s,
        batch_mean=books["batch_s"] / busy,
        batch_max=max(r.batch_max for r in fleet.replicas),
        throughput_requests_per_s=len(outputs) / span,
        throughput_tokens_per_s=float(outputs.sum()) / span,
        goodput_requests_per_s=_kept(seen.finished, slos) / span,
        ttft_s=_levels(seen.ttft),
        tpot_s=_levels(seen.tpot),
        e2e_s=_levels(seen.e2e),
        kv_used_share=books["used_s"] / room,
        kv_active_share=books["held_s"] / room,
        preemptions=round(books["preemptions"]),
        evictions=round(books["evictions"]),
        miss_share=float(np.mean(seen.finished[:, 5] == 0)) if len(seen.finished) else 0.0,
        busy_share=busy_share,
        unserved_share=unserved,
        queue_growth=rise,
        waiting_mean=waiting,
        saturated=crowded or unserved > UNSERVED or rise > GROWING,
        shares={name: books[f"{name}_s"] / busy for name in ("prefill", "weights", "kv", "host", "compaction")},
        values=values,
        binding_constraint="",
    )
    return replace(result, binding_constraint=out or binding(result, slos, cost))


def _out(fleet: Fleet) -> str:
    """What binds where the run ends in an outage of the whole fleet; empty while a replica works or no turn waits.

    Agents whose turns wait send no others, so that the turns before the outage would outvote it.
    """
    if fleet.up or not fleet.stranded:
        return ""
    return f"failure: no replica works when the run ends, {len(fleet.stranded):,} turns wait for one"


def _kept(turns: np.ndarray, slos: Sequence[Slo]) -> int:
    """Turns that broke no promise; those of one token have no TPOT and break none about it."""
    good = np.ones(len(turns), dtype=bool)
    for slo in slos:
        good &= ~(turns[:, {"ttft": 1, "tpot": 2, "e2e": 3}[slo.metric]] > slo.limit_s)
    return int(good.sum())


def _levels(values: np.ndarray) -> dict[str, float | None]:
    return {f"p{q}": percentile(values, q) for q in (50, 95, 99)}


def _value(values: np.ndarray, slo: Slo) -> float:
    """The SLO's percentile; the maximum (an upper bound of it) from too few turns, infinite from none."""
    if not len(values):
        return float("inf")
    if not enough(len(values), slo.percentile):
        return float(values.max())
    return float(np.percentile(values, slo.percentile, method="higher"))  # no average with an infinite neighbour


def binding(result: SimResult, slos: Sequence[Slo], cost: CostModel) -> str:
    """What limits this fleet, in words: cause, then the promise nearest to its limit and the evidence.

    Weight streaming costs the same per step in every fleet, so it binds only when a lone step takes most of the limit;
    otherwise the cause is the cache when turns lose theirs, else what most of the load-dependent seconds went to.
    Prefills break a promise about TPOT by the steps they share with decodes: chunks of the token budget are the lever.
    """
    if not result.busy_share:
        return "no load: no turn comes in the time that is measured"
    if result.rejected:
        return "KV blocks: a session is larger than one replica's pool (raise --tp, or use a larger GPU)"
    lone_s = cost.fixed_s(1) + cost.decode_attention_s(1, 0)
    nearest, hint = "", ""
    if slos:
        share, slo = max(((result.values[s.key] / s.limit_s, s) for s in slos), key=lambda item: item[0])
        level = f"at {share:.0%} of its limit" if np.isfinite(share) else "beyond measure: too few turns end"
        growing = " and growing" if result.saturated else ""
        nearest = f"p{slo.percentile} {slo.metric.upper()} {level}{growing}, "
        lever = STRETCHED if slo.metric == "tpot" else ALONE if result.busy_share < LIGHT_LOAD else ""
        hint = lever if share > NEAR and not result.saturated else ""
        if slo.metric == "tpot" and lone_s > MOSTLY * slo.limit_s:
            return f"weight streaming: {nearest}one decode step takes {lone_s * 1e3:.0f} ms even alone (raise --tp)"
    if result.miss_share > MISS_SHARE or result.preemptions:
        return f"KV blocks: {nearest}{result.miss_share:.1%} of turns find some of their cache gone"
    spent = {name: min(1.0, result.shares[name]) for name in SPENT_ON}
    biggest = max(spent, key=lambda name: spent[name])
    return f"{SPENT_ON[biggest]}: {nearest}{spent[biggest]:.0%} of busy time{hint if biggest == 'prefill' else ''}"
