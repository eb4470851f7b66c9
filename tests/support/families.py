"""Tiny random models of every layer layout that replay knows: no download, a second to build."""

from __future__ import annotations

import functools

import torch
from tiny import VOCABULARY, Letters
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    Gemma4TextConfig,
    LlamaConfig,
    PreTrainedConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
)

from kvmill.replay.model import LoadedModel, describe_layers

_SHARED = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.15,
}
_ALTERNATING = ["sliding_attention", "full_attention"] * 3

FAMILIES = {
    "llama": lambda: LlamaConfig(num_hidden_layers=3, **_SHARED),
    "qwen3": lambda: Qwen3Config(num_hidden_layers=3, head_dim=8, **_SHARED),
    # Sliding windows of 16 beside full attention.
    "gemma3": lambda: Gemma3TextConfig(
        num_hidden_layers=6,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=16,
        layer_types=_ALTERNATING,
        **_SHARED,
    ),
    # The last two layers read the caches of earlier ones; attention scaling is 1, rotation partial.
    "gemma4": lambda: Gemma4TextConfig(
        num_hidden_layers=6,
        head_dim=8,
        global_head_dim=16,
        num_global_key_value_heads=2,
        sliding_window=16,
        layer_types=_ALTERNATING,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCABULARY,
        **_SHARED,
    ),
    # Gated delta rule beside gated full attention; a quarter of the dimensions rotates.
    "qwen3_5": lambda: Qwen3_5TextConfig(
        num_hidden_layers=4,
        head_dim=16,
        layer_types=["linear_attention", "full_attention"] * 2,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        **_SHARED,
    ),
}


def family_model(name: str) -> LoadedModel:
    """A fresh module over cached weights: every test may install its own attention."""
    torch.set_num_threads(1)
    config = _config(name)
    module = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    module.load_state_dict(_weights(name))
    layers = describe_layers(config)
    return LoadedModel(name, module, Letters(), layers, torch.float32, torch.device("cpu"), 1, 4096, name)  # type: ignore[arg-type]


def _config(name: str) -> PreTrainedConfig:
    return FAMILIES[name]()


@functools.cache
def _weights(name: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(_config(name)).state_dict()
