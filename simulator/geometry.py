"""`Geometry`: the shape of a model as the planner sees it — bytes held, bytes read, operations per token.

Only layers that own a full-attention cache are compactable. Sliding-window and linear-attention layers hold a
constant state per session, which no policy touches. A name or architecture that is not understood is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..replay.policies.base import KvShape

DTYPE_BYTES = {"bf16": 2, "fp8": 1}
LayerKind = Literal["full", "latent", "sliding", "linear", "shared"]


@dataclass(frozen=True, slots=True)
class LatentShape(KvShape):
    """The cache of multi-head latent attention: one row of `head_dim` numbers per token and layer, for all heads.

    Compaction here keeps or drops the row as a whole: `granularity=token` with one KV head, whatever the policy says.
    Queries are those of the absorbed form, `head_dim` numbers per query head, so a captured token takes `q_heads`
    times the bytes of its own row: delayed policies gain less than on grouped-query attention.
    """

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's latent rows over all layers: K and V are read from the same numbers."""
        return self.layers * self.head_dim * self.dtype_bytes


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`count` alike layers and what each of them keeps of a session.

    `row_values` numbers per token, of every token (`window` 0) or of the last `window` − 1; `state_bytes` whatever the
    length. A `shared` layer reads the cache of another one and keeps nothing.
    """

    kind: LayerKind
    count: int
    row_values: int = 0
    window: int = 0
    state_bytes: float = 0.0

    def held_bytes(self, tokens: int, dtype_bytes: float) -> float:
        """Bytes that these layers hold of a session of `tokens` tokens."""
        rows = min(tokens, self.window - 1) if self.window else tokens
        return self.count * (rows * self.row_values * dtype_bytes + self.state_bytes)


@dataclass(frozen=True, slots=True)
class Geometry:
    """One model. `full_layers` own a full-attention cache; `reading_layers` also count those that borrow one.

    `body_parameters` take part in every token; `head_parameters` (the output projection) once per sampled token;
    `table_parameters` are held but only looked up; `extra_parameters` are held and no text token needs them (vision,
    audio). `state_bytes` is the constant state of a session (bf16 windows, float32 recurrent state),
    `state_traffic_bytes` what one decode step moves of it, `local_flops` the operations per token of those layers.

    A mixture of experts has `experts` routed experts per layer, `active_experts` of which a token uses;
    `expert_parameters` is ONE of them summed over all mixture layers, at `expert_bytes` per parameter where the
    checkpoint is quantised (None: as the other weights). Shared experts and routers belong to the body.

    Latent attention (`latent_rank` > 0) has one KV head of `head_dim` = rank + rotary numbers, which no
    tensor-parallel size splits; `expanded_dims` = sizes of a query–key product and of a value once the row is expanded.
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
    experts: int = 0
    active_experts: int = 0
    expert_parameters: float = 0.0
    expert_bytes: float | None = None
    extra_parameters: float = 0.0
    latent_rank: int = 0
    expanded_dims: int = 0
    groups: tuple[LayerGroup, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> float:
        """All parameters held in memory."""
        fixed = self.body_parameters + self.head_parameters + self.table_parameters + self.extra_parameters
        return fixed + self.experts * self.expert_parameters

    @property
    def active_parameters(self) -> float:
        """Parameters that multiply one sampled token (look-up tables do not)."""
        return self.body_parameters + self.head_parameters + self.active_experts * self.expert_parameters

    def weight_bytes(self, dtype: str) -> float:
        """Bytes of the weights; under fp8 the embedding, the output projection and the towers stay bf16, as loaded."""
        plain = 2.0 * (self.head_parameters + self.table_parameters + self.extra_parameters)
        return plain + self.body_parameters * DTYPE_BYTES[dtype] + self.experts * self._expert_bytes(dtype)

    def touched_experts(self, tokens: float) -> float:
        """Expected distinct experts per layer that `tokens` tokens use: E·(1 − (1 − k/E)^tokens), evenly routed."""
        return self.experts * (1.0 - (1.0 - self.active_experts / self.experts) ** tokens) if self.experts else 0.0

    def streamed_bytes(self, dtype: str, tokens: float = 1.0) -> float:
        """Weight bytes that one step over `tokens` tokens reads: no look-up tables, of the experts those touched."""
        dense = self.body_parameters * DTYPE_BYTES[dtype] + 2.0 * self.head_parameters
        return dense + self.touched_experts(tokens) * self._expert_bytes(dtype)

    def kv_shape(self, kv_dtype: str) -> KvShape:
        """The compactable cache, as policies' `footprint` and `work` read it."""
        size = DTYPE_BYTES[kv_dtype]
        shape = LatentShape if self.latent_rank else KvShape
        return shape(self.full_layers, self.kv_heads, self.q_heads, self.head_dim, size, self.reading_layers)

    def row_bytes(self, kv_dtype: str) -> int:
        """Bytes of one token over the full-attention layers: layers · 2 · KV heads · head size · dtype.

        Latent attention: layers · (rank + rotary) · dtype.
        """
        return self.kv_shape(kv_dtype).row_bytes

    def pair_flops(self) -> float:
        """Attention operations per (query token, visible row) over all full-attention layers: 4 · q heads · size.

        Latent attention in its absorbed form, as decoding runs it: 2 · q heads · (rank + rotary, then rank).
        """
        if self.latent_rank:
            return 2.0 * self.q_heads * (self.head_dim + self.latent_rank) * self.reading_layers
        return 4.0 * self.q_heads * self.head_dim * self.reading_layers

    def prefill_pair_flops(self) -> float:
        """The same as prefills run it: latent rows expanded to K and V, 2 · q heads · (key + value sizes)."""
        if self.latent_rank:
            return 2.0 * self.q_heads * self.expanded_dims * self.reading_layers
        return self.pair_flops()

    def token_flops(self, rows: float = 0.0) -> float:
        """Operations of one sampled token over `rows` rows: 2 per active parameter, attention, and local layers."""
        return 2.0 * self.active_parameters + self.local_flops + rows * self.pair_flops()

    def held_bytes(self, tokens: int, kv_dtype: str) -> dict[LayerKind, float]:
        """Bytes of a session of `tokens` tokens by kind of layer; windows are bounded, `shared` layers hold none."""
        held: dict[LayerKind, float] = {}
        for group in self.groups:
            held[group.kind] = held.get(group.kind, 0.0) + group.held_bytes(tokens, DTYPE_BYTES[kv_dtype])
        return held

    def compactable_share(self, tokens: int, kv_dtype: str) -> float:
        """Share of a session's memory at `tokens` that compaction can touch: all but its constant state."""
        rows = tokens * self.row_bytes(kv_dtype)
        return rows / (rows + self.state_bytes) if rows else 0.0

    def _expert_bytes(self, dtype: str) -> float:
        """Bytes of one routed expert over all its layers."""
        return self.expert_parameters * (DTYPE_BYTES[dtype] if self.expert_bytes is None else self.expert_bytes)
