"""The token bucket: a burst at once, then a steady rate, each client for itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.dashboard import limits
from kvmill.dashboard.limits import Buckets


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_passes_then_one_every_period():
    clock = Clock()
    buckets = Buckets(2.0, 3, clock)
    assert [buckets.take("a") for _ in range(3)] == [0.0] * 3
    assert buckets.take("a") == pytest.approx(0.5)
    assert buckets.take("b") == 0.0, "another client has its own"
    clock.now = 0.5
    assert buckets.take("a") == 0.0
    assert buckets.take("a") == pytest.approx(0.5)


def test_what_is_owed_is_waited_for():
    clock = Clock()
    buckets = Buckets(1.0, 5, clock)
    buckets.charge("a", 10)
    assert buckets.take("a") == pytest.approx(6.0)
    clock.now = 6.0
    assert buckets.take("a") == 0.0


@given(st.lists(st.floats(0, 3), max_size=60))
def test_no_client_ever_gets_more_than_burst_and_rate_allow(gaps: list[float]):
    clock = Clock()
    buckets = Buckets(2.0, 4, clock)
    passed = 0
    for gap in gaps:
        clock.now += gap
        passed += buckets.take("a") == 0.0
    assert passed <= 4 + 2.0 * clock.now + 1e-6


def test_many_clients_cost_no_memory_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "_MOST_CLIENTS", 10)
    clock = Clock()
    buckets = Buckets(1.0, 5, clock)
    for number in range(100):
        clock.now = number
        buckets.take(str(number))
    assert len(buckets._buckets) <= 11
