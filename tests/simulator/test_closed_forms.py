import math

import pytest

from kvmill.simulator.closed_forms import (
    batching_closed,
    batching_open,
    birth_death,
    many_servers,
    mean_value,
    processor_sharing,
    recent_wait,
    recent_wait_exponential,
    single_server,
    waiting_probability,
)


def test_the_birth_death_chain_gives_the_published_figures():
    assert batching_open(2.0, 0.010, 0.0002, 200, 16) == pytest.approx(2.21740, abs=1e-4)
    assert batching_open(4.0, 0.010, 0.0002, 200, 16) == pytest.approx(2.45623, abs=1e-4)
    assert batching_open(5.5, 0.010, 0.0002, 200, 16) == pytest.approx(3.62623, abs=1e-4)
    expected = {8: 0.661800, 16: 1.317339, 32: 2.608275, 64: 5.050015}
    for agents, rate in expected.items():
        assert batching_closed(agents, 10.0, 0.010, 0.0002, 200, 16) == pytest.approx(rate, abs=1e-5)


def test_single_queues_give_the_textbook_figures():
    number, flow = birth_death(lambda n: 0.8, lambda n: 1.0, most=500)
    assert (number, flow) == pytest.approx((4.0, 0.8))
    assert single_server(0.8, 1.0, 1.0) == pytest.approx(5.0)
    assert single_server(0.7, 1.0, 4.0) == pytest.approx(1 + 5.83333, abs=1e-4)
    assert single_server(0.95, 1.0, 0.0) == pytest.approx(1 + 9.5)
    assert processor_sharing(0.5, 2.0 / 2) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("servers", "offered", "waits", "wait_s"),
    [
        (1, 0.8, 0.8, 4.0),
        (2, 1.6, 0.711111, 1.777778),
        (10, 8, 0.409180, 0.204590),
        (10, 9.5, 0.825586, 1.651171),
        (64, 56, 0.215123, 0.026890),
        (128, 115.2, 0.168879, 0.013194),
    ],
)
def test_many_servers_give_the_textbook_figures(servers, offered, waits, wait_s):
    assert waiting_probability(servers, offered) == pytest.approx(waits, abs=1e-6)
    assert many_servers(offered, 1.0, servers) - 1 == pytest.approx(wait_s, abs=1e-6)


@pytest.mark.parametrize(
    ("agents", "think_s", "service_s", "rate", "time_s"),
    [
        (20, 10, 0.5, 1.682216, 1.889079),
        (40, 10, 0.5, 1.999944, 10.000556),
        (20, 5, 0.2, 3.600549, 0.554708),
        (100, 30, 0.25, 3.214920, 1.104973),
    ],
)
def test_mean_value_analysis_gives_the_textbook_figures(agents, think_s, service_s, rate, time_s):
    assert mean_value(agents, think_s, service_s) == pytest.approx((rate, time_s), abs=1e-6)


def test_mean_value_analysis_agrees_with_the_birth_death_chain():
    number, flow = birth_death(lambda n: (30 - n) / 8.0, lambda n: 1 / 0.4, most=30)
    assert mean_value(30, 8.0, 0.4) == pytest.approx((flow, number / flow))


def test_the_wait_behind_one_arrival_is_what_a_service_exceeds_a_gap_by():
    rate, service = 0.8, 1.3
    expected = service - (1 - math.exp(-rate * service)) / rate
    assert recent_wait(rate, [(service, 1.0)], 1) == pytest.approx(expected)
    two = [(0.5, 0.8), (3.0, 0.2)]
    expected = sum(share * (s - (1 - math.exp(-rate * s)) / rate) for s, share in two)
    assert recent_wait(rate, two, 1) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("load", "law", "cv2"),
    [(0.8, [(1.0, 1.0)], 0.0), (0.5, [(0.5, 0.5), (1.5, 0.5)], 0.25), (0.5, [(1 / 3, 0.9), (7.0, 0.1)], 4.0)],
)
def test_the_wait_behind_very_many_arrivals_is_pollaczek_and_khinchines(load, law, cv2):
    assert recent_wait(load, law, 400) == pytest.approx(single_server(load, 1.0, cv2) - 1, rel=1e-3)
    assert recent_wait(load, law, 10) < recent_wait(load, law, 20) < recent_wait(load, law, 400)


def test_the_wait_behind_exponential_services_goes_from_one_excess_to_that_of_the_queue():
    assert recent_wait_exponential(0.8, 1) == pytest.approx(1 - (1 - 1 / (1 + 0.8)) / 0.8), "E[(S − A)⁺], in services"
    assert recent_wait_exponential(0.6, 400) == pytest.approx(0.6 / 0.4, rel=1e-6)
    assert recent_wait_exponential(0.6, 5) < recent_wait_exponential(0.6, 20)
