"""`full`: nothing is compacted. The reference of every comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .base import KvShape, Policy, SegmentSize, TurnFootprint, Work, split_turns


@dataclass(frozen=True)
class Full(Policy):
    """Every token stays."""

    name = "full"
    summary = "no compaction: the reference"
    formula = "rows = tokens"
    source = "the model itself"

    def footprint(self, segments: Sequence[SegmentSize]) -> list[TurnFootprint]:
        """Rows grow with the text."""
        rows, out = 0, []
        for turn in split_turns(segments):
            rows += turn.tokens
            out.append(TurnFootprint(rows, rows))
        return out

    def work(self, segments: Sequence[SegmentSize], shape: KvShape) -> list[Work]:
        """None."""
        return [Work() for _ in split_turns(segments)]
