"""`Geometry`: the shape of a model as the planner sees it — bytes held, bytes read, operations per token.

Only layers that own a full-attention cache are compactable. Sliding-window and linear-attention layers hold a
constant state per session, which no policy touches. A name or architecture that is not understood is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..replay.policies.base import KvShape

DTYPE_BYTES = {"bf16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True)
class Geometry:
    """One model. `full_layers` own a full-attention cache; `reading_layers` also count those that borrow one.

    `body_parameters` take part in every token; `head_parameters` (the output projection) once per sampled token;
    `table_parameters` are held but only looked up. `state_bytes` is the constant state of a session,
    `state_traffic_bytes` what one decode step moves of it, `local_flops` the operations per token of sliding layers.
    """

    name: str
    layers: int
    full_layers: int
    reading_layers: int
    hidden: int
    q_heads: int
    kv_heads: int
    head_dim: int
    body_parameters: float
    head_parameters: float
    table_parameters: float
    max_positions: int
    state_bytes: float = 0.0
    state_traffic_bytes: float = 0.0
    local_flops: float = 0.0
    source: str = "public model configuration"

    @property
    def parameters(self) -> float:
        """All parameters held in memory."""
        return self.body_parameters + self.head_parameters + self.table_parameters

    def weight_bytes(self, dtype: str) -> float:
        """Bytes of the weights; under fp8 the embedding and the output projection stay bf16, as engines load them."""
        return self.body_parameters * DTYPE_BYTES[dtype] + 2.0 * (self.head_parameters + self.table_parameters)

    def streamed_bytes(self, dtype: str) -> float:
        """Weight bytes that one decode step reads (look-up tables are not streamed)."""
        return self.body_parameters * DTYPE_BYTES[dtype] + 2.0 * self.head_parameters

    def kv_shape(self, kv_dtype: str) -> KvShape:
        """The compactable cache."""
        size = DTYPE_BYTES[kv_dtype]
        return KvShape(self.full_layers, self.kv_heads, self.q_heads, self.head_dim, size, self.reading_layers)

    def row_bytes(self, kv_dtype: str) -> int:
        """Bytes of one token's K and V over the full-attention layers: layers · 2 · KV heads · head size · dtype."""
        return self.kv_shape(kv_dtype).row_bytes

    def pair_flops(self) -> float:
        """Attention operations per (query token, visible row) over all full-attention layers: 4 · q heads · size."""
        return 4.0 * self.q_heads * self.head_dim * self.reading_layers

    def compactable_share(self, tokens: int, kv_dtype: str) -> float:
        """Share of a session's memory at `tokens` that compaction can touch: all but its constant state."""
        rows = tokens * self.row_bytes(kv_dtype)
        return rows / (rows + self.state_bytes) if rows else 0.0
