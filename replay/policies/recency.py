"""`sink_window` and `random`: the baselines that do not score.

`sink_window` is StreamingLLM's rule (arXiv 2309.17453): P, or its first `sinks` tokens, and the most recent tokens,
at their original positions. `renumber=true` is the paper's own form, positions inside the cache: after every eviction
the kept keys are turned so that row r sits at position r, and the next token follows the last row. Keys are stored
turned, so each eviction rounds them once more in the cache's dtype. `random` keeps the tokens with the largest of one
fixed random score per layer, KV head and token, so that what is evicted stays evicted and sets are nested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .base import KvShape, SegmentSize, Work, usage
from .options import integer, option, true_false
from .protect import protect_option
from .running import RunningPolicy, Step, gather_work, protected_or_user


@dataclass(frozen=True)
class SinkWindow(RunningPolicy):
    """P and the last tokens; user tokens whole, inside the budget."""

    name = "sink_window"
    summary = "attention sinks and a sliding window, at original positions or renumbered"
    formula = "kept = P ∪ user ∪ last tokens, budget rows beyond P; renumber: row r at position r"
    source = "StreamingLLM, arXiv 2309.17453 (renumber=true is the paper's rule)"

    sinks: int = option(4, "first tokens of P kept under prefix=drop", parse=integer(0), show="int ≥ 0")
    renumber: bool = option(False, "positions inside the cache", parse=true_false, show="true | false")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prefix == "keep" and self.sinks != 4:
            raise usage(str(self), "sinks count only with prefix=drop: else all of P is kept")

    @property
    def needs_rotation(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """To turn kept keys to their new positions."""
        return self.renumber

    def forced_in(self, segment: SegmentSize, offset: int) -> int:
        """User tokens whole; the sinks when P is compacted too."""
        if segment.kind == "prefix":
            return min(self.sinks, offset)
        return super().forced_in(segment, offset)

    def work(self, segments: Sequence[SegmentSize], shape: KvShape) -> list[Work]:
        """Moving rows; under renumber also turning their keys, 3 operations per number."""
        return [
            gather_work(step, shape)
            + Work(3.0 * self.renumber * self._turned(step) * shape.layers * shape.kv_heads * shape.head_dim)
            for step in self.walk(segments)
        ]

    @staticmethod
    def _turned(step: Step) -> int:
        return sum(cut.allowed for cut in step.cuts)


@dataclass(frozen=True)
class Random(RunningPolicy):
    """Uniformly random tokens, seeded: the floor for every scoring policy."""

    name = "random"
    summary = "random eviction, seeded: the floor"
    formula = "top budget of u(layer, head, position) ~ U(0, 1), fixed per token"
    source = "baseline"

    protect: str = protect_option()

    def forced_in(self, segment: SegmentSize, offset: int) -> int:
        """User tokens whole, structural tokens elsewhere."""
        return protected_or_user(segment, offset, self.protect)

    def work(self, segments: Sequence[SegmentSize], shape: KvShape) -> list[Work]:
        """Moving rows only."""
        return [gather_work(step, shape) for step in self.walk(segments)]
