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

    def allowed(self, compactable: int, forced: int) -> int:
        """Rows that may stay of `compactable` tokens, `forced` of which must."""
        budget = self.budget if self.budget is not None else ceil_share(self.keep, compactable)
        return max(budget, forced)

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
        kind, _, value = self.trigger.partition(":")
        if kind == "threshold":
            return Fraction(rows) > Fraction(value) * allowed
        return rows > allowed

    def is_compactable(self, segment: SegmentSize) -> bool:
        """Everything but P, and P too under prefix=drop."""
        return segment.kind != "prefix" or self.prefix == "drop"

    def footprint(self, segments: Sequence[SegmentSize]) -> list[TurnFootprint]:
        """Rows after each turn, from `walk`."""
        return [step.footprint(self.holds_activity) for step in self.walk(segments)]

    @property
    def holds_activity(self) -> bool:
        """Whether each compactable row carries a float32 activity per layer and KV head."""
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


def gather_work(step: Step, shape: KvShape) -> Work:
    """Reading and writing the kept rows of a turn's evictions."""
    return Work(0.0, 2.0 * step.gathered_rows * shape.row_bytes)


@dataclass(frozen=True, slots=True)
class Step:
    """What the ledger says of one turn. `scored` sums chunk tokens × rows they can see."""

    fixed: int
    rows: int
    rows_peak: int
    evictions: int
    evicted: int
    gathered_rows: int
    scored: float
    tokens: int

    def footprint(self, activity: bool) -> TurnFootprint:
        """As a TurnFootprint."""
        return TurnFootprint(
            self.fixed + self.rows,
            self.fixed + self.rows_peak,
            scalar_rows=self.rows if activity else 0,
            scalar_rows_peak=self.rows_peak if activity else 0,
            compactions=self.evictions,
        )


class Ledger:
    """Counts rows through a trajectory under a running policy; the engine's tensors must agree with it."""

    def __init__(self, policy: RunningPolicy) -> None:
        self.policy = policy
        self.fixed = self.rows = self.compactable = self.forced = 0
        self.open()

    def open(self) -> None:
        """A turn begins."""
        self.peak, self.evictions, self.evicted, self.gathered, self.tokens = self.rows, 0, 0, 0, 0
        self.scored = 0.0

    def feed(self, segment: SegmentSize) -> None:
        """A segment is fed, with the looks inside it."""
        self.tokens += segment.tokens
        if not self.policy.is_compactable(segment):
            self.fixed += segment.tokens
            return
        at, forced_before = 0, self.forced
        looks = self.policy.checks(segment.tokens)
        for offset in sorted({*looks, segment.tokens}):
            fed = offset - at
            self.scored += fed * (self.rows + fed / 2)
            self.rows += fed
            self.compactable += fed
            self.forced = forced_before + self.policy.forced_in(segment, offset)
            self.peak = max(self.peak, self.rows)
            if offset in looks:
                self.look()
            at = offset

    def look(self) -> None:
        """The rule looks, and evicts if it must."""
        allowed = self.policy.allowed(self.compactable, self.forced)
        if self.policy.must_evict(self.rows, allowed):
            self.evictions += 1
            self.evicted += self.rows - allowed
            self.gathered += allowed
            self.rows = allowed

    def close(self) -> Step:
        """The turn's figures."""
        return Step(
            self.fixed, self.rows, self.peak, self.evictions, self.evicted, self.gathered, self.scored, self.tokens
        )


def protected_or_user(segment: SegmentSize, offset: int, protect: str) -> int:
    """Forced tokens of a scoring running policy: user tokens whole, what `protect` says elsewhere."""
    return offset if segment.kind == "user" else forced_before(segment, protect, offset)
