"""Running policies: one budget over everything beyond P, enforced while the trajectory runs.

Budget = max(1, ⌈keep · compactable tokens so far⌉), or `budget` rows. User tokens after P are forced and
count inside the budget. `trigger` says when the rule looks; `Ledger` replays it on lengths alone, and the
engine asks the same rule how many rows may stay.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property

from .base import (
    CHECK_EVERY_TOKENS,
    KvShape,
    Policy,
    SegmentSize,
    TurnFootprint,
    Work,
    ceil_share,
    split_turns,
    usage,
)
from .options import choice, decimal_in, integer, option, ratio, show_value
from .protect import forced_before


def parse_trigger(text: str) -> str:
    """`turn`, `threshold:X` (X ≥ 1) or `tokens:N`, spelled in one way so that equal triggers compare equal."""
    kind, _, value = text.partition(":")
    try:
        if text == "turn":
            return text
        if kind == "threshold":
            return f"threshold:{show_value(decimal_in('1', '1000')(value))}"
        if kind == "tokens":
            return f"tokens:{integer(1)(value)}"
    except ValueError:
        pass
    raise ValueError("turn, threshold:X with X of at least 1, or tokens:N")


TRIGGER_SHOW = "turn | threshold:X | tokens:N"


@dataclass(frozen=True)
class RunningPolicy(Policy):
    """Shared options and arithmetic of the policies with one running budget."""

    keep: Decimal = option(Decimal("0.2"), "share of all compactable tokens so far", parse=ratio, show="ratio")
    budget: int | None = option(None, "rows beyond P, instead of keep", parse=integer(1), show="int ≥ 1")
    prefix: str = option("keep", "drop: P is compacted like the rest", parse=choice("keep", "drop"), show="keep | drop")
    trigger: str = option("turn", "when the budget is enforced", parse=parse_trigger, show=TRIGGER_SHOW)

    def __post_init__(self) -> None:
        if "keep" in self.given and self.budget is not None:
            raise usage(str(self), "give keep or budget, not both")

    def forced_in(self, segment: SegmentSize, offset: int) -> int:
        """Forced tokens among the first `offset` of a segment: user tokens whole, else nothing."""
        return offset if segment.kind == "user" else 0

    def budget_of(self, compactable: int) -> int:
        """Rows beyond P when `compactable` tokens have been seen."""
        return self.budget if self.budget is not None else ceil_share(self.keep, compactable)

    def allowed(self, compactable: int, forced: int) -> int:
        """Rows that may stay of `compactable` tokens, `forced` of which must."""
        return max(self.budget_of(compactable), forced)

    def checks(self, tokens: int) -> list[int]:
        """Offsets of a segment at which the rule looks, its end excluded for `turn`."""
        kind, _, value = self.trigger.partition(":")
        if kind == "turn":
            return []
        if kind == "tokens":
            return list(range(int(value), tokens + 1, int(value)))
        return sorted({*range(CHECK_EVERY_TOKENS, tokens + 1, CHECK_EVERY_TOKENS), tokens} - {0})

    def must_evict(self, rows: int, allowed: int) -> bool:
        """Whether a look with `rows` compactable rows in use evicts down to `allowed`."""
        over, under = self._threshold
        return rows * under > over * allowed

    @cached_property
    def _threshold(self) -> tuple[int, int]:
        """The share of what is allowed that rows must pass, as whole numbers: exact, and asked at every look."""
        kind, _, value = self.trigger.partition(":")
        return Fraction(value).as_integer_ratio() if kind == "threshold" else (1, 1)

    def is_compactable(self, segment: SegmentSize) -> bool:
        """Everything but P, and P too under prefix=drop."""
        return segment.kind != "prefix" or self.prefix == "drop"

    def footprint(self, segments: Sequence[SegmentSize]) -> list[TurnFootprint]:
        """Rows after each turn, from `walk`."""
        return [step.footprint() for step in self.walk(segments)]

    @property
    def scalars(self) -> int:
        """Numbers of 4 bytes (activity and the like) that each compactable row carries per layer and KV head."""
        return 0

    @property
    def biased(self) -> bool:
        """Whether evictions give rows a β; from the first one on every row has one, those of P too."""
        return False

    def walk(self, segments: Sequence[SegmentSize]) -> list[Step]:
        """The ledger of every turn."""
        ledger, out = Ledger(self), []
        for turn in split_turns(segments):
            ledger.open()
            for segment in turn.segments():
                ledger.feed(segment)
            if self.trigger == "turn":
                ledger.look()
            out.append(ledger.close())
        return out

    @abstractmethod
    def work(self, segments: Sequence[SegmentSize], shape: KvShape) -> list[Work]:
        """Arithmetic of the evictions of each turn."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One eviction: rows before and after it, and how many of them were forced."""

    rows: int
    allowed: int
    forced: int


@dataclass(frozen=True, slots=True)
class Step:
    """What the ledger says of one turn; rows are compactable ones, `fixed` those of P that stay.

    Queries of the `watched` tokens saw `pairs` rows in all, those of P included. They came in passes (one per
    generated token, one per chunk of the rest), and over the passes the caches read were `reads` rows long, `own` of
    them compactable.
    """

    fixed: int
    rows: int
    rows_peak: int
    scalar_rows: int
    scalar_rows_peak: int
    cuts: tuple[Cut, ...]
    watched: int
    pairs: float
    reads: int
    own: int

    def footprint(self) -> TurnFootprint:
        """As a TurnFootprint."""
        return TurnFootprint(
            self.fixed + self.rows,
            self.fixed + self.rows_peak,
            scalar_rows=self.scalar_rows,
            scalar_rows_peak=self.scalar_rows_peak,
            compactions=len(self.cuts),
        )


def gather_work(step: Step, shape: KvShape) -> Work:
    """Reading and writing the kept rows of a turn's evictions."""
    return Work(0.0, 2.0 * sum(cut.allowed for cut in step.cuts) * shape.row_bytes)


def watch_work(step: Step, shape: KvShape, scalars: int) -> Work:
    """Attention weights of every query summed per row, as if nothing were fused with the attention itself.

    A second product with the keys and a softmax, 2·D + 5 operations per pair of query and row; the keys read once
    more in every pass, and `scalars` numbers per compactable row read and written. Plus the gathers.
    """
    flops = step.pairs * shape.readers * shape.q_heads * (2.0 * shape.head_dim + 5.0)
    key_bytes = step.reads * shape.row_bytes / 2
    scalar_bytes = 8.0 * scalars * step.own * shape.layers * shape.kv_heads
    return Work(flops, key_bytes + scalar_bytes) + gather_work(step, shape)


class Ledger:
    """Counts rows through a trajectory under a running policy; the engine's tensors must agree with it."""

    def __init__(self, policy: RunningPolicy) -> None:
        self.policy = policy
        self.fixed = self.rows = self.compactable = self.forced = 0
        self.has_bias = False
        self.open()

    @property
    def scalar_rows(self) -> int:
        """4-byte numbers per layer and KV head held now."""
        return self.policy.scalars * self.rows + self.has_bias * (self.fixed + self.rows)

    def open(self) -> None:
        """A turn begins."""
        self.peak, self.scalar_peak = self.rows, self.scalar_rows
        self.cuts: list[Cut] = []
        self.watched, self.pairs, self.reads, self.own = 0, 0.0, 0, 0

    def feed(self, segment: SegmentSize) -> None:
        """A segment is fed, with the looks inside it."""
        if not self.policy.is_compactable(segment):
            self.fixed += segment.tokens
            return
        self.watched += segment.tokens
        at, forced_before = 0, self.forced
        looks = self.policy.checks(segment.tokens)
        grid = range(CHECK_EVERY_TOKENS, segment.tokens, CHECK_EVERY_TOKENS)
        for offset in sorted({*looks, *grid, segment.tokens} - {0}):
            self._feed(offset - at, 1 if segment.kind == "assistant" else offset - at)
            self.forced = forced_before + self.policy.forced_in(segment, offset)
            if offset in looks:
                self.look()
            at = offset

    def _feed(self, tokens: int, per_pass: int) -> None:
        before, passes = self.rows, tokens // per_pass
        self.pairs += tokens * (self.fixed + before + tokens / 2)
        own = passes * before + per_pass * passes * (passes + 1) // 2
        self.own += own
        self.reads += own + passes * self.fixed
        self.rows += tokens
        self.compactable += tokens
        self.peak = max(self.peak, self.rows)
        self.scalar_peak = max(self.scalar_peak, self.scalar_rows)

    def look(self) -> None:
        """The rule looks, and evicts if it must."""
        allowed = self.policy.allowed(self.compactable, self.forced)
        if self.policy.must_evict(self.rows, allowed):
            self.cuts.append(Cut(self.rows, allowed, self.forced))
            self.rows = allowed
            self.has_bias = self.policy.biased
            self.scalar_peak = max(self.scalar_peak, self.scalar_rows)

    def close(self) -> Step:
        """The turn's figures."""
        return Step(
            self.fixed,
            self.rows,
            self.peak,
            self.scalar_rows,
            self.scalar_peak,
            tuple(self.cuts),
            self.watched,
            self.pairs,
            self.reads,
            self.own,
        )


def protected_or_user(segment: SegmentSize, offset: int, protect: str) -> int:
    """Forced tokens of a scoring running policy: user tokens whole, what `protect` says elsewhere."""
    return offset if segment.kind == "user" else forced_before(segment, protect, offset)
