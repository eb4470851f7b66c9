"""`adaptive` (ours): one pool for the whole history instead of a quota per segment, kept to a memory or a loss target.

Every turn's assistant queries score all tokens beyond P that are still held, with the model's own attention over the
whole cache: s_j = max over later turns of sqrt(mean_i α_ij²). When turn t closes, tokens of turns up to t − delay
compete in one pool per layer and KV head, old survivors included: so tool output that nobody reads makes room for
what is read, an assistant's short notes keep more of themselves than a long log, and the keep ratio of each kind and
turn follows from use. Memory targets: `keep` (a share of the tokens that compete, as for `te`) or `budget` rows beyond
P: then nothing is evicted, and turns wait longer, until rows pass it. Loss target: `loss`, the share of the attention
that later queries give to a turn's tokens which may be lost: the smallest number of tokens that holds the rest stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar, Literal

from .base import KvShape, Policy, SegmentSize, TurnFootprint, TurnSizes, Work, ceil_share, split_turns, usage
from .options import integer, option, ratio
from .protect import forced_count, protect_option


@dataclass(frozen=True)
class Adaptive(Policy):
    """Turns compete when they are `delay` turns old; under `budget` only as far as memory is short."""

    name = "adaptive"
    summary = "one pool over the whole history, to a memory or a loss target"
    formula = "s_j = max over later turns of sqrt(mean_i α_ij²), α over the whole cache; best of one pool per head stay"
    source = "kvmill; the open question of arXiv 2608.00902, section 6"
    footprint_kind: ClassVar[Literal["exact", "bounded"]] = "bounded"

    keep: Decimal = option(Decimal("0.2"), "share of all competing tokens kept", parse=ratio, show="ratio")
    budget: int | None = option(None, "rows beyond P, instead of keep", parse=integer(1), show="int ≥ 1")
    loss: Decimal | None = option(
        None, "share of later queries' attention that may be lost, instead of keep", parse=ratio, show="ratio"
    )
    delay: int = option(1, "least turns to wait before a turn competes", parse=integer(1), show="int ≥ 1")
    protect: str = protect_option()

    def __post_init__(self) -> None:
        # At most one target may be given.
        if sum(("keep" in self.given, self.budget is not None, self.loss is not None)) > 1:
            raise usage(str(self), "give one of keep, budget and loss")

    @property
    def exact(self) -> bool:
        """Only a loss target depends on the text."""
        return self.loss is None

    def forced(self, segment: SegmentSize) -> int:
        """Tokens of a competing segment that stay: user messages whole, protected tokens elsewhere."""
        return segment.tokens if segment.kind == "user" else forced_count(segment, self.protect)

    def allowed(self, tokens: int, user: int, forced: int, recent: int) -> int | None:
        """Rows that may stay in the pool; None under a loss target, where the tokens themselves decide.

        Of `tokens` assistant and tool tokens and `user` others that have ever competed, `forced` are protected;
        `recent` rows wait beside the pool.
        """
        if self.loss is not None:
            return None
        if self.budget is not None:
            return max(forced + user, self.budget - recent)
        return max(forced, ceil_share(self.keep, tokens)) + user

    def as_measured(self, keep_measured: float | None) -> Policy:
        """Under a loss target, the same pool at the mean share that replay kept. UserError where there is none."""
        if self.loss is None:
            return self
        if keep_measured is None:
            raise usage(str(self), "how much it keeps depends on the text: replay it first, then plan from that run")
        keep = Decimal(format(min(1.0, keep_measured), ".4f"))
        return Adaptive(keep=keep, delay=self.delay, protect=self.protect)

    def footprint(self, segments: Sequence[SegmentSize]) -> list[TurnFootprint]:
        """Rows after each turn: exact under a memory target, all of them (an upper bound) under a loss target."""
        turns = split_turns(segments)
        fixed = rows = tokens = user = forced = pool = 0
        out: list[TurnFootprint] = []
        for t, turn in enumerate(turns):
            fixed += sum(s.tokens for s in turn.before if s.kind == "prefix")
            rows += turn.tokens
            peak, evictions = rows, 0
            if t >= self.delay:
                due = competing(turns[t - self.delay])
                pool += sum(s.tokens for s in due)
                tokens += sum(s.tokens for s in due if s.kind != "user")
                user += sum(s.tokens for s in due if s.kind == "user")
                forced += sum(self.forced(s) for s in due if s.kind != "user")
                allowed = self.allowed(tokens, user, forced, rows - fixed - pool)
                stay = pool if allowed is None else min(pool, allowed)
                evictions = int(stay < pool) if allowed is not None else 1
                rows, pool = rows - (pool - stay), stay
            asked = turn.assistant.tokens if t else 0
            out.append(
                TurnFootprint(
                    rows,
                    peak,
                    query_rows_peak=asked,
                    scalar_rows=self.scalars * (rows - fixed),
                    scalar_rows_peak=self.scalars * (peak - fixed),
                    normaliser_rows_peak=asked,
                    compactions=evictions,
                )
            )
        return out

    @property
    def scalars(self) -> int:
        """float32 numbers per row beyond P: its score, and under a loss target the attention it got."""
        return 1 if self.loss is None else 2

    def work(self, segments: Sequence[SegmentSize], shape: KvShape) -> list[Work]:
        """Scoring: the assistant's queries against every row (their normaliser) and once more against those beyond P.

        Then the pool's rows read and written. Under a loss target rows are the upper bound of the footprint.
        """
        fixed = sum(s.tokens for s in segments if s.kind == "prefix")
        out: list[Work] = []
        for step in self.footprint(segments):
            pairs = step.query_rows_peak * (2.0 * step.kv_rows_peak - fixed)
            flops = shape.readers * shape.q_heads * pairs * (2.0 * shape.head_dim + 5.0)
            keys = (2.0 * step.kv_rows_peak - fixed) * shape.row_bytes / 2 if step.query_rows_peak else 0.0
            moved = 2.0 * (step.kv_rows - fixed) * shape.row_bytes if step.compactions else 0.0
            out.append(Work(flops, keys + moved))
        return out


def competing(turn: TurnSizes) -> list[SegmentSize]:
    """A turn's segments beyond P."""
    return [s for s in turn.segments() if s.kind != "prefix"]
