"""`SessionPlan`: one agent session under one policy, turned into the numbers a replica needs, once per plan.

Turn j of a session is one request: it feeds what is new (the tool response of turn j − 1, a user message), then
turn j − 1 closes and the policy compacts (before the first decode step), then the model decodes the assistant's
text. Rows follow the policy's own footprint. Two limits of the arithmetic, both on the safe side: rows grow by one
per decoded token even where a policy would evict inside the decode, and what a policy holds beside K and V (captured
queries, activities) is reserved for the whole decode and kept until the compaction that frees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..replay.policies.base import Policy, SegmentSize, TurnSizes, split_turns
from .blocks import blocks_for
from .cost import BLOCK_TOKENS, CostModel, Deployment


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """One session of a workload: segment lengths and the wait after each turn. `shared` tokens of P are everybody's.

    `start_s` is the recorded start in an open workload. The first request is turn `begin`: what comes before it is
    history that the session starts with.
    """

    segments: tuple[SegmentSize, ...]
    waits: tuple[float, ...]
    shared: int = 0
    start_s: float | None = None
    begin: int = 0

    def scaled(self, factor: float) -> SessionSpec:
        """With all segments but the prefix `factor` times as long, a token at least."""
        return replace(self, segments=tuple(s if s.kind == "prefix" else _scaled(s, factor) for s in self.segments))


def _scaled(segment: SegmentSize, factor: float) -> SegmentSize:
    tokens = max(1, round(segment.tokens * factor))
    return replace(segment, tokens=tokens, protected=min(segment.protected, tokens), protected_at=None)


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """Per turn j: `out` tokens decoded; `feed` tokens prefilled on `base` rows up to `peak` rows, `after` rows when
    the decode begins, `pay` seconds of compaction.

    When the session's cache is gone, `raw` tokens are prefilled instead, up to `top` rows, and `repay` seconds of
    compaction are charged. `need` and `need_gone` are the blocks to hold before the prefill may begin, `extra` the
    blocks beside K and V (constant state, captured queries), `size` the most the turn can come to hold, `wait` the tool
    wait after it.
    """

    shared: int
    begin: int
    out: list[int]
    feed: list[int]
    base: list[int]
    peak: list[int]
    after: list[int]
    pay: list[float]
    raw: list[int]
    top: list[int]
    repay: list[float]
    extra: list[int]
    need: list[int]
    need_gone: list[int]
    size: list[int]
    wait: list[float]

    @property
    def turns(self) -> int:
        """How many turns fit the window."""
        return len(self.out)

    def rows(self, turn: int) -> int:
        """Rows held when turn `turn` has been decoded (its last token is fed with the next turn)."""
        return self.after[turn] + self.out[turn] - 1

    def slowed(self, factor: float) -> SessionPlan:
        """The same on a machine whose compactions take `factor` times as long."""
        return replace(self, pay=[s * factor for s in self.pay], repay=[s * factor for s in self.repay])

    def blocks(self, turn: int, rows: int) -> int:
        """Blocks of the session itself when it decodes turn `turn` on `rows` rows, the shared prefix left out."""
        return blocks_for(rows - self.shared) + self.extra[turn]


def turns_in_window(turns: Sequence[TurnSizes], window: int) -> int:
    """How many turns end within `window` logical tokens: compaction does not lower the position counter."""
    total = 0
    for count, turn in enumerate(turns):
        total += sum(s.tokens for s in turn.before) + turn.assistant.tokens
        if total > window:
            return count
        total += turn.tool.tokens if turn.tool else 0
    return len(turns)


def compile_session(spec: SessionSpec, policy: Policy, deployment: Deployment, cost: CostModel) -> SessionPlan | None:
    """The session under `policy`; None when not even its first turn fits the model's window."""
    turns = split_turns(spec.segments)
    count = turns_in_window(turns, deployment.geometry.max_positions)
    if count <= spec.begin:
        return None
    turns = turns[:count]
    segments = [segment for turn in turns for segment in turn.segments()]
    shape = deployment.geometry.kv_shape(deployment.kv_dtype)
    prints = policy.footprint(segments)
    pays = [cost.compaction_s(work) for work in policy.work(segments, shape)]
    text_level = any(step.reprefill_tokens for step in prints)
    first = sum(s.tokens for s in turns[0].before)
    # Whole blocks only, and at least one token of a prompt is computed; nothing is shared once P itself is dropped.
    kept_prefix = getattr(policy, "prefix", "keep") == "keep"
    shared = min(spec.shared, first - 1) // BLOCK_TOKENS * BLOCK_TOKENS if kept_prefix else 0
    state = deployment.state_blocks()

    out = [turn.assistant.tokens for turn in turns]
    aux = [blocks_for(deployment.rows_of(step.aux_bytes_peak(shape))) for step in prints]
    feed, base, peak, after, raw, top = [first], [0], [first], [first], [first], [first]
    pay, repay = [0.0], [0.0]
    logical = first
    for j in range(1, count):
        closed, step = turns[j - 1], prints[j - 1]
        before = sum(s.tokens for s in turns[j].before)
        tool = closed.tool.tokens if closed.tool else 0
        start = after[-1] + out[j - 1] - 1
        logical += out[j - 1] + tool + before
        rows = step.kv_rows + before
        if step.reprefill_tokens:
            new, highest, start = step.reprefill_tokens + before, rows, step.kv_rows - step.reprefill_tokens
        else:
            new = tool + before + 1
            highest = max(rows, min(start + new, max(start, step.kv_rows_peak + before))) + step.transient_rows
        feed.append(new)
        base.append(start)
        peak.append(highest)
        after.append(rows)
        pay.append(pays[j - 1])
        raw.append(rows if text_level else logical)
        top.append(rows if text_level else max(top[-1], highest))
        repay.append(pays[j - 1] if text_level else repay[-1] + pays[j - 1])

    def own(rows: int) -> int:
        return blocks_for(rows - shared)

    held = [own(after[j]) + aux[j] for j in range(count)]
    need = [max(own(peak[j]) + aux[max(0, j - 1)], held[j]) + state for j in range(count)]
    gone = [max(own(top[j]) + aux[max(0, j - 1)], held[j]) + state for j in range(count)]
    final = [own(after[j] + out[j]) + aux[j] + state for j in range(count)]
    return SessionPlan(
        shared=shared,
        begin=spec.begin,
        out=out,
        feed=feed,
        base=base,
        peak=peak,
        after=after,
        pay=pay,
        raw=raw,
        top=top,
        repay=repay,
        extra=[blocks + state for blocks in aux],
        need=need,
        need_gone=gone,
        size=[max(gone[j], final[j]) for j in range(count)],
        wait=[float(w) for w in spec.waits[:count]],
    )
