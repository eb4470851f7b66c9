"""Queueing results in closed form: the truths that `validate` holds the simulator against."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np


def birth_death(births: Callable[[int], float], deaths: Callable[[int], float], most: int) -> tuple[float, float]:
    """(mean number present, throughput) of a birth-death chain on 0…most with those rates."""
    weight, total, number, flow = 1.0, 1.0, 0.0, 0.0
    for n in range(1, most + 1):
        weight *= births(n - 1) / deaths(n)
        total += weight
        number += n * weight
        flow += deaths(n) * weight
        if total > 1e200:
            weight, total, number, flow = weight / 1e200, total / 1e200, number / 1e200, flow / 1e200
    return number / total, flow / total


def batching_rate(n: int, step_s: float, sequence_s: float, tokens: float, cap: int) -> float:
    """Completions per second with `n` present: m = min(n, cap) decode at once, a step takes step + m·sequence,
    outputs are geometric with mean `tokens`.
    """
    m = min(n, cap)
    return m / (tokens * (step_s + sequence_s * m))


def batching_open(rate: float, step_s: float, sequence_s: float, tokens: float, cap: int) -> float:
    """Mean time in the system of an open continuous-batching queue: Little on the birth-death chain."""
    number, _ = birth_death(
        lambda n: rate, lambda n: batching_rate(n, step_s, sequence_s, tokens, cap), most=100 * cap + 1000
    )
    return number / rate


def batching_closed(agents: int, think_s: float, step_s: float, sequence_s: float, tokens: float, cap: int) -> float:
    """Turns per second of `agents` that think `think_s` on average between turns."""
    _, flow = birth_death(
        lambda n: (agents - n) / think_s, lambda n: batching_rate(n, step_s, sequence_s, tokens, cap), most=agents
    )
    return flow


def waiting_probability(servers: int, offered: float) -> float:
    """Erlang's C: the share of arrivals that wait in an M/M/c queue offered `offered` = rate · service < c."""
    term, total = 1.0, 0.0
    for k in range(servers):
        total += term
        term *= offered / (k + 1)
    last = term * servers / (servers - offered)
    return last / (total + last)


def many_servers(rate: float, mean_s: float, servers: int) -> float:
    """Mean time in an M/M/c queue: service + C/(c·μ − λ)."""
    return mean_s + waiting_probability(servers, rate * mean_s) / (servers / mean_s - rate)


def single_server(rate: float, mean_s: float, cv2: float) -> float:
    """Mean time in an M/G/1 queue: service + ρ(1 + cv²)/(2(1 − ρ)) · service (Pollaczek-Khinchine)."""
    load = rate * mean_s
    return mean_s * (1 + load * (1 + cv2) / (2 * (1 - load)))


def recent_wait(rate: float, law: Sequence[tuple[float, float]], customers: int) -> float:
    """Mean wait in an M/G/1 queue that was empty `customers` arrivals ago: Σ_{k ≤ customers} E[(S_k)⁺]/k (Spitzer).

    S_k = k services less k exponential gaps of mean 1/rate. `law`: (seconds, share) of the service, two values at most.
    """
    from scipy.special import gammainc, gammaln

    (short, share), (long, other) = (*law, (0.0, 0.0))[:2]
    total = 0.0
    for k in range(1, customers + 1):
        j = np.arange(k + 1) if other else np.array([0])
        chance = np.ones(1)
        if other:
            chance = np.exp(
                gammaln(k + 1) - gammaln(j + 1) - gammaln(k - j + 1) + j * math.log(other) + (k - j) * math.log(share)
            )
        served = (k - j) * short + j * long
        # E[(t − Γ)⁺] for Γ the sum of k gaps: t·P(Γ_k < t) − k/rate·P(Γ_{k+1} < t)
        excess = served * gammainc(k, rate * served) - k / rate * gammainc(k + 1, rate * served)
        total += float(chance @ excess) / k
    return total


def recent_wait_exponential(load: float, customers: int) -> float:
    """The same for exponential services, in units of their mean: k services exceed k gaps by Beta probabilities."""
    from scipy.special import betainc

    k = np.arange(1, customers + 1)
    part = load / (1 + load)
    # In mean gaps: E[(load·Γ_k − Γ'_k)⁺] = load·k·P(load·Γ_{k+1} > Γ'_k) − k·P(load·Γ_k > Γ'_{k+1}).
    excess = load * k * betainc(k, k + 1, part) - k * betainc(k + 1, k, part)
    return float((excess / k).sum()) / load


def processor_sharing(rate: float, mean_s: float) -> float:
    """Mean time in an M/G/1 processor-sharing queue: service/(1 − ρ), whatever the law of the service."""
    return mean_s / (1 - rate * mean_s)


def mean_value(agents: int, think_s: float, service_s: float) -> tuple[float, float]:
    """(turns per second, mean time of a turn) of `agents` that think and share one server, by mean-value analysis.

    R(n) = S·(1 + Q(n − 1)), X(n) = n/(Z + R(n)), Q(n) = X(n)·R(n); exact for processor sharing and any laws.
    """
    queue = rate = time = 0.0
    for n in range(1, agents + 1):
        time = service_s * (1 + queue)
        rate = n / (think_s + time)
        queue = rate * time
    return rate, time
