import math

import pytest
import simpy
from worlds import TE, closed, deployment, scenario

from kvmill.replay.policies.registry import parse_policy
from kvmill.simulator.cost import CostModel
from kvmill.simulator.live import Live
from kvmill.simulator.replica import Replica
from kvmill.simulator.run import run_fleet
from kvmill.simulator.session import SessionSpec, compile_session
from kvmill.simulator.workload import assemble


def alone(prompt: int, out: int, place=None, policy="full"):
    place = place or deployment()
    cost = CostModel.of(place)
    plan = compile_session(SessionSpec(assemble(prompt, [out], []), (0.0,)), parse_policy(policy), place, cost)
    env, ended = simpy.Environment(), []
    replica = Replica(env, place, cost, lambda live, rejected: ended.append((env.now, rejected)), check=True)
    live = Live(plan, 0)
    replica.submit(live)
    env.run(until=1e6)
    return replica, live, ended, cost


@pytest.mark.parametrize(("prompt", "out"), [(1, 1), (8192, 1), (8193, 2), (20_000, 300), (100, 1000)])
def test_a_lone_request_takes_exactly_its_prefill_and_decode_steps(prompt, out):
    replica, _, ended, _ = alone(prompt, out)
    assert replica.steps == math.ceil(prompt / 8192) + out - 1
    assert len(ended) == 1
    assert not ended[0][1]
    assert replica.pool.free == replica.pool.total


def test_a_lone_request_takes_the_sum_of_its_step_times():
    _, live, ended, cost = alone(1000, 50)
    prefill = cost.step_s(0, 0, 1, 1000, 1000 * 500.0, 1)
    decode = sum(cost.fixed_s(1) + cost.decode_attention_s(1, 1000 + i) for i in range(49))
    assert live.first == pytest.approx(prefill, rel=1e-12)
    assert ended[0][0] == pytest.approx(prefill + decode, rel=1e-12)


def test_a_request_larger_than_the_pool_is_rejected_and_holds_nothing():
    replica, _, ended, _ = alone(5000, 10, deployment(4000))
    assert ended == [(0.0, True)]
    assert replica.pool.free == replica.pool.total


def test_a_request_that_outgrows_the_pool_while_decoding_is_rejected_at_the_door():
    _, _, ended, _ = alone(3000, 2000, deployment(4000))
    assert ended[0][1]


CROWDS = [
    pytest.param("full", {"tool": 100, "out": 600, "wait": 0.5}, 25_000, 40, id="watermark"),
    pytest.param("full", {"tool": 100, "out": 600, "wait": 0.5}, 25_000, 40, id="preempting"),
    pytest.param("full", {"tool": 800, "out": 50}, 30_000, 30, id="evicting"),
    pytest.param(TE, {"tool": 800, "out": 100}, 12_000, 30, id="te"),
    pytest.param("attention(keep=0.3)", {"tool": 800, "out": 100}, 20_000, 30, id="attention"),
    pytest.param("truncate(keep=0.3)", {"tool": 800, "out": 100}, 20_000, 30, id="truncate"),
    pytest.param("full", {"tool": 800, "out": 50}, 30_000, 30, id="coarse"),
    pytest.param("full", {"tool": 800, "out": 50}, 30_000, 30, id="expiring"),
    pytest.param("full", {"tool": 800, "out": 50}, 30_000, 30, id="offloading"),
    pytest.param(TE, {"tool": 800, "out": 100}, 12_000, 30, id="te-offloading"),
    pytest.param("full", {"tool": 100, "out": 600, "wait": 0.5}, 25_000, 40, id="swapping"),
    pytest.param(TE, {"tool": 400, "out": 300, "wait": 0.5}, 25_000, 40, id="te-beside"),
]
PLACES = {
    "watermark": {"watermark": 0.01},
    "coarse": {"coarse_tokens": 528},
    "expiring": {"retention": "ttl:1.5"},
    "offloading": {"retention": "offload", "host_gib": 4.0},
    "te-offloading": {"retention": "offload"},
    "swapping": {"preemption": "swap"},
    "te-beside": {"compaction": "beside"},
}


@pytest.mark.parametrize(("policy", "shape", "pool", "agents"), CROWDS)
def test_jumping_and_stepping_give_the_same_events(request, policy, shape, pool, agents):
    load = closed(agents, **shape)
    place = deployment(pool, **PLACES.get(request.node.callspec.id, {}))
    logs = []
    for jump in (True, False):
        log = []
        run = run_fleet(scenario(load, policy, place), 2, 0, jump=jump, check=True, log=log)
        logs.append((log, run))
    (jumped, fast), (stepped, slow) = logs
    assert [entry[:-1] for entry in jumped] == [entry[:-1] for entry in stepped]
    assert all(abs(a[-1] - b[-1]) <= 1e-9 * max(1e-9, b[-1]) for a, b in zip(jumped, stepped, strict=True))
    assert (fast.preemptions, fast.requests) == (slow.preemptions, slow.requests)
    assert abs(fast.evictions - slow.evictions) <= 2, "one for the stretch that each replica is in at the end"
    assert fast.batch_mean == pytest.approx(slow.batch_mean, rel=1e-9)
    if policy == "full":
        assert fast.preemptions + fast.evictions > 20, "the crowd is meant to be too large for the pool"


def test_preempted_requests_make_progress():
    log = []
    run = run_fleet(
        scenario(closed(40, tool=100, out=600, wait=0.5), "full", deployment(25_000)), 2, 0, check=True, log=log
    )
    preempted = {entry[1:3] for entry in log if entry[0] == "preempt"}
    done = {entry[1:3] for entry in log if entry[0] == "done"}
    assert run.preemptions > 20
    assert len(preempted & done) >= 0.8 * len(preempted)


def test_a_shared_prefix_is_counted_once():
    place = deployment(60_000)
    cost = CostModel.of(place)
    plan = compile_session(
        SessionSpec(assemble(2048, [10, 10], [100]), (1e9, 1.0), shared=1024), parse_policy("full"), place, cost
    )
    env = simpy.Environment()
    replica = Replica(env, place, cost, lambda *_: None, check=True)
    for agent in range(5):
        replica.submit(Live(plan, agent))
    env.run(until=100)
    own = math.ceil((2048 - 1024 + 9) / 16)
    assert replica.pool.total - replica.pool.free == 1024 // 16 + 5 * own


def busy(pool=25_000, **fields):
    """A replica with twenty requests that arrived at once, and their sessions."""
    place = deployment(pool, **fields)
    cost, env, ended = CostModel.of(place), simpy.Environment(), []
    replica = Replica(env, place, cost, lambda live, rejected: ended.append(live), check=True)
    lives = []
    for agent in range(20):
        spec = SessionSpec(assemble(1000 + 50 * agent, [400, 10], [100]), (1e9, 1.0))
        lives.append(Live(compile_session(spec, parse_policy("full"), place, cost), agent))
        replica.submit(lives[-1])
    return env, replica, lives, ended


def test_a_snapshot_inside_a_stretch_counts_what_stepping_would_have_taken():
    env, replica, *_ = busy()
    place = deployment(25_000)
    slow_env = simpy.Environment()
    slow = Replica(slow_env, place, CostModel.of(place), lambda *_: None, jump=False)
    for live in busy()[2]:
        slow.submit(Live(live.plan, live.agent))
    seen = 0
    for moment in range(1, 60):
        env.run(until=moment * 0.107)
        slow_env.run(until=moment * 0.107)
        seen += replica.stretched is not None
        assert replica.snapshot() == slow.snapshot()
    assert seen > 20, "the moments are meant to fall into stretches"


def test_what_fails_loses_everything_and_serves_what_is_sent_again():
    env, replica, lives, ended = busy()
    env.run(until=3.0)
    pending = replica.fail()
    assert len(pending) + len(ended) == 20
    assert len(pending) > 3
    assert {live.blocks for live in lives} == {0}
    assert replica.snapshot()[:4] == (0, 0, 0, 0)
    replica.submit(pending[0])
    env.run(until=50.0)
    assert pending[0] not in ended, "it is broken"
    replica.repair()
    for live in pending[1:]:
        replica.submit(live)
    env.run(until=200.0)
    assert set(pending) <= set(ended)
    assert len(ended) == 20
    assert all(live.first > 50.0 for live in pending)


def test_swapped_requests_go_on_where_they_were():
    _, swapping, *_ = run = busy(12_000, preemption="swap")
    run[0].run(until=500.0)
    assert swapping.preemptions > 0
    assert len(run[3]) == 20
    assert swapping.meter.fed_tokens == sum(1000 + 50 * agent for agent in range(20)) + swapping.preemptions
