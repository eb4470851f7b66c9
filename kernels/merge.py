"""Grouping keys and averaging the groups, in O(n) memory: rows are ordered by group, and no (groups × rows) matrix is.

Sums over groups run in the order of the rows, so the same inputs give the same bits. The references are those of
`reference_merge`, and say what is computed; labels are the same but between distances that rounding cannot tell apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from . import reference
from .checks import indices, real, shaped, together
from .dispatch import Impl, choose
from .reference import wide

BLOCK_ENTRIES, GPU_ENTRIES, MIN_ROWS = 1 << 19, 1 << 27, 64
"""Distances held at once, on a CPU few enough to stay in the cache of a core (2 MiB in float32)."""

Nearest = Callable[[Tensor, Tensor], Tensor]


def merge_kv(
    keys: Tensor,
    values: Tensor,
    labels: Tensor,
    clusters: int,
    *,
    key_weights: Tensor | None = None,
    value_weights: Tensor | None = None,
    counts: Tensor | None = None,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """`reference.merge_kv`: (H, n, D) keys and values, (H, n) labels → the weighted means (H, m, D), counts (H, m)."""
    real(keys=keys, values=values)
    indices("labels", labels)
    shaped("keys", keys, *labels.shape, None)
    shaped("values", values, *labels.shape, None)
    given = {"key_weights": key_weights, "value_weights": value_weights, "counts": counts}
    for name, x in given.items():
        if x is not None:
            shaped(name, x, *labels.shape)
    together(keys=keys, values=values, labels=labels, **given)
    form = choose(impl, keys)
    if form == "reference":
        return reference.merge_kv(keys, values, labels, clusters, **given)
    if labels.numel():
        low, high = (int(x) for x in labels.aminmax())
        if not 0 <= low <= high < clusters:
            raise ValueError(f"labels must lie in 0…{clusters - 1}")
    groups = Groups.of(labels, clusters)
    if form == "triton":
        from .gpu.merge import merge_kv as on_gpu

        return on_gpu(keys, values, groups.order, groups.starts, **given)
    each = wide(keys).new_ones(labels.shape) if counts is None else counts.to(wide(keys).dtype)
    totals = groups.sums(each)
    means = []
    for x, weights in ((keys, key_weights), (values, value_weights)):
        shares = _shares(groups, labels, each if weights is None else weights.to(each.dtype), each, totals)
        means.append(groups.sums(wide(x), shares).to(x.dtype))
    return means[0], means[1], totals.to(each.dtype)


def k_means(
    keys: Tensor,
    clusters: int,
    *,
    start: Tensor,
    batches: Tensor,
    weights: Tensor | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """`reference.k_means`: mini-batch k-means of (H, n, D) keys into exactly `clusters` non-empty groups → (H, n)."""
    heads, count, dim = keys.shape
    if weights is not None:
        shaped("weights", weights, heads, count)
    together(keys=keys, start=start, batches=batches, weights=weights)
    form = choose(impl, keys)
    if form == "reference" or count == 0 or not 0 < clusters <= count or start.shape != (heads, clusters):
        return reference.k_means(keys, clusters, start=start, batches=batches, weights=weights)
    nearest: Nearest = _nearest
    if form == "triton":
        from .gpu.merge import nearest as on_gpu

        nearest = on_gpu
    points = wide(keys)
    shares = points.new_ones(heads, count) if weights is None else weights.to(points.dtype)
    centres = points.gather(1, start.unsqueeze(-1).expand(-1, -1, dim))
    received = points.new_zeros(heads, clusters)
    tiny = torch.finfo(points.dtype).tiny
    for batch in batches:
        sample, share = points[:, batch], shares[:, batch]
        groups = Groups.of(nearest(sample, centres), clusters)
        total = received + groups.sums(share).to(share.dtype)
        moved = received.unsqueeze(-1) * centres + groups.sums(sample, share)
        moves = (total > received) & (total >= tiny)
        centres = torch.where(moves.unsqueeze(-1), moved / total.clamp_min(tiny).unsqueeze(-1), centres)
        received = total
    return _fill(nearest(points, centres), points, centres)


def nearest_earlier(points: Tensor, *, impl: Impl = "auto") -> Tensor:
    """`reference.nearest_earlier`: half the squared distance to the nearest row before, (H, n, D) → (H, n)."""
    form = choose(impl, points)
    if form == "reference":
        return reference.nearest_earlier(points)
    x = wide(points)
    half = x.square().sum(-1) / 2
    if form == "triton":
        from .gpu.merge import nearest_earlier as on_gpu

        return on_gpu(x) + half
    count = x.shape[1]
    step = _block(x, count)
    out = torch.empty_like(half)
    for start in range(0, count, step):
        end = min(start + step, count)
        block = torch.baddbmm(half[:, None, :end], x[:, start:end], x[:, :end].transpose(1, 2), alpha=-1)
        later = torch.ones(end - start, end - start, dtype=torch.bool, device=x.device).triu()
        block[:, :, start:].masked_fill_(later, float("inf"))
        out[:, start:end] = block.amin(-1)
    return out + half


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows in the order of their groups: `order` (H, n), and where groups begin, `starts` (H, m + 1)."""

    order: Tensor
    starts: Tensor

    @classmethod
    def of(cls, labels: Tensor, clusters: int) -> Groups:
        """Groups of (H, n) labels in 0…m−1; rows of one group keep their order."""
        ordered, order = labels.sort(dim=1, stable=True)
        bounds = torch.arange(clusters + 1, device=labels.device).expand(labels.shape[0], -1)
        return cls(order, torch.searchsorted(ordered.contiguous(), bounds.contiguous()))

    def sums(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Σ w_i·x_i over each group: (H, n, D) → (H, m, D), or (H, n) → (H, m) in float64; w is 1 by default."""
        heads, count = self.order.shape
        if x.dim() == 2:
            return self.sums(x.double().unsqueeze(-1), weights).squeeze(-1)
        if not x.numel():  # embedding_bag takes rows of no width for no rows
            return x.new_zeros(heads, self.starts.shape[1] - 1, x.shape[-1])
        offsets = torch.arange(heads, device=x.device).unsqueeze(-1) * count
        rows = (self.order + offsets).reshape(-1)
        return embedding_bag(
            rows,
            x.flatten(0, 1),
            (self.starts[:, :-1] + offsets).reshape(-1),
            mode="sum",
            per_sample_weights=None if weights is None else weights.reshape(-1)[rows],
        ).view(heads, self.starts.shape[1] - 1, x.shape[-1])


def _shares(groups: Groups, labels: Tensor, weights: Tensor, each: Tensor, totals: Tensor) -> Tensor:
    """Weights that add up to 1 in every group, (H, n): `each`, of sum `totals`, steps in where they vanish.

    A row alone has a share of exactly 1.
    """
    tiny = torch.finfo(weights.dtype).tiny
    sums = groups.sums(weights)
    vanished = sums < tiny
    whole = torch.where(vanished, totals, sums).clamp_min(tiny)
    used = torch.where(vanished.gather(1, labels), each, weights)
    return (used / whole.gather(1, labels)).to(weights.dtype)


def _nearest(points: Tensor, centres: Tensor) -> Tensor:
    """(H, b, D), (H, m, D) → (H, b): argmin_c ‖c‖²/2 − x·c, a block of rows at a time."""
    half, turned = centres.square().sum(-1).unsqueeze(1) / 2, centres.transpose(1, 2)
    blocks = points.split(_block(points, centres.shape[1]), dim=1)
    return torch.cat([torch.baddbmm(half, block, turned, alpha=-1).argmin(-1) for block in blocks], dim=1)


def _block(x: Tensor, width: int) -> int:
    """Rows whose distances to `width` others, in all heads, are held at once."""
    entries = GPU_ENTRIES if x.is_cuda else BLOCK_ENTRIES
    return max(MIN_ROWS, entries // max(1, x.shape[0] * width))


def _fill(labels: Tensor, points: Tensor, centres: Tensor) -> Tensor:
    """Give every empty group, in order, the farthest key of the groups that can spare one.

    A group gives its farthest keys first and keeps one. So the keys that may leave are known beforehand, and leave in
    the order of their distance until no group is empty.
    """
    heads, clusters, dim = centres.shape
    members = labels.new_zeros(heads, clusters).scatter_add_(1, labels, torch.ones_like(labels))
    empty = members == 0
    if not bool(empty.any()):
        return labels
    far = (points - centres.gather(1, labels.unsqueeze(-1).expand(-1, -1, dim))).square().sum(-1)
    order = far.sort(dim=1, descending=True, stable=True).indices
    sent = labels.gather(1, order)
    groups = Groups.of(sent, clusters)
    place = torch.arange(labels.shape[1], device=labels.device).expand(heads, -1)
    before = torch.empty_like(order).scatter_(1, groups.order, place) - groups.starts.gather(1, sent)
    spare = before < members.gather(1, sent) - 1
    turn = spare.cumsum(1) - 1
    wanting = (~empty).byte().sort(dim=1, stable=True).indices
    leaves = spare & (turn < empty.sum(1, keepdim=True))
    sent = torch.where(leaves, wanting.gather(1, turn.clamp(0, clusters - 1)), sent)
    return torch.empty_like(labels).scatter_(1, order, sent)
