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
