"""The peers' scores as pure functions. `peers.py` and `kvzip.py` state every convention.

Shapes: (H_kv, G, w, D) queries of w tokens in order, as the heads that read a KV head; (H_kv, n, D) keys and values;
scores (H_kv, n), larger stays. Computed in float32, or in float64 when the inputs are float64.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...kernels.mass import attention_mass
from ...kernels.reference import attention_logits, pool_scores, wide

NORM_EPSILON = 1e-8
ROWS_AT_ONCE = 512  # rows of the cosine matrix held at a time


def snapkv_scores(queries: Tensor, keys: Tensor, scaling: float, kernel: int) -> Tensor:
    """SnapKV: `queries` are those of the last w tokens, 1 ≤ w < n."""
    _, group, window, _ = queries.shape
    count = keys.shape[1]
    past = count - window
    limits = torch.arange(past + 1, count + 1, device=keys.device).repeat(group)
    # The mean over rows and the average pool over keys are both linear: their order does not matter.
    read = attention_mass(queries.flatten(1, 2), keys, scaling, reduction="mean", limits=limits)[..., :past]
    return _append_window(pool_scores(read, kernel, "mean"), window)


def rkv_scores(queries: Tensor, keys: Tensor, scaling: float, kernel: int, mix: float, threshold: float) -> Tensor:
    """R-KV: `queries` are those of the last w tokens, 1 ≤ w < n."""
    heads, group, window, _ = queries.shape
    past = keys.shape[1] - window
    logits = attention_logits(queries.flatten(1, 2), keys[:, :past], scaling)
    read = logits.view(heads, group, window, past).amax(1).softmax(-1).mean(1)
    attention = pool_scores(read, kernel, "max")
    redundancy = key_redundancy(keys, threshold)[:, :past]
    return _append_window(mix * attention - (1 - mix) * redundancy, window)


def key_redundancy(keys: Tensor, threshold: float) -> Tensor:
    """softmax_j of the mean over i of cos(k_i, k_j), diagonal and each row's latest near duplicate counted as 0.

    A row without a near duplicate loses its column 0 instead, as in the authors' code.
    """
    wide_keys = wide(keys)
    units = wide_keys / (wide_keys.norm(dim=-1, keepdim=True) + NORM_EPSILON)
    count = keys.shape[1]
    columns = torch.arange(count, device=keys.device)
    total = torch.zeros(units.shape[:2], dtype=units.dtype, device=units.device)
    for begin in range(0, count, ROWS_AT_ONCE):
        cosines = units[:, begin : begin + ROWS_AT_ONCE] @ units.transpose(1, 2)
        cosines.masked_fill_(columns[begin : begin + ROWS_AT_ONCE, None] == columns, 0.0)
        latest = torch.where(cosines > threshold, columns, 0).amax(-1, keepdim=True)
        total += cosines.scatter(-1, latest, 0.0).sum(1)
    return (total / count).softmax(-1)


def expected_attention_scores(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float,
    frequencies: Tensor,
    first: int,
    *,
    sinks: int = 4,
    future: int = 512,
    covariance: bool = True,
    vnorm: bool = True,
    epsilon: float = 0.0,
) -> Tensor:
    """Expected Attention. `queries` (H_kv, G, n − sinks, D) are rotated; the segment's first token is at `first`.

    `frequencies` (F,) are the inverse RoPE frequencies; sinks < n.
    """
    count = keys.shape[1]
    positions = torch.arange(first + sinks, first + count, device=keys.device)
    plain = unrotate(wide(queries), positions, frequencies)
    mean = plain.mean(2, keepdim=True)
    turn = mean_rotation(first + count, future, frequencies.to(plain.dtype), plain.shape[-1])
    late = wide(keys)[:, None, sinks:]
    logits = (late @ (mean @ turn.T).transpose(2, 3)).squeeze(-1) * scaling
    if covariance:
        centred = plain - mean
        spread = turn @ (centred.transpose(2, 3) @ centred / centred.shape[2]) @ turn.T
        logits = logits + ((late @ spread) * late).sum(-1) * (scaling**2 / 2)
    scores = logits.softmax(-1).mean(1)
    if vnorm:
        scores = (scores + epsilon) * wide(values)[:, sinks:].norm(dim=-1)
    return pad(scores, (sinks, 0), value=float(scores.max()) + 1)


def unrotate(queries: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
    """(…, L, D) queries rotated at `positions` (L,) → as they were before; half-split layout.

    With angles in the queries' own precision, as the model formed them in float32: exacter ones undo another rotation.
    """
    half = frequencies.shape[0]
    angles = positions[:, None] * frequencies.to(queries.dtype)
    cosine, sine = angles.cos(), angles.sin()
    low, high, rest = queries[..., :half], queries[..., half : 2 * half], queries[..., 2 * half :]
    return torch.cat([low * cosine + high * sine, high * cosine - low * sine, rest], dim=-1)


def mean_rotation(first: int, count: int, frequencies: Tensor, dim: int) -> Tensor:
    """R̄ (dim, dim): the mean of the RoPE rotations of `count` positions from `first` on; half-split layout.

    Only the first 2F dimensions turn.
    """
    angles = torch.arange(first, first + count, device=frequencies.device)[:, None] * frequencies
    cosine, sine = angles.cos().mean(0), angles.sin().mean(0)
    half = frequencies.shape[0]
    turn = torch.eye(dim, dtype=frequencies.dtype, device=frequencies.device)
    low, high = torch.arange(half), torch.arange(half, 2 * half)
    turn[low, low] = turn[high, high] = cosine
    turn[low, high], turn[high, low] = -sine, sine
    return turn


def keydiff_scores(keys: Tensor) -> Tensor:
    """KeyDiff: −cos(k_j, mean_i k_i/‖k_i‖)."""
    units = torch.nn.functional.normalize(wide(keys), dim=-1)
    anchor = torch.nn.functional.normalize(units.mean(1, keepdim=True), dim=-1)
    return -(units * anchor).sum(-1)


def knorm_scores(keys: Tensor) -> Tensor:
    """L2 norm: −‖k_j‖."""
    return -wide(keys).norm(dim=-1)


def _append_window(scores: Tensor, window: int) -> Tensor:
    """The window's scores above all others, later ones higher."""
    top = float(scores.max()) + 1
    rank = torch.arange(window, dtype=scores.dtype, device=scores.device)
    return torch.cat([scores, (top + rank).expand(scores.shape[0], -1)], dim=-1)
