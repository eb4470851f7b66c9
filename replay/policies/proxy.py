"""Where scoring queries come from: the options that `te` and `am` share (arXiv 2608.00902, section 3.3).

`boundary` the closing structural token of the segment and what follows it · `repeat` the model is asked to repeat
the turn, and the queries of the copy score it · `assistant` what the agent generates in turns t+1 … t+delay · `tool`
the tool responses of those turns. The first two need no later turn; they are always turn t's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base import SegmentSize, TurnSizes, usage
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

    @property
    def proxies(self) -> tuple[str, ...]:
        """The query sources, in the order given."""
        return tuple(self.proxy.split("+"))

    def own_queries(self, segment: SegmentSize) -> int:
        """The closing tokens, for `boundary`."""
        return min(segment.closing, segment.tokens) if "boundary" in self.proxies and self.compacts(segment) else 0

    def future_queries(self, turn: TurnSizes) -> int:
        """What later turns' sources give."""
        count = turn.assistant.tokens if "assistant" in self.proxies else 0
        return count + (turn.tool.tokens if "tool" in self.proxies and turn.tool else 0)

    def copy_queries(self, segment: SegmentSize) -> int:
        """All tokens of the segment, for `repeat`."""
        return segment.tokens if "repeat" in self.proxies and self.compacts(segment) else 0

    def copied(self, turn: TurnSizes) -> int:
        """The prompt and the turn's compacted segments."""
        if "repeat" not in self.proxies:
            return 0
        return turn.assistant.repeat_prompt + sum(self.copy_queries(s) for s in turn.segments())

    def normalisers(self, captured: int) -> int:
        """One per captured token and query head under `normaliser=global`."""
        return captured if self.normaliser == "global" else 0
