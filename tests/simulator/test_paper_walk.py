"""The walk from the paper's batch to a fleet, line by line, on sessions and costs that can be added up by hand."""

import math
from types import SimpleNamespace

import pytest
from worlds import closed, deployment, scenario

from kvmill.simulator import paper_walk
from kvmill.simulator.paper_static import Decodes, StepTable, static
from kvmill.simulator.paper_walk import Carried, Means, carried, kept_batch, means_of, rate, walk
from kvmill.simulator.session import SessionPlan

FED_S, PAIR_S = 1e-3, 1e-6
POOL = 20_000


class Cost:
    """A step of n decodes takes 1 + n²/100 seconds, a millisecond per 1,000 rows more, and what a prefill adds."""

    def fixed_s(self, n):
        return 1.0 + n * n / 100

    def decode_attention_s(self, n, rows):
        return rows * 1e-6

    def step_s(self, decodes, rows, chunks, tokens, pairs, ending):
        assert (chunks, ending) == (1, 1)
        return self.fixed_s(decodes) + self.decode_attention_s(decodes, rows) + tokens * FED_S + pairs * PAIR_S


COST = Cost()


def plan(group, begin, **columns):
    """A session of two turns: whatever is not told is 0 for both."""
    names = ("out", "feed", "base", "peak", "after", "pay", "raw", "top", "repay", "extra", "wait")
    told = {name: columns.pop(name, [0, 0]) for name in names}
    blocks = {name: [0, 0] for name in ("need", "need_gone", "size")}
    return SessionPlan(shared=32, group=group, begin=begin, divisible=True, coarse=0, **told, **blocks)


ONE = plan(
    0, 0, out=[10, 20], feed=[100, 50], base=[0, 109], peak=[100, 160], after=[100, 150], pay=[0.0, 0.5],
    raw=[100, 160], top=[100, 170], repay=[0.25, 2.0], extra=[3, 5], wait=[7.0, 99.0],
)  # fmt: skip
TWO = plan(1, 1, out=[5, 30], after=[80, 220], raw=[80, 232], top=[80, 240], repay=[0.0, 4.0], extra=[2, 4])
MEANS = Means(
    tokens=40.0, decoding=900.0, waiting=600.0, wait_s=300.0, state=48.0, beside=16.0, shared=128.0, once=256,
    prefill_s=9.0, compaction_s=3.0,
)  # fmt: skip


def test_means_are_those_of_the_turns_that_are_served():
    decodes = Decodes.of([ONE, TWO])
    assert (decodes.sessions, decodes.tokens) == (2, 30.0)
    found = means_of([ONE, TWO], decodes, COST, 2, 8)
    assert found.decoding == pytest.approx((10 * 104.5 + 20 * 159.5 + 30 * 234.5) / 60)
    fed = [(68, 32, 100), (50, 109, 160), (200, 32, 240)]  # tokens, rows under them, rows at their end
    assert found.prefill_s == pytest.approx(sum(n * FED_S + n * (a + b) / 2 * PAIR_S for n, a, b in fed) / 2)
    assert found.compaction_s == pytest.approx((0.25 + 0.5 + 4.0) / 2), "the first request is made from raw tokens"
    assert found.beside == pytest.approx((10 * 1 + 20 * 3 + 30 * 2) * 16 / 60), "what is beside K, V and state"
    assert (found.wait_s, found.waiting) == (3.5, 109.0), "no wait follows the last turn"
    assert (found.state, found.shared, found.once) == (32, 32.0, 64), "a prefix for each of the two groups"


def step_s(batch):
    return 1.0 + batch * batch / 100 + batch * MEANS.decoding * 1e-6


def test_a_step_of_a_part_of_a_sequence_is_between_its_neighbours():
    for batch, step in ((0.5, step_s(1)), (4.0, step_s(4)), (4.75, step_s(4) + 0.75 * (step_s(5) - step_s(4)))):
        assert rate(MEANS, COST, batch, 6.0) == pytest.approx(3600 / (40 * step / batch + 6.0))


def test_what_decodes_and_what_waits_fill_the_pool_less_the_prefixes():
    batch = kept_batch(MEANS, COST, 256, POOL)
    own = 48 + 16 - 128
    absent = rate(MEANS, COST, batch, 9.0 + 3.0) / 3600 * 300
    assert batch * (900 + own) + absent * (600 + own) == pytest.approx(POOL - 256)
    assert kept_batch(MEANS, COST, 2, POOL) == pytest.approx(2.0), "the cap, where the pool holds more"


def test_every_line_is_the_arithmetic_it_is_named_for():
    decodes = Decodes.of([ONE, TWO] * 4)
    found = static(decodes, 13 * decodes.peak + 1, COST)
    assert (found.admissible, found.batch) == (13, 8)
    lines = {line["key"]: line for line in walk(MEANS, decodes, COST, found, 256, POOL)}
    assert list(lines) == ["paper", "unrounded", "mean", "shared", "prefill", "compaction", "waits"]
    assert all(line["label"] == "estimated" for line in lines.values())
    seconds = StepTable.of(COST, 13, decodes.peak).spans_s(decodes.starts, decodes.steps).sum() / decodes.sessions
    kept = kept_batch(MEANS, COST, 256, POOL)
    batches = {
        "paper": 8, "unrounded": 13, "mean": POOL / (900 + 48), "shared": (POOL - 256) / (900 + 48 - 128),
        "prefill": (POOL - 256) / (900 + 48 - 128), "compaction": (POOL - 256) / (900 + 48 - 128 + 16), "waits": kept,
    }  # fmt: skip
    assert {key: line["batch"] for key, line in lines.items()} == pytest.approx(batches)
    rates = {"paper": found.per_hour, "unrounded": 3600 * 13 / seconds}
    for key, stopped in (("mean", 0.0), ("shared", 0.0), ("prefill", 9.0), ("compaction", 12.0), ("waits", 12.0)):
        rates[key] = rate(MEANS, COST, batches[key], stopped)
    assert {key: line["sessions_per_hour"] for key, line in lines.items()} == pytest.approx(rates)


def test_no_line_decodes_more_sequences_than_are_let_in():
    decodes = Decodes.of([ONE])
    capped = walk(MEANS, decodes, COST, static(decodes, POOL, COST), 5, POOL)
    assert [line["batch"] for line in capped[2:]] == pytest.approx([5.0] * 5)
    assert capped[2]["what"].endswith(", 5 sequences at most")


@pytest.fixture
def tried(monkeypatch):
    """Sessions per hour rise to a peak at 50 agents a replica; the promises are kept up to 20."""
    runs = []

    def run(asked, agents, replicas, seed):
        each = agents / replicas
        runs.append((each, replicas))
        return Carried(each, 100 - (each - 50) ** 2 / 100, [SimpleNamespace(each=each)])

    monkeypatch.setattr(paper_walk, "_run", run)
    monkeypatch.setattr(paper_walk, "mean_meets", lambda results, slos: results[0].each <= 20)
    return runs


@pytest.mark.parametrize("start", [8.0, 30.0, 90.0])
def test_the_most_is_found_from_anywhere_and_what_keeps_the_promises_below_it(tried, start):
    said = []
    best, keeping = carried(scenario(closed(5)), start, 0, said.append)
    assert best.agents == pytest.approx(50, rel=2**0.25 - 1), "to half a stride"
    assert best.sessions_per_hour == max(100 - (each - 50) ** 2 / 100 for each, _ in tried)
    assert keeping.agents == max(each for each, _ in tried if each <= 20) >= 20 / 2**0.5
    halves = [each for each, _ in tried if abs(2 * math.log2(each / start) % 1 - 0.5) < 0.1]
    assert len(halves) >= 2, "half a stride to either side of what was found"
    assert {replicas for _, replicas in tried} == {min(16, -(-400 // int(start)))}
    assert len(said) == len(tried) == len({each for each, _ in tried}), "nothing is run twice"


def test_one_fall_by_chance_does_not_end_the_search_upward(monkeypatch):
    rates = [10, 50, 40, 90, 80, 70, 60, 50]  # by half powers of two from the start

    def run(asked, agents, replicas, seed):
        step = round(2 * math.log2(agents / replicas / 10))
        return Carried(agents / replicas, rates[step] if step >= 0 else 1, [])

    monkeypatch.setattr(paper_walk, "_run", run)
    world = paper_walk.replace(scenario(closed(5)), slos=())
    assert carried(world, 10.0, 0, lambda _: None)[0].sessions_per_hour == 90


def test_without_promises_there_is_nothing_to_keep(tried):
    world = scenario(closed(5))
    best, keeping = carried(paper_walk.replace(world, slos=()), 30.0, 0, lambda _: None)
    assert best.agents == pytest.approx(50, rel=2**0.25 - 1)
    assert keeping is None


def test_a_run_is_of_the_sessions_as_they_are_counted_per_replica(monkeypatch):
    asked = []

    def fleet(world, replicas, seed):
        asked.append((world, replicas, seed))
        return SimpleNamespace(throughput_requests_per_s={7000: 2.0, 7001: 8.0}[seed], values={}, batch_mean=3.0)

    monkeypatch.setattr(paper_walk, "run_fleet", fleet)
    world = scenario(closed(5), place=deployment(), extra_turns=0.5)
    found = paper_walk._run(world, 60, 4, 7)
    assert found.agents == 15.0
    assert found.sessions_per_hour == pytest.approx(4.0 / 4 / world.positions.mean_turns * 3600), "a geometric mean"
    for sent, replicas, _ in asked:
        assert (sent.load.agents, sent.load.kind, replicas, sent.turns) == (60, "closed", 4, paper_walk.TURNS)
        assert sent.load.sessions == world.load.sessions != world.workload.sessions, "grown once, and not once more"
    assert len(found.results) == len(asked) == paper_walk.SEEDS
    line = found.line("batching", "the most")
    assert (line["what"], line["batch"], line["label"]) == ("the most, 15.0 agents", 3.0, "simulated")
