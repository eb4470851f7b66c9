"""DeepSeek V2 and V3: multi-head latent attention, dense first layers, then routed and shared experts."""

from __future__ import annotations

from ..geometry import Geometry
from .layers import Heads, Layer, Mixture, assemble, gated_mlp
from .values import Values

MLA_DEFAULTS = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}


def deepseek(values: Values) -> Geometry:
    """The cache of a token is one row of rank + rotary numbers per layer, whatever the number of heads.

    Heads × (nope, value) expansions of that row belong to the body: the absorbed form multiplies by the same matrices.
    Modules that predict further tokens are not counted: engines load them only to speculate.
    """
    values = values.over(MLA_DEFAULTS)
    if values.raw("moe_layer_freq") not in (None, 1):
        raise values.error("moe_layer_freq other than 1 is not understood")
    hidden, count = values.number("hidden_size"), values.number("num_attention_heads")
    rank, rope = values.number("kv_lora_rank"), values.number("qk_rope_head_dim")
    key, value = values.number("qk_nope_head_dim") + rope, values.number("v_head_dim")
    low = values.maybe("q_lora_rank")
    query = float(low * (hidden + 1 + count * key) if low else hidden * count * key)
    cache = hidden * (rank + rope) + rank + rank * count * (key - rope + value)
    block = query + cache + count * value * hidden + 2.0 * hidden
    experts, inner = values.number("n_routed_experts"), values.number("moe_intermediate_size")
    correction = 0 if values.raw("model_type") == "deepseek_v2" else experts  # a bias of V3's routers
    routed = block + hidden * experts + correction + gated_mlp(hidden, inner * values.count("n_shared_experts"))
    dense = block + gated_mlp(hidden, values.number("intermediate_size"))
    heads, first = Heads(count, 1, rank + rope), values.count("first_k_dense_replace")
    layers = [
        Layer("latent", dense, heads)
        if index < first
        else Layer("latent", routed, heads, expert=gated_mlp(hidden, inner))
        for index in range(values.number("num_hidden_layers"))
    ]
    mixture = Mixture(experts, values.number("num_experts_per_tok"))
    return assemble(values, layers, mixture=mixture, latent_rank=rank, expanded_dims=key + value)
