"""Where scoring queries come from: copies that leave no trace, whole-cache normalisers, caches with several readers."""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Iterator

import pytest
import torch
from families import FAMILIES, family_model
from tiny import VOCABULARY, segment, trajectory
from torch import Tensor

from kvmill.replay.cache import KvCache
from kvmill.replay.engine import replay
from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.model import LoadedModel
from kvmill.replay.policies.base import KvShape, SegmentSize
from kvmill.replay.policies.captures import Key
from kvmill.replay.policies.proxy_state import ProxyState
from kvmill.replay.policies.registry import parse_policies, parse_policy
from kvmill.replay.policies.state_table import state_for
from kvmill.replay.policies.states import Chunk, Scene
from kvmill.replay.segments import size_of, turns_of
from kvmill.traces.tokens import TokenSegment, TokenTrajectory

family = pytest.mark.parametrize("name", sorted(FAMILIES))


def begun(model: LoadedModel, policy: str, text: TokenTrajectory) -> tuple[Lockstep, ProxyState]:
    step = Lockstep(Forward(model), text, parse_policies([policy]), seed=3)
    state = step.branches[1].state
    assert isinstance(state, ProxyState)
    return step, state


def feed(step: Lockstep, turn: int) -> None:
    """Everything of a turn but its close."""
    for s in turns_of(step.trajectory)[turn]:
        for chunk in step.chunks(s):
            step.feed(chunk)


def close(step: Lockstep, turn: int) -> None:
    step.compact(turn)
    step.settle(turn)
    assert [branch.error for branch in step.branches] == [None] * len(step.branches)


# -- copies ---------------------------------------------------------------------------------------------------


def everything(step: Lockstep) -> list[Tensor]:
    """K, V, β, sliding and recurrent states of the second branch."""
    lane = step.branches[1].lane
    rows = [
        part for slot in range(step.forward.shape.layers) for part in (*lane.cache.view(slot), lane.cache.bias(slot))
    ]
    fixed = [t for pair in lane.fixed.sliding.values() for t in pair] + list(lane.fixed.linear.values())
    return [t for t in [*rows, *fixed] if t is not None]


def held_bytes() -> int:
    """Bytes of every tensor that Python can reach, each storage once."""
    gc.collect()
    found = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), Tensor):
            storage = thing.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


@family
@pytest.mark.parametrize("policy", ["te(proxy=repeat,delay=1,keep=0.3)", "am(proxy=repeat,keep=0.3,normaliser=global)"])
def test_a_copy_leaves_rows_position_and_states_bit_for_bit_and_nothing_behind(name: str, policy: str) -> None:
    step, state = begun(family_model(name), policy, trajectory(turns=2))
    feed(step, 0)
    close(step, 0)  # the branch now has a lane of its own
    feed(step, 1)
    branch = step.branches[1]
    before, aux = [t.clone() for t in everything(step)], state.aux_bytes()
    place, size, index = branch.lane.position, branch.lane.cache.nbytes, branch.index.clone()
    copies = state.copies(1)
    held = held_bytes()
    for copy in copies:
        step._copy(branch, copy)
    assert held_bytes() - held == state.aux_bytes() - aux > 0
    after = everything(step)
    assert len(before) == len(after) > 0
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert (branch.lane.position, branch.lane.cache.nbytes) == (place, size)
    assert torch.equal(branch.index, index)
    tokens = sum(len(s.ids) for s in turns_of(step.trajectory)[1])
    assert (branch.counters.transient_rows, branch.counters.copied_tokens) == (3 + tokens, 3 + tokens)


@family
def test_the_copys_queries_are_those_of_one_pass_over_everything(name: str) -> None:
    text = trajectory(turns=1)
    if name == "llama":  # a copy of several chunks
        segments = (*text.segments[:2], segment("tool", 0, [i % VOCABULARY for i in range(3, 400)]))
        text = TokenTrajectory("long", "", "", segments, prompts=text.prompts)
    step, state = begun(family_model(name), "te(proxy=repeat,delay=1)", text)
    feed(step, 0)
    (copy,) = state.copies(0)
    assert copy.ids == (7, 8, 9, *(i for s in text.segments[1:] for i in s.ids))
    step._copy(step.branches[1], copy)
    seen: dict[int, list[Tensor]] = {}
    fresh = step.forward.new_lane()
    step.forward.feed(
        [fresh],
        [*step.ids, *copy.ids],
        observers=[[lambda slot, queries, *rest: seen.setdefault(slot, []).append(queries.clone())]],
    )
    first, at = len(text.segments[0].ids), len(step.ids) + 3
    for s in text.segments[1:]:
        end = at + len(s.ids)
        for slot, readers in seen.items():
            rows = state.captures.rows([Key(0, s.kind, "copy", first)], slot)
            assert rows is not None
            want = torch.cat([queries[:, at:end] for queries in readers], dim=1).reshape(rows.queries.shape)
            torch.testing.assert_close(rows.queries, want, atol=1e-3 if name == "qwen3_5" else 1e-4, rtol=0)
        first, at = first + len(s.ids), end


def test_no_copy_is_fed_and_nothing_captured_for_what_stays_whole() -> None:
    step, state = begun(family_model("llama"), "te(proxy=repeat+boundary,keep=1)", trajectory(turns=2))
    for turn in range(2):
        feed(step, turn)
        assert state.copies(turn) == ()
        assert state.aux_bytes() == 0
        close(step, turn)
    step, state = begun(family_model("llama"), "te(proxy=repeat,keep_tool=1,delay=1)", trajectory(turns=2))
    feed(step, 0)
    close(step, 0)
    assert [key.kind for key in state.captures.held()] == ["assistant"]
    assert step.branches[1].counters.copied_tokens == 0  # settled


# -- the model's own attention as normaliser ------------------------------------------------------------------


class Watch:
    """Every query that the state was shown: its weights over the whole cache in float64, by logical token."""

    def __init__(self, step: Lockstep, state: ProxyState) -> None:
        self.group = step.forward.shape.group
        self.seen: dict[tuple[object, ...], list[list[tuple[Tensor, Tensor]]]] = {}
        self.compared = 0
        branch, observe, observe_copy = step.branches[1], state.observe, state.observe_copy
        begin, select, now = state.begin, state.select, [None]

        def on_begin(chunk: Chunk) -> bool:
            now[0] = chunk  # type: ignore[call-overload]
            return begin(chunk)

        def on_observe(layer, queries, keys, scaling, index, bias):
            chunk = now[0]
            assert chunk is not None
            own = range(chunk.first, chunk.first + queries.shape[1])
            for at, weights in self.weights(queries, keys, scaling, index, own, bias):
                s = chunk.segment
                self.note(("future", s.kind, s.turn), layer, weights)
                if chunk.begin + at >= len(s.ids) - s.closing:
                    self.note(("own", s.kind, s.turn), layer, weights)
            observe(layer, queries, keys, scaling, index, bias)

        def on_copy(copy, begin, layer, queries, keys, scaling, bias):
            index, fed = branch.index[layer], keys.shape[1] - branch.index.shape[2]
            turns = [s for s in step.trajectory.segments if s.turn == copy.key and s.kind in ("assistant", "tool")]
            names = [None] * 3 + [s for s in turns for _ in s.ids]
            for at, weights in self.weights(queries, keys, scaling, index, range(-fed, 0), bias):
                if (s := names[begin + at]) is not None:
                    self.note(("copy", s.kind, s.turn), layer, weights)
            observe_copy(copy, begin, layer, queries, keys, scaling, bias)

        def on_select(sources, view, keep, forced):
            asked = [s for s in state.proxy.proxies if state.source_rows(s, view) is not None]
            assert len(asked) == len(sources)
            for source, rows in zip(asked, sources, strict=True):
                want = self.score(source, view)
                torch.testing.assert_close(state.score(rows, view).double(), want, atol=2e-6, rtol=2e-5)
                self.compared += 1
            return select(sources, view, keep, forced)

        state.begin, state.observe, state.observe_copy, state.select = on_begin, on_observe, on_copy, on_select

    def weights(self, queries, keys, scaling, index, own, bias) -> Iterator[tuple[int, list[tuple[Tensor, Tensor]]]]:
        length, rows = queries.shape[1], keys.shape[1]
        for at in range(length):
            out = []
            for head in range(queries.shape[0]):
                kv = head // self.group
                tokens = torch.cat([index[kv].long(), torch.tensor(own)])
                logits = keys[kv].double() @ queries[head, at].double() * scaling
                logits = logits if bias is None else logits + bias[kv].double()
                seen = rows - length + at + 1
                out.append((tokens[:seen], logits[:seen].softmax(0)))
            yield at, out

    def note(self, key: tuple[object, ...], layer: int, weights: list[tuple[Tensor, Tensor]]) -> None:
        self.seen.setdefault((layer, *key), []).append(weights)

    def score(self, source: str, view) -> Tensor:
        """sqrt(mean w²) of every token of the segment, (H_kv, n)."""
        kind, turn, n = view.segment.kind, view.segment.turn, view.keys.shape[1]
        keys = [("future", source, later) for later in range(turn + 1, view.now + 1)]
        if source in ("boundary", "repeat"):
            keys = [("own" if source == "boundary" else "copy", kind, turn)]
        squares, count = torch.zeros(view.keys.shape[0], n, dtype=torch.float64), 0
        for query in (q for key in keys for q in self.seen.get((view.layer, *key), [])):
            for head, (tokens, weights) in enumerate(query):
                inside = (tokens >= view.first) & (tokens < view.first + n)
                squares[head // self.group, tokens[inside] - view.first] += weights[inside] ** 2
            count += self.group
        return (squares / count).sqrt()


@pytest.mark.parametrize(
    "policy",
    [
        "te(proxy=assistant+boundary+repeat,keep=0.3,normaliser=global)",
        "te(proxy=tool,delay=2,keep=0.3,normaliser=global)",
        "am(proxy=assistant,delay=2,keep=0.3,normaliser=global,fallback=none)",  # β of older turns counts
        "am(proxy=repeat,keep=0.3,normaliser=global,fallback=none)",
    ],
)
@pytest.mark.parametrize("name", ["llama", "gemma4"])
def test_a_global_normaliser_is_the_models_own_attention_when_the_query_ran(policy: str, name: str) -> None:
    step, state = begun(family_model(name), policy, trajectory(turns=4, users=False, long_tool=60))
    watch = Watch(step, state)
    for turn in range(4):
        feed(step, turn)
        close(step, turn)
    assert watch.compared >= 8
    assert (step.branches[1].lane.cache.bias(0) is not None) == policy.startswith("am")


# -- several layers read one cache ----------------------------------------------------------------------------

SHAPE = KvShape(layers=2, kv_heads=2, q_heads=4, head_dim=4, dtype_bytes=4, readers=5)
READERS = (2, 3)  # of the first and the second cache


class ByHand:
    """A state fed with random tensors, every cache read by several layers."""

    def __init__(self, policy: str, segments: list[TokenSegment]) -> None:
        self.policy = parse_policy(policy)
        self.segments = segments
        total = sum(len(s.ids) for s in segments)
        state = state_for(self.policy, Scene(SHAPE, total, 5))
        assert isinstance(state, ProxyState)
        self.state = state
        self.cache = KvCache(SHAPE, torch.float32, torch.device("cpu"))
        self.asked: list[list[tuple[TokenSegment, int, Tensor]]] = [[], []]  # by cache: (segment, offset, query)
        draw = torch.Generator().manual_seed(8)
        first = 0
        for s in segments:
            cuts = sorted({0, len(s.ids) // 2, max(0, len(s.ids) - 1), len(s.ids)})
            for begin, end in itertools.pairwise(cuts):
                wanted = state.begin(chunk := Chunk(s, begin, end, first + begin))
                for slot, readers in enumerate(READERS):
                    keys, values = torch.randn(2, 2, end - begin, 4, generator=draw)
                    self.cache.append(slot, keys, values)
                    for _ in range(readers if wanted else 0):
                        queries = torch.randn(4, end - begin, 4, generator=draw) * 2
                        held = self.cache.view(slot)[0]
                        state.observe(slot, queries, held, 0.5, torch.zeros(2, 0), None)
                        self.asked[slot] += [(s, begin + i, queries[:, i]) for i in range(end - begin)]
                state.fed(chunk)
            first += len(s.ids)

    def start(self, s: TokenSegment) -> int:
        return sum(len(t.ids) for t in self.segments[: self.segments.index(s)])


def sharing(policy: str) -> ByHand:
    draw = random.Random(3)
    lengths = (("prefix", 0, 4), ("assistant", 0, 9), ("tool", 0, 14), ("assistant", 1, 6))
    return ByHand(policy, [segment(k, t, [draw.randrange(9) for _ in range(n)]) for k, t, n in lengths])


def expected_scores(hand: ByHand, due: TokenSegment, slot: int, source: str, globally: bool) -> Tensor:
    """RMS over the queries of all readers, in float64."""
    start, n = hand.start(due), len(due.ids)
    keys = hand.cache.view(slot)[0].double()
    rows: list[list[Tensor]] = [[], []]
    for s, offset, query in hand.asked[slot]:
        if source == "own" and not (s is due and offset >= n - due.closing):
            continue
        if source == "assistant" and not (s.kind == "assistant" and s.turn == 1):
            continue
        for head in range(4):
            logits = keys[head // 2] @ query[head].double() * 0.5
            if globally:
                logits[hand.start(s) + offset + 1 :] = float("-inf")
                rows[head // 2].append(logits.softmax(0)[start : start + n])
            else:
                rows[head // 2].append(logits[start : start + n].softmax(0))
    return torch.stack([torch.stack(head).square().mean(0).sqrt() for head in rows])


@pytest.mark.parametrize(
    ("policy", "source"),
    [
        ("te(keep=0.3)", "assistant"),
        ("am(keep=0.3)", "assistant"),
        ("am(keep=0.3,weighting=share,normaliser=global)", "assistant"),
        ("te(proxy=boundary,delay=1,keep=0.3)", "own"),
        ("te(proxy=boundary,delay=1,keep=0.3,normaliser=global)", "own"),
        ("am(proxy=boundary,delay=1,keep=0.3,normaliser=global)", "own"),
    ],
)
def test_the_queries_of_every_reader_score_the_cache_they_read(policy: str, source: str) -> None:
    hand = sharing(policy)
    sizes = [size_of(s) for s in hand.segments]
    before, after = hand.policy.footprint(sizes)
    assert hand.state.aux_bytes() == after.aux_bytes_peak(SHAPE) > before.aux_bytes(SHAPE)
    eviction = hand.state.close(1, torch.zeros(2, 2, 33), hand.cache)
    assert eviction is not None
    assert hand.state.aux_bytes() + 4 * 2 * 2 * after.scalar_rows == after.aux_bytes(SHAPE)
    globally = "global" in policy
    for due in hand.segments[1:3]:
        start, n = hand.start(due), len(due.ids)
        keep = hand.policy.kept(size_of(due))  # type: ignore[attr-defined]
        for slot in range(2):
            scores = expected_scores(hand, due, slot, source, globally)
            for head in range(2):
                forced = list(due.structural)
                others = sorted(set(range(n)) - set(forced), key=lambda j: (-float(scores[head, j]), j))
                want = sorted(forced + others[: keep - len(forced)])
                kept = [int(r) - start for r in eviction.index[slot, head] if start <= int(r) < start + n]
                assert kept == want


def test_a_second_reader_can_change_the_choice() -> None:
    """The canary of the test above: the first reader alone would keep other keys."""
    hand = sharing("te(keep=0.3)")
    eviction = hand.state.close(1, torch.zeros(2, 2, 33), hand.cache)
    one = sharing("te(keep=0.3)")
    queries, key = one.state.captures._queries, Key(1, "assistant", "future")
    cuts = [3, 2, 1]  # tokens of the three chunks, each followed by the other readers' rows
    for slot, readers in enumerate(READERS):
        pieces = queries[key][slot].split([c for c in cuts for _ in range(readers)], dim=1)
        queries[key][slot] = torch.cat(pieces[::readers], dim=1)
    alone = one.state.close(1, torch.zeros(2, 2, 33), one.cache)
    assert eviction is not None
    assert alone is not None
    assert not torch.equal(eviction.index, alone.index)


# -- every mix, delay and odd trajectory through the engine ---------------------------------------------------

SHAPES = {
    "ordinary": [("assistant", 22), ("tool", 50), ("assistant", 21), ("tool", 41), ("assistant", 25), ("tool", 30)],
    "one token each": [("assistant", 1), ("tool", 1)] * 3,
    "assistants say nothing": [("assistant", 0), ("tool", 30), ("assistant", 0), ("tool", 25), ("assistant", 0)],
    "empty tools": [("assistant", 20), ("tool", 0), ("assistant", 12), ("tool", 40), ("assistant", 14), ("tool", 0)],
    "no tools": [("assistant", 20), ("assistant", 24), ("assistant", 1), ("assistant", 30)],
    "one turn": [("assistant", 20), ("tool", 30)],
}
MIXES = ("assistant", "tool", "assistant+tool", "assistant+boundary+tool", "tool+repeat", "boundary", "repeat+boundary")


def odd(shape: str) -> TokenTrajectory:
    draw, turn, out = random.Random(9), -1, []
    for kind, n in [("prefix", 13), *SHAPES[shape]]:
        turn += kind == "assistant"
        ids = [draw.randrange(VOCABULARY) for _ in range(n)]
        out.append(segment(kind, max(0, turn), ids) if n else TokenSegment(kind, turn, ()))  # type: ignore[arg-type]
    return TokenTrajectory(shape, "tiny", "test", tuple(out), prompts={"repeat": (7, 8, 9)})


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_every_mix_and_delay_holds_exactly_its_footprint(shape: str) -> None:
    policies = [
        f"{name}(proxy={mix},delay={delay},keep={keep},protect={protect},normaliser={normaliser})"
        for number, mix in enumerate(MIXES)
        for name in ("te", "am")
        for delay, keep, protect, normaliser in [
            ((1, 0.2, "structure", "local"), (2, 0, "none", "global")),
            ((3, 0.5, "sinks:2+last:3", "global"), (1, 1, "structure", "local")),
            ((5, 0, "structure+last:1", "local"), (1, 0.3, "sinks:9+last:9", "local")),
        ][number % 3]
    ]
    runs = replay(Forward(family_model("llama")), odd(shape), parse_policies(policies))
    assert {str(run.policy): run.error for run in runs if run.error} == {}
    tokens = runs[0].turns[-1].kv_rows
    for run in runs[1:]:
        assert 13 < run.turns[-1].kv_rows <= tokens


def test_without_any_query_the_first_tokens_stay() -> None:
    runs = replay(
        Forward(family_model("llama")),
        odd("assistants say nothing"),
        parse_policies(["te(keep=0.2,protect=none)", "am(keep=0.2,protect=last:2)"]),
    )
    kept = [[t for t, share in enumerate(run.kept.tolist()) if share] for run in runs[1:] if run.kept is not None]
    assert kept[0] == [*range(13), *range(13, 19), *range(43, 48)]
    assert kept[1] == [*range(13), *range(13, 17), 41, 42, *range(43, 46), 66, 67]


def test_sizes_say_what_the_prompt_costs() -> None:
    text = [SegmentSize("prefix", 5), SegmentSize("assistant", 20, repeat_prompt=11)]
    assert parse_policy("te(proxy=repeat)").footprint(text)[0].transient_rows == 31
