"""`hybrid`: a sliding window of raw tokens and a pool of important ones (compaction.md 12).

A token that leaves the window gets its final score

    s = base·[token of P] + α·activity + β·[entity] + γ·activity from the model's own words

and the pool keeps the G best of (score, last use, position), larger first: per layer and KV head. Activity is the sum
of the softmax weights that queries gave the token, averaged over the query heads of its KV head: 1 is as much
attention as one query has to give. A token is *used* by a query that gives it at least the even share 1/n of the n
rows it sees; ties of the score go to the one used later, then to the later one.

The three terms spread alike by default. Tokens of the bundled samples (smollm2-135m, keep=0.2) leave the window with
an activity of 0.55 ± 0.69, of which 0.07 ± 0.19 comes from the model's own words, so γ = 4 α gives these as much
spread as all that was read; β = 1 is two thirds of the way from an idle token to the most active twentieth (1.5).

With β = γ = 0 it is H2O's split of a budget into recent tokens and heavy hitters (arXiv 2306.14048), but for scores
that are final.

Budget: `keep` or `budget` as in every running policy, half of it window unless `window` says how much; or both sizes,
`window` and `pool`, fixed. Forced tokens (user messages, protected ones) are kept inside the budget and take pool
space first, then window space. Scores become final at the first eviction that finds a token outside the window.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from .base import KvShape, SegmentSize, Work, usage
from .options import choice, decimal_in, integer, option
from .protect import protect_option
from .running import TRIGGER_SHOW, RunningPolicy, parse_trigger, protected_or_user, watch_work

Entry = tuple[float, int, int]
"""(score, last use, position) of a token: larger is better, and no two are equal."""


@dataclass(frozen=True)
class Hybrid(RunningPolicy):
    """The last `window` tokens raw, and the best of what left them."""

    name = "hybrid"
    summary = "sliding window and a pool of the most important tokens that left it"
    formula = "s = base·[P] + α·activity + β·[entity] + γ·own activity on leaving; pool = top (s, last use, position)"
    source = "compaction.md 12 (window + important pool)"

    trigger: str = option("threshold:1.1", "when the budget is enforced", parse=parse_trigger, show=TRIGGER_SHOW)
    window: int | None = option(
        None, "last tokens kept raw (half the budget, rounded up)", parse=integer(0), show="int ≥ 0"
    )
    pool: int | None = option(
        None, "pool rows: with window the whole budget, instead of keep", parse=integer(0), show="int ≥ 0"
    )
    alpha: Decimal = option(Decimal(1), "weight of the activity", parse=decimal_in("0", "1000000"), show="number ≥ 0")
    beta: Decimal = option(Decimal(1), "weight of the entity flag", parse=decimal_in("0", "1000000"), show="number ≥ 0")
    gamma: Decimal = option(
        Decimal(4), "weight of the model's own activity", parse=decimal_in("0", "1000000"), show="number ≥ 0"
    )
    base: Decimal = option(
        Decimal(100), "head start of P under prefix=drop", parse=decimal_in("0", "1000000"), show="number ≥ 0"
    )
    entities: str = option(
        "rules",
        "who is an entity: names, numbers and the like, or all of the user's and the model's words",
        parse=choice("rules", "role", "rules+role", "none"),
        show="rules | role | rules+role | none",
    )
    protect: str = protect_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prefix == "keep" and self.base != 100:
            raise usage(str(self), "base counts only with prefix=drop, where P is compacted too")
        if self.pool is None:
            return
        if self.window is None or self.window + self.pool == 0:
            raise usage(str(self), "pool needs window: together they are the budget, at least one row")
        if "keep" in self.given or self.budget is not None:
            raise usage(str(self), "window and pool are the budget: leave out keep and budget")

    @property
    def scalars(self) -> int:
        """Activity or final score, last use, and the model's own activity where γ asks for it."""
        return 2 + (self.gamma > 0)

    def forced_in(self, segment: SegmentSize, offset: int) -> int:
        """User tokens whole, protected tokens elsewhere."""
        return protected_or_user(segment, offset, self.protect)

    def budget_of(self, compactable: int) -> int:
        """Window and pool together."""
        if self.window is None or self.pool is None:
            return super().budget_of(compactable)
        return self.window + self.pool

    def window_of(self, compactable: int) -> int:
        """Rows of the window when `compactable` tokens have been seen."""
        budget = self.budget_of(compactable)
        return min(budget, -(-budget // 2) if self.window is None else self.window)

    def work(self, segments: Sequence[SegmentSize], shape: KvShape) -> list[Work]:
        """Watching the attention (`watch_work`), and moving rows. A score per leaving token is not worth counting."""
        return [watch_work(step, shape, self.scalars) for step in self.walk(segments)]


def pool_by_heap(pool: Iterable[Entry], leaving: Iterable[Entry], capacity: int) -> list[Entry]:
    """The pool after `leaving` tokens asked to get in, one at a time: a min-heap, O(log G) each.

    The meaning of the pool, for one layer and KV head, in plain Python. `HybridState` selects the same entries at
    once; a test compares them. Returned in order of position.
    """
    heap = list(pool)
    heapq.heapify(heap)
    for entry in leaving:
        heapq.heappush(heap, entry)
        if len(heap) > capacity:
            heapq.heappop(heap)
    while len(heap) > capacity:
        heapq.heappop(heap)
    return sorted(heap, key=lambda entry: entry[2])
