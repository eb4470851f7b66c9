import numpy as np
import pytest

from kvmill.simulator.positions import NOMINAL_TPOT_S, Positions
from kvmill.simulator.session import SessionSpec
from kvmill.simulator.workload import assemble

SHORT, LONG = (SessionSpec(assemble(100, [1, 1], [1]), (wait, 1e9)) for wait in (1.0, 9.0))


def test_agents_are_found_in_long_cycles_in_proportion_to_their_length():
    positions = Positions([SHORT, LONG], 10_000)
    drawn = positions.draw(np.random.default_rng(0), 20_000)
    waiting = [(session, until) for session, turn, until, *_ in drawn if turn == 0]
    share = np.mean([session == 1 for session, _ in waiting])
    assert share == pytest.approx((9 + NOMINAL_TPOT_S) / (10 + 2 * NOMINAL_TPOT_S), abs=0.01)
    left = np.array([until for session, until in waiting if session == 1])
    assert left.mean() == pytest.approx(4.5, rel=0.03), "a uniform moment of the cycle"


def test_no_wait_follows_the_last_turn():
    positions = Positions([SHORT, LONG], 10_000)
    assert positions.mean_session_s == pytest.approx(5 + 2 * NOMINAL_TPOT_S), "the waits of 1e9 s are never waited"
    drawn = positions.draw(np.random.default_rng(0), 20_000)
    assert max(until for _, turn, until, *_ in drawn if turn == 1) <= NOMINAL_TPOT_S


def test_what_the_window_cuts_is_counted_and_its_last_turn_has_no_wait_either():
    cut = SessionSpec(assemble(100, [1, 1, 1], [1, 1000]), (1.0, 50.0, 1.0))
    positions = Positions([SHORT, cut], 200)
    assert (positions.cut_share, positions.turns, positions.mean_turns) == (0.5, [2, 2], 2.0)
    assert positions.mean_session_s == pytest.approx(1 + 2 * NOMINAL_TPOT_S)


def test_history_takes_no_time():
    old = SessionSpec(assemble(100, [1, 20], [4000]), (5.0, 0.0), begin=1)
    positions = Positions([old], 10_000)
    assert positions.mean_turns == 1
    assert positions.mean_session_s == pytest.approx(20 * NOMINAL_TPOT_S)


def test_a_session_that_began_so_long_ago_is_where_its_cycles_say():
    positions = Positions([SHORT, LONG], 10_000)
    assert positions.longest_session_s == pytest.approx(9 + 2 * NOMINAL_TPOT_S)
    ages = np.array([0.0, 1.0, 9.0 + 1.5 * NOMINAL_TPOT_S, 50.0])
    first, second, last = positions.at(np.array([1, 1, 1, 1]), ages)
    assert (first.session, first.turn, second.turn, last.turn) == (1, 0, 0, 1)
    assert (first.until_s, second.since_s, last.until_s) == pytest.approx((9 + NOMINAL_TPOT_S, 1.0, NOMINAL_TPOT_S / 2))
    assert [place.age_s for place in (first, second, last)] == pytest.approx(ages[:3])
    assert positions.at(np.array([0]), np.array([2.0])) == [], "it was over long ago"


def test_looking_back_at_arrivals_finds_the_length_biased_law():
    positions = Positions([SHORT, LONG], 10_000)
    rng = np.random.default_rng(0)
    back = positions.at(rng.integers(2, size=40_000), rng.uniform(0, positions.longest_session_s, 40_000))
    drawn = positions.draw(rng, 20_000)
    shares = [np.mean([place.session == 1 for place in places]) for places in (back, drawn)]
    assert shares[0] == pytest.approx(shares[1], abs=0.01)
    ages = [np.mean([place.age_s for place in places]) for places in (back, drawn)]
    assert ages[0] == pytest.approx(ages[1], rel=0.02)
