"""One forward pass over several lanes in lockstep: linear layers batched, attention per lane on its own cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..kernels.attention import causal_mask, chunk_attention, tree_mask
from .branch import Lane
from .model import CacheAdapter, LoadedModel, head, install_attention, run_layers
from .policies.base import KvShape

Observer = Callable[[int, Tensor, Tensor, float], None]
"""Called as observer(layer, queries (H_q, L, D), keys (H_kv, rows, D), scaling) for one lane."""


@dataclass
class Pass:
    """What the attention function must know of the pass in progress."""

    lanes: Sequence[Lane]
    observers: Sequence[Sequence[Observer]]
    visible: Tensor | None = None
    masks: dict[int, Tensor | None] = field(default_factory=dict)

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Append one layer's new rows to every lane's cache."""
        for number, lane in enumerate(self.lanes):
            lane.cache.append(layer, keys[number], values[number])

    def attend(self, layer: int, queries: Tensor, scaling: float) -> Tensor:
        """(B, H, L, D) queries → (B, L, H, D): each lane over its own rows."""
        out = torch.empty_like(queries.transpose(1, 2), memory_format=torch.contiguous_format)
        for number, lane in enumerate(self.lanes):
            keys, values = lane.cache.view(layer)
            query = queries[number]
            mask = self._mask(query, keys)
            out[number] = chunk_attention(query, keys, values, scaling, mask).transpose(0, 1)
            for observe in self.observers[number]:
                observe(layer, query, keys, scaling)
        return out

    def _mask(self, query: Tensor, keys: Tensor) -> Tensor | None:
        """The same for every layer, and for every lane with as many rows."""
        rows, group = keys.shape[1], query.shape[0] // keys.shape[0]
        if rows not in self.masks:
            if self.visible is None:
                self.masks[rows] = causal_mask(query.shape[1], rows, group, query)
            else:
                self.masks[rows] = tree_mask(self.visible, rows, group, query)
        return self.masks[rows]


class Forward:
    """A loaded model with kvmill's attention. One pass at a time per process."""

    def __init__(self, model: LoadedModel) -> None:
        other = sorted({layer.kind for layer in model.layers} - {"full"})
        if other:
            raise UserError(f"model {model.name} has {', '.join(other)} layers, which replay cannot compact around yet")
        self.model = model
        self.shape: KvShape = model.shape()
        self._pass: Pass | None = None
        install_attention(model.module, self._attention)

    @torch.inference_mode()
    def feed(
        self,
        lanes: Sequence[Lane],
        ids: Sequence[int],
        *,
        observers: Sequence[Sequence[Observer]] = (),
        visible: Tensor | None = None,
        depth: Sequence[int] | None = None,
    ) -> Tensor:
        """Feed the same L tokens to every lane; returns hidden states (B, L, hidden).

        Positions follow each lane's own. `visible` (L, L) and `depth` (L,) describe a tree of tokens instead of
        a sequence; the lane's position does not move then (roll the cache back afterwards).
        """
        device = self.model.device
        steps = torch.tensor(range(len(ids)) if depth is None else depth, device=device)
        positions = torch.tensor([lane.position for lane in lanes], device=device)[:, None] + steps
        tokens = torch.tensor(ids, device=device).expand(len(lanes), -1)
        self._pass = Pass(lanes, observers or [()] * len(lanes), visible)
        try:
            hidden = run_layers(self.model.module, tokens, positions, CacheAdapter(self._pass.store))
        finally:
            self._pass = None
        if depth is None:
            for lane in lanes:
                lane.position += len(ids)
        return hidden

    @torch.inference_mode()
    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """(…, hidden) → float32 log-probabilities (…, vocabulary)."""
        return head(self.model.module, hidden).float().log_softmax(-1)

    def _attention(
        self, layer: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, *, scaling: float, **extra: Any
    ) -> tuple[Tensor, None]:
        for name in ("softcap", "s_aux"):
            if extra.get(name) is not None:
                raise UserError(f"model {self.model.name} uses {name} in its attention, which replay does not do yet")
        assert self._pass is not None
        return self._pass.attend(layer.layer_idx, query, scaling), None
