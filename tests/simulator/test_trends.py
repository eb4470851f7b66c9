import pytest

from kvmill.simulator import trends
from kvmill.simulator.blocks import BlockPool
from kvmill.simulator.trends import against, by_fleet_size, by_session_rate, hit_share


def test_falls_are_measured_against_the_value_before():
    assert against([1.0, 2.0, 2.0, 3.0]) == 0.0
    assert against([1.0, 2.0, 1.5, 3.0]) == pytest.approx(0.25)


def worst(checks):
    return max(abs(value - truth) / limit for _, value, truth, limit in checks)


def test_the_cliff_lies_where_the_sessions_no_longer_fit_the_pool():
    """Twenty rounds of 1,700 tokens: about 12 sessions at once hold half of the pool, 25 more than all of it."""
    assert hit_share(0.05, seed=0, seconds=500) > 0.95
    assert hit_share(0.3, seed=0, seconds=500) < 0.3


def test_a_fleet_that_sends_everything_to_one_replica_is_caught(monkeypatch):
    monkeypatch.setattr(trends, "FLEETS", (1, 3))
    monkeypatch.setattr(trends, "SEEDS", (0,))
    run = trends.run_fleet
    monkeypatch.setattr(trends, "run_fleet", lambda scenario, count, seed: run(scenario, 1 if count > 1 else 2, seed))
    assert worst(by_fleet_size()) > 1


def test_a_cache_that_never_evicts_is_caught(monkeypatch):
    """Without evictions there is no cliff: the pool would be as large as it takes."""
    monkeypatch.setattr(trends, "SESSION_RATES", (0.05, 0.5))
    monkeypatch.setattr(trends, "SEEDS", (0,))
    plain = BlockPool.__init__
    monkeypatch.setattr(BlockPool, "__init__", lambda self, total, *rest: plain(self, 1000 * total, *rest))
    assert worst(by_session_rate()) > 1
