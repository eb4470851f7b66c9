"""Clustering and merging of `merge`, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ...errors import UserError
from ...kernels.compact import compact_kv
from ...kernels.merge import Groups, k_means, merge_kv, nearest_earlier
from ...kernels.rotate import rotate_keys
from ...kernels.topk import pool_topk
from .base import Policy
from .merge import KMEANS_BATCH, KMEANS_STEPS, Merge
from .sight import Sight
from .states import Chunk, Eviction, Scene
from .watch_state import WatchingState

if TYPE_CHECKING:
    from ..cache import KvCache

ACTIVITY, COUNT, POSITION = range(3)  # rows of `held`
# Differences of squared distances that are none, relative to the distance and to the key: two members of equal count
# are equally far from their mean, and tokens that are spelled alike have the same key before its rotation.
EQUALLY_NEAR, ROUNDING = 1e-3, 1e-9


class MergeState(WatchingState):
    """Per row and head: activity (summed over members), tokens it stands for, and its position (fractional)."""

    def __init__(self, policy: Policy, scene: Scene) -> None:
        super().__init__(policy, scene)
        self.rule = cast(Merge, policy)
        self.merging = self.rule.merging(self.shape.layers)
        self._next: Tensor | None = None

    def begin(self, chunk: Chunk) -> bool:
        """Refuses models whose rotation cannot be taken off, where it would be, and layers that do not exist."""
        if not self.merging:
            raise UserError(f"layers={self.rule.layers}: this model has compactable layers 0-{self.shape.layers - 1}")
        if self.rule.space == "pre" and self.scene.frequencies is None:
            raise UserError(
                "space=pre turns keys by rotary frequencies, which this model does not have: use space=post"
            )
        return super().begin(chunk)

    def fresh(self, room: Tensor, positions: Tensor) -> None:
        """One token each, where it stands."""
        room[COUNT], room[POSITION] = 1.0, positions.float()

    def observe(self, layer: int, sight: Sight, index: Tensor) -> None:
        """Activity is the plain sum of the weights."""
        self.held[ACTIVITY, layer] += sight.activity()[:, self.fixed :]

    def cut(self, tail: Tensor, allowed: int, cache: KvCache) -> Eviction:
        """Forced rows as they are; the others merged, or evicted where the layer does not merge."""
        forced = self.is_forced[tail.long()]
        rows = [self._layer(layer, forced[layer], allowed, cache) for layer in range(self.shape.layers)]
        index, keys, values, numbers = (torch.stack(part) for part in zip(*rows, strict=True))
        after = numbers.transpose(0, 1).contiguous()
        bias = after[COUNT].log() if self.rule.mass_bias else None
        self._next = after
        return Eviction(self.fixed, index + self.fixed, keys=keys, values=values, bias=bias)

    def evicted(self, eviction: Eviction) -> None:
        """The numbers of the merged rows take effect."""
        assert self._next is not None
        self.held, self._next = self._next, None  # a second reference would outlive the next growth of `held`

    def _layer(self, layer: int, forced: Tensor, allowed: int, cache: KvCache) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows relative to the end of P (H_kv, allowed), their keys, values (H_kv, allowed, D), numbers (3, …)."""
        heads = forced.shape[0]
        keys, values = (part[:, self.fixed :] for part in cache.view(layer))
        numbers = self.held[:, layer]
        stay = forced.nonzero()[:, 1].view(heads, -1)
        free = (~forced).nonzero()[:, 1].view(heads, -1)
        room = allowed - stay.shape[1]
        kept = [(stay, *compact_kv(keys, values, stay), _numbers(numbers, stay))]
        if room and layer in self.merging:
            kept.append(self._merge(free, *compact_kv(keys, values, free), _numbers(numbers, free), room))
        elif room:
            best = free.gather(1, pool_topk(numbers[ACTIVITY].gather(1, free), room))
            kept.append((best, *compact_kv(keys, values, best), _numbers(numbers, best)))
        index, keys, values = (torch.cat([part[i] for part in kept], dim=1) for i in range(3))
        numbers = torch.cat([part[3] for part in kept], dim=2)
        # By position; rows at one position in the order they were in.
        first = index.sort(dim=1, stable=True).indices
        order = first.gather(1, numbers[POSITION].gather(1, first).sort(dim=1, stable=True).indices)
        return index.gather(1, order), *compact_kv(keys, values, order), _numbers(numbers, order)

    def _merge(
        self, index: Tensor, keys: Tensor, values: Tensor, numbers: Tensor, clusters: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(H_kv, n) rows into `clusters` rows: the same parts as they are kept."""
        activity, counts, positions = numbers
        points = self._turn(keys.float(), -positions)
        labels = k_means(
            points, clusters, start=first_centres(points, clusters), batches=self._batches(index), weights=counts
        )
        means, mixed, total = merge_kv(
            points, values, labels, clusters, key_weights=counts, value_weights=activity, counts=counts
        )
        spread = (points - _rows(means, labels)).square().sum(-1)
        named, active = first_greatest(activity, labels, clusters), Groups.of(labels, clusters).sums(activity)
        place = positions.unsqueeze(-1)
        centre, _, _ = merge_kv(place, place, labels, clusters, key_weights=activity, counts=counts)
        if self.rule.representative == "medoid":
            least = spread.new_full((spread.shape[0], clusters), torch.inf).scatter_reduce_(1, labels, spread, "amin")
            most = least * (1 + EQUALLY_NEAR) + ROUNDING * means.square().sum(-1)
            nearest = first_greatest(activity.where(spread <= most.gather(1, labels), -1.0), labels, clusters)
            key, position = _rows(keys, nearest), positions.gather(1, nearest)
        else:
            # A row alone keeps its key to the bit: turning it back and forth would round it every time.
            members = torch.zeros_like(named).scatter_add_(1, labels, torch.ones_like(labels))
            alone = (members == 1).unsqueeze(-1)
            position = centre.squeeze(-1)
            key = torch.where(alone, _rows(keys, named), self._turn(means, position).to(keys.dtype))
        return index.gather(1, named), key, mixed, torch.stack([active.to(total), total, position])

    def _turn(self, keys: Tensor, offsets: Tensor) -> Tensor:
        if self.rule.space == "post":
            return keys
        assert self.scene.frequencies is not None
        return rotate_keys(keys, offsets, self.scene.frequencies)

    def _batches(self, index: Tensor) -> Tensor:
        """Seeded mini-batches, the same in every layer and head, new ones for every merge."""
        generator = torch.Generator().manual_seed(self.scene.seed + self.compactable)
        count = index.shape[1]
        batches = [torch.randperm(count, generator=generator)[:KMEANS_BATCH] for _ in range(KMEANS_STEPS)]
        return torch.stack(batches).to(self.device)


def first_centres(points: Tensor, clusters: int) -> Tensor:
    """Where k-means begins: the rows with no like row before them. (H, n, D) → (H, clusters) ascending.

    Rows are ranked by their distance to the nearest earlier row; the first has none and always begins a cluster.
    """
    return pool_topk(nearest_earlier(points), clusters)


def first_greatest(x: Tensor, labels: Tensor, clusters: int) -> Tensor:
    """The first of the members of each cluster with the greatest x: (H, n), (H, n) → (H, clusters); 0 without any."""
    greatest = x.new_full((x.shape[0], clusters), -torch.inf).scatter_reduce_(1, labels, x, "amax")
    places = torch.arange(x.shape[1], device=x.device).where(x == greatest.gather(1, labels), x.shape[1])
    first = torch.full_like(greatest, x.shape[1], dtype=torch.long).scatter_reduce_(1, labels, places, "amin")
    return first.masked_fill_(first == x.shape[1], 0)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """(H, n, D), (H, m) → (H, m, D)."""
    return compact_kv(x, x[..., :0], index)[0]


def _numbers(numbers: Tensor, index: Tensor) -> Tensor:
    """(3, H, n), (H, m) → (3, H, m)."""
    return numbers.gather(2, index.expand(numbers.shape[0], -1, -1))
