"""The reference of eviction: the full cache, with every key that was evicted masked out, head by head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kvmill.replay.adapter import CacheAdapter
from kvmill.replay.branch import Lane
from kvmill.replay.forward import Forward
from kvmill.replay.model import install_attention, run_layers


@torch.inference_mode()
def masked_pass(forward: Forward, full: Lane, index: Tensor, ids: Sequence[int]) -> Tensor:
    """Hidden states (L, hidden) of `ids` after the full cache less what `index` (layers, H_kv, rows) lacks.

    Plain softmax over plain masks; sliding layers see their window. The lane is as before afterwards. The model's
    attention is installed anew by the next `Forward.feed`.
    """
    slots = {layer.index: slot for slot, layer in enumerate(s for s in forward.model.layers if s.kind == "full")}
    past, count, recent = full.cache.rows, len(ids), {}

    def store(layer: int, keys: Tensor, values: Tensor) -> None:
        if layer in slots:
            full.cache.append(slots[layer], keys[0], values[0])
        else:
            recent[layer] = full.fixed.extended(layer, keys[0], values[0])

    def attend(
        layer: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, *, scaling: float, **_: Any
    ) -> tuple[Tensor, None]:
        number = layer.layer_idx
        keys, values = full.cache.view(slots[number]) if number in slots else recent[number]
        heads, rows = keys.shape[:2]
        places = torch.arange(rows)
        asking = torch.arange(rows - count, rows)[:, None]
        seen = (places <= asking).expand(heads, -1, -1)
        if number in slots:
            kept = torch.zeros(heads, rows, dtype=torch.bool).scatter(1, index[slots[number]].long(), True)
            seen = seen & (kept | (places >= past))[:, None]
        else:
            seen = seen & (asking - places < forward.model.layers[number].window)
        group = query.shape[1] // heads
        logits = query[0] @ keys.repeat_interleave(group, 0).transpose(1, 2) * scaling
        logits = logits.masked_fill(~seen.repeat_interleave(group, 0), float("-inf"))
        return (logits.softmax(-1) @ values.repeat_interleave(group, 0)).transpose(0, 1)[None], None

    install_attention(forward.model.module, attend)
    try:
        positions = torch.arange(full.position, full.position + count)[None]
        return run_layers(forward.model.module, torch.tensor([list(ids)]), positions, CacheAdapter(store))[0]
    finally:
        full.cache.roll_back(past)
