import pytest

from kvmill.simulator.blocks import BlockPool
from kvmill.simulator.meter import Meter, Snapshot


def test_blocks_that_a_stretch_takes_evenly_count_half_of_the_time():
    pool, meter = BlockPool(100), Meter()
    pool.take(70)
    meter.account(4.0, 3, pool)
    assert (meter.used_s, meter.held_s, meter.batch_s, meter.busy_s) == (280.0, 280.0, 12.0, 4.0)
    meter.grew(6, pool, 4.0)
    assert (meter.used_s, meter.held_s) == (280.0 + 12.0, 280.0 + 12.0)


def test_blocks_taken_from_idle_sessions_are_held_anew_but_were_used_before():
    """Ten are free: twenty more make ten of them used, and all twenty held."""
    pool, meter = BlockPool(100), Meter()
    pool.take(90)
    meter.grew(20, pool, 4.0)
    assert (meter.used_s, meter.held_s) == (10 * 4 / 2, 20 * 4 / 2)
    assert Snapshot.of(pool, 3, 1, 20) == (3, 1, 100, 110, 100)


def test_tokens_are_fed_again_only_where_a_cache_was_lost():
    meter = Meter()
    meter.feeds(500, 400)
    meter.feeds(300, -20)
    assert (meter.fed_tokens, meter.again_tokens) == (800, 400)


def test_an_idle_replica_is_not_busy():
    pool, meter = BlockPool(100), Meter()
    meter.account(4.0, 0, pool)
    assert (meter.busy_s, meter.batch_s, meter.used_s) == pytest.approx((0.0, 0.0, 0.0))
