"""Whole runs against arithmetic written down here once more: a lone session, and two agents who share their steps."""

import math

import pytest
from worlds import SLOS, deployment

from kvmill.simulator.cost import CostModel
from kvmill.simulator.run import Scenario, run_fleet
from kvmill.simulator.session import SessionSpec
from kvmill.simulator.workload import Workload, assemble

PLACE = deployment()
COST = CostModel.of(PLACE)
PREFIX, OUT, TOOLS = 9000, (100, 60, 40), (700, 300)
LONE = SessionSpec(assemble(PREFIX, list(OUT), list(TOOLS)), (3.0, 5.0, 0.0))
HALF = "te(proxy=assistant,delay=1,keep=0.25)"


def beside(a, b, power):
    return (a**power + b**power) ** (1 / power)


def step(decodes, rows, chunks=0, tokens=0, pairs=0.0, ending=0):
    """Seconds of one step, from the constants of the cost model alone."""
    c, fed, sampled = COST, decodes + tokens, decodes + ending
    dense = c.dense_floor_s + beside(fed * c.token_s, c.weights_s, c.overlap) + fed * c.small_s
    if sampled:
        dense += beside(sampled * c.head_s, c.head_weights_s, c.head_overlap)
    attention = c.attention_floor_s + rows * c.row_s + pairs * c.pair_s + tokens * c.local_s
    return dense + attention + c.host_s + c.host_sequence_s * (decodes + chunks)


def prefill(base, feed):
    """In chunks of the token budget; only the last samples a token."""
    spent = 0.0
    for at in range(0, feed, PLACE.token_budget):
        size = min(PLACE.token_budget, feed - at)
        spent += step(0, 0, 1, size, size * (base + at + size / 2), int(at + size == feed))
    return spent


def finished(load, policy):
    seen = []
    world = Scenario(load, policy, PLACE, SLOS, turns=60)
    run_fleet(world, 1, 3, watch=lambda fleet, *_: seen.append(fleet), check=True)
    return world, seen[0].columns()


@pytest.mark.parametrize("policy", ["full", HALF])
def test_a_lone_session_takes_the_seconds_and_blocks_that_paper_and_pencil_say(policy):
    world, turns = finished(Workload("one", (LONE,), rate=1e-3), policy)
    plan = world.plan_of(0)
    dropped = 0 if policy == "full" else 600  # three quarters of 100 and 700, when turn 2 begins
    rows = PREFIX
    for j, out in enumerate(OUT):
        feed, base = (PREFIX, 0) if j == 0 else (TOOLS[j - 1] + 1, rows - 1)
        first, rows = prefill(base, feed), base + feed
        if j == 2 and dropped:
            first, rows = first + plan.pay[2], rows - dropped
            assert plan.pay[2] > 0
        decoded = sum(step(1, rows + i) for i in range(out - 1)) / (out - 1)
        mine = turns[turns[:, 7] == j]
        assert mine[:, 1] == pytest.approx(first, rel=1e-6)
        assert mine[:, 2] == pytest.approx(decoded, rel=1e-6)
        before = (
            math.ceil((base + feed) / 16) + plan.extra[max(0, j - 1)]
        )  # queries captured a turn ago are still there
        assert plan.need[j] == max(before, math.ceil(rows / 16) + plan.extra[j])
        assert plan.rows(j) == rows + out - 1
        assert plan.blocks(j, plan.rows(j)) - plan.extra[j] == math.ceil((rows + out - 1) / 16)
        rows += out


def test_two_agents_who_share_their_steps_keep_the_times_of_a_loop_written_by_hand():
    load = Workload("two", (SessionSpec(assemble(64, [50], []), (0.0,)),), agents=2)
    _, turns = finished(load, "full")
    turns = turns[turns[:, 0].argsort()]
    coming = sorted(float(turns[turns[:, 6] == agent, 0].min()) for agent in (0, 1))
    now, waiting, running, out = 0.0, [], [], []
    while len(out) < len(turns) - 2:
        while coming and coming[0] <= now:
            waiting.append(coming.pop(0))
        if not running and not waiting:
            now = coming[0]
            continue
        fresh, rows = len(waiting), sum(64 + 49 - left for left, *_ in running)
        now += step(len(running), rows, fresh, 64 * fresh, 64 * 32 * fresh, fresh)
        running = [(left - 1, arrival, first) for left, arrival, first in running]
        out += [(arrival, first - arrival, (now - first) / 49) for left, arrival, first in running if not left]
        ended = sum(not left for left, *_ in running)
        running = [one for one in running if one[0]] + [(49, arrival, now) for arrival in waiting]
        waiting = [now] * ended
    for mine, theirs in zip(sorted(out)[:-2], turns, strict=False):
        assert mine == pytest.approx(tuple(theirs[:3]), rel=1e-9)


def test_a_step_feeds_no_more_tokens_than_the_budget(monkeypatch):
    from kvmill.simulator.replica import Replica

    fed, mixed_s = [], Replica.mixed_s

    def looked(self, chunks):
        fed.append(self.decodes.count + sum(size for _, size in chunks))
        return mixed_s(self, chunks)

    monkeypatch.setattr(Replica, "mixed_s", looked)
    load = Workload("some", (LONE,), agents=12)
    run_fleet(Scenario(load, "full", deployment(token_budget=64), SLOS, turns=40), 1, 0)
    assert max(fed) == 64


def test_a_third_of_a_run_is_warm_up_unless_the_log_is_short():
    load = Workload("one", (LONE,), rate=1.0)
    warm, end = Scenario(load, "full", PLACE, SLOS, turns=300).horizon_s()
    assert (warm, end) == pytest.approx((50.0, 150.0)), "three turns a second, 300 of them measured"


def test_a_lost_compacted_cache_is_fed_again_on_rows_that_grow_slower_than_its_tokens():
    """The raw text in chunks, up to the most rows that the policy ever holds, and every compaction again."""
    place = deployment(retention="ttl:0", token_budget=1024)
    spec = SessionSpec(assemble(1000, [100] * 8, [700] * 7), (5.0,) * 7 + (0.0,))
    world, seen = Scenario(Workload("one", (spec,), rate=1e-3), HALF, place, SLOS, turns=60), []
    run_fleet(world, 1, 3, watch=lambda fleet, *_: seen.append(fleet))
    plan, turns = world.plan_of(0), seen[0].columns()
    raw, top = plan.raw[7], plan.top[7]
    assert top < 0.7 * raw
    spent, slope = plan.repay[7], top / raw
    for at in range(0, raw, 1024):
        size = min(1024, raw - at)
        spent += step(0, 0, 1, size, size * slope * (at + size / 2), int(at + size == raw))
    assert turns[turns[:, 7] == 7, 1] == pytest.approx(spent, rel=1e-6)
