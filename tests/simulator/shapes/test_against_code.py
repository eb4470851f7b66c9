"""Parameters and cache against the public model code itself: built on no device, or run on a few tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from kvmill.simulator.catalogue import CONFIGS
from kvmill.simulator.geometry import Geometry
from kvmill.simulator.shapes.families import geometry_of

transformers = pytest.importorskip("transformers")

SMALL = {
    "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "vocab_size": 128, "max_position_embeddings": 512, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MLA = {
    "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 2,
    "first_k_dense_replace": 1, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
    "num_key_value_heads": 4,
}  # fmt: skip
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
}  # fmt: skip
MODELS = {
    "llama": ("llama", {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "granite": ("granite", {}),
    "mistral": ("mistral", {"sliding_window": None}),
    "ministral3": ("ministral3", {}),
    "phi3": ("phi3", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"attention_bias": True}),
    "qwen3 sliding late": ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}),
    "smollm3": ("smollm3", {"tie_word_embeddings": True}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {"sliding_window": 8}),
    "mixtral": ("mixtral", {"num_local_experts": 6, "num_experts_per_tok": 2}),
    "minimax_m2": ("minimax_m2", {"num_local_experts": 6, "num_experts_per_tok": 2}),
    "glm4_moe": ("glm4_moe", MLA | {"use_qk_norm": True, "attention_bias": True}),
    "qwen2_moe": ("qwen2_moe", EXPERTS | {"shared_expert_intermediate_size": 40, "mlp_only_layers": [1]}),
    "qwen3_moe": ("qwen3_moe", EXPERTS | {"decoder_sparse_step": 2}),
    "gpt_oss": ("gpt_oss", {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 8}),
    "deepseek_v2": ("deepseek_v2", MLA | {"q_lora_rank": None, "head_dim": 8}),
    "deepseek_v3": ("deepseek_v3", MLA | {"q_lora_rank": 24, "n_group": 1, "topk_group": 1, "head_dim": 8}),
    "gemma2": ("gemma2", {"sliding_window": 8}),
    "gemma3": ("gemma3_text", {"sliding_window": 8, "sliding_window_pattern": 2}),
    "gemma4 sharing": (
        "gemma4_text",
        {
            "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2, "sliding_window": 8,
            "global_head_dim": 32, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 128,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma4 experts": (
        "gemma4_text",
        {
            "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8, "global_head_dim": 32,
            "attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0,
            "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 24,
        },
    ),
    "qwen3_5": ("qwen3_5_text", DELTA),
    "qwen3_5_moe": ("qwen3_5_moe_text", DELTA | EXPERTS | {"shared_expert_intermediate_size": 40}),
    "qwen3_next": ("qwen3_next", DELTA | EXPERTS | {"shared_expert_intermediate_size": 40}),
}  # fmt: skip
BUFFERS = ("layer_scalar", "e_score_correction_bias")  # in the checkpoint, though the code calls them buffers


def shape_of(name: str, more: dict[str, Any] | None = None) -> Geometry:
    kind, changes = MODELS[name]
    return geometry_of({"model_type": kind} | SMALL | changes | (more or {}), "of a test", name, "test")


def model_of(name: str, device: str, more: dict[str, Any] | None = None) -> torch.nn.Module:
    kind, changes = MODELS[name]
    config = transformers.AutoConfig.for_model(kind, **{"dtype": torch.float32, **SMALL, **changes, **(more or {})})
    config._attn_implementation = "eager"
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(config).eval()


def parameters(model: torch.nn.Module) -> int:
    buffers = sum(one.numel() for name, one in model.named_buffers() if name.endswith(BUFFERS))
    return sum(one.numel() for one in model.parameters()) + buffers


@pytest.mark.parametrize("name", MODELS)
def test_as_many_parameters_as_the_model_s_own_code_declares(name):
    shape = shape_of(name)
    unused = shape.extra_parameters  # key and value matrices of borrowing layers: in the checkpoint, not in this code
    assert shape.parameters - unused == parameters(model_of(name, "meta"))
    assert (unused > 0) == (name == "gemma4 sharing")


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-20b", "qwen3-30b-a3b", "smollm2-135m"])
def test_the_catalogue_s_values_build_the_model_of_that_size(name):
    values = {key: value for key, value in CONFIGS[name].items() if key not in ("model_type", "quantization_config")}
    config = transformers.AutoConfig.for_model(CONFIGS[name]["model_type"], **values)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert geometry_of(CONFIGS[name], "of a test", name, "test").parameters == parameters(model)


CACHED = [
    "llama",
    "qwen3 sliding late",
    "gpt_oss",
    "gemma3",
    "gemma4 sharing",
    "gemma4 experts",
    "qwen3_5",
    "deepseek_v3",
]


@pytest.mark.parametrize("name", [name for name, config in CONFIGS.items() if "text_config" in config])
def test_vision_and_audio_parts_are_counted_as_the_model_s_own_code_declares_them(name):
    values = {key: value for key, value in CONFIGS[name].items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(CONFIGS[name]["model_type"], **values)
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config)
    shape = geometry_of(CONFIGS[name], "of a test", name, "test")
    text = sum(one.numel() for one in model.model.language_model.parameters())
    others = sum(one.numel() for one in model.model.parameters()) - text
    idle = 55_055_616 if name == "gemma-4-e4b" else 0  # key and value matrices of its borrowing layers
    assert shape.extra_parameters == others + idle
    assert shape.parameters == parameters(model) + idle


@pytest.mark.parametrize("name", CACHED)
def test_a_session_holds_the_bytes_that_the_model_s_own_cache_has(name):
    """Keys, values, latent rows and convolutions in bf16, the recurrent state in float32."""
    model, tokens = model_of(name, "cpu"), 20
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.arange(tokens)[None], cache=cache, use_cache=True)
    held = 0
    for layer in cache.layers:
        held += sum(
            2 * one.numel() for one in (getattr(layer, "keys", None), getattr(layer, "values", None)) if one is not None
        )
        held += sum(2 * one.numel() for one in getattr(layer, "conv_states", {}).values())
        held += sum(4 * one.numel() for one in getattr(layer, "recurrent_states", {}).values())
    assert sum(shape_of(name).held_bytes(tokens, "bf16").values()) == held


@pytest.mark.parametrize("name", ["llama", "qwen3", "deepseek_v3"])
def test_the_model_s_own_code_multiplies_as_often_per_token_and_per_pair(name):
    """Operations of n tokens, every one of which sees all n: a·n + b·n². Latent rows are expanded in this code."""
    dense = {"first_k_dense_replace": SMALL["num_hidden_layers"]}
    model = model_of(name, "cpu", dense)

    def operations(tokens: int) -> int:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.arange(tokens)[None], use_cache=False)
        return counter.get_total_flops()

    few, more, most = (operations(tokens) for tokens in (8, 16, 24))
    shape = shape_of(name, dense)
    assert (most - 2 * more + few) / 2 / 64 == shape.prefill_pair_flops()
    products = few / 8 - 8 * shape.prefill_pair_flops()
    assert products == pytest.approx(2 * shape.active_parameters, rel=0.015)  # all but norms
    assert products <= 2 * shape.active_parameters
