"""`truncate`: keep P and the last tokens of the text, at the close of a turn; the naive baseline.

It acts on text: the tool response that closes the turn is cut with the rest before it is fed, and what follows the
first changed token is fed (again), contiguously after P. So positions are those of the shortened prompt, and the
re-prefill is charged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .base import KvShape, SegmentSize, TurnFootprint, Work, split_turns, usage
from .running import RunningPolicy


def last_tokens(user: Sequence[bool], allowed: int) -> list[int]:
    """Indices kept of a live text: every user token, and the last others up to `allowed` in all, ascending."""
    spare = allowed - sum(user)
    kept = [i for i, forced in enumerate(user) if forced]
    others = [i for i, forced in enumerate(user) if not forced]
    return sorted(kept + (others[-spare:] if spare > 0 else []))


def unchanged(kept: Sequence[int]) -> int:
    """How many leading kept tokens precede the first dropped one."""
    count = 0
    while count < len(kept) and kept[count] == count:
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens of a live text, all of a user message or none."""

    user: bool
    tokens: int


def _append(live: list[Run], new: Run) -> None:
    """Add to the end of a live text; what is of one kind is one run, so that a long text stays a short list."""
    if live and live[-1].user == new.user:
        new = Run(new.user, live.pop().tokens + new.tokens)
    live.append(new)


def cut_runs(live: Sequence[Run], allowed: int) -> tuple[list[Run], int]:
    """`last_tokens` on runs instead of tokens: the runs kept, and how many tokens precede the first dropped one."""
    spare = max(0, allowed - sum(run.tokens for run in live if run.user))
    drop = sum(run.tokens for run in live if not run.user) - spare
    kept: list[Run] = []
    same, changed = 0, False
    for run in live:
        gone = 0 if run.user else min(drop, run.tokens)
        drop -= gone
        changed = changed or gone > 0
        if run.tokens > gone:
            kept.append(Run(run.user, run.tokens - gone))
        if not changed:
            same += run.tokens
    return kept, same


@dataclass(frozen=True)
class Truncate(RunningPolicy):
    """P (or nothing, under prefix=drop) and the last `budget` tokens."""

    name = "truncate"
    summary = "keep the last tokens of the text, re-prefilled"
    formula = "text = P + last max(1, ⌈keep · tokens beyond P⌉) tokens, user messages whole"
    source = "what teams do today"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trigger != "turn":
            raise usage(str(self), "text is cut at the close of a turn: trigger=turn is the only choice")

    def footprint(self, segments: Sequence[SegmentSize]) -> list[TurnFootprint]:
        """Rows as every running policy; the tokens fed again follow from which ones stay.

        The turn's tool response is text until the cut is made, so it never adds to the uncut context: the peak is
        what was held when the assistant had spoken, or what is held after the cut.
        """
        out: list[TurnFootprint] = []
        live: list[Run] = []
        for step, turn in zip(self.walk(segments), split_turns(segments), strict=True):
            for segment in turn.segments():
                if self.is_compactable(segment):
                    _append(live, Run(segment.kind == "user", segment.tokens))
            spoken = sum(run.tokens for run in live) - (turn.tool.tokens if turn.tool else 0)
            fed_again = 0
            if step.cuts:
                live, same = cut_runs(live, step.rows)
                fed_again = step.rows - same
            peak = step.fixed + max(spoken, step.rows)
            out.append(replace(step.footprint(), kv_rows_peak=peak, reprefill_tokens=fed_again))
        return out

    def work(self, segments: Sequence[SegmentSize], shape: KvShape) -> list[Work]:
        """Nothing but the re-prefill, which the footprint counts in tokens."""
        return [Work() for _ in split_turns(segments)]
