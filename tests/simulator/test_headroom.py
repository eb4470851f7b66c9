from dataclasses import replace

import pytest
from worlds import TE, closed, deployment, scenario

from kvmill.simulator.bench import Bench, Variant
from kvmill.simulator.headroom import MOST_STEPS, headroom, load_of
from kvmill.simulator.run import run_fleet
from kvmill.simulator.search import bracket, mean_meets
from kvmill.simulator.sensitivity import FEW

SMALL = scenario(closed(60, tool=1500, out=150), "full", deployment(40_000), turns=400)
SEEDS = range(5)


def test_the_fleet_carries_the_headroom_and_one_percent_more_breaks_a_promise():
    with Bench([SMALL]) as bench:
        side = bracket(bench, Variant(0), SEEDS, 64)
        room = headroom(bench, side, SEEDS)
        step = next(k for k in range(MOST_STEPS) if round(load_of(k) - 1, 3) == room["headroom"])
        few = SEEDS[:FEW]
        assert step == 0 or mean_meets(bench.run(Variant(0, load=load_of(step)), side.count, few), SMALL.slos)
        assert not mean_meets(bench.run(Variant(0, load=load_of(step + 1)), side.count, few), SMALL.slos)
    assert room["headroom_note"] is None
    assert 0 <= room["headroom"] < 1.5 / (side.count - 1), "about a replica's share of the load at most"


def test_room_beyond_four_times_the_load_is_only_known_to_be_there():
    tiny = scenario(closed(1, tool=100, out=20), "full", deployment(), turns=100)
    with Bench([tiny]) as bench:
        found = headroom(bench, bracket(bench, Variant(0), range(3), 4), range(3))
    assert found["headroom"] == pytest.approx(load_of(MOST_STEPS - 1) - 1, abs=0.01)
    assert found["headroom_note"] == "more was not tried"


def test_a_loaded_scenario_is_the_same_sessions_served_to_more_agents():
    more = scenario(replace(SMALL.workload, agents=90), TE, SMALL.deployment, turns=300)
    with Bench([scenario(SMALL.workload, TE, SMALL.deployment, turns=300)]) as bench:
        (reused,) = bench.run(Variant(0, load=1.5), 4, [0])
    assert reused.row() | {"wall_s": 0} == run_fleet(more, 4, 0).row() | {"wall_s": 0}
