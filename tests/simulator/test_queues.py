import numpy as np
import pytest

from kvmill.simulator.laws import Law, Observed, closed_queue, exponential, geometric, open_queue
from kvmill.simulator.queues import QUEUES, STEP_S, TOKENS, TWO_LENGTHS, lengths, recent_waits, spoken, widest


def test_geometric_quantiles_have_the_mean_and_spread_of_the_law():
    values = np.array(geometric(200.0, 4000), dtype=float)
    assert values.mean() == pytest.approx(200, rel=0.003)
    assert values.std() == pytest.approx(199.5, rel=0.01)
    assert values.min() == 1


def test_exponential_parts_have_the_mean_exactly_and_the_spread_nearly():
    values = exponential(3.0, 4000)
    assert values.mean() == pytest.approx(3.0, rel=1e-9)
    assert values.std() == pytest.approx(3.0, rel=1e-3)
    assert np.all(np.diff(values) > 0)
    assert np.mean(spoken()) == pytest.approx(TOKENS, rel=1e-5)


def test_outputs_of_two_lengths_have_the_mean_and_the_variation_they_are_named_by():
    for cv2 in TWO_LENGTHS:
        outs = np.array(lengths(cv2), dtype=float)
        assert outs.mean() == TOKENS
        assert outs.var() / TOKENS**2 == pytest.approx(cv2, abs=1e-12)


def lindley(services, gaps, customers):
    """Waits by the recursion itself, each begun `customers` arrivals before with an empty server."""
    waits = []
    for n in range(len(services)):
        wait = 0.0
        for k in range(max(0, n - customers), n):
            wait = max(0.0, wait + services[k] - gaps[k])
        waits.append(wait)
    return np.array(waits)


def drawn(load: float, count: int) -> Observed:
    rng = np.random.default_rng(1)
    arrivals = np.cumsum(rng.exponential(TOKENS * STEP_S / load, count))
    turns = np.column_stack([arrivals, np.zeros(count), rng.choice(lengths(4.0), count)])
    return Observed(turns, (arrivals[20], arrivals[-1]))


@pytest.mark.parametrize("customers", [2, 10, 64])
def test_recent_waits_are_those_of_the_recursion(customers):
    seen = drawn(0.8, 200)
    expected = lindley(seen.turns[:, 2] * STEP_S, np.diff(seen.turns[:, 0]), customers)[20:]
    assert recent_waits(seen, customers) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_one_sequence_at_a_time_is_the_recursion_turn_by_turn():
    """The engine as a single server: no closed form, no interval, every wait of one sample path."""
    seen = open_queue(Law(step_s=STEP_S, cap=1), 0.8 / (TOKENS * STEP_S), lengths(4.0), 2000, seed=0)
    services, turns = seen.turns[:, 2] * STEP_S, seen.turns
    waits = lindley(services[:400], np.diff(turns[:400, 0]), 400)
    assert turns[:400, 1] == pytest.approx(waits + services[:400], rel=1e-9)


def test_without_a_cap_a_turn_takes_its_own_steps_and_no_more_than_one_to_begin():
    seen = open_queue(Law(step_s=STEP_S, cap=100_000), 3 / (TOKENS * STEP_S), spoken(), 500, seed=0)
    late = seen.turns[:, 1] - seen.turns[:, 2] * STEP_S
    assert late.min() > -1e-6
    assert late.max() <= STEP_S + 1e-6


def test_what_an_observation_counts_is_what_arrived_inside_its_span():
    turns = np.array([[1.0, 5.0, 10], [2.0, 1.0, 20], [4.0, 3.0, 30], [9.0, 1.0, 40]])
    seen = Observed(turns, (2.0, 8.0))
    assert seen.tokens.tolist() == [20, 30]
    assert seen.gaps.tolist() == [1.0, 2.0]
    assert seen.present(np.array([2.5, 3.5, 5.0, 6.5, 8.0])).tolist() == [2, 1, 2, 1, 0]
    assert (seen.rates(3) * 2).tolist() == [1, 0, 2]


def test_agents_think_as_long_as_is_said():
    seen, thought = closed_queue(Law(step_s=STEP_S, cap=8), 8, 400.0, spoken(20), 200_000.0, seed=0)
    cycle = 8 * (seen.span[1] - seen.span[0]) / len(seen.times)
    assert cycle == pytest.approx(seen.times.mean() + thought, rel=0.02)


def test_wider_intervals_are_asked_for_of_shorter_runs_and_near_saturation_only():
    assert widest(0.5, 1.0) == 0.02
    assert widest(0.95, 1.0) == 0.05
    assert widest(0.5, 0.25) == pytest.approx(0.06)


def test_every_queue_that_the_issue_lists_is_there():
    names = {queue.make.__name__ for queue in QUEUES}
    assert names == {
        "single_servers", "many_at_once", "unlimited", "sharing", "batching", "batching_agents", "sharing_agents"
    }  # fmt: skip
