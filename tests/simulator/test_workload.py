import numpy as np
import pytest
from worlds import deployment, scenario, sessions

from kvmill.errors import UserError
from kvmill.replay.policies.base import split_turns
from kvmill.simulator.positions import NOMINAL_TPOT_S, Positions
from kvmill.simulator.run import run_fleet
from kvmill.simulator.session import SessionSpec
from kvmill.simulator.workload import Workload, assemble, contexts, long_agents


def test_long_agents_follow_their_declared_laws():
    load = long_agents(0, sessions=3000)
    turns = np.array([len(s.waits) for s in load.sessions])
    tools = np.array([t.tool.tokens for s in load.sessions for t in split_turns(s.segments) if t.tool])
    outs = np.array([t.assistant.tokens for s in load.sessions for t in split_turns(s.segments)])
    waits = np.concatenate([s.waits for s in load.sessions])
    assert np.percentile(turns, [50, 75]) == pytest.approx([25, 104], rel=0.1)
    assert turns.max() == 150
    assert np.percentile(tools, [50, 90]) == pytest.approx([700, 3500], rel=0.03)
    assert np.percentile(outs, [50, 90]) == pytest.approx([150, 800], rel=0.03)
    assert np.percentile(waits, [50, 90]) == pytest.approx([3.8, 28.9], rel=0.03)
    assert {(s.segments[0].tokens, s.shared) for s in load.sessions} == {(8192, 6144)}
    assert load.agents == 400
    assert load.assumed


def test_a_seed_gives_the_same_sessions():
    assert long_agents(3, 20).sessions == long_agents(3, 20).sessions != long_agents(4, 20).sessions


def test_growing_turns_grows_agents_and_repeats_each_sessions_own_turns():
    spec = SessionSpec(assemble(1000, [10, 20, 30, 40], [100, 200, 300]), (1.0, 2.0, 3.0, 4.0))
    grown = Workload("w", (spec,), agents=1000).grown(0.5, 10_000)
    turns = split_turns(grown.sessions[0].segments)
    before, after = 6 + 100 * NOMINAL_TPOT_S, 12 + 150 * NOMINAL_TPOT_S  # the wait after the last turn is not waited
    assert grown.agents == round(1000 * after / before)
    assert [t.assistant.tokens for t in turns] == [10, 20, 30, 40, 20, 30]
    assert all(t.tool for t in turns[:-1])
    assert len(grown.sessions[0].waits) == 6
    assert Workload("w", (spec,), rate=2.0).grown(0.5, 10_000).rate == 2.0, "tasks per second stay"
    assert Workload("w", (spec,), agents=100).grown(0.0, 10_000).sessions[0] is spec


@pytest.mark.parametrize(("extra", "window"), [(0.5, 1 << 40), (2.3, 1 << 40), (2.3, 262_144)])
def test_grown_workloads_begin_as_many_tasks_per_second(extra, window):
    """Little's law: agents over mean session seconds, with or without a window that ends sessions early."""
    load = long_agents(0, 200)
    grown = load.grown(extra, window)
    before, after = (Positions(w.sessions, window) for w in (load, grown))
    assert grown.agents / after.mean_session_s == pytest.approx(load.agents / before.mean_session_s, rel=0.002)
    longer = after.mean_turns / before.mean_turns
    if window > 262_144:
        assert longer == pytest.approx(1 + extra, rel=0.02)
        assert after.cut_share == 0
    else:
        assert longer < 1.7, "a quarter of the sessions cannot grow by as much"
        assert after.cut_share > before.cut_share + 0.1


def test_a_grown_fleet_serves_as_many_tasks_per_second():
    """Simulated, where waits are most of a session: what latencies add then hardly slows the agents."""
    load = Workload("w", sessions(40, turns=6, out=20, wait=10.0), agents=60)
    calm, longer = (scenario(load, place=deployment(), turns=4000, extra_turns=extra) for extra in (0.0, 1.0))
    tasks = [run_fleet(s, 4, 0).throughput_requests_per_s / s.positions.mean_turns for s in (calm, longer)]
    assert tasks[1] == pytest.approx(tasks[0], rel=0.1)


def test_growth_stops_at_the_window():
    spec = SessionSpec(assemble(1000, [10] * 4, [500] * 3), (1.0,) * 4)
    grown = Workload("w", (spec,), agents=1).grown(100.0, 5_000).sessions[0]
    assert 5_000 < sum(s.tokens for s in grown.segments) < 6_100


def test_reshaping_scales_all_but_the_prefix_and_can_share_nothing():
    spec = SessionSpec(assemble(1000, [10, 20], [100]), (1.0, 2.0), shared=640)
    found = Workload("w", (spec,), agents=1).reshaped(0.5, shared=False).sessions[0]
    assert [s.tokens for s in found.segments] == [1000, 5, 50, 10]
    assert found.shared == 0


def test_contexts_are_cut_at_the_window():
    load = Workload("w", (SessionSpec(assemble(1000, [100] * 3, [400] * 2), (1.0,) * 3),), agents=1)
    assert contexts(load, 10_000) == {"p50": 2000, "p90": 2080, "p99": 2098}
    assert contexts(load, 1600)["p99"] == 1500
    assert contexts(load, 10) == {}


def test_a_load_is_scaled_by_its_own_measure():
    spec = SessionSpec(assemble(10, [1], []), (0.0,), start_s=4.0)
    assert Workload("w", (spec,), agents=10).at_load(2.5).agents == 25
    assert Workload("w", (spec,), rate=3.0, burstiness=2.0).at_load(0.5) == Workload(
        "w", (spec,), None, 1.5, burstiness=2.0
    )
    log = Workload("w", (spec,)).at_load(2.0).at_load(1.5)
    assert (log.kind, log.scale_load) == ("recorded", 3.0)
    assert log.sessions_per_s == 3 * Workload("w", (spec,)).sessions_per_s


@pytest.mark.parametrize(
    "fields",
    [
        {"agents": 0},
        {"rate": 0.0},
        {"rate": -1.0},
        {"rate": 5e-324},
        {"rate": 1.0, "burstiness": 1e-300},
        {"scale_load": -1.0},
    ],
)
def test_loads_that_cannot_be_are_refused(fields):
    with pytest.raises(UserError):
        Workload("w", (SessionSpec(assemble(10, [1], []), (0.0,)),), **fields)
