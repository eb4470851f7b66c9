"""`drop_tool_outputs`: what teams do today. The content of old tool outputs is cut out of the text; its frame stays.

When turn t closes, every tool segment of the turns up to t − older_than loses its content: the model still sees that a
tool answered, not what. It acts on text: what follows the first changed token is fed again, contiguously, and charged
as `reprefill_tokens`. What is left depends on the trajectory alone, so there is neither keep nor budget, and an
equal-size comparison cannot hold it to a size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .base import KvShape, Policy, SegmentSize, TurnFootprint, Work, split_turns
from .options import integer, option


@dataclass(frozen=True)
class DropToolOutputs(Policy):
    """Tool outputs older than a few turns lose their content."""

    name = "drop_tool_outputs"
    summary = "cut old tool outputs out of the text, their frame stays; re-prefilled"
    formula = "text without the content of the tool segments of turns ≤ t − older_than"
    source = "context editing, what teams do today"

    older_than: int = option(3, "turns after which a tool output is dropped", parse=integer(1), show="int ≥ 1")
    min_tokens: int = option(0, "shorter tool segments stay", parse=integer(0), show="int ≥ 0")

    def drops(self, segment: SegmentSize) -> int:
        """Tokens that the segment will lose: its content, or nothing."""
        if segment.kind != "tool" or segment.tokens < self.min_tokens:
            return 0
        return segment.tokens - segment.framed

    def footprint(self, segments: Sequence[SegmentSize]) -> list[TurnFootprint]:
        """At most one output is cut per turn: that of turn t − older_than. The turn's own output is text until then."""
        turns = split_turns(segments)
        out: list[TurnFootprint] = []
        rows = 0
        for t, turn in enumerate(turns):
            spoken = rows + turn.tokens - (turn.tool.tokens if turn.tool else 0)
            rows += turn.tokens
            due = turns[t - self.older_than].tool if t >= self.older_than else None
            lost = self.drops(due) if due else 0
            again = 0
            if due and lost:
                later = sum(u.tokens for u in turns[t - self.older_than + 1 : t + 1])
                again = due.framed - due.framed_before + later
                rows -= lost
            peak = max(spoken, rows)
            out.append(TurnFootprint(rows, peak, reprefill_tokens=again, compactions=int(lost > 0)))
        return out

    def work(self, segments: Sequence[SegmentSize], shape: KvShape) -> list[Work]:
        """Nothing but the re-prefill, which the footprint counts in tokens."""
        return [Work() for _ in split_turns(segments)]
