"""Captured proxy queries: post-rotation, per layer, held from the token that asked until the compaction they score."""

from __future__ import annotations

from collections.abc import Iterable
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


class Captures:
    """Queries (H_q, L, D) by key and layer, and under a global normaliser their log-sum-exps (H_q, L)."""

    def __init__(self, shape: KvShape, seed: int) -> None:
        self.shape, self.seed = shape, seed
        self._queries: dict[Key, list[Tensor]] = {}
        self._totals: dict[Key, list[Tensor]] = {}

    def add(self, key: Key, layer: int, queries: Tensor, totals: Tensor | None = None) -> None:
        """Append copies of (H_q, L, D) queries, and of (H_q, L) log-sum-exps, of one layer."""
        _append(self._queries.setdefault(key, []), layer, queries.clone())
        if totals is not None:
            _append(self._totals.setdefault(key, []), layer, totals)

    def drop(self, stale: Iterable[Key]) -> None:
        """Forget some keys."""
        for key in stale:
            self._queries.pop(key, None)
            self._totals.pop(key, None)

    def held(self) -> list[Key]:
        """What is held."""
        return list(self._queries)

    def rows(self, keys: Iterable[Key], layer: int) -> tuple[Tensor, Tensor | None] | None:
        """(H_kv, R, D) query rows of several keys together and (H_kv, R) log-sum-exps, or None where there are none."""
        found = [key for key in keys if key in self._queries]
        if not found:
            return None
        queries = torch.cat([self._queries[key][layer] for key in found], dim=1)
        rows = group_rows(queries, self.shape.kv_heads)
        if found[0] not in self._totals:
            return rows, None
        totals = torch.cat([self._totals[key][layer] for key in found], dim=1)
        return rows, totals.reshape(rows.shape[:2])

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        held = (*self._queries.values(), *self._totals.values())
        return sum(piece.nbytes for layers in held for piece in layers)

    def sample(self, rows: Tensor, most: int) -> Tensor:
        """Which of (H_kv, R, …) rows to use when `most` are wanted, seeded: the same for every layer and head."""
        count = rows.shape[1]
        if count <= most:
            return torch.arange(count, device=rows.device)
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randperm(count, generator=generator)[:most].sort().values.to(rows.device)

    def capped(self, rows: Tensor, totals: Tensor | None, most: int = QUERY_ROWS_CAP) -> tuple[Tensor, Tensor | None]:
        """At most `most` rows per KV head, by seeded subsampling."""
        if rows.shape[1] <= most:
            return rows, totals
        pick = self.sample(rows, most)
        return rows[:, pick], None if totals is None else totals[:, pick]


def _append(layers: list[Tensor], layer: int, piece: Tensor) -> None:
    if layer < len(layers):
        layers[layer] = torch.cat([layers[layer], piece], dim=1)
    else:
        layers.append(piece)
