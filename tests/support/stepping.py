"""One policy beside `full` on the tiny model, fed turn by turn, with a record of every query that passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from tiny import tiny_model, trajectory
from torch import Tensor

from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.policies.base import Policy
from kvmill.replay.policies.full import Full
from kvmill.replay.policies.registry import parse_policy
from kvmill.replay.segments import turns_of
from kvmill.traces.tokens import TokenTrajectory


def walk(step: Lockstep, turns: int | None = None) -> Lockstep:
    """Feed the trajectory (or its first turns); footprints are checked at every turn."""
    for turn, segments in enumerate(turns_of(step.trajectory)[:turns]):
        for s in segments:
            for chunk in step.chunks(s):
                step.feed(chunk)
                step.look(chunk)
        step.compact(turn)
        step.catch_up()
        step.settle(turn)
    assert "; ".join(branch.error for branch in step.branches if branch.error) == ""
    return step


def start(policy: str | Policy, text: TokenTrajectory | None = None, **kwargs: object) -> Lockstep:
    """Before the first token."""
    chosen = parse_policy(policy) if isinstance(policy, str) else policy
    return Lockstep(Forward(tiny_model()), text or trajectory(**kwargs), [Full(), chosen], seed=7)  # type: ignore[arg-type]


def run(policy: str | Policy, turns: int | None = None, **kwargs: object) -> Lockstep:
    """The whole trajectory (or its first turns) under one policy."""
    return walk(start(policy, **kwargs), turns)  # type: ignore[arg-type]


@dataclass
class Query:
    """One token's weights, averaged over the query heads of a KV head, by logical token; `seen` rows, P included."""

    position: int
    kind: str
    seen: int
    weights: dict[int, float]


@dataclass
class Record:
    """What the policy's state was shown: by (layer, head), every query so far, in float64."""

    queries: dict[tuple[int, int], list[Query]] = field(default_factory=dict)

    def note(
        self, layer: int, queries: Tensor, keys: Tensor, scaling: float, index: Tensor, kind: str, first: int
    ) -> None:
        """Softmax over the visible rows, one query head at a time."""
        heads, length = index.shape[0], queries.shape[1]
        group, rows = queries.shape[0] // heads, keys.shape[1]
        for head in range(heads):
            tokens = [*index[head].tolist(), *range(first, first + length)]
            logits = queries[head * group : (head + 1) * group].double() @ keys[head].double().T * scaling
            for i in range(length):
                seen = rows - length + i + 1
                mean = logits[:, i, :seen].softmax(-1).mean(0).tolist()
                query = Query(first + i, kind, seen, dict(zip(tokens, mean, strict=False)))
                self.queries.setdefault((layer, head), []).append(query)


def watched(step: Lockstep, on_cut: Callable[..., None] | None = None) -> Record:
    """Spy on the second branch's state: its queries, and every eviction as on_cut(tail, allowed, eviction)."""
    state, record = step.branches[1].state, Record()
    observe, begin, fed = state.observe, state.begin, state.fed
    now: list[tuple[str, int]] = []

    def on_begin(chunk):
        now.append((chunk.segment.kind, chunk.first))
        return begin(chunk)

    def on_observe(layer, sight, index):
        assert sight.bias is None
        record.note(layer, sight.queries, sight.keys, sight.scaling, index, *now[-1])
        observe(layer, sight, index)

    state.begin, state.observe, state.fed = on_begin, on_observe, fed  # type: ignore[method-assign]
    if on_cut is not None:
        cut = state.cut  # type: ignore[attr-defined]

        def spied(tail, allowed, cache):
            eviction = cut(tail, allowed, cache)
            on_cut(tail, allowed, eviction)
            return eviction

        state.cut = spied  # type: ignore[attr-defined]
    return record


def tokens_of(step: Lockstep, kind: str) -> list[int]:
    """Logical tokens of the segments of one kind, of what has been fed."""
    kinds = [s.kind for s in step.trajectory.segments for _ in s.ids][: step.logical]
    return [t for t, k in enumerate(kinds) if k == kind]


def equal(a: Tensor, b: Tensor, within: float = 1e-5) -> None:
    """Close in absolute terms."""
    torch.testing.assert_close(a.double(), b.double(), atol=within, rtol=0)
