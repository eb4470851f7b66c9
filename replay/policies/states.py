"""The mutable side of a policy: what it observes while tokens are fed, and what it evicts.

The engine calls `begin` before a chunk, `observe` for every layer of it, `look` at the chunk's end when the
policy asked for a check there, and `close` at the end of a turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .base import KvShape, Policy

if TYPE_CHECKING:
    from ...traces.tokens import TokenSegment
    from ..cache import KvCache


@dataclass(frozen=True, slots=True)
class Eviction:
    """Rows to keep: all before `start`, and `index` (layers, H_kv, m) of the rest, ascending absolute rows."""

    start: int
    index: Tensor
    segments: int = 1


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


class PolicyState:
    """Base: observes nothing, evicts nothing. `full` is exactly this."""

    def __init__(self, policy: Policy, shape: KvShape, tokens: int, seed: int, device: torch.device) -> None:
        self.shape, self.device = shape, device

    def holds_back(self, chunk: Chunk) -> bool:
        """Whether the chunk must not be fed now: `close` says what becomes of it."""
        return False

    def begin(self, chunk: Chunk) -> bool:
        """A chunk is about to be fed; whether `observe` must be called for its layers."""
        return False

    def observe(self, layer: int, queries: Tensor, keys: Tensor, scaling: float, index: Tensor) -> None:
        """One layer of the chunk: (H_q, L, D) queries, (H_kv, rows, D) keys, their own last.

        `index` (H_kv, rows or fewer) names the logical tokens of the rows that were there before the chunk.
        """

    def fed(self, chunk: Chunk) -> None:
        """The chunk is in the cache."""

    def look(self, index: Tensor) -> Eviction | None:
        """At a check inside a segment. `index` is the branch's (layers, H_kv, rows)."""
        return None

    def close(self, turn: int, index: Tensor, cache: KvCache) -> Eviction | Rewrite | None:
        """At the close of turn `turn`; `cache` is only read."""
        return None

    def evicted(self, eviction: Eviction) -> None:
        """The eviction was carried out."""

    def aux_bytes(self) -> int:
        """Bytes held beside K and V."""
        return 0
