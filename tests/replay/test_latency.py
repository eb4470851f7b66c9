from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import tiny_model, trajectory

from kvmill.replay import clock as clock_module
from kvmill.replay import latency
from kvmill.replay.engine import replay
from kvmill.replay.forward import Forward
from kvmill.replay.latency import CallLatency, Stopwatch, measure_latency
from kvmill.replay.policies.full import Full
from kvmill.replay.policies.registry import parse_policy
from kvmill.replay.rows import Identity, latency_rows
from kvmill.replay.segments import sizes_of, turns_of


class Clock:
    """A clock that only forward passes and compactions move: one second per pass, `per_compaction` per compaction."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    ticking = Clock()
    monkeypatch.setattr(clock_module.time, "perf_counter", ticking.perf_counter)
    feed, compact = latency.Lockstep.feed, latency.Lockstep.compact

    def slow_feed(self, chunk):
        ticking.now += 1.0 if chunk.end - chunk.begin == 1 else 100.0
        return feed(self, chunk)

    def slow_compact(self, turn):
        ticking.now += 10_000.0
        return compact(self, turn)

    monkeypatch.setattr(latency.Lockstep, "feed", slow_feed)
    monkeypatch.setattr(latency.Lockstep, "compact", slow_compact)
    return ticking


def identity() -> Identity:
    """Of no cell in particular."""
    return Identity("t", "test", "f", 0, "m", "fingerprint", "float32", "cpu", 1, "teacher")


def test_every_second_is_booked_where_it_was_spent(clock: Clock) -> None:
    text = trajectory(turns=3, users=False)
    calls = measure_latency(Forward(tiny_model()), text, Full(), repeats=1)
    turns = turns_of(text)
    assert [call.turn for call in calls] == [0, 1, 2]
    for call, segments in zip(calls, turns, strict=True):
        assistant = next(s for s in segments if s.kind == "assistant")
        first, last = assistant.scored
        # Every generated token but the last is fed one by one; the first came out of the prefill.
        assert call.decode_tokens == call.decode_s == last - first - 1
        assert call.tpot_s == 1.0
        assert call.compaction_s == (0.0 if call.turn == 0 else 10_000.0)
        # prefix and header; later tool and header. What closes a message is fed untimed.
        assert call.prefill_s == 200.0
        assert call.ttft_s == call.prefill_s + call.compaction_s


def test_forced_decode_ends_in_the_same_cache_as_the_quality_run() -> None:
    forward = Forward(tiny_model())
    text, policy = trajectory(users=True), parse_policy("te(keep=0.2)")
    watch = Stopwatch(forward, text, policy, seed=0)
    watch.run(turns_of(text), 0)
    branch = watch.step.branches[0]
    quality = replay(forward, text, [Full(), policy])[1]
    assert branch.rows == quality.turns[-1].kv_rows
    shares = branch.kept_share(watch.step.logical)
    assert quality.kept is not None
    assert float((shares - quality.kept).abs().max()) < 0.2


@pytest.mark.parametrize("policy", ["full", "te(keep=0.2)", "truncate(keep=0.2)", "attention(keep=0.2)"])
def test_timing_only_the_last_calls_gives_the_tail_of_timing_all(clock: Clock, policy: str) -> None:
    forward, text, rule = Forward(tiny_model()), trajectory(turns=6), parse_policy(policy)
    every = measure_latency(forward, text, rule, repeats=1)
    last = measure_latency(forward, text, rule, repeats=2, last_turns=3)
    assert [call.turn for call in last] == [3, 4, 5]
    assert {call.spread_s for call in every} == {None}
    assert last == [replace(call, spread_s=0.0) for call in every[3:]]


def test_no_eviction_goes_uncounted(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not the one at the end of a message, where a threshold looks: the next call waits for it."""
    million, look = 1e6, latency.Lockstep.look
    looks: list[tuple[latency.Chunk, int]] = []

    def slow_look(self: latency.Lockstep, chunk: latency.Chunk) -> None:
        before = self.branches[0].counters.compactions
        look(self, chunk)
        looks.append((chunk, self.branches[0].counters.compactions - before))
        clock.now += million * looks[-1][1]

    monkeypatch.setattr(latency.Lockstep, "look", slow_look)
    text = trajectory(turns=4, users=False)
    text = replace(text, segments=text.segments[:-1])  # it ends with a message: nobody waits for the last look
    watch = Stopwatch(Forward(tiny_model()), text, parse_policy("attention(keep=0.2)"), seed=0)
    calls = watch.run(turns_of(text), 0)
    assert any(n for at, n in looks[:-1] if at.segment.kind == "assistant" and at.end == len(at.segment.ids))
    counted = sum((call.compaction_s + call.decode_s) // million for call in calls)
    assert counted == sum(n for _, n in looks[:-1])


def test_a_text_level_policy_prefills_the_cut_text_and_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    forward, text = Forward(tiny_model()), trajectory(turns=3, users=False)
    fed: list[int] = []
    right = Forward.feed

    def counted(self, lanes, ids, **more):
        fed.append(len(ids))
        return right(self, lanes, ids, **more)

    monkeypatch.setattr(Forward, "feed", counted)
    policy = parse_policy("truncate(keep=0.2)")
    Stopwatch(forward, text, policy, seed=0).run(turns_of(text), 0)
    prints = policy.footprint(sizes_of(text))
    spoken = sum(len(s.ids) for s in text.segments if s.kind != "tool")
    assert sum(fed) == spoken + sum(step.reprefill_tokens for step in prints)


def test_repeats_give_their_median_and_how_far_they_lie_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = iter([0.0, 1.0, 5.0, 2.0])  # the warm-up is no repeat

    def run(self: Stopwatch, turns: object, first_timed: int) -> list[CallLatency]:
        slower = next(passes)
        return [CallLatency(turn, 10.0 + slower, 100.0, 1000.0 * turn, 3) for turn in (0, 1)]

    monkeypatch.setattr(Stopwatch, "run", run)
    calls = measure_latency(Forward(tiny_model()), trajectory(turns=2), Full(), repeats=3)
    assert calls == [CallLatency(turn, 12.0, 100.0, 1000.0 * turn, 3, spread_s=4.0) for turn in (0, 1)]
    # The first turn's call is left out where there are others: 4 s of 1,112.
    (cell,) = latency_rows(identity(), Full(), calls, 3, 1.0)["cells"]
    assert cell["turn_spread"] == pytest.approx(4 / 1112)
    (cell,) = latency_rows(identity(), Full(), [replace(call, spread_s=None) for call in calls], 1, 1.0)["cells"]
    assert cell["turn_spread"] is None


def test_on_a_gpu_marks_are_events_and_nothing_waits_until_the_pass_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events in an imaginary stream: passes take what the clock of the other tests says, and waits are noted."""
    stream, waits = [0.0], list[float]()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.at: float | None = None

        def record(self, _: object) -> None:
            self.at = stream[0]

        def elapsed_time(self, end: Event) -> float:
            assert waits, "an event is read before the device has come so far"
            assert None not in (self.at, end.at)
            return 1e3 * (end.at - self.at)  # type: ignore[operator]

    feed = latency.Lockstep.feed

    def slow_feed(self: latency.Lockstep, chunk: latency.Chunk) -> object:
        stream[0] += 1.0 if chunk.end - chunk.begin == 1 else 100.0
        return feed(self, chunk)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: "stream")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: waits.append(stream[0]))
    monkeypatch.setattr(latency.Lockstep, "feed", slow_feed)
    assert isinstance(clock_module.clock_of(torch.device("cpu")), clock_module.CpuClock)
    text = trajectory(turns=3, users=False)
    watch = Stopwatch(Forward(tiny_model()), text, Full(), seed=0)
    watch.clock = clock_module.clock_of(torch.device("cuda"))
    calls = watch.run(turns_of(text), 0)
    assert waits == [stream[0]], "once, after the last pass"
    for call in calls:
        assert (call.prefill_s, call.compaction_s, call.decode_s) == pytest.approx((200, 0, call.decode_tokens))


def test_a_failing_policy_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Full, "footprint", lambda self, segments: [])
    with pytest.raises(RuntimeError, match="IndexError"):
        measure_latency(Forward(tiny_model()), trajectory(turns=2), Full(), repeats=1)


def test_a_single_token_answer_has_no_tpot() -> None:
    assert CallLatency(0, 1.0, 0.0, 0.0, 0).tpot_s is None
