"""The mutable side of a policy: what it observes while tokens are fed, and what it evicts.

The engine calls `begin` before a chunk, `observe` for every layer of it, `look` at the chunk's end when the
policy asked for a check there, and at the end of a turn `copies` (fed and taken back) and `close`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .base import KvShape, Policy

if TYPE_CHECKING:
    from ...traces.tokens import TokenSegment
    from ..cache import KvCache
    from .sight import Sight


@dataclass(frozen=True)
class Scene:
    """What a state is told at the start of a trajectory of at most `tokens` logical tokens.

    `frequencies` (F,) are the inverse RoPE frequencies of the compactable layers, whose rotation takes the first 2F
    dimensions of a key in halves; None where the model's rotation is another. `prompts` are the token ids of the texts
    that ask the model to repeat. `readers` is how many layers read each compactable cache (one each unless said).
    """

    shape: KvShape
    tokens: int
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    frequencies: Tensor | None = None
    prompts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    readers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Eviction:
    """Rows to keep: all before `start`, and `index` (layers, H_kv, m) of the rest, absolute rows.

    Rows are ascending, except where `merge` orders new rows by their mean position.

    `keys` and `values` (layers, H_kv, m, D), where given, are written instead of the rows' own; `bias` (layers, H_kv,
    m) float32 is their new β, added to their logits from now on. `position` is the logical position of the next token
    where rows were renumbered.
    """

    start: int
    index: Tensor
    segments: int = 1
    keys: Tensor | None = None
    values: Tensor | None = None
    bias: Tensor | None = None
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A text-level policy's turn: the first `unchanged_rows` rows stay, logical tokens `feed` follow them.

    `cut` says whether the text was shortened; else `feed` is only what was held back until the close.
    """

    unchanged_rows: int
    feed: list[int]
    cut: bool


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a segment about to be fed: tokens [begin, end) of it; `first` is the logical token of `begin`."""

    segment: TokenSegment
    begin: int
    end: int
    first: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Token ids to be fed at the close of a turn and taken back; `key` is the state's own name for it."""

    key: object
    ids: tuple[int, ...]


class PolicyState:
    """Base: observes nothing, evicts nothing. `full` is exactly this."""

    reads = False
    """Whether `observe` wants to be told what a single token's attention read."""

    def __init__(self, policy: Policy, scene: Scene) -> None:
        self.scene, self.shape, self.device = scene, scene.shape, scene.device

    def holds_back(self, chunk: Chunk) -> bool:
        """Whether the chunk must not be fed now: `close` says what becomes of it."""
        return False

    def begin(self, chunk: Chunk) -> bool:
        """A chunk is about to be fed; whether `observe` must be called for its layers."""
        return False

    def observe(self, layer: int, sight: Sight, index: Tensor) -> None:
        """One layer of the chunk. `index` (H_kv, rows or fewer) names the logical tokens of the rows that were there
        before it; `sight.read` is there where the chunk is one token and a state of the lane `reads`.
        """

    def fed(self, chunk: Chunk) -> None:
        """The chunk is in the cache."""

    def look(self, index: Tensor, cache: KvCache) -> Eviction | None:
        """At a check inside a segment. `index` is the branch's (layers, H_kv, rows); `cache` is only read."""
        return None

    def copies(self, turn: int) -> Sequence[Copy]:
        """What to feed when turn `turn` closes, for `observe_copy` only."""
        return ()

    def observe_copy(self, copy: Copy, begin: int, layer: int, sight: Sight) -> None:
        """One layer of a piece of the copy that starts at its token `begin`; otherwise as `observe`."""

    def close(self, turn: int, index: Tensor, cache: KvCache) -> Eviction | Rewrite | None:
        """At the close of turn `turn`; `cache` is only read."""
        return None

    def evicted(self, eviction: Eviction) -> None:
        """The eviction was carried out."""

    def aux_bytes(self) -> int:
        """Bytes held beside K, V and β."""
        return 0
