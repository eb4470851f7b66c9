"""What is left alone: the caches of sliding-window layers and the states of linear-attention layers of one lane.

Nothing here is ever evicted. Tensors are replaced, never written to, so that a fork or a snapshot is a copy of two
dictionaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(eq=False)
class FixedStates:
    """`sliding`: by layer, K and V (H_kv, at most window − 1, D) of the last tokens. `linear`: by (layer, name)."""

    sliding: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    linear: dict[tuple[int, str], Tensor] = field(default_factory=dict)

    def fork(self) -> FixedStates:
        """The same states for a second lane, or to come back to."""
        return FixedStates(dict(self.sliding), dict(self.linear))

    def clear(self) -> None:
        """As at the beginning of a text."""
        self.sliding.clear()
        self.linear.clear()

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        pairs = sum(keys.nbytes + values.nbytes for keys, values in self.sliding.values())
        return pairs + sum(state.nbytes for state in self.linear.values())

    def extended(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """A sliding layer's rows and the (H_kv, L, D) new ones after them."""
        if layer not in self.sliding:
            return keys, values
        old_keys, old_values = self.sliding[layer]
        return torch.cat([old_keys, keys], dim=1), torch.cat([old_values, values], dim=1)

    def keep_last(self, layer: int, keys: Tensor, values: Tensor, window: int) -> None:
        """Hold the last `window` − 1 rows, all that a later token can see."""
        count = min(window - 1, keys.shape[1])
        begin = keys.shape[1] - count
        self.sliding[layer] = (keys[:, begin:].clone(), values[:, begin:].clone())


class LinearCache:
    """What a linear-attention layer reads and writes in one pass over several lanes, batched."""

    def __init__(self, lanes: Sequence[FixedStates]) -> None:
        self._lanes = lanes

    def read(self, layer: int, name: str) -> Tensor | None:
        """The lanes' states stacked, or None at the beginning of a text."""
        found = [lane.linear.get((layer, name)) for lane in self._lanes]
        held = [state for state in found if state is not None]
        if len(held) not in (0, len(found)):
            raise AssertionError("lanes at the beginning and lanes in the middle of a text cannot share a pass")
        return torch.stack(held) if held else None

    def write(self, layer: int, name: str, states: Tensor) -> None:
        """Hand every lane its own state."""
        for number, lane in enumerate(self._lanes):
            lane.linear[(layer, name)] = states[number].clone()

    def extend_conv(self, layer: int, name: str, new: Tensor, width: int) -> Tensor:
        """The convolution's last inputs and the new ones (B, channels, L) after them; the last `width` are held."""
        old = self.read(layer, name)
        both = new if old is None else torch.cat([old, new], dim=-1)
        held = both[..., -width:]
        self.write(layer, name, torch.nn.functional.pad(held, (width - held.shape[-1], 0)))
        return both
