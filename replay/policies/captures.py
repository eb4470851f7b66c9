"""Captured proxy queries: post-rotation, per layer, held from the token that asked until the compaction they score."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels.reference import group_rows
from .base import QUERY_ROWS_CAP, KvShape


class Key(NamedTuple):
    """Which tokens were asked: those of a segment (turn, kind), for `purpose` future, own or copy.

    A turn may have several user messages: what a segment asks for itself bears its first logical token too.
    """

    turn: int
    kind: str
    purpose: str
    first: int = 0


class Rows(NamedTuple):
    """(H_kv, R, D) query rows, the query heads of a KV head together, and where they were asked for:

    `totals` (H_kv, R) the log-sum-exps of their logits over the whole cache when they ran, and `seen` (R,) how many
    leading tokens of the scored segment were there then (None: all).
    """

    queries: Tensor
    totals: Tensor | None = None
    seen: Tensor | None = None


class Captures:
    """Queries (H_q, L, D) by key and layer, and where a policy needs them their log-sum-exps (H_q, L).

    Layers that share a cache add to the same place: L is then a multiple of the tokens.
    """

    def __init__(self, shape: KvShape, seed: int) -> None:
        self.shape, self.seed = shape, seed
        self._queries: dict[Key, list[Tensor]] = {}
        self._totals: dict[Key, list[Tensor]] = {}
        self._seen: dict[Key, list[list[int]]] = {}

    def add(
        self,
        key: Key,
        layer: int,
        queries: Tensor,
        totals: Tensor | None = None,
        seen: Sequence[int] = (),
    ) -> None:
        """Append copies of (H_q, L, D) queries, (H_q, L) log-sum-exps and L counts of visible tokens of one layer."""
        _append(self._queries.setdefault(key, []), layer, queries.clone())
        if totals is not None:
            _append(self._totals.setdefault(key, []), layer, totals)
        if seen:
            counts = self._seen.setdefault(key, [])
            counts += [[] for _ in range(layer + 1 - len(counts))]
            counts[layer] += seen

    def drop(self, stale: Iterable[Key]) -> None:
        """Forget some keys."""
        for key in stale:
            for held in (self._queries, self._totals, self._seen):
                held.pop(key, None)

    def held(self) -> list[Key]:
        """What is held."""
        return list(self._queries)

    def rows(self, keys: Iterable[Key], layer: int) -> Rows | None:
        """The query rows of several keys together, or None where there are none."""
        found = [key for key in keys if key in self._queries]
        if not found:
            return None
        rows = group_rows(torch.cat([self._queries[key][layer] for key in found], dim=1), self.shape.kv_heads)
        totals = seen = None
        if found[0] in self._totals:
            totals = torch.cat([self._totals[key][layer] for key in found], dim=1).reshape(rows.shape[:2])
        if found[0] in self._seen:
            counts = [count for key in found for count in self._seen[key][layer]]
            seen = torch.tensor(counts, device=rows.device).repeat(rows.shape[1] // len(counts))
        return Rows(rows, totals, seen)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        held = (*self._queries.values(), *self._totals.values())
        return sum(piece.nbytes for layers in held for piece in layers)

    def capped(self, rows: Rows, most: int = QUERY_ROWS_CAP) -> Rows:
        """At most `most` rows per KV head, by seeded subsampling: the same ones for every layer and head."""
        count = rows.queries.shape[1]
        if count <= most:
            return rows
        pick = draw(count, self.seed)[:most].sort().values.to(rows.queries.device)
        queries, totals, seen = rows
        return Rows(queries[:, pick], None if totals is None else totals[:, pick], None if seen is None else seen[pick])


def draw(count: int, seed: int) -> Tensor:
    """0 … count − 1 in an order that depends on the seed alone, on any machine."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def _append(layers: list[Tensor], layer: int, piece: Tensor) -> None:
    if layer < len(layers):
        layers[layer] = torch.cat([layers[layer], piece], dim=1)
    else:
        layers.append(piece)
