"""The built-in models: the values of their public configurations, read as any `config.json` is.

Values that equal a family's defaults are left out, as in the files. Checkpoints with modules that predict further
tokens (Qwen3.5, DeepSeek-V3) are counted without them.
"""

from __future__ import annotations

from typing import Any

from .geometry import Geometry
from .shapes.families import geometry_of

Config = dict[str, Any]


def _plain(
    kind: str, layers: int, hidden: int, heads: tuple[int, int, int], inner: int, vocabulary: int, positions: int
) -> Config:
    """The keys that every decoder has; `heads` = (query heads, KV heads, head size)."""
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
    }


TIED = {"tie_word_embeddings": True}
MXFP4 = {"quantization_config": {"quant_method": "mxfp4"}}


def _qwen35(text: Config, vision: Config, *, tied: bool) -> Config:
    return {"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": tied} | {
        "vision_config": {"model_type": "qwen3_5_vision", "out_hidden_size": text["hidden_size"]} | vision
    }


def _gpt_oss(layers: int, experts: int) -> Config:
    shape = _plain("gpt_oss", layers, 2880, (64, 8, 64), 2880, 201_088, 131_072)
    return shape | MXFP4 | {"num_local_experts": experts, "num_experts_per_tok": 4, "sliding_window": 128}


CONFIGS: dict[str, Config] = {
    "qwen3.5-27b": _qwen35(
        _plain("qwen3_5_text", 64, 5120, (24, 4, 256), 17_408, 248_320, 262_144) | {"linear_num_value_heads": 48},
        {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304},
        tied=False,
    ),
    "qwen3.5-4b": _qwen35(
        _plain("qwen3_5_text", 32, 2560, (16, 4, 256), 9_216, 248_320, 262_144),
        {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096},
        tied=True,
    ),
    "gemma-4-31b": {
        "model_type": "gemma4",
        "text_config": _plain("gemma4_text", 60, 5376, (32, 16, 256), 21_504, 262_144, 262_144)
        | {"num_global_key_value_heads": 4, "attention_k_eq_v": True, "sliding_window": 1024}
        | {"hidden_size_per_layer_input": 0},
        "vision_config": {
            "model_type": "gemma4_vision", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
            "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 72,
        },
    },
    "gemma-4-e4b": {
        "model_type": "gemma4",
        "text_config": _plain("gemma4_text", 42, 2560, (8, 2, 256), 10_240, 262_144, 131_072)
        | {"num_kv_shared_layers": 18, "sliding_window": 512},
        "vision_config": {"model_type": "gemma4_vision"},
        "audio_config": {"model_type": "gemma4_audio"},
    },
    "qwen3-0.6b": _plain("qwen3", 28, 1024, (16, 8, 128), 3_072, 151_936, 40_960) | TIED,
    "qwen3-8b": _plain("qwen3", 36, 4096, (32, 8, 128), 12_288, 151_936, 40_960),
    "qwen3-32b": _plain("qwen3", 64, 5120, (64, 8, 128), 25_600, 151_936, 40_960),
    "qwen3-30b-a3b": _plain("qwen3_moe", 48, 2048, (32, 4, 128), 6_144, 151_936, 40_960)
    | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
    "llama-3.1-8b": _plain("llama", 32, 4096, (32, 8, 128), 14_336, 128_256, 131_072),
    "llama-3.1-70b": _plain("llama", 80, 8192, (64, 8, 128), 28_672, 128_256, 131_072),
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
    "deepseek-v3": {
        "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
        "num_key_value_heads": 128, "intermediate_size": 18_432, "moe_intermediate_size": 2048, "vocab_size": 129_280,
        "max_position_embeddings": 163_840, "first_k_dense_replace": 3, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "quantization_config": {"quant_method": "fp8"},
    },
    "mistral-small-24b": {
        "model_type": "mistral3",
        "text_config": _plain("mistral", 40, 5120, (32, 8, 128), 32_768, 131_072, 131_072) | {"sliding_window": None},
        "vision_config": {
            "model_type": "pixtral", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
            "patch_size": 14,
        },
        "spatial_merge_size": 2,
        "tie_word_embeddings": False,
    },
    "smollm2-135m": _plain("llama", 30, 576, (9, 3, 64), 1_536, 49_152, 8_192) | TIED,
}  # fmt: skip
CATALOGUE: dict[str, Geometry] = {
    name: geometry_of(config, f"of {name}", name, "public model configuration") for name, config in CONFIGS.items()
}
# Models of the same shape under another name.
ALIASES = {
    "llama-3.3-70b": "llama-3.1-70b",
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3-0324": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
    "mistral-small-3.1-24b": "mistral-small-24b",
    "mistral-small-3.1-24b-instruct-2503": "mistral-small-24b",
    "mistral-small-3.2-24b": "mistral-small-24b",
    "mistral-small-3.2-24b-instruct-2506": "mistral-small-24b",
}
