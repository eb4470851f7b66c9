"""Queueing results in closed form: the truths that `validate` holds the simulator against."""

from __future__ import annotations

from collections.abc import Callable


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


def single_server(rate: float, mean_s: float, cv2: float) -> float:
    """Mean time in an M/G/1 queue: service + ρ(1 + cv²)/(2(1 − ρ)) · service (Pollaczek-Khinchine)."""
    load = rate * mean_s
    return mean_s * (1 + load * (1 + cv2) / (2 * (1 - load)))


def processor_sharing(rate: float, mean_s: float) -> float:
    """Mean time in an M/G/1 processor-sharing queue: service/(1 − ρ), whatever the law of the service."""
    return mean_s / (1 - rate * mean_s)
