"""What every policy is: options, footprint and work, without torch.

The footprint is arithmetic on segment lengths only, so the simulator applies it to any workload; replay
fails a cell whose live tensors differ from it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import ClassVar, Literal

from ...errors import UserError
from .options import spell

Kind = Literal["prefix", "assistant", "tool", "user"]
CHECK_EVERY_TOKENS = 256  # engine chunk, and the grid on which threshold triggers look
QUERY_ROWS_CAP = 4096  # proxy query rows per KV head (G rows per captured token)


@dataclass(frozen=True, slots=True)
class SegmentSize:
    """Lengths of one segment: all the footprint may know of it.

    `protected` counts the structural tokens; `protected_at` gives their offsets where the text is known
    (else they are assumed at the start); `closing` counts the closing structural token and what follows it;
    `frame` counts the template's tokens around the content of a tool segment (None: assumed = protected), `frame_lead`
    those of them before any content (None: assumed, all but the closing ones);
    `repeat_prompt` counts the tokens that ask the model to repeat a turn, `recall_prompts` those of the request to
    repeat a segment, and to go on repeating it.
    """

    kind: Kind
    tokens: int
    protected: int = 0
    protected_at: tuple[int, ...] | None = None
    closing: int = 2
    frame: int | None = None
    repeat_prompt: int = 20
    recall_prompts: tuple[int, int] = (15, 20)
    frame_lead: int | None = None

    @property
    def framed(self) -> int:
        """Tokens of the template around the content, known or assumed."""
        return min(self.tokens, self.protected if self.frame is None else self.frame)

    @property
    def framed_before(self) -> int:
        """How many of them come before any content."""
        return max(0, self.framed - self.closing) if self.frame_lead is None else min(self.frame_lead, self.framed)

    def structural(self) -> tuple[int, ...]:
        """Offsets of the structural tokens, ascending."""
        return tuple(range(min(self.protected, self.tokens))) if self.protected_at is None else self.protected_at


@dataclass(frozen=True, slots=True)
class KvShape:
    """The compactable part of a model's cache: `layers` that own a full-attention cache.

    `readers` layers attend to these caches: more than `layers` where others share a cache without owning one.
    """

    layers: int
    kv_heads: int
    q_heads: int
    head_dim: int
    dtype_bytes: int
    readers: int = 0

    def __post_init__(self) -> None:
        if not self.readers:
            object.__setattr__(self, "readers", self.layers)

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.q_heads // self.kv_heads

    @property
    def row_bytes(self) -> int:
        """Bytes of K and V of one token over all compactable layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes


@dataclass(frozen=True, slots=True)
class TurnFootprint:
    """Memory after one turn, and its peak inside it. Rows are per layer and KV head and include P.

    Beside K and V there are captured queries (`query_rows` tokens, q_heads × head_dim values each per reading layer),
    `scalar_rows` 4-byte numbers per layer and KV head (activity, β) and `normaliser_rows` float32 numbers per layer
    and query head (log-sum-exps of captured queries). Their `_peak` is the moment before the last compaction.

    `transient_rows` are the most rows of a copy that is fed for scoring and taken back, beyond `kv_rows_peak`, and
    `copied_tokens` all tokens fed for it; `reprefill_tokens` are the tokens that text-level policies feed after a cut:
    again, or for the first time, as what is kept of the tool response that closes the turn; `compactions` counts
    evictions.
    """

    kv_rows: int
    kv_rows_peak: int
    query_rows: int = 0
    query_rows_peak: int = 0
    scalar_rows: int = 0
    scalar_rows_peak: int = 0
    normaliser_rows: int = 0
    normaliser_rows_peak: int = 0
    transient_rows: int = 0
    copied_tokens: int = 0
    reprefill_tokens: int = 0
    compactions: int = 0

    def aux_bytes(self, shape: KvShape) -> int:
        """Bytes held beside K and V after the turn."""
        return _aux_bytes(self.query_rows, self.scalar_rows, self.normaliser_rows, shape)

    def aux_bytes_peak(self, shape: KvShape) -> int:
        """The most bytes held beside K and V inside the turn: before its last compaction, or after it."""
        before = _aux_bytes(self.query_rows_peak, self.scalar_rows_peak, self.normaliser_rows_peak, shape)
        return max(before, self.aux_bytes(shape))


def _aux_bytes(query_rows: int, scalar_rows: int, normaliser_rows: int, shape: KvShape) -> int:
    per_query = shape.readers * shape.q_heads * shape.head_dim * shape.dtype_bytes
    scalars = scalar_rows * shape.layers * shape.kv_heads + normaliser_rows * shape.readers * shape.q_heads
    return query_rows * per_query + scalars * 4


@dataclass(frozen=True, slots=True)
class Work:
    """Arithmetic of the compactions of one turn: floating-point operations and bytes moved."""

    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)


def ceil_share(keep: Decimal, tokens: int) -> int:
    """max(1, ⌈keep·tokens⌉) in exact decimal arithmetic; 0 when there are no tokens."""
    return max(1, math.ceil(keep * tokens)) if tokens > 0 else 0


@dataclass(frozen=True, slots=True)
class TurnSizes:
    """The segments of one turn: what precedes the assistant (prefix, user), then assistant, then tool."""

    before: tuple[SegmentSize, ...]
    assistant: SegmentSize
    tool: SegmentSize | None

    def segments(self) -> list[SegmentSize]:
        """In the order they are fed."""
        return [*self.before, self.assistant, *([self.tool] if self.tool else [])]

    @property
    def tokens(self) -> int:
        """Tokens fed in this turn."""
        return sum(s.tokens for s in self.segments())


def split_turns(segments: Iterable[SegmentSize]) -> list[TurnSizes]:
    """Group a flat list into turns. A turn closes after its tool segment, or after the assistant's text.

    Segments after the last assistant turn (a trailing user message) belong to no turn and are an error.
    """
    turns: list[TurnSizes] = []
    before: list[SegmentSize] = []
    items = list(segments)
    index = 0
    while index < len(items):
        segment = items[index]
        index += 1
        if segment.kind in ("prefix", "user"):
            before.append(segment)
        elif segment.kind == "tool":
            raise ValueError("a tool segment must follow an assistant segment")
        else:
            tool = items[index] if index < len(items) and items[index].kind == "tool" else None
            index += tool is not None
            turns.append(TurnSizes(tuple(before), segment, tool))
            before = []
    if before and turns:
        raise ValueError("segments after the last turn")
    return turns


@dataclass(frozen=True)
class Policy(ABC):
    """A compaction policy. Subclasses are frozen, add options, and never change during a run."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    source: ClassVar[str] = ""
    footprint_kind: ClassVar[Literal["exact", "bounded"]] = "exact"
    leading: ClassVar[tuple[str, ...]] = ()
    """Options that are printed first."""

    needs_rotation: ClassVar[bool] = False
    """Whether the state needs `Scene.frequencies`."""

    given: frozenset[str] = field(default=frozenset(), compare=False, kw_only=True)

    def __str__(self) -> str:
        return spell(self)

    @property
    def exact(self) -> bool:
        """Whether the footprint says what is held, and not only a bound of it, under these options."""
        return self.footprint_kind == "exact"

    @property
    def ratio(self) -> Decimal | None:
        """The keep ratio that is in force: None where a number of rows or another target stands in for it."""
        instead = any(getattr(self, name, None) is not None for name in ("budget", "pool", "loss"))
        return None if instead else getattr(self, "keep", None)

    @property
    def ragged(self) -> bool:
        """Whether heads keep unequal numbers of rows, which a cache of one length cannot hold."""
        return False

    def checks(self, tokens: int) -> list[int]:
        """Offsets inside a segment of `tokens` at which the policy may evict (its end is `tokens`)."""
        return []

    def as_measured(self, keep_measured: float | None) -> Policy:
        """The policy whose arithmetic stands for this one in a simulation: itself, unless only text can decide."""
        return self

    @abstractmethod
    def footprint(self, segments: Sequence[SegmentSize]) -> list[TurnFootprint]:
        """Memory after each turn of the trajectory made of `segments`."""

    @abstractmethod
    def work(self, segments: Sequence[SegmentSize], shape: KvShape) -> list[Work]:
        """Arithmetic of the compactions at the close of (or inside) each turn."""


def usage(policy_name: str, reason: str) -> UserError:
    """The error for options that exclude each other."""
    return UserError(f"policy {policy_name}: {reason}")
