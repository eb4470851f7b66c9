"""Mixtures of experts over grouped-query attention: Mixtral, MiniMax-M2, GLM-4.5, Qwen2/Qwen3 MoE, gpt-oss."""

from __future__ import annotations

from dataclasses import dataclass

from ..geometry import Geometry
from .layers import Heads, Layer, Mixture, assemble, gated_mlp
from .plain import Habits, attention, windows
from .values import Values

MXFP4_BYTES = 4.25 / 8  # 4-bit numbers, one 8-bit scale for 32 of them
PAD = 256  # engines round the experts' inner size up to it: inferred from vLLM's memory reports for both gpt-oss sizes

ALL_ROUTED = {"mixtral": Habits(slides="all"), "minimax_m2": Habits(norms="all")}
QWEN2 = Habits(query_bias=True)
QWEN3 = Habits(norms="head")
GPT_OSS_DEFAULTS = {
    "attention_bias": True,
    "head_dim": 64,
    "num_key_value_heads": 8,
    "sliding_window": 128,
    "max_position_embeddings": 131_072,
}


@dataclass(frozen=True, slots=True)
class Feed:
    """The feed-forward part of one layer: parameters of every token, and of one routed expert."""

    body: float
    expert: float = 0.0


def mixtral(values: Values) -> Geometry:
    """Mixtral and MiniMax-M2. Every layer: a router and experts, no shared one; MiniMax's routers have a bias."""
    family = str(values.raw("model_type"))
    habits = ALL_ROUTED[family]
    hidden, heads = values.number("hidden_size"), Heads.of(values)
    experts = values.number("num_local_experts")
    router = (hidden + (family == "minimax_m2")) * experts
    body = attention(values, heads, habits) + 2.0 * hidden + router
    expert = gated_mlp(hidden, values.number("intermediate_size"))
    layers = [Layer(kind, body, heads, size, expert=expert) for kind, size in windows(values, habits)]
    return assemble(values, layers, mixture=Mixture(experts, values.number("num_experts_per_tok")))


def glm(values: Values) -> Geometry:
    """GLM-4.5: dense first layers, then routed and shared experts; the query, key and value bias is its only one."""
    hidden, heads = values.number("hidden_size"), Heads.of(values)
    experts, inner = values.number("n_routed_experts"), values.number("moe_intermediate_size")
    norms = "head" if values.flag("use_qk_norm") else "none"
    habits = Habits(query_bias=values.flag("attention_bias"), norms=norms)
    block = attention(values.under({"attention_bias": False}), heads, habits) + 2.0 * hidden
    dense = block + gated_mlp(hidden, values.number("intermediate_size"))
    routed = block + (hidden + 1) * experts + gated_mlp(hidden, inner * values.count("n_shared_experts"))
    first = values.count("first_k_dense_replace")
    layers = [
        Layer("full", dense, heads) if index < first else Layer("full", routed, heads, expert=gated_mlp(hidden, inner))
        for index in range(values.number("num_hidden_layers"))
    ]
    return assemble(values, layers, mixture=Mixture(experts, values.number("num_experts_per_tok")))


def qwen_moe(values: Values) -> Geometry:
    """Qwen2 and Qwen3 MoE: some layers may be dense; Qwen2 adds a shared expert behind a gate."""
    habits = QWEN2 if values.raw("model_type") == "qwen2_moe" else QWEN3
    if values.flag("use_sliding_window"):
        raise values.error("a mixture of experts with use_sliding_window is not understood")
    hidden, heads = values.number("hidden_size"), Heads.of(values)
    block = attention(values, heads, habits) + 2.0 * hidden
    feeds = [qwen_feed(values, index) for index in range(values.number("num_hidden_layers"))]
    layers = [Layer("full", block + feed.body, heads, expert=feed.expert) for feed in feeds]
    return assemble(values, layers, mixture=qwen_mixture(values))


def qwen_mixture(values: Values) -> Mixture:
    """Routed experts of a Qwen mixture."""
    return Mixture(values.number("num_experts"), values.number("num_experts_per_tok"))


def qwen_feed(values: Values, index: int) -> Feed:
    """Layer `index` of a Qwen mixture: dense where `mlp_only_layers` or `decoder_sparse_step` say so."""
    hidden, step = values.number("hidden_size"), values.maybe("decoder_sparse_step") or 1
    if index in values.numbers("mlp_only_layers") or (index + 1) % step:
        return Feed(gated_mlp(hidden, values.number("intermediate_size")))
    shared = values.count("shared_expert_intermediate_size")
    body = hidden * values.number("num_experts") + (gated_mlp(hidden, shared) + hidden if shared else 0.0)
    return Feed(body, gated_mlp(hidden, values.number("moe_intermediate_size")))


def gpt_oss(values: Values) -> Geometry:
    """gpt-oss: layers alternate between a window of 128 and full attention, each with sinks; biases everywhere."""
    values = values.over(GPT_OSS_DEFAULTS)
    hidden, inner, heads = values.number("hidden_size"), values.number("intermediate_size"), Heads.of(values)
    experts, window = values.number("num_local_experts"), values.number("sliding_window")
    block = attention(values, heads, Habits()) + heads.q  # one sink per query head
    body = block + 2.0 * hidden + (hidden + 1) * experts
    expert = gated_mlp(hidden, inner) + 2.0 * inner + hidden
    kinds = values.kinds(lambda index: "full" if index % 2 else "sliding", ("full", "sliding"))
    layers = [
        Layer("sliding", body, heads, window, expert=expert)
        if kind == "sliding"
        else Layer("full", body, heads, expert=expert)
        for kind in kinds
    ]
    quantised = (values.raw("quantization_config") or {}).get("quant_method") == "mxfp4"
    held = MXFP4_BYTES * -(-inner // PAD) * PAD / inner if quantised else None
    mixture = Mixture(experts, values.number("num_experts_per_tok"), held)
    notes = (
        (f"experts in mxfp4, {held:.3f} bytes per parameter as loaded (inner size padded to {PAD})",) if held else ()
    )
    return assemble(values, layers, mixture=mixture, notes=notes)
