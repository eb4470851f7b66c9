"""What a decoder layer of the library takes for its cache, with the engine's own storage behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .fixed import FixedStates, LinearCache


class CacheAdapter:
    """What a decoder layer takes for its cache. Keeps nothing: each layer's new rows go to `store(layer, k, v)`.

    k and v: (batch, kv heads, new tokens, head dim), rotated. The attention function sees these new rows too, and
    looks up everything older in the engine's own storage. The length is reported as 0: positions are always
    passed explicitly and no mask is built from it. The states of linear-attention layers go to `linear`
    (`fixed.LinearCache`).
    """

    is_compileable = False

    def __init__(
        self, store: Callable[[int, torch.Tensor, torch.Tensor], None], linear: LinearCache | None = None
    ) -> None:
        self._store = store
        self._linear = linear or LinearCache([FixedStates()])

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called once by each layer that owns a cache."""
        self._store(layer_idx, keys, values)
        return keys, values

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        """The last inputs of a layer's convolution."""
        return self._linear.read(layer_idx, f"conv{state_idx}")

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int = 0, **_: Any
    ) -> torch.Tensor:
        """The inputs before the chunk and the chunk's (batch, channels, new tokens) after them."""
        width = conv_kernel_size or conv_states.shape[-1]
        return self._linear.extend_conv(layer_idx, f"conv{state_idx}", conv_states, width)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        """What a linear-attention layer remembers."""
        return self._linear.read(layer_idx, f"recurrent{state_idx}")

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> torch.Tensor:
        """Remember the state after the chunk."""
        self._linear.write(layer_idx, f"recurrent{state_idx}", recurrent_states)
        return recurrent_states

    def is_recording_past(self, layer_idx: int) -> bool:
        """Always: so that no layer writes into a state in place, which other lanes may share."""
        return True

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Always 0."""
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Always 0."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """As for an empty cache."""
        return query_length, 0
