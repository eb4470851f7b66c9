"""One forward pass over several lanes in lockstep: linear layers batched, attention per lane on its own cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..kernels.attention import chunk_attention, tree_mask
from ..kernels.decode import decode_attention
from ..kernels.rotate import rotate_keys
from .adapter import CacheAdapter
from .branch import Lane
from .cache import KvCache
from .fixed import LinearCache
from .model import Layer, LoadedModel, head, install_attention, rope_frequencies, run_layers, use_attention
from .policies.base import KvShape
from .policies.sight import Sight

Observer = Callable[[int, Sight], None]
"""Called as observer(slot, sight) for one lane; the sight has `read` for single tokens of lanes that are `reading`.

A slot is the place of a compactable layer's cache. Where other layers read it too (KV sharing), it is called once for
each of them.
"""


@dataclass
class Pass:
    """What the attention function must know of the pass in progress. `visible` (L, L) says which new tokens see which.

    `depth` (L,) is how far each new token lies beyond its lane's position.
    """

    lanes: Sequence[Lane]
    layers: Sequence[Layer]
    slots: dict[int, int]
    observers: Sequence[Sequence[Observer]]
    visible: Tensor
    depth: Tensor
    moves: bool
    reading: Sequence[bool] = ()
    masks: dict[tuple[int, int, int, int | None], Tensor | None] = field(default_factory=dict)
    recent: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Append one layer's new rows to every lane's cache."""
        for number, lane in enumerate(self.lanes):
            if layer in self.slots:
                lane.cache.append(self.slots[layer], keys[number], values[number])
            else:
                self.recent[number, layer] = lane.fixed.extended(layer, keys[number], values[number])

    def attend(self, layer: int, queries: Tensor, scaling: float) -> Tensor:
        """(B, H, L, D) queries → (B, L, H, D): each lane over its own rows."""
        out = torch.empty_like(queries.transpose(1, 2), memory_format=torch.contiguous_format)
        owner, window = self.layers[layer].owner, self.layers[layer].window
        for number, lane in enumerate(self.lanes):
            query, bias = queries[number], None
            if owner in self.slots:
                keys, values = lane.cache.view(self.slots[owner])
                bias = lane.cache.bias(self.slots[owner])
            else:
                keys, values = self.recent[number, owner]
            read = None
            if query.shape[1] == 1 and owner in self.slots and self.reading and self.reading[number]:
                said, _, read = decode_attention(query, keys, values, scaling, bias=bias, activity=True)
            else:
                said = chunk_attention(query, keys, values, scaling, self._mask(query, keys, window), bias)
            out[number] = said.transpose(0, 1)
            for observe in self.observers[number] if owner in self.slots else ():
                observe(self.slots[owner], Sight(query, keys, scaling, bias, read))
        return out

    def finish(self) -> None:
        """Hold what sliding layers still need."""
        if self.moves:
            for (number, layer), (keys, values) in self.recent.items():
                window = self.layers[layer].window
                assert window is not None
                self.lanes[number].fixed.keep_last(layer, keys, values, window)

    def _mask(self, query: Tensor, keys: Tensor, window: int | None) -> Tensor | None:
        """The same for every layer of one kind, and for every lane with as many rows."""
        rows, group = keys.shape[1], query.shape[0] // keys.shape[0]
        key = (rows, group, query.dtype.itemsize, window)
        if key not in self.masks:
            single = query.shape[1] == 1  # it sees everything that is held
            self.masks[key] = None if single else tree_mask(self.visible, rows, group, query, self.depth, window)
        return self.masks[key]


class Forward:
    """A loaded model with kvmill's attention. One pass at a time per process."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.shape: KvShape = model.shape()
        full = [layer.index for layer in model.layers if layer.kind == "full"]
        self._slots = {index: slot for slot, index in enumerate(full)}
        self.readers = tuple(sum(layer.owner == index for layer in model.layers) for index in full)
        self._pass: Pass | None = None
        install_attention(model.module, self._attention)

    @property
    def takes_trees(self) -> bool:
        """Whether several continuations can be fed in one pass: a recurrent state has only one past."""
        return not any(layer.kind == "linear" for layer in self.model.layers)

    def new_lane(self) -> Lane:
        """A lane at the beginning of a text, with nobody on it."""
        return Lane(KvCache(self.shape, self.model.dtype, self.model.device), riders=0)

    @torch.inference_mode()
    def feed(
        self,
        lanes: Sequence[Lane],
        ids: Sequence[int] | Sequence[Sequence[int]],
        *,
        observers: Sequence[Sequence[Observer]] = (),
        reading: Sequence[bool] = (),
        visible: Tensor | None = None,
        depth: Sequence[int] | None = None,
    ) -> Tensor:
        """Feed L tokens to every lane, the same ones or a row of its own to each; returns hidden states (B, L, hidden).

        Positions follow each lane's own. `visible` (L, L) and `depth` (L,) describe a tree of tokens instead of
        a sequence; the lane's position does not move then (roll the cache back afterwards).
        """
        device = self.model.device
        tokens = torch.tensor(ids, device=device)
        count = tokens.shape[-1]
        steps = torch.tensor(range(count) if depth is None else depth, device=device)
        positions = torch.tensor([lane.position for lane in lanes], device=device)[:, None] + steps
        tokens = tokens.expand(len(lanes), -1)
        if visible is None:
            visible = torch.ones(count, count, dtype=torch.bool, device=device).tril()
        watching = observers or [()] * len(lanes)
        now = Pass(lanes, self.model.layers, self._slots, watching, visible, steps, depth is None, reading)
        self._pass = now
        use_attention(self._attention)  # another model's pass may have come between

        def store(layer: int, keys: Tensor, values: Tensor) -> None:
            now.store(layer, keys.to(device), values.to(device))

        cache = CacheAdapter(store, LinearCache([lane.fixed for lane in lanes]))
        try:
            hidden = run_layers(self.model.module, tokens, positions, cache).to(device)
        finally:
            self._pass = None
        now.finish()
        if depth is None:
            for lane in lanes:
                lane.position += count
        return hidden

    @torch.inference_mode()
    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """(…, hidden) → float32 log-probabilities (…, vocabulary)."""
        return head(self.model.module, hidden).to(self.model.device).float().log_softmax(-1)

    @cached_property
    def frequencies(self) -> Tensor | None:
        """Inverse RoPE frequencies (F,) of the compactable layers, or None where keys do not turn by them.

        Checked on the model itself: a token alone has the same keys at every position, but for the rotation.
        """
        found = rope_frequencies(self.model.module)
        if found is None:
            return None
        found = found.to(self.model.device)
        keys: list[list[Tensor]] = []
        for position in (0, 37):
            lane = self.new_lane()
            lane.position = position
            self.feed([lane], [1])
            keys.append([lane.cache.view(slot)[0].float() for slot in range(self.shape.layers)])
        tolerance = 1e-3 if self.model.dtype == torch.float32 else 0.05
        shift = torch.tensor([37.0], device=self.model.device)
        for still, turned in zip(*keys, strict=True):
            error = (rotate_keys(still, shift, found) - turned).norm() / turned.norm()
            if not float(error) < tolerance:
                return None
        return found

    def _attention(
        self, layer: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, *, scaling: float, **extra: Any
    ) -> tuple[Tensor, None]:
        for name in ("softcap", "s_aux"):
            if extra.get(name) is not None:
                raise UserError(f"model {self.model.name} uses {name} in its attention, which replay does not do yet")
        assert self._pass is not None
        # Where the layers are spread over several GPUs, caches and attention stay on the model's own.
        said = self._pass.attend(layer.layer_idx, query.to(self.model.device), scaling)
        return said.to(query.device), None
