"""Operations of merging: turning keys back and forth, grouping them, and averaging the groups.

Shapes and precision as in `reference`, which re-exports everything here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .reference_attention import wide


def rotate_keys(keys: Tensor, offsets: Tensor, frequencies: Tensor) -> Tensor:
    """Turn every key by offset·frequency, as rotary position embedding does: (…, n, D) → (…, n, D), same dtype.

    `offsets` (n,) or (…, n), in positions: negative, fractional and large ones are fine; −δ undoes δ, and a key at
    position p turned by δ is the same key at p + δ. `frequencies` (F,) in radians per position. Dimension i is
    paired with F + i for i < F (the half-split layout of RoFormer, arXiv 2104.09864, in transformers' models), and
    what lies beyond 2F passes through: partial rotary. A pair with frequency 0 stays as it is.

    Angles are formed in float64: at position 10⁶ a float32 angle is off by 0.03 radians.
    """
    half = frequencies.shape[0]
    if 2 * half > keys.shape[-1]:
        raise ValueError(f"{half} frequencies turn {2 * half} dimensions, and keys have {keys.shape[-1]}")
    angles = offsets.double().unsqueeze(-1) * frequencies.double()
    x = wide(keys)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = (first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :])
    return torch.cat(turned, dim=-1).to(keys.dtype)


def k_means(keys: Tensor, clusters: int, *, start: Tensor, batches: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mini-batch k-means of every head's keys into exactly `clusters` non-empty groups: (H, n, D) → labels (H, n).

    Sculley, "Web-scale k-means clustering" (WWW 2010), algorithm 1: `start` (H, m) names the keys that are the first
    centres; for each row of `batches` (steps, batch), indices of keys, the batch is assigned to the nearest centres as
    they stand, then each of its keys x in turn moves its centre, c ← (1 − η)·c + η·x, with η = w_x / (all weight the
    centre has received so far, w_x included). `weights` (H, n) ≥ 0 are 1 by default; a key of weight 0 moves nothing.
    At the end every key goes to its nearest centre (squared distance).

    A group that is then empty takes the key farthest from its own centre among the groups with more than one, groups
    in ascending order. Ties go to the lower index everywhere. Nothing is drawn here: starts and batches are given.
    """
    heads, count, _ = keys.shape
    if not 0 <= clusters <= count or (clusters == 0 and count > 0):
        raise ValueError(f"{count} keys cannot fill {clusters} clusters")
    if start.shape != (heads, clusters):
        raise ValueError(f"start must be {(heads, clusters)}, not {tuple(start.shape)}")
    points = wide(keys)
    if count == 0:
        return start.new_zeros(heads, 0)
    shares = points.new_ones(heads, count) if weights is None else weights.to(points.dtype)
    centres = points.gather(1, start.unsqueeze(-1).expand(-1, -1, points.shape[-1]))
    received = points.new_zeros(heads, clusters)
    for batch in batches:
        sample, share = points[:, batch], shares[:, batch]
        # All moves of one batch at once: a centre is the weighted mean of what it has received.
        mine = _one_hot(_nearest(sample, centres), clusters, share)
        total = received + mine.sum(-1)
        moved = (received.unsqueeze(-1) * centres + mine @ sample) / total.clamp_min(_tiny(points)).unsqueeze(-1)
        moves = (total > received) & (total >= _tiny(points))
        centres = torch.where(moves.unsqueeze(-1), moved, centres)
        received = total
    return _fill(_nearest(points, centres), points, centres)


def nearest_earlier(points: Tensor) -> Tensor:
    """Half the squared distance of every row to the nearest row before it: (H, n, D) → (H, n), the first row +inf.

    As ‖a‖²/2 + ‖b‖²/2 − a·b, in float32 or float64: rounding makes the distance of equal rows a little more or less
    than 0.
    """
    x = wide(points)
    half = x.square().sum(-1) / 2
    apart = half.unsqueeze(2) + half.unsqueeze(1) - x @ x.transpose(1, 2)
    later = torch.ones(apart.shape[1:], dtype=torch.bool, device=x.device).triu()
    return apart.masked_fill(later, float("inf")).amin(-1) if x.shape[1] else half


def merge_kv(
    keys: Tensor,
    values: Tensor,
    labels: Tensor,
    clusters: int,
    *,
    key_weights: Tensor | None = None,
    value_weights: Tensor | None = None,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One row per group: (H, n, D) keys and values, (H, n) labels in 0…m−1 → keys, values (H, m, D), counts (H, m).

    The weighted means k = Σ w_i·k_i / Σ w_i and likewise v, with `key_weights` and `value_weights` (H, n) ≥ 0
    (compaction.md 12), in the dtype of keys and values. `counts` (H, n) is how many tokens each row already stands for,
    1 by default; groups add theirs up (float32 or float64), so that log of a count is the bias that keeps the mass of a
    merged key through any number of mergers. Weights default to the counts, which also step in for a group whose
    weights are all zero. A group of one is that row, unchanged; a group without rows is 0 with count 0.
    """
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < clusters:
        raise ValueError(f"labels must lie in 0…{clusters - 1}")
    each = wide(keys).new_ones(labels.shape) if counts is None else counts.to(wide(keys).dtype)
    totals = _one_hot(labels, clusters, each)
    merged = [
        (_means(labels, clusters, each if weights is None else weights.to(each.dtype), totals) @ wide(x)).to(x.dtype)
        for x, weights in ((keys, key_weights), (values, value_weights))
    ]
    return merged[0], merged[1], totals.sum(-1)


def _means(labels: Tensor, clusters: int, weights: Tensor, totals: Tensor) -> Tensor:
    """(H, m, n) rows that sum to 1 over each group's members: `weights`, or `totals` where they vanish."""
    mine = _one_hot(labels, clusters, weights)
    vanished = mine.sum(-1, keepdim=True) < _tiny(mine)
    mine = torch.where(vanished, totals, mine)
    return mine / mine.sum(-1, keepdim=True).clamp_min(_tiny(mine))


def _one_hot(labels: Tensor, clusters: int, weights: Tensor) -> Tensor:
    """(H, n) labels and weights → (H, m, n): a product with it sums over groups in a fixed order, without atomics."""
    member = labels.unsqueeze(1) == torch.arange(clusters, device=labels.device)[:, None]
    return member * weights.unsqueeze(1)


def _nearest(points: Tensor, centres: Tensor) -> Tensor:
    """(H, b, D), (H, m, D) → (H, b): argmin_c ‖c‖²/2 − x·c, the squared distance less what all centres share."""
    return (centres.square().sum(-1).unsqueeze(1) / 2 - points @ centres.transpose(1, 2)).argmin(-1)


def _fill(labels: Tensor, points: Tensor, centres: Tensor) -> Tensor:
    """Give every empty group the farthest key of the groups that can spare one."""
    heads, clusters, dim = centres.shape
    distance = (points - centres.gather(1, labels.unsqueeze(-1).expand(-1, -1, dim))).square().sum(-1)
    members = _one_hot(labels, clusters, torch.ones_like(labels)).sum(-1)
    for head in range(heads):
        for empty in (members[head] == 0).nonzero()[:, 0].tolist():
            spare = members[head].gather(0, labels[head]) > 1
            far = int(distance[head].masked_fill(~spare, -1.0).argmax())
            members[head, labels[head, far]] -= 1
            members[head, empty] = 1
            labels[head, far] = empty
    return labels


def _tiny(like: Tensor) -> float:
    return torch.finfo(like.dtype).tiny
