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
from typing import Any, NamedTuple

from ..replay.policies.base import Policy, SegmentSize, TurnFootprint, TurnSizes, Work, split_turns
from .blocks import blocks_for
from .cost import CostModel
from .deployment import BLOCK_TOKENS, Deployment

# What compaction does to a fleet: rows it does not hold, caches that cannot be found again or rebuilt as they were,
# seconds it takes, turns that agents take more.
EFFECTS = ("held", "prefix", "seconds", "turns")


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """One session of a workload: segment lengths and the wait after each turn.

    The first `shared` tokens of P are the same in every session of `group`.
    `start_s` is the recorded start in an open workload. The first request is turn `begin`: what comes before it is
    history that the session starts with.
    """

    segments: tuple[SegmentSize, ...]
    waits: tuple[float, ...]
    shared: int = 0
    start_s: float | None = None
    begin: int = 0
    group: int = 0

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
    compaction are charged. `divisible`: the rows are those of the session's text, one for each token, so that an engine
    finds by hash whatever is left of them, in multiples of `coarse` tokens. `need` and `need_gone` are the blocks to
    hold before the prefill may begin, `extra` the blocks beside K and V (constant state, captured queries), `size` the
    most the turn can come to hold, `wait` the tool wait after it.
    """

    shared: int
    group: int
    begin: int
    divisible: bool
    coarse: int
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


def compile_session(
    spec: SessionSpec,
    policy: Policy,
    deployment: Deployment,
    cost: CostModel,
    without: frozenset[str] = frozenset(),
    pace: float = 1.0,
) -> SessionPlan | None:
    """The session under `policy`, less the effects in `without`; None when not even its first turn fits the window.

    Compactions take `pace` times what the cost model says.
    """
    turns = split_turns(spec.segments)
    count = turns_in_window(turns, deployment.geometry.max_positions)
    if count <= spec.begin:
        return None
    turns = turns[:count]
    segments = [segment for turn in turns for segment in turn.segments()]
    shape = deployment.geometry.kv_shape(deployment.kv_dtype)
    prints = policy.footprint(segments)
    pays = [pace * seconds for seconds in compaction_seconds(prints, policy.work(segments, shape), cost)]
    out = [turn.assistant.tokens for turn in turns]
    beside = [blocks_for(deployment.rows_of(step.aux_bytes_peak(shape))) for step in prints]
    prefills, divisible = _prefills(turns, prints, pays)
    if without:
        prefills, divisible = _switched_off(prefills, divisible, turns, without)
        if "held" in without:
            beside = [0] * len(beside)
    shared = _shared_tokens(spec, policy, prefills[0].feed)
    state = deployment.state_blocks()
    columns: dict[str, Any] = {name: [getattr(step, name) for step in prefills] for name in _Prefill._fields}
    return SessionPlan(
        shared=shared,
        group=spec.group,
        begin=spec.begin,
        divisible=divisible and not any(beside) and (not state or deployment.coarse_tokens > 0),
        coarse=deployment.coarse_tokens,
        out=out,
        wait=[float(w) for w in spec.waits[:count]],
        **columns,
        **_blocks(prefills, out, beside, state, shared),
    )


class _Prefill(NamedTuple):
    """One turn's prefill, in the terms of `SessionPlan`."""

    feed: int
    base: int
    peak: int
    after: int
    pay: float
    raw: int
    top: int
    repay: float


def _prefills(
    turns: Sequence[TurnSizes], prints: Sequence[TurnFootprint], pays: Sequence[float]
) -> tuple[list[_Prefill], bool]:
    """Every turn's prefill: what closes the turn before is fed, compacted, and followed by what is new.

    A session whose cache is gone is fed its raw tokens and compacted again, turn by turn; under a text-level policy
    it is fed what is left of the text. And whether there is a row for each token of the text all the time.
    """
    text_level = any(step.reprefill_tokens for step in prints)
    logical = first = sum(s.tokens for s in turns[0].before)
    out = [_Prefill(first, 0, first, first, 0.0, first, first, 0.0)]
    whole = True
    for j, (closed, step, pay) in enumerate(zip(turns[:-1], prints, pays, strict=False), start=1):
        last = out[-1]
        before = sum(s.tokens for s in turns[j].before)
        tool = closed.tool.tokens if closed.tool else 0
        logical += closed.assistant.tokens + tool + before
        feed, base, peak = _fed(step, last.after + closed.assistant.tokens, tool, before)
        after = step.kv_rows + before
        gone = (after, after, pay) if text_level else (logical, max(last.top, peak), last.repay + pay)
        whole = whole and (after == logical == peak)
        out.append(_Prefill(feed, base, peak, after, pay, *gone))
    return out, text_level or whole


def _switched_off(
    prefills: Sequence[_Prefill], divisible: bool, turns: Sequence[TurnSizes], without: frozenset[str]
) -> tuple[list[_Prefill], bool]:
    """The same without some effects of compaction, to say what each is worth.

    `held`: every row stays. `prefix`: what is kept can be found, or prefilled again, as it is: nothing is fed twice
    because the text changed, and a lost cache is rebuilt from the kept rows alone. `seconds`: compacting takes no time.
    """
    out: list[_Prefill] = []
    logical = 0
    for j, policys in enumerate(prefills):
        step, new = policys, sum(s.tokens for s in turns[j].before)
        logical += new
        if j:
            closed = turns[j - 1]
            tool = closed.tool.tokens if closed.tool else 0
            logical += closed.assistant.tokens + tool
            new += tool + 1
        if "prefix" in without:
            feed = min(step.feed, new)
            step = step._replace(feed=feed, base=max(0, step.after - feed), raw=step.after, top=step.peak, repay=0.0)
        if "held" in without:
            feed = max(step.feed, new) if j else step.feed  # a policy that cuts the text may feed less than what is new
            step = step._replace(feed=feed, base=logical - feed, peak=logical, after=logical, raw=logical, top=logical)
        if "seconds" in without:
            step = step._replace(pay=0.0, repay=0.0)
        out.append(step)
    return out, divisible or "prefix" in without


def compaction_seconds(prints: Sequence[TurnFootprint], works: Sequence[Work], cost: CostModel) -> list[float]:
    """Seconds of what the close of each turn sets off: its compactions, and copies that are fed to score."""
    return [cost.compaction_s(work) + _copy_s(step, cost) for work, step in zip(works, prints, strict=True)]


def _copy_s(step: TurnFootprint, cost: CostModel) -> float:
    """Seconds of a prefill that is made only to score (a repeat copy), over everything that is held then."""
    tokens = step.copied_tokens
    if not tokens:
        return 0.0
    return cost.step_s(0, 0.0, 1, tokens, tokens * (step.kv_rows_peak + tokens / 2), 0)


def _fed(step: TurnFootprint, spoken: int, tool: int, before: int) -> tuple[int, int, int]:
    """(tokens fed, rows under them, most rows meanwhile) when `spoken` rows are held once the assistant has spoken.

    A text-level policy cuts the text before anything is fed: the rows of the unchanged beginning stay, and the peak
    inside the turn is what was held before or what is held after. Otherwise the last sampled token is fed with what
    is new, and the policy's own peak bounds the rows.
    """
    rows = step.kv_rows + before
    if step.reprefill_tokens:
        return step.reprefill_tokens + before, step.kv_rows - step.reprefill_tokens, rows
    held, new = spoken - 1, tool + before + 1
    peak = max(rows, min(held + new, max(held, step.kv_rows_peak + before))) + step.transient_rows
    return new, held, peak


def _shared_tokens(spec: SessionSpec, policy: Policy, first: int) -> int:
    """Whole blocks only, and one token of a prompt at least is computed; nothing is shared once P itself is dropped."""
    kept = getattr(policy, "prefix", "keep") == "keep"
    return min(spec.shared, first - 1) // BLOCK_TOKENS * BLOCK_TOKENS if kept else 0


def _blocks(
    prefills: Sequence[_Prefill], out: Sequence[int], beside: Sequence[int], state: int, shared: int
) -> dict[str, Any]:
    """The blocks of `SessionPlan`, shared prefix left out; `beside` are each turn's captured queries and activities."""
    plan: dict[str, list[int]] = {"extra": [], "need": [], "need_gone": [], "size": []}
    for j, step in enumerate(prefills):
        extra, then = beside[j] + state, beside[max(0, j - 1)] + state  # until the compaction frees the last turn's
        held = blocks_for(step.after - shared) + extra
        gone = max(blocks_for(step.top - shared) + then, held)
        plan["extra"].append(extra)
        plan["need"].append(max(blocks_for(step.peak - shared) + then, held))
        plan["need_gone"].append(gone)
        plan["size"].append(max(gone, blocks_for(step.after + out[j] - shared) + extra))
    return plan
