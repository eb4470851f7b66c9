"""Interval checks: the engine as a queue whose mean is known in closed form.

Each function is one simulation, and yields what it estimates. Times are in units of the mean service where the closed
form is. `share` cuts every run to that part of its length; intervals are then wider, and so is what is asked of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.ndimage import minimum_filter1d

from .closed_forms import (
    batching_closed,
    batching_open,
    many_servers,
    mean_value,
    processor_sharing,
    recent_wait,
    recent_wait_exponential,
    single_server,
)
from .estimates import Estimate, estimate
from .laws import Law, Observed, closed_queue, exponential, open_queue

STEP_S = 0.03
TOKENS = 6000  # mean output: the wait for the step under way is about 10⁻⁴ of a service
SERVICE_S = STEP_S * TOKENS
WIDEST, WIDEST_LOADED, LOADED = 0.02, 0.05, 0.9  # half-width asked for, and beyond which load a wider one will do
SLICES = 300

# Arrivals over which a server remembers, of (1 + cv²)/(1 − ρ)². A longer memory explains more, and leaves rare events
# that batch means are no longer normal in: with these the interval misses as often as it says (tried on the recursion).
RECENT, RECENT_LOADED = 1.0, 0.5
# Outputs of two lengths, (tokens, parts of ten), of that mean, by the squared coefficient of variation.
TWO_LENGTHS = {
    0.0: ((6000, 10),),
    0.25: ((3000, 5), (9000, 5)),
    1.0: ((3000, 8), (18_000, 2)),
    4.0: ((2000, 9), (42_000, 1)),
}


def widest(load: float, share: float) -> float:
    """The widest half-width that counts as a test, relative to the truth; shorter runs are given half as much again."""
    full = WIDEST if load <= LOADED else WIDEST_LOADED
    return full if share >= 1 else 1.5 * full / math.sqrt(share)


def spoken(count: int = 4000) -> list[int]:
    """`count` exponential outputs, as whole tokens."""
    return [max(1, round(value)) for value in exponential(TOKENS, count)]


def lengths(cv2: float) -> list[int]:
    """Ten outputs of two lengths."""
    return [tokens for tokens, parts in TWO_LENGTHS[cv2] for _ in range(parts)]


def single_servers(cv2: float, load: float, requests: int, share: float) -> Iterator[Estimate]:
    """M/G/1: one sequence at a time; outputs of two lengths, or of one (M/D/1)."""
    rate = load / SERVICE_S
    seen = open_queue(Law(step_s=STEP_S, cap=1), rate, lengths(cv2), round(requests * share), seed=0)
    name = f"M/D/1, load {load:g}" if cv2 == 0 else f"M/G/1 (Pollaczek-Khinchine), cv² {cv2:g}, load {load:g}"
    yield estimate(
        f"{name}: mean time",
        seen.times / SERVICE_S,
        single_server(load, 1.0, cv2),
        recent(seen, cv2, load),
        *drawn(seen, rate),
        widest=widest(load, share),
    )


def recent(seen: Observed, cv2: float, load: float) -> tuple[np.ndarray, float]:
    """A control of a single server: the work that it would find had it been empty a while ago, and the mean of that."""
    law = [(tokens / TOKENS, parts / 10) for tokens, parts in TWO_LENGTHS[cv2]]
    customers = remembered(cv2, load)
    return recent_waits(seen, customers) / SERVICE_S, recent_wait(load, law, customers)


def remembered(cv2: float, load: float) -> int:
    """Arrivals that a control looks back at."""
    return 2 * round((RECENT if load <= LOADED else RECENT_LOADED) * (1 + cv2) / (1 - load) ** 2)


def recent_waits(seen: Observed, customers: int, servers: int = 1) -> np.ndarray:
    """What each counted turn would have waited had the server been empty `customers` (an even number) arrivals before.

    Lindley's recursion from there: the running sum of (service − next gap), less its least value since. `servers` are
    taken for one that is as fast as all of them.
    """
    path = np.zeros(len(seen.turns))
    np.cumsum(seen.turns[:-1, 2] * STEP_S / servers - np.diff(seen.turns[:, 0]), out=path[1:])
    least = minimum_filter1d(path, customers + 1, mode="nearest", origin=customers // 2)  # looks back only
    return (path - least)[seen.inside]


def many_at_once(servers: int, load: float, requests: int, share: float) -> Iterator[Estimate]:
    """M/M/c: a step of constant length, c sequences at once."""
    rate, customers = servers * load / SERVICE_S, remembered(1.0, load)
    seen = open_queue(Law(step_s=STEP_S, cap=servers), rate, spoken(), round(requests * share), seed=0)
    work = recent_waits(seen, customers, servers) * servers / SERVICE_S
    yield estimate(
        f"M/M/c, c = {servers}, load {load:g}: mean time",
        seen.times / SERVICE_S,
        many_servers(servers * load, 1.0, servers),
        (work, recent_wait_exponential(load, customers)),
        *drawn(seen, rate),
        widest=widest(load, share),
    )


def drawn(seen: Observed, rate: float) -> Iterator[tuple[np.ndarray, float]]:
    """The controls of an open queue: services in units of their mean, and gaps between arrivals."""
    yield seen.gaps * rate, 1.0
    if np.ptp(seen.tokens):
        yield seen.tokens / TOKENS, 1.0


def unlimited(present: float, requests: int, share: float) -> Iterator[Estimate]:
    """M/G/∞: a step of constant length, no cap. Nobody waits, and the number present is Poisson. Arrivals as well."""
    rate = present / SERVICE_S
    seen = open_queue(Law(step_s=STEP_S, cap=100_000), rate, spoken(), round(requests * share), seed=0)
    wide = widest(0.0, share)
    gaps = seen.gaps * rate
    yield estimate("Poisson arrivals: mean gap", gaps, 1.0, widest=wide)
    yield estimate("Poisson arrivals: variance of the gap", (gaps - 1.0) ** 2, 1.0, (gaps, 1.0), widest=wide)
    time = 1.0 + (1.0 - math.exp(-present)) / (2 * TOKENS)  # half a step when others are in one
    yield estimate("M/G/∞: mean time", seen.times / SERVICE_S, time, (seen.tokens / TOKENS, 1.0), widest=wide)
    number = seen.present(seen.moments(SERVICE_S / 4))
    yield estimate("M/G/∞: mean number present", number, present, widest=wide)
    yield estimate("M/G/∞: variance of the number present", (number - present) ** 2, present, widest=wide)


def sharing(cv2: float, load: float, requests: int, share: float) -> Iterator[Estimate]:
    """Processor sharing: a step as long as there are sequences. The mean does not depend on the law of the output.

    However a server shares itself out, the work it has left is that of one that serves in order.
    """
    rate = load / SERVICE_S
    seen = open_queue(Law(sequence_s=STEP_S, cap=100_000), rate, lengths(cv2), round(requests * share), seed=0)
    yield estimate(
        f"processor sharing, cv² of the output {cv2:g}, load {load:g}: mean time",
        seen.times / SERVICE_S,
        processor_sharing(load, 1.0),
        recent(seen, cv2, load),
        *drawn(seen, rate),
        widest=widest(load, share),
    )


# Step a + b·n, mean output and cap of the published figures; here outputs, and so all times, are `FINER` times as long.
STEP, SEQUENCE, OUTPUT, CAP = 0.010, 0.0002, 200.0, 16
FINER = TOKENS / OUTPUT
THINK_S = 10.0
TURNS = 300  # of a session of a closed workload


def batching(rate: float, requests: int, share: float) -> Iterator[Estimate]:
    """Continuous batching with step a + b·n, open: a birth-death chain."""
    law = Law(STEP, SEQUENCE, CAP)
    seen = open_queue(law, rate / FINER, spoken(), round(requests * share), seed=0)
    yield estimate(
        f"birth-death chain: step = a + b·n, {CAP} at once, {rate:g} requests/s: mean time",
        seen.times / FINER,
        batching_open(rate, STEP, SEQUENCE, OUTPUT, CAP),
        *drawn(seen, rate / FINER),
        widest=widest(rate * (STEP + CAP * SEQUENCE) * OUTPUT / CAP, share),
    )


def batching_agents(agents: int, requests: int, share: float) -> Iterator[Estimate]:
    """The same, closed: agents think between turns. Turns per second, and by Little's law the time of one."""
    truth = batching_closed(agents, THINK_S, STEP, SEQUENCE, OUTPUT, CAP)
    seconds = requests * share / truth * FINER
    seen, think_s = closed_queue(Law(STEP, SEQUENCE, CAP), agents, THINK_S * FINER, spoken(TURNS), seconds, seed=0)
    truth = batching_closed(agents, think_s / FINER, STEP, SEQUENCE, OUTPUT, CAP)
    name = f"birth-death chain, {agents} agents thinking {THINK_S:g} s"
    wide = widest(1.0 if agents > CAP else 0.0, share)
    yield estimate(f"{name}: turns/s", seen.rates(SLICES) * FINER, truth, widest=wide)
    time = agents / truth - think_s / FINER
    yield estimate(f"{name}: mean time", seen.times / FINER, time, (seen.tokens / TOKENS, 1.0), widest=wide)


def sharing_agents(
    agents: int, think_s: float, service_s: float, cv2: float, requests: int, share: float
) -> Iterator[Estimate]:
    """Agents that share one server, as mean-value analysis has it, whatever the law of the output."""
    outs = lengths(cv2) * (TURNS // 10)
    scale = SERVICE_S / service_s
    guess, _ = mean_value(agents, think_s, service_s)
    law = Law(sequence_s=STEP_S, cap=agents)
    seen, thought = closed_queue(law, agents, think_s * scale, outs, requests * share / guess * scale, seed=0)
    rate, time = mean_value(agents, thought / scale, service_s)
    name = f"mean-value analysis, {agents} agents thinking {think_s:g} s, service {service_s:g} s"
    wide = widest(rate * service_s, share)
    yield estimate(f"{name}: turns/s", seen.rates(SLICES) * scale, rate, widest=wide)
    yield estimate(f"{name}: mean time", seen.times / scale, time, (seen.tokens / TOKENS, 1.0), widest=wide)


@dataclass(frozen=True, slots=True)
class Queue:
    """One simulation: what makes it, its own arguments, and how many requests it takes."""

    make: Callable[..., Iterator[Estimate]]
    arguments: tuple[Any, ...]
    requests: int

    def run(self, share: float) -> list[Estimate]:
        """Simulate; the estimates can be sent between processes."""
        return list(self.make(*self.arguments, self.requests, share))


# The longest first, for two processes. Run lengths give the half-widths asked for, with a little to spare.
QUEUES = (
    Queue(single_servers, (0.0, 0.92), 480_000),
    Queue(unlimited, (2.0,), 220_000),
    Queue(many_at_once, (10, 0.8), 150_000),
    Queue(single_servers, (0.0, 0.8), 140_000),
    Queue(many_at_once, (2, 0.6), 90_000),
    Queue(sharing_agents, (20, 5.0, 0.2, 1.0), 150_000),
    Queue(single_servers, (4.0, 0.5), 160_000),
    Queue(single_servers, (0.25, 0.7), 70_000),
    Queue(single_servers, (1.0, 0.6), 100_000),
    Queue(sharing, (1.0, 0.5), 50_000),
    Queue(sharing, (0.25, 0.5), 40_000),
    Queue(batching, (4.0,), 40_000),
    Queue(sharing_agents, (40, 10.0, 0.5, 0.25), 30_000),
    Queue(batching_agents, (64,), 30_000),
    Queue(batching_agents, (16,), 40_000),
    Queue(batching, (2.0,), 20_000),
)
