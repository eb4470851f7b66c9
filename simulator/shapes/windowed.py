"""Gemma 2, 3 and 4: sliding and full layers in a fixed pattern, four norms a layer, tied embedding.

Gemma 4 adds larger heads in full layers, layers that read an earlier layer's cache, a per-layer embedding table and,
in one size, experts beside the dense MLP.
"""

from __future__ import annotations

from ..geometry import Geometry
from .layers import Heads, Layer, Mixture, assemble, gated_mlp
from .values import Values

GEMMA2_DEFAULTS = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256_000,
    "max_position_embeddings": 8_192, "sliding_window": 4_096, "tie_word_embeddings": True,
}  # fmt: skip
GEMMA3_DEFAULTS = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208,
    "max_position_embeddings": 131_072, "sliding_window": 4_096, "sliding_window_pattern": 6,
    "tie_word_embeddings": True,
}  # fmt: skip
GEMMA4_DEFAULTS = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512, "vocab_size": 262_144,
    "max_position_embeddings": 131_072, "sliding_window": 512, "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256, "tie_word_embeddings": True,
}  # fmt: skip


def gemma2(values: Values) -> Geometry:
    """Every other layer slides, the first one too."""
    return _gemma(values.over(GEMMA2_DEFAULTS), every=2, norms=0)


def gemma3(values: Values) -> Geometry:
    """Five sliding layers to one full layer; queries and keys have norms."""
    values = values.over(GEMMA3_DEFAULTS)
    return _gemma(values, every=values.number("sliding_window_pattern"), norms=2)


def _gemma(values: Values, every: int, norms: int) -> Geometry:
    hidden, heads, window = values.number("hidden_size"), Heads.of(values), values.number("sliding_window")
    if values.flag("use_bidirectional_attention"):
        raise values.error("a model that attends in both directions has no cache to grow")
    body = heads.matrices(hidden) + norms * heads.size + gated_mlp(hidden, values.number("intermediate_size"))
    kinds = values.kinds(lambda index: "sliding" if (index + 1) % every else "full", ("full", "sliding"))
    layers = [
        Layer("sliding", body + 4.0 * hidden, heads, window)
        if kind == "sliding"
        else Layer("full", body + 4.0 * hidden, heads)
        for kind in kinds
    ]
    return assemble(values, layers)


def gemma4(values: Values) -> Geometry:
    """Gemma 4. The last `num_kv_shared_layers` read the cache of the last layer of their kind before them.

    Their own key and value matrices are in the checkpoint and stay unused: held, not multiplied.
    """
    values = values.over(GEMMA4_DEFAULTS)
    if values.raw("use_bidirectional_attention") == "all" or values.raw("per_layer_config") is not None:
        raise values.error("use_bidirectional_attention 'all' and per_layer_config are not understood")
    hidden, side = values.number("hidden_size"), values.count("hidden_size_per_layer_input")
    count = values.number("num_hidden_layers")
    kinds = values.kinds(lambda index: "sliding" if (index + 1) % 6 else "full", ("full", "sliding"))
    kinds[-1] = "full"  # the public configuration forces it
    first = count - values.count("num_kv_shared_layers")
    layers = [_gemma4_layer(values, kind, borrows=index >= first) for index, kind in enumerate(kinds)]
    mixture = Mixture(values.number("num_experts"), values.number("top_k_experts")) if _experts(values) else None
    return assemble(
        values,
        layers,
        mixture=mixture,
        body=hidden * count * side + side if side else 0.0,
        tables=float(values.number("vocab_size_per_layer_input") * count * side) if side else 0.0,
    )


def _experts(values: Values) -> bool:
    return values.flag("enable_moe_block")


def _gemma4_layer(values: Values, kind: str, *, borrows: bool) -> Layer:
    """Attention of its kind, the dense MLP (twice as wide in some that borrow), experts, and the per-layer input."""
    hidden, heads = values.number("hidden_size"), Heads.of(values)
    tied_value = False
    if kind == "full":
        tied_value = values.flag("attention_k_eq_v")
        kv = (values.maybe("num_global_key_value_heads") if tied_value else None) or heads.kv
        heads = Heads(heads.q, kv, values.number("global_head_dim"))
    own = float((1 if tied_value else 2) * hidden * heads.kv * heads.size + heads.size)
    wide = 2 if borrows and values.flag("use_double_wide_mlp") else 1
    body = 2.0 * hidden * heads.q * heads.size + heads.size + (0.0 if borrows else own)
    body += (
        gated_mlp(hidden, values.number("intermediate_size") * wide) + 4.0 * hidden + 1.0
    )  # one scale of the whole layer
    side = values.count("hidden_size_per_layer_input")
    body += 2.0 * hidden * side + hidden if side else 0.0
    expert = 0.0
    if _experts(values):
        body += hidden * values.number("num_experts") + hidden + values.number("num_experts") + 3.0 * hidden
        expert = gated_mlp(hidden, values.number("moe_intermediate_size"))
    idle = own if borrows else 0.0
    if kind == "sliding":
        window = values.number("sliding_window")
        return Layer("sliding", body, heads, window, borrows=borrows, expert=expert, idle=idle)
    return Layer("full", body, heads, borrows=borrows, expert=expert, idle=idle)
