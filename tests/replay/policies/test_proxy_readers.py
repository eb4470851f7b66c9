"""Layers that share a cache: the queries of every reader score it. States are fed by hand."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from tiny import segment
from torch import Tensor

from kvmill.replay.cache import KvCache
from kvmill.replay.policies.base import KvShape
from kvmill.replay.policies.captures import Key
from kvmill.replay.policies.proxy_state import ProxyState
from kvmill.replay.policies.registry import parse_policy
from kvmill.replay.policies.sight import Sight
from kvmill.replay.policies.state_table import state_for
from kvmill.replay.policies.states import Chunk, Scene
from kvmill.replay.segments import size_of
from kvmill.traces.tokens import TokenSegment

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
                        state.observe(slot, Sight(queries, held, 0.5), torch.zeros(2, 0))
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
