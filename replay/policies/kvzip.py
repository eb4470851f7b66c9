"""`kvzip`: the keys that the model reads when it is asked to repeat the segment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .base import KvShape, SegmentSize, TurnFootprint, TurnSizes, Work, split_turns, usage
from .options import choice, integer, option
from .peers import Peer
from .protect import forced_count

OVERLAP = 8  # last tokens of the previous chunk that tell the model where to go on


@dataclass(frozen=True)
class KvZip(Peer):
    """KVzip (arXiv 2505.23416, section 3) as in its authors' code and kvpress 0.5.4.

    s_j is the largest attention that key j gets while the model repeats the segment, in chunks of at most `chunk`
    tokens. For each chunk it is fed a request, "Repeat the previous context exactly." (from the second chunk on
    "Repeat the part of the previous context exactly, starting with" and the last 8 tokens of the chunk before), the
    template's change of speaker, and the chunk again; all of it is taken back afterwards. Every fed token i, those of
    the request too, is softmaxed in float32 over [the first min(sinks, start) rows of the cache ‖ the chunk ‖ what was
    fed up to i]; the maximum is over i and the G heads. `start` counts the rows before the chunk, so at the very start
    of a context there are no sinks. scope=uniform keeps ⌊keep·n⌋ per head; scope=global the ⌊keep·L·H_kv·n⌋ best of
    all L layers and H_kv heads together, unequally many per head: `kvmill.select` only, since a cache that has one
    length for all heads cannot hold them.

    The authors' code appends the request to the user message that holds the context. So does `kvmill.select`; in
    replay, where the turn is closed, the request is a user message of its own.
    """

    name = "kvzip"
    summary = "keys that the model reads when it repeats the segment"
    formula = "s_j = max over heads g and fed tokens i of softmax over [4 sinks ‖ chunk ≤ 2048 ‖ fed so far] (q_i·k_j)"
    source = "KVzip, arXiv 2505.23416; github.com/snu-mllab/KVzip; kvpress 0.5.4"

    scope: str = option(
        "uniform",
        "global: best of all layers and heads together (kvmill.select only)",
        parse=choice("uniform", "global"),
        show="uniform | global",
    )
    sinks: int = option(4, "first rows of the cache in every softmax", parse=integer(0), show="int ≥ 0")
    chunk: int = option(2048, "tokens repeated at a time", parse=integer(OVERLAP), show=f"int ≥ {OVERLAP}")

    def __post_init__(self) -> None:
        if self.ragged and self.granularity == "token":
            raise usage(str(self), "scope=global lets every head keep its own tokens: give no granularity=token")

    @property
    def ragged(self) -> bool:
        """Whether heads keep different numbers of tokens."""
        return self.scope == "global"

    def kept_of(self, segment: SegmentSize, heads: int) -> int:
        """Tokens of a segment that stay in `heads` heads of all layers together, protected ones among them."""
        least = heads * forced_count(segment, self.protect)
        return max(1, least, math.floor(self.share(segment) * heads * segment.tokens))

    def pieces(self, segment: SegmentSize) -> list[int]:
        """Tokens fed for each chunk of a segment; none where nothing would be evicted."""
        if self.kept(segment) >= segment.tokens:
            return []
        out: list[int] = []
        for begin in range(0, segment.tokens, self.chunk):
            asked = segment.recall_prompts[begin > 0] + (OVERLAP if begin else 0)
            out.append(asked + min(self.chunk, segment.tokens - begin))
        return out

    def copied(self, turn: TurnSizes) -> int:
        """All pieces of all segments."""
        return sum(sum(self.pieces(segment)) for segment in turn.segments())

    def copy_rows(self, turn: TurnSizes) -> int:
        """The longest piece: one is in the cache at a time."""
        return max((piece for segment in turn.segments() for piece in self.pieces(segment)), default=0)

    def scored(self, turn: TurnSizes) -> int:
        """Tokens of a turn that carry a score, a float32 per layer and KV head, until the turn is compacted."""
        return sum(segment.tokens for segment in turn.segments() if self.pieces(segment))

    def footprint(self, segments: Sequence[SegmentSize]) -> list[TurnFootprint]:
        """As every segment policy, and the scores of the turns that wait."""
        scored = [self.scored(turn) for turn in split_turns(segments)]
        out: list[TurnFootprint] = []
        for t, step in enumerate(super().footprint(segments)):
            waiting = scored[max(0, t - self.delay) : t + 1]
            after = sum(waiting[1:] if t >= self.delay else waiting)
            out.append(replace(step, scalar_rows=after, scalar_rows_peak=sum(waiting)))
        return out

    def segment_work(self, segment: SegmentSize, kept: int, rows: int, shape: KvShape) -> Work:
        """Weights of every fed token on sinks, chunk and half of what was fed."""
        pairs = 0.0
        for begin, piece in zip(range(0, segment.tokens, self.chunk), self.pieces(segment), strict=True):
            pairs += piece * (self.sinks + min(self.chunk, segment.tokens - begin) + piece / 2)
        return Work(shape.readers * shape.q_heads * pairs * (2.0 * shape.head_dim + 5.0), 0.0)
