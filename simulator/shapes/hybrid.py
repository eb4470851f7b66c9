"""Qwen3.5 and Qwen3-Next: most layers are Gated DeltaNet with a constant state, every few one full attention."""

from __future__ import annotations

from ..geometry import Geometry
from .layers import BF16, Heads, Layer, assemble, gated_mlp
from .mixture import Feed, qwen_feed, qwen_mixture
from .values import Values

DEFAULTS = {
    "head_dim": 256, "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "attn_output_gate": True,
}  # fmt: skip
SPARSE = ("qwen3_next", "qwen3_5_moe_text")
STATE_BYTES = 4.0  # the recurrent state is float32
STATE_FLOPS = 7.0  # per number of the state and token: decay 1, prediction 2, correction 2, reading 2


def gated_delta(values: Values) -> Geometry:
    """Full layers have an output gate as wide as their queries; linear ones a matrix of keys × values per value head.

    State of a linear layer: value heads · key size · value size in float32, and the last `linear_conv_kernel_dim`
    inputs of its convolution in bf16.
    """
    values = values.over(DEFAULTS)
    hidden, heads, interval = values.number("hidden_size"), Heads.of(values), values.number("full_attention_interval")
    gate = heads.q * heads.size * hidden if values.flag("attn_output_gate") else 0
    full = heads.matrices(hidden) + gate + 2 * heads.size
    if values.flag("attention_bias"):
        raise values.error("a hybrid model with attention_bias is not understood")
    sparse = values.raw("model_type") in SPARSE
    kinds = values.kinds(lambda index: "full" if (index + 1) % interval == 0 else "linear", ("full", "linear"))
    layers = []
    for index, kind in enumerate(kinds):
        feed = qwen_feed(values, index) if sparse else Feed(gated_mlp(hidden, values.number("intermediate_size")))
        body = feed.body + 2.0 * hidden
        if kind == "full":
            layers.append(Layer("full", body + full, heads, expert=feed.expert))
        else:
            layers.append(_linear(values, body, feed.expert))
    return assemble(values, layers, mixture=qwen_mixture(values) if sparse else None)


def _linear(values: Values, body: float, expert: float) -> Layer:
    hidden, columns = values.number("hidden_size"), values.number("linear_conv_kernel_dim")
    key, value = values.number("linear_key_head_dim"), values.number("linear_value_head_dim")
    value_heads = values.number("linear_num_value_heads")
    keys, spread = values.number("linear_num_key_heads") * key, value_heads * value
    mixed = 2 * keys + spread
    body += hidden * (mixed + spread + 2 * value_heads) + spread * hidden  # inputs, output gate, two rates; output
    body += mixed * columns + 2 * value_heads + value
    state = value_heads * key * value
    held = state * STATE_BYTES + mixed * columns * BF16
    return Layer("linear", body, state_bytes=held, step_flops=STATE_FLOPS * state, expert=expert)
