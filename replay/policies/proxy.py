"""Where scoring queries come from: the options that `te` and `am` share (arXiv 2608.00902, section 3.3).

`boundary` the closing structural token of the segment and what follows it · `repeat` the model is asked to repeat
the turn, and the queries of the copy score it · `assistant` what the agent generates in turns t+1 … t+delay · `tool`
the tool responses of those turns. The first two need no later turn; they are always turn t's own.

A query's weights are its softmax over the segment (`normaliser=local`): it stands for any query to come, so it scores
the whole segment, also where it ran before the segment ended. `normaliser=global` takes the weights that the model
itself gave when the query ran, over the whole cache of that moment: 0 for tokens that were not there yet.
Nothing is captured, and no copy is fed, for a segment that will lose no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from .base import KvShape, SegmentSize, TurnSizes, Work, split_turns, usage
from .options import choice, integer, mix, option
from .segment import SegmentPolicy

PROXIES = ("assistant", "boundary", "repeat", "tool")
FUTURE = ("assistant", "tool")


@dataclass(frozen=True)
class ProxyPolicy(SegmentPolicy):
    """A segment policy that scores with proxy queries."""

    leading: ClassVar[tuple[str, ...]] = ("proxy", "delay")

    proxy: str = option(
        "assistant",
        "where scoring queries come from",
        parse=mix(*PROXIES),
        show="assistant | boundary | repeat | tool, joined by +",
    )
    delay: int = option(
        -1,
        "turns to wait before a turn is compacted (1 with assistant or tool queries, else 0)",
        parse=integer(0),
        show="int ≥ 0",
    )
    reduction: str = option("rms", "over query rows", parse=choice("rms", "mean", "max"), show="rms | mean | max")
    normaliser: str = option(
        "local",
        "softmax over the segment, or the weights of the model's own attention over the whole cache",
        parse=choice("local", "global"),
        show="local | global",
    )

    def __post_init__(self) -> None:
        if self.delay < 0:
            object.__setattr__(self, "delay", int(any(p in FUTURE for p in self.proxies)))
        if self.delay == 0 and any(p in FUTURE for p in self.proxies):
            raise usage(str(self), "delay=0 has no later turn: use proxy=boundary or repeat, or delay=1 or more")

    @cached_property
    def proxies(self) -> tuple[str, ...]:
        """The query sources, in the order given."""
        return tuple(self.proxy.split("+"))

    @property
    def needs_totals(self) -> bool:
        """Whether every captured query carries the log-sum-exp of its logits over the whole cache."""
        return self.normaliser == "global"

    def own_queries(self, segment: SegmentSize) -> int:
        """The closing tokens, for `boundary`."""
        return min(segment.closing, segment.tokens) if "boundary" in self.proxies and self._loses(segment) else 0

    def future_queries(self, turn: TurnSizes) -> int:
        """What later turns' sources give."""
        return sum(_future(turn, source) for source in self.proxies)

    def copy_queries(self, segment: SegmentSize) -> int:
        """All tokens of the segment, for `repeat`."""
        return segment.tokens if "repeat" in self.proxies and self._loses(segment) else 0

    def copied(self, turn: TurnSizes) -> int:
        """The prompt and the turn's compactable segments."""
        if "repeat" not in self.proxies or not self.shrinks(turn):
            return 0
        return turn.assistant.repeat_prompt + sum(s.tokens for s in turn.segments() if self.compacts(s))

    def normalisers(self, captured: int) -> int:
        """One per captured token and query head."""
        return captured if self.needs_totals else 0

    def work(self, segments: Sequence[SegmentSize], shape: KvShape) -> list[Work]:
        """As every segment policy; where queries carry a log-sum-exp, also that of each over the whole cache.

        As if the attention kernel did not give it: 2·D + 5 operations per query and row, the keys read once per turn.
        """
        works = super().work(segments, shape)
        if not self.needs_totals:
            return works
        steps = zip(split_turns(segments), self.footprint(segments), strict=True)
        return [
            work + _totals_work(self._captured(turn, first=not t), step.kv_rows_peak + step.transient_rows, shape)
            for t, (work, (turn, step)) in enumerate(zip(works, steps, strict=True))
        ]

    def _captured(self, turn: TurnSizes, *, first: bool) -> int:
        """Tokens whose queries are captured in a turn; nobody is before the first one."""
        own = sum(self.own_queries(s) + self.copy_queries(s) for s in turn.segments())
        return own if first else own + self.future_queries(turn)

    def source_rows(self, segment: SegmentSize, later: Sequence[TurnSizes], group: int) -> list[int]:
        """Query rows that each source has for a segment, uncapped, in the order of the option."""
        own = {"boundary": self.own_queries(segment), "repeat": self.copy_queries(segment)}
        future = {source: sum(_future(turn, source) for turn in later) for source in FUTURE}
        return [group * (own | future)[source] for source in self.proxies]

    def _loses(self, segment: SegmentSize) -> bool:
        return self.kept(segment) < segment.tokens


def _totals_work(asked: int, rows: int, shape: KvShape) -> Work:
    flops = shape.readers * shape.q_heads * asked * rows * (2.0 * shape.head_dim + 5.0)
    return Work(flops, rows * shape.row_bytes / 2 if asked else 0.0)


def _future(turn: TurnSizes, source: str) -> int:
    """Tokens of a later turn that a source asks."""
    if source == "assistant":
        return turn.assistant.tokens
    return turn.tool.tokens if source == "tool" and turn.tool else 0
