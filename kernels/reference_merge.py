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
