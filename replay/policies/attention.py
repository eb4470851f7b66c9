"""`attention`: evict the tokens with the least attention activity once rows pass the budget.

Every query after P gives each key it sees its softmax weight a_j, averaged over the G query heads of its KV head
(compaction.md 12; H2O, arXiv 2306.14048). The activity of a key is one of

    A_j ← decay·A_j + (1 − decay)·a_j   per query; decay=1 is H2O's plain sum, A_j ← A_j + a_j
    the sum over the present and the previous block of `window` queries: of the last `window` to 2·`window` ones

Two blocks instead of a sliding sum cost one number more per row, not `window` ones. `locality=distance` counts only
weight across at least `distance` tokens; `normalised` divides by what A_j would be had every query that could see j
given it all its attention, so that young tokens are not punished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from .base import KvShape, SegmentSize, Work, usage
from .options import choice, decimal_in, integer, option
from .protect import protect_option
from .running import TRIGGER_SHOW, RunningPolicy, parse_trigger, protected_or_user, watch_work


@dataclass(frozen=True)
class Attention(RunningPolicy):
    """Incremental attention-score eviction at 110 % of the budget."""

    name = "attention"
    summary = "attention-score eviction: drop the least active tokens"
    formula = "A_j ← decay·A_j + (1 − decay)·mean_g a_gj per query; evict the smallest A"
    source = "compaction.md 12; H2O, arXiv 2306.14048"

    trigger: str = option("threshold:1.1", "when the budget is enforced", parse=parse_trigger, show=TRIGGER_SHOW)
    decay: Decimal = option(Decimal("0.99"), "per query; 1 is a plain sum", parse=decimal_in("0", "1"), show="0 … 1")
    window: int | None = option(
        None, "instead of decay: sum over the last window to 2·window queries", parse=integer(1), show="int ≥ 1"
    )
    locality: str = option(
        "none",
        "correction for near tokens",
        parse=choice("none", "distance", "normalised"),
        show="none | distance | normalised",
    )
    distance: int = option(16, "least distance counted by locality=distance", parse=integer(1), show="int ≥ 1")
    protect: str = protect_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is not None and "decay" in self.given:
            raise usage(str(self), "give decay or window, not both")
        if self.locality != "distance" and self.distance != 16:
            raise usage(str(self), "distance counts only with locality=distance")

    @property
    def scalars(self) -> int:
        """The activity; with `window` the sums of two blocks."""
        return 1 if self.window is None else 2

    def forced_in(self, segment: SegmentSize, offset: int) -> int:
        """User tokens whole, protected tokens elsewhere."""
        return protected_or_user(segment, offset, self.protect)

    def work(self, segments: Sequence[SegmentSize], shape: KvShape) -> list[Work]:
        """Watching the attention (`watch_work`), and moving rows."""
        return [watch_work(step, shape, self.scalars) for step in self.walk(segments)]
