"""Draws against the distribution by definition."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from kvmill.errors import UserError
from kvmill.replay.sampling import Sampler, Stops

LOGITS = [0.3, 2.0, -1.0, 2.0, 1.1, 0.0]


def drawn(temperature: float, top_p: float, count: int = 6000) -> Counter[int]:
    pick = Sampler(temperature, top_p, seed=1)
    logp = torch.tensor(LOGITS).log_softmax(-1)
    return Counter(pick(logp) for _ in range(count))


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (2.0, 0.8), (1.0, 0.5), (1.0, 0.01)])
def test_draws_follow_the_nucleus_of_the_tempered_distribution(temperature: float, top_p: float) -> None:
    weights = [math.exp(x / temperature) for x in LOGITS]
    order = sorted(range(len(LOGITS)), key=lambda i: (-weights[i], i))
    nucleus: list[int] = []
    while sum(weights[i] for i in nucleus) < top_p * sum(weights) * (1 - 1e-12):
        nucleus.append(order[len(nucleus)])
    found = drawn(temperature, top_p)
    assert set(found) <= set(nucleus)
    total = sum(weights[i] for i in nucleus)
    # Pearson's statistic; 25 is beyond the 99.9 % quantile of up to five degrees of freedom.
    expected = {i: 6000 * weights[i] / total for i in nucleus}
    assert sum((found[i] - n) ** 2 / n for i, n in expected.items()) < 25


def test_greedy_takes_the_lowest_of_equals_and_tiny_temperatures_are_greedy() -> None:
    assert drawn(0.0, 1.0, 5) == {1: 5}
    assert set(drawn(1e-300, 1.0, 50)) <= {1, 3}


def test_a_seed_is_a_sequence_of_draws() -> None:
    logp = torch.tensor(LOGITS).log_softmax(-1)
    one, same, other = (Sampler(1.0, 1.0, seed) for seed in (4, 4, 5))
    first = [one(logp) for _ in range(40)]
    assert first == [same(logp) for _ in range(40)]
    assert first != [other(logp) for _ in range(40)]


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(-0.1, 1.0), (math.inf, 1.0), (math.nan, 1.0), (1.0, 0.0), (1.0, 1.1)]
)
def test_what_is_no_distribution_is_refused(temperature: float, top_p: float) -> None:
    with pytest.raises(UserError, match="must be"):
        Sampler(temperature, top_p, 0)


def test_stops_are_found_across_tokens_and_only_at_their_end() -> None:
    stops = Stops(["stop", "§"], lambda ids: bytes(ids).decode(errors="replace"))
    said = list("we do not st, we stop§".encode())
    hits = [end for end in range(1, len(said) + 1) if stops(said[:end])]
    assert hits[0] == len(b"we do not st, we stop")
    assert len(said) in hits
    assert not Stops([], lambda ids: "")(said)
