"""Merged rows on the tiny model, member by member in float64 loops, and what merging conserves."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping import equal, run, start, walk, watched
from torch import Tensor

from kvmill.kernels.reference import decode_attention
from kvmill.replay.cache import KvCache
from kvmill.replay.policies import merge_state
from kvmill.replay.policies.base import KvShape
from kvmill.replay.policies.merge import Merge
from kvmill.replay.policies.merge_state import MergeState, first_centres, first_greatest
from kvmill.replay.policies.registry import parse_policy
from kvmill.replay.policies.states import Chunk, Eviction, Scene
from kvmill.traces.tokens import TokenSegment

SPECS = [
    "merge(keep=0.3)",
    "merge(keep=0.2,mass_bias=true)",
    "merge(keep=0.3,representative=medoid)",
    "merge(keep=0.3,space=post,prefix=drop)",
    "merge(budget=60,space=post,representative=medoid,layers=1,protect=none,trigger=threshold:1.1)",
]


def turn_by_hand(key: list[float], offset: float, frequencies: list[float]) -> list[float]:
    """Half-split rotary embedding of one key, dimension by dimension."""
    half, out = len(frequencies), list(key)
    for i, frequency in enumerate(frequencies):
        a, b, angle = key[i], key[half + i], offset * frequency
        out[i] = a * math.cos(angle) - b * math.sin(angle)
        out[half + i] = b * math.cos(angle) + a * math.sin(angle)
    return out


def mean(vectors: list[list[float]], weights: list[float]) -> list[float]:
    total = sum(weights)
    return [sum(w * v[d] for w, v in zip(weights, vectors, strict=True)) / total for d in range(len(vectors[0]))]


class ByHand:
    """Checks each eviction against the cache and the numbers just before it."""

    def __init__(self, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.step = start(spec, long_tool=90)
        state = self.step.branches[1].state
        assert isinstance(state, MergeState)
        self.state, self.rule = state, state.rule
        self.labels: list[list[list[int]]] = []
        self.merged = self.cuts = 0
        cluster, cut = merge_state.k_means, state.cut

        def noted(*args, **kwargs):
            labels = cluster(*args, **kwargs)
            self.labels.append(labels.tolist())
            return labels

        def checked(tail, allowed, cache):
            self.labels.clear()
            before = [[part.clone() for part in cache.view(layer)] for layer in range(3)], state.held.clone()
            eviction = cut(tail, allowed, cache)
            self.check(tail, allowed, *before, eviction)
            return eviction

        monkeypatch.setattr(merge_state, "k_means", noted)
        state.cut = checked  # type: ignore[method-assign]

    def check(self, tail: Tensor, allowed: int, old, held: Tensor, eviction: Eviction) -> None:
        turning = self.state.scene.frequencies
        frequencies = [] if turning is None else turning.double().tolist()
        self.cuts += 1
        labels = iter(self.labels)
        assert eviction.keys is not None
        assert eviction.values is not None
        for layer in range(3):
            merges = self.rule.layers == "all" or layer == 1
            room = allowed - int(self.state.is_forced[tail[layer, 0].long()].sum())
            of_layer = next(labels) if merges and room else None
            for head in range(2):
                keys, values = (part[head, self.state.fixed :].double().tolist() for part in old[layer])
                activity, count, position = held[:, layer, head].double().tolist()
                forced = self.state.is_forced[tail[layer, head].long()].tolist()
                free = [i for i, f in enumerate(forced) if not f]
                # (position, row it is named after, key, value, activity, count)
                want = [(position[i], i, keys[i], values[i], activity[i], 1.0) for i, f in enumerate(forced) if f]
                if of_layer is None:
                    best = sorted(free, key=lambda i: (-activity[i], i))[:room]
                    want += [(position[i], i, keys[i], values[i], activity[i], count[i]) for i in best]
                else:
                    assert sorted(set(of_layer[head])) == list(range(room))
                    for c in range(room):
                        members = [i for i, label in zip(free, of_layer[head], strict=True) if label == c]
                        want.append(self._row(members, keys, values, activity, count, position, frequencies))
                        self.merged += len(members) > 1
                want.sort(key=lambda row: row[:2])
                got = self.state._next[:, layer, head]
                columns = list(zip(*want, strict=True))
                assert (eviction.index[layer, head] - eviction.start).tolist() == list(columns[1])
                equal(got[2], torch.tensor(columns[0]), 1e-3)
                equal(eviction.keys[layer, head], torch.tensor(columns[2]), 5e-4)  # positions are float32
                equal(eviction.values[layer, head], torch.tensor(columns[3]), 1e-5)
                equal(got[0], torch.tensor(columns[4]), 1e-4)
                assert got[1].tolist() == list(columns[5])
                if self.rule.mass_bias:
                    assert eviction.bias is not None
                    equal(eviction.bias[layer, head], torch.tensor(columns[5]).log(), 1e-6)
                assert all(a <= b for a, b in pairwise(got[2].tolist()))
        assert (eviction.bias is None) == (not self.rule.mass_bias)

    def _row(self, members, keys, values, activity, count, position, frequencies):
        named = max(members, key=lambda i: (activity[i], -i))
        acts = [activity[i] for i in members]
        value = mean([values[i] for i in members], acts)
        pre = self.rule.space == "pre"
        points = [turn_by_hand(keys[i], -position[i], frequencies) if pre else keys[i] for i in members]
        centre = mean(points, [count[i] for i in members])
        where = mean([[position[i]] for i in members], acts)[0]
        if self.rule.representative == "medoid":
            apart = {i: math.dist(p, centre) ** 2 for i, p in zip(members, points, strict=True)}
            least = min(apart.values()) * 1.001 + 1e-9 * math.hypot(*centre) ** 2
            near = [i for i in members if apart[i] <= least]
            medoid = max(near, key=lambda i: (activity[i], -i))
            key, where = keys[medoid], position[medoid]
        else:
            key = turn_by_hand(centre, where, frequencies) if pre else centre
        return where, named, key, value, sum(acts), sum(count[i] for i in members)


@pytest.mark.parametrize("spec", SPECS)
def test_every_merged_row_written_out(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = ByHand(spec, monkeypatch)
    walk(by_hand.step)
    assert by_hand.cuts >= 3
    assert by_hand.merged >= 20


@pytest.mark.parametrize("spec", ["merge(keep=0.2)", "merge(keep=0.2,representative=medoid,mass_bias=true)"])
def test_tokens_and_activity_are_conserved_through_every_merger(spec: str) -> None:
    step = run(spec)
    state, branch = step.branches[1].state, step.branches[1]
    assert isinstance(state, MergeState)
    activity, count, position = state.held
    assert count.sum(-1).tolist() == [[state.compactable] * 2] * 3
    assert float(count.max()) > 4
    assert bool((position >= state.fixed).all() and (position < step.logical).all())
    forced = state.is_forced[branch.index[:, :, state.fixed :].long()]
    assert bool((count[forced] == 1).all())
    if state.rule.mass_bias:
        bias = branch.lane.cache.bias(2)
        assert bias is not None
        equal(bias[:, state.fixed :], count[2].log())
        assert not bool(bias[:, : state.fixed].any())
    else:
        assert branch.lane.cache.bias(0) is None
    assert float(activity.min()) >= 0


def test_activity_is_the_plain_sum_over_queries() -> None:
    step = start("merge(keep=1)", turns=2)
    record = watched(step)
    walk(step)
    state = step.branches[1].state
    assert isinstance(state, MergeState)
    for (layer, head), queries in record.queries.items():
        want = [sum(q.weights.get(t, 0.0) for q in queries) for t in range(state.fixed, step.logical)]
        equal(state.held[0, layer, head], torch.tensor(want), 1e-4)


@settings(max_examples=60)
@given(st.integers(1, 9), st.data(), st.integers(0, 2**31))
def test_first_centres_are_the_rows_least_like_an_earlier_one(count: int, data: st.DataObject, seed: int) -> None:
    clusters = data.draw(st.integers(0, count))
    # Small integers: distances are exact, and ties common.
    points = torch.randint(0, 3, (2, count, 2), generator=torch.Generator().manual_seed(seed)).float()
    found = first_centres(points, clusters)
    for head in range(2):
        rows = points[head].tolist()
        least = [min((math.dist(rows[i], rows[j]) ** 2 for j in range(i)), default=math.inf) for i in range(count)]
        want = sorted(sorted(range(count), key=lambda i: (-round(least[i], 6), i))[:clusters])
        assert found[head].tolist() == want


def merged_cache(spec: str, keys: Tensor, values: Tensor, positions: list[float]) -> tuple[KvCache, MergeState]:
    """One layer of given rows, cut by the policy at once; every row as active as the next."""
    policy = parse_policy(spec)
    heads, rows, dim = keys.shape
    shape = KvShape(1, heads, heads, dim, 4)
    frequencies = torch.tensor([1.0 / 100 ** (i / (dim // 2)) for i in range(dim // 2)])
    state = MergeState(policy, Scene(shape, rows, frequencies=frequencies))
    chunk = Chunk(TokenSegment("tool", 0, (0,) * rows), 0, rows, 0)
    state.begin(chunk)
    state.fed(chunk)
    state.held[0] = 1.0
    state.held[2] = torch.tensor(positions)
    cache = KvCache(shape, torch.float32, torch.device("cpu"))
    cache.append(0, keys, values)
    eviction = state.look(torch.arange(rows).expand(1, heads, rows), cache)
    assert eviction is not None
    cache.evict(eviction.start, eviction.index, eviction.keys, eviction.values, eviction.bias)
    state.evicted(eviction)
    return cache, state


@pytest.mark.parametrize("copies", [2, 3, 5])
def test_the_bias_keeps_the_mass_of_equal_keys_exactly(copies: int) -> None:
    """Rows with one key: c of them and one row with β = ln c and their mean value answer every query alike."""
    torch.manual_seed(copies)
    distinct, dim = 6, 8
    keys = torch.randn(2, distinct, dim).repeat_interleave(copies, 1)
    values = torch.randn(2, distinct * copies, dim)
    cache, state = merged_cache(
        f"merge(space=post,mass_bias=true,budget={distinct})", keys, values, list(range(distinct * copies))
    )
    assert state.held[1].tolist() == [[[copies] * distinct] * 2]
    queries = torch.randn(2, 4, dim)
    before, _, _ = decode_attention(queries, keys, values, 0.3)
    after, _, _ = decode_attention(queries, *cache.view(0), 0.3, bias=cache.bias(0))
    equal(after, before)
    without, _, _ = decode_attention(torch.cat([queries, queries]), *cache.view(0), 0.3)
    assert without.shape == (4, 4, dim)


def test_keys_that_differ_only_by_rotation_meet_at_their_mean_position() -> None:
    """space=pre sees that they are one key; at the mean position it is that key turned there."""
    torch.manual_seed(1)
    dim, places = 8, [3.0, 10.0, 40.0, 41.0]
    frequencies = [1.0 / 100 ** (i / 4) for i in range(4)]
    plain = [torch.randn(dim).tolist(), (10 * torch.randn(dim)).tolist()]
    of = [0, 1, 0, 1]
    keys = torch.tensor([[turn_by_hand(plain[of[i]], places[i], frequencies) for i in range(4)]])
    cache, state = merged_cache("merge(budget=2)", keys, torch.randn(1, 4, dim), places)
    assert state.held[2, 0, 0].tolist() == [21.5, 25.5]
    want = [turn_by_hand(plain[0], 21.5, frequencies), turn_by_hand(plain[1], 25.5, frequencies)]
    equal(cache.view(0)[0][0], torch.tensor(want), 1e-4)


def test_layers_are_written_in_one_way() -> None:
    assert parse_policy("merge(layers=3)") == parse_policy("merge(layers=3-3)")
    policy = parse_policy("merge(layers=2-9)")
    assert isinstance(policy, Merge)
    assert list(policy.merging(4)) == [2, 3]
    assert list(parse_policy("merge(layers=7-9)").merging(4)) == []  # type: ignore[attr-defined]


@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 2**16))
def test_the_first_greatest_member_is_the_first_maximum_of_a_row_of_the_whole_matrix(
    count: int, clusters: int, seed: int
) -> None:
    """Among equals the first; a cluster without members names row 0."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-1, 4, (2, count), generator=generator).float()
    labels = torch.randint(0, clusters, (2, count), generator=generator)
    member = labels.unsqueeze(1) == torch.arange(clusters)[:, None]
    want = torch.where(member, x.unsqueeze(1), -2.0).argmax(-1)
    assert torch.equal(first_greatest(x, labels, clusters), want)
