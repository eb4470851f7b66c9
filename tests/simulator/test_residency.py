"""What a replica still has of a session between its turns, and what it costs to have it again."""

import pytest
import simpy
from worlds import TE, deployment

from kvmill.replay.policies.registry import parse_policy
from kvmill.simulator.cost import CostModel
from kvmill.simulator.live import Live
from kvmill.simulator.replica import Replica
from kvmill.simulator.residency import Residency
from kvmill.simulator.session import SessionSpec, compile_session
from kvmill.simulator.workload import assemble

OUT, TOOLS = [100, 50], [1000]
RAW = 2000 + 100 + 1000  # tokens under the second turn's decode


class World:
    """One replica, one session of two turns, and an intruder that takes a given number of rows in between."""

    def __init__(self, policy="full", pool=8000, intruder=0, wait=10.0, shared=0, model="llama-3.1-8b", **fields):
        gpu = "h100" if model == "llama-3.1-8b" else "h200"
        self.place = deployment(pool, model, gpu, **fields)
        self.cost, self.env, self.log = CostModel.of(self.place), simpy.Environment(), []
        self.wait, self.done = wait, []
        self.replica = Replica(self.env, self.place, self.cost, self.end, check=True, log=self.log)
        self.live = Live(self.plan(policy, SessionSpec(assemble(2000, OUT, TOOLS), (wait, 0.0), shared=shared)), 0)
        self.send(self.live)
        if intruder:
            self.env.run(until=wait / 2)
            self.send(Live(self.plan("full", SessionSpec(assemble(intruder, [2], []), (0.0,))), 1))
        self.env.run(until=1000)

    def plan(self, policy, spec):
        return compile_session(spec, parse_policy(policy), self.place, self.cost)

    def send(self, live):
        live.arrival, live.first, live.made, live.hit = self.env.now, -1.0, 0, True
        self.replica.submit(live)

    def end(self, live, rejected):
        assert not rejected
        self.done.append((live.agent, live.turn, live.first - live.arrival, live.hit))
        if live.turn + 1 < live.plan.turns:
            live.turn += 1
            self.env.timeout(self.wait).callbacks = [lambda _: self.send(live)]

    @property
    def ttft(self):
        """Of the second turn."""
        return next(t for agent, turn, t, _ in self.done if (agent, turn) == (0, 1))

    @property
    def hit(self):
        return next(hit for agent, turn, _, hit in self.done if (agent, turn) == (0, 1))

    def prefill_s(self, start, end):
        """Seconds of a prefill of the rows from start to end, alone."""
        return self.cost.step_s(0, 0, 1, end - start, (end - start) * (start + end) / 2, 1)


def test_with_room_for_all_only_what_is_new_is_fed():
    world = World()
    assert world.hit
    assert world.ttft == pytest.approx(world.prefill_s(2099, RAW))
    assert world.replica.meter.again_tokens == 0


def test_of_a_text_only_the_tail_is_lost_and_fed_again():
    world = World(pool=3216, intruder=2000)
    left = (3216 // 16 - (2000 + 2 + 15) // 16) * 16
    assert 0 < left < 2099
    assert not world.hit
    assert world.ttft == pytest.approx(world.prefill_s(left, RAW))
    assert world.replica.meter.again_tokens == 2099 - left


def test_coarse_engines_find_multiples_of_their_block_only():
    world = World(pool=3216, intruder=2000, coarse_tokens=528)
    assert world.ttft == pytest.approx(world.prefill_s(528 * 2, RAW))
    assert World(coarse_tokens=528).ttft == pytest.approx(world.prefill_s(528 * 3, RAW)), "even when all is there"


def test_compacted_rows_are_of_no_use_unless_all_are_there():
    world = World("sink_window(keep=0.5)", pool=3216, intruder=2000)
    assert world.live.plan.repay[1] >= 0
    assert world.live.plan.raw[1] == RAW
    assert world.replica.meter.again_tokens == RAW - world.live.plan.feed[1]


def test_constant_state_cannot_be_rebuilt_from_the_middle():
    whole = World(model="qwen3.5-27b", pool=8000)
    assert whole.hit
    assert not whole.live.plan.divisible
    assert World(model="qwen3.5-27b", pool=8000, coarse_tokens=528).live.plan.divisible


def test_a_time_to_live_ends_a_cache_and_not_before():
    assert World(wait=10.0, retention="ttl:11").hit
    late = World(wait=10.0, retention="ttl:9")
    assert not late.hit
    assert late.ttft == pytest.approx(late.prefill_s(0, RAW))


@pytest.mark.parametrize("policy", ["full", TE, "sink_window(keep=0.5)"])
def test_what_went_to_the_host_is_loaded_and_nothing_is_fed_again(policy):
    stayed, moved = World(policy), World(policy, pool=4800, intruder=4300, retention="offload")
    assert moved.hit
    assert moved.replica.meter.again_tokens == 0
    missing = round((moved.ttft - stayed.ttft) / moved.replica.cache.block_s, 6)
    assert 0 < missing <= 2112 // 16
    assert missing == pytest.approx(round(missing))
    assert moved.replica.cache.reload_s == pytest.approx(missing * moved.replica.cache.block_s)
    assert moved.replica.cache.host.free == moved.replica.cache.host.total, "no copy is left behind"


def test_a_block_from_the_host_takes_its_bytes_over_the_link():
    world = World(retention="offload")
    per_block = 16 * world.place.geometry.row_bytes("bf16")
    assert world.replica.cache.block_s == pytest.approx(per_block / world.place.gpu.link_bandwidth)


def test_a_host_without_room_is_no_help():
    world = World(pool=3216, intruder=2800, retention="offload", host_gib=0.0001)
    assert not world.hit


def test_compaction_beside_the_batch_delays_its_own_session_only():
    """The session waits as long as inline, and a neighbour that decodes meanwhile is not held up."""
    te = "te(proxy=assistant,delay=0,keep=0.2)".replace("assistant", "boundary")
    inline, beside = World(te), World(te, compaction="beside")
    assert inline.live.plan.pay[1] > 0
    assert beside.ttft == pytest.approx(inline.ttft)
    assert inline.replica.meter.compaction_s > 0
    assert beside.replica.meter.compaction_s == 0


def test_a_lost_compacted_cache_is_compacted_as_often_again():
    place = deployment(8000)
    cost, spec = CostModel.of(place), SessionSpec(assemble(500, [90] * 4, [400] * 3), (0.0,) * 4)
    plan = compile_session(spec, parse_policy("te(proxy=boundary,keep=0.2)"), place, cost)
    found = Residency(place, cost).prefill(Live(plan, 0, 3))
    assert not found.whole
    assert found.pay == plan.repay[3] == pytest.approx(sum(plan.pay))
    assert found.pay > 2 * plan.pay[3]


def test_a_copy_in_host_memory_is_whole_only_beside_the_prefix_of_its_group():
    place = deployment(8000, retention="offload")
    cost, spec = CostModel.of(place), SessionSpec(assemble(2000, OUT, TOOLS), (0.0, 0.0), shared=512)
    live = Live(compile_session(spec, parse_policy("full"), place, cost), 0, 1)
    here = Residency(place, cost)
    here.host.put(live, 100)
    live.parked, live.fetched = 100, True
    assert not here.complete(live)
    here.pool.take(32)
    here.pool.share(0, 32)
    assert here.complete(live)


def idle_world(retention="ttl:5", **fields):
    """A replica, and a session that can be put aside there."""
    place = deployment(retention=retention, **fields)
    cost = CostModel.of(place)
    replica = Replica(simpy.Environment(), place, cost, lambda *_: None)
    plan = compile_session(SessionSpec(assemble(2000, OUT, TOOLS), (0.0, 0.0)), parse_policy("full"), place, cost)
    return replica, Live(plan, 0), Live(plan, 1)


@pytest.mark.parametrize("step", [0.3, 1, 9.7, 10, 10.3, 99.9, 100, 250])
def test_a_stretch_ends_with_the_last_step_before_a_time_to_live_is_over(monkeypatch, step):
    replica, decoding, _ = idle_world()
    replica.decodes.add(decoding, 3000, 100)
    span = replica.decodes.span_s
    whole = int(step)
    left = span(whole) + (step - whole) * (span(whole + 1) - span(whole)) if whole else step * span(1)
    monkeypatch.setattr(replica.cache, "next_expiry_s", lambda: left)
    over = sum(span(k) < left for k in range(1, 101))
    assert replica.before_expiry(100) == max(1, over) == max(1, min(100, whole if step > whole else whole - 1))


def test_the_next_time_to_live_is_that_of_the_longest_idle():
    replica, one, other = idle_world()
    cache = replica.cache
    assert cache.next_expiry_s() == float("inf")
    for session, since in ((one, 2.0), (other, 3.0)):
        replica.pool.take(10)
        session.blocks = 10
        cache.keep(session, since)
    assert cache.next_expiry_s() == 7.0
    cache.expire(7.0 - 1e-9)
    assert one in replica.pool.idle
    cache.expire(7.0)
    assert list(replica.pool.idle) == [other]
    assert (cache.next_expiry_s(), replica.pool.free) == (8.0, replica.pool.total - 10)
    lasting, session, _ = idle_world("lru")
    lasting.cache.keep(session, 0.0)
    assert lasting.cache.next_expiry_s() == float("inf")


def test_a_request_that_was_swapped_out_pays_for_its_blocks_coming_back_and_feeds_its_last_token():
    replica, live, _ = idle_world("lru", preemption="swap")
    cache, plan, place = replica.cache, live.plan, deployment()
    live.turn, live.made = 1, 20
    live.blocks = plan.blocks(1, plan.after[1] + 20)
    replica.pool.take(live.blocks)
    held = live.blocks
    assert cache.swap_out(live)
    found = cache.prefill(live)
    rows = RAW + 20
    assert (found.start, found.feed, found.end, found.need) == (rows - 1, 1, rows, held)
    assert found.pay == pytest.approx(held * 16 * place.geometry.row_bytes("bf16") / place.gpu.link_bandwidth)


def test_of_what_is_left_the_blocks_of_constant_state_hold_no_rows():
    place = deployment(20_000, "qwen3.5-27b", "h200", coarse_tokens=528)
    cost = CostModel.of(place)
    plan = compile_session(SessionSpec(assemble(2000, OUT, TOOLS), (0.0, 0.0)), parse_policy("full"), place, cost)
    cache, live = Residency(place, cost), Live(plan, 0, 1)
    assert plan.extra[0] * 16 >= 528, "more than one coarse block, were it rows"
    live.blocks = plan.blocks(0, plan.rows(0))
    cache.pool.take(live.blocks)
    cache.keep(live, 0.0)
    assert cache.found(live) == (528 * 3, True)
    cache.pool.evict(live, live.blocks - plan.extra[0] - 2 * 528 // 16)
    assert cache.found(live) == (528 * 2, False)
