"""`Layer`, the arithmetic of its matrices, and `assemble`: from a list of layers to a `Geometry`.

Parameters are exact: every matrix, bias and norm that the public model code of a family declares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..geometry import Geometry, LayerGroup, LayerKind
from .values import Values

BF16 = 2.0


@dataclass(frozen=True, slots=True)
class Heads:
    """Query heads, KV heads and the size of one head."""

    q: int
    kv: int
    size: int

    @classmethod
    def of(cls, values: Values) -> Heads:
        """As `num_attention_heads`, `num_key_value_heads` and `head_dim` say; the last two may be left out."""
        q = values.number("num_attention_heads")
        size = values.maybe("head_dim")
        if size is None:
            size, rest = divmod(values.number("hidden_size"), q)
            if rest:
                raise values.error(f"hidden_size is no multiple of its {q} attention heads, and head_dim is not given")
        heads = cls(q, values.maybe("num_key_value_heads") or q, size)
        if heads.q % heads.kv:
            raise values.error(f"{heads.q} query heads cannot share {heads.kv} KV heads evenly")
        return heads

    def matrices(self, hidden: int) -> float:
        """Query, key, value and output projection: hidden · size · 2(q + kv)."""
        return hidden * self.size * (2.0 * self.q + 2.0 * self.kv)

    def biases(self) -> float:
        """Biases of query, key and value."""
        return float(self.size * (self.q + 2 * self.kv))


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. `body` parameters take part in every token, `expert` is one routed expert, `idle` is never used.

    A layer that `borrows` reads the cache of another one. `window` counts the rows a sliding layer sees;
    `state_bytes` and `step_flops` are those of a recurrent state.
    """

    kind: Literal["full", "latent", "sliding", "linear"]
    body: float
    heads: Heads = Heads(0, 0, 0)
    window: int = 0
    borrows: bool = False
    state_bytes: float = 0.0
    step_flops: float = 0.0
    expert: float = 0.0
    idle: float = 0.0

    @property
    def row_values(self) -> int:
        """Numbers that this layer caches of one token."""
        if self.kind == "linear" or self.borrows:
            return 0
        return self.heads.size if self.kind == "latent" else 2 * self.heads.kv * self.heads.size

    @property
    def window_bytes(self) -> float:
        """What a sliding layer reads of its window (the token's own row is in flight): 2 · KV heads · size · bf16."""
        return (self.window - 1) * 2.0 * self.heads.kv * self.heads.size * BF16 if self.window else 0.0


@dataclass(frozen=True, slots=True)
class Mixture:
    """What a mixture of experts adds: experts per layer, those a token uses, bytes per parameter if quantised."""

    experts: int
    active: int
    expert_bytes: float | None = None


def gated_mlp(hidden: int, inner: int) -> float:
    """Gate, up and down projection."""
    return 3.0 * hidden * inner


def assemble(
    values: Values,
    layers: Sequence[Layer],
    *,
    mixture: Mixture | None = None,
    body: float = 0.0,
    tables: float = 0.0,
    latent_rank: int = 0,
    expanded_dims: int = 0,
    notes: tuple[str, ...] = (),
) -> Geometry:
    """The geometry of these layers under `values`' hidden size, vocabulary and positions.

    `body` and `tables` are parameters beside the layers, the last norm and the embedding. UserError when no layer owns
    a full-attention cache.
    """
    hidden, vocabulary = values.number("hidden_size"), values.number("vocab_size")
    reading = [layer for layer in layers if layer.kind in ("full", "latent")]
    owning = [layer for layer in reading if not layer.borrows]
    if not owning:
        raise values.error(
            "no layer keeps a full-attention cache: there is nothing to compact, and it is not simulated"
        )
    if mixture and mixture.active > mixture.experts:
        raise values.error(f"a token cannot use {mixture.active} of {mixture.experts} experts")
    heads = owning[0].heads  # alike in every family
    sliding = [layer for layer in layers if layer.kind == "sliding"]
    recurrent = sum(layer.state_bytes for layer in layers)
    table = float(vocabulary * hidden)
    return Geometry(
        name=values.where,
        layers=len(layers),
        full_layers=len(owning),
        reading_layers=len(reading),
        hidden=hidden,
        q_heads=heads.q,
        kv_heads=heads.kv,
        head_dim=heads.size,
        body_parameters=sum(layer.body for layer in layers) + hidden + body,
        head_parameters=table,
        table_parameters=tables + (0.0 if values.flag("tie_word_embeddings") else table),
        max_positions=values.number("max_position_embeddings"),
        state_bytes=sum(layer.window_bytes for layer in sliding if not layer.borrows) + recurrent,
        state_traffic_bytes=sum(layer.window_bytes for layer in sliding) + 2.0 * recurrent,
        local_flops=sum(4.0 * layer.heads.q * layer.heads.size * layer.window for layer in sliding)
        + sum(layer.step_flops for layer in layers),
        source=values.where,
        experts=mixture.experts if mixture else 0,
        active_experts=mixture.active if mixture else 0,
        expert_parameters=sum(layer.expert for layer in layers),
        expert_bytes=mixture.expert_bytes if mixture else None,
        extra_parameters=sum(layer.idle for layer in layers),
        latent_rank=latent_rank,
        expanded_dims=expanded_dims,
        groups=_groups(layers),
        notes=notes,
    )


def _groups(layers: Sequence[Layer]) -> tuple[LayerGroup, ...]:
    """Alike layers together, in the order in which their kinds first come."""
    found: dict[tuple[LayerKind, int, int, float], int] = {}
    for layer in layers:
        kind: LayerKind = "shared" if layer.borrows else layer.kind
        key = (kind, layer.row_values, 0 if layer.borrows else layer.window, layer.state_bytes)
        found[key] = found.get(key, 0) + 1
    return tuple(LayerGroup(key[0], count, key[1], key[2], key[3]) for key, count in found.items())
