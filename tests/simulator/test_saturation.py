import numpy as np
import pytest
from worlds import SLOS, closed, deployment, scenario, sessions

from kvmill.simulator import saturation
from kvmill.simulator.run import run_fleet
from kvmill.simulator.saturation import GROWING, RISING, crowding, growth, kendall_tau, queue_at
from kvmill.simulator.workload import Workload


def test_kendalls_tau_of_what_rises_falls_and_stands():
    assert kendall_tau(np.arange(9)) == 1.0
    assert kendall_tau(-np.arange(9)) == -1.0
    assert kendall_tau(np.ones(9)) == 0.0
    assert kendall_tau(np.array([1, 3, 2])) == pytest.approx(1 / 3)
    assert kendall_tau(np.array([5])) == 0.0


def test_the_queue_counts_turns_between_arrival_and_first_token():
    arrivals, firsts = np.array([0.0, 1.0, 2.0]), np.array([1.5, np.inf, 2.5])
    assert queue_at(np.array([0.5, 1.2, 1.7, 2.2, 9.0]), arrivals, firsts).tolist() == [1, 2, 1, 2, 1]


@pytest.mark.parametrize("load", [1.1, 1.5, 3.0])
def test_growth_is_the_share_that_is_beyond_capacity(load):
    arrivals = np.arange(4000) / load
    firsts = np.arange(4000) * 1.0  # one a second
    end = arrivals[-1]
    assert growth(arrivals, firsts, end / 3, end) == pytest.approx(1 - 1 / load, rel=0.02)


def test_a_queue_that_wanders_does_not_grow():
    rng = np.random.default_rng(0)
    for _ in range(20):
        arrivals = np.cumsum(rng.exponential(1.25, 4000))
        firsts = np.empty(4000)
        free = 0.0
        for i, at in enumerate(arrivals):
            free = max(free, at)
            firsts[i] = free
            free += rng.exponential(1.0)
        assert growth(arrivals, firsts, arrivals[1000], arrivals[-1]) < GROWING


def test_only_a_queue_that_rises_all_along_grows(monkeypatch):
    """The same thirds in the mean, in two orders: one wanders up, the other rises."""
    first, middle, last = list(range(7)), [9, 0, 12, 0, 12, 0, 9], list(range(7, 14))
    wandering = np.array([*first[::-1], *middle, *last[::-1]])
    rising = np.array([*first, *sorted(middle), *last])
    assert 0 < kendall_tau(wandering) < RISING < kendall_tau(rising)
    found = []
    for series in (wandering, rising):
        monkeypatch.setattr(saturation, "queue_at", lambda *_, series=series: series)
        found.append(growth(np.linspace(0, 1, 50), np.ones(50), 0.0, 1.0))
    assert found == [0.0, pytest.approx(7 * 20 / 14 / 50)]


def test_crowding_is_littles_law():
    arrivals, waits = np.arange(100.0), np.full(100, 0.25)
    assert crowding(arrivals, arrivals + waits, 0.0, 100.0) == pytest.approx(0.25)
    assert crowding(np.array([0.0]), np.array([np.inf]), 0.0, 10.0) == pytest.approx(1.0)


OPEN = sessions(40, turns=4, tool=1500, out=150, wait=0.5)


@pytest.mark.parametrize(("rate", "is_saturated"), [(0.2, False), (30.0, True)])
def test_an_overwhelmed_open_fleet_is_called_saturated_and_a_calm_one_is_not(rate, is_saturated):
    world = scenario(Workload("open", OPEN, rate=rate), "full", deployment(), turns=1500)
    run = run_fleet(world, 1, 0)
    assert run.saturated is is_saturated
    assert ("and growing" in run.binding_constraint) is is_saturated
    assert (run.queue_growth > GROWING or run.unserved_share > 0.05) is is_saturated


def test_a_closed_fleet_whose_agents_wait_is_called_saturated():
    crowd = run_fleet(scenario(closed(300, tool=1500, out=150, wait=0.5), turns=1500), 1, 0)
    calm = run_fleet(scenario(closed(5, tool=1500, out=150), turns=400), 1, 0)
    assert crowd.saturated
    assert crowd.waiting_mean > 30
    assert not calm.saturated
    assert not calm.meets(SLOS) or calm.waiting_mean < 1


def test_a_closed_fleet_is_saturated_by_its_crowd_alone():
    """However long one looks: few of all turns are still unserved at the end, and no queue grows."""
    load = closed(40, tool=1500, out=150, wait=0.5)
    crowd = run_fleet(scenario(load, place=deployment(400_000), turns=4000), 1, 0)
    assert crowd.unserved_share < 0.05
    assert crowd.queue_growth <= GROWING
    assert crowd.saturated
