"""Parameter counts against those that the models' own publishers state, exact where the checkpoint's count is known."""

import pytest

from kvmill.errors import UserError
from kvmill.simulator.catalogue import CATALOGUE, CONFIGS
from kvmill.simulator.shapes.families import geometry_of


def read(model_type, **values):
    return geometry_of({"model_type": model_type} | values, "of a test", "test", "test")


def decoder(model_type, layers, hidden, heads, kv, inner, vocabulary, positions, **more):
    return read(
        model_type, num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv,
        intermediate_size=inner, vocab_size=vocabulary, max_position_embeddings=positions, **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("gpt-oss-20b", 20_914_757_184),
        ("gpt-oss-120b", 116_829_156_672),
        ("deepseek-v3", 671_026_419_200),
        ("mistral-small-24b", 24_011_361_280),
        ("gemma-4-e4b", 7_996_156_490),
        ("smollm2-135m", 134_515_008),
    ],
)
def test_the_catalogue_holds_as_many_parameters_as_the_published_checkpoints(name, held):
    assert CATALOGUE[name].parameters == held


@pytest.mark.parametrize(
    ("name", "text"), [("qwen3.5-4b", 4.2), ("qwen3.5-27b", 26.9), ("gemma-4-31b", 30.7), ("mistral-small-24b", 23.57)]
)
def test_the_text_part_of_multimodal_models_has_the_stated_size(name, text):
    shape = CATALOGUE[name]
    assert (shape.parameters - shape.extra_parameters) / 1e9 == pytest.approx(text, rel=0.003)
    assert shape.extra_parameters > 0.3e9


@pytest.mark.parametrize(
    ("name", "billions", "with_table"),
    [
        ("qwen3-30b-a3b", 3.3, True),
        ("gpt-oss-20b", 3.6, False),
        ("gpt-oss-120b", 5.1, False),
        ("deepseek-v3", 37, False),
    ],
)
def test_the_active_parameters_are_the_stated_ones(name, billions, with_table):
    """Qwen's figure counts the embedding, which is only looked up; OpenAI's does not."""
    shape = CATALOGUE[name]
    found = shape.active_parameters + (shape.table_parameters if with_table else 0.0)
    assert found / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(
    ("shape", "held"),
    [
        (lambda: decoder("mistral", 32, 4096, 32, 8, 14_336, 32_768, 32_768, sliding_window=None), 7_248_023_552),
        (lambda: decoder("qwen2", 28, 3584, 28, 4, 18_944, 152_064, 32_768), 7_615_616_512),
        (
            lambda: decoder(
                "phi3", 32, 3072, 24, 8, 8192, 200_064, 131_072, sliding_window=262_144, tie_word_embeddings=True
            ),
            3_836_021_760,
        ),
        (lambda: decoder("smollm3", 36, 2048, 16, 4, 11_008, 128_256, 65_536), 3_075_098_624),
        (
            lambda: decoder(
                "mixtral", 32, 4096, 32, 8, 14_336, 32_000, 32_768, num_local_experts=8, num_experts_per_tok=2
            ),
            46_702_792_704,
        ),
        (
            lambda: decoder(
                "gemma2", 26, 2304, 8, 4, 9216, 256_000, 8192, sliding_window=4096,
            ),
            2_614_341_888,
        ),
        (
            lambda: decoder(
                "gemma3_text", 26, 1152, 4, 1, 6912, 262_144, 32_768, head_dim=256, sliding_window=512
            ),
            999_885_952,
        ),
    ],
    ids=["mistral-7b", "qwen2.5-7b", "phi-4-mini", "smollm3-3b", "mixtral-8x7b", "gemma-2-2b", "gemma-3-1b"],
)  # fmt: skip
def test_other_published_checkpoints_are_counted_exactly(shape, held):
    assert shape().parameters == held


def test_a_multimodal_file_that_leaves_out_defaults_is_counted_exactly():
    """Gemma-3-4B's public file says no more than this about its shape."""
    text = {"hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34, "sliding_window": 1024}
    vision = {
        "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
        "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False,
    }  # fmt: skip
    shape = read("gemma3", text_config=text, vision_config=vision)
    assert shape.parameters == 4_300_079_472
    assert (shape.full_layers, shape.kv_heads, shape.head_dim) == (5, 4, 256)
    assert shape.state_bytes == 29 * 1023 * 2 * 4 * 256 * 2


def test_a_sparse_hybrid_is_counted_with_its_shared_expert():
    shape = decoder(
        "qwen3_next", 48, 2048, 16, 2, 5120, 151_936, 262_144, head_dim=256, num_experts=512, num_experts_per_tok=10,
        moe_intermediate_size=512, shared_expert_intermediate_size=512,
    )  # fmt: skip
    assert shape.parameters / 1e9 == pytest.approx(79.7, abs=0.1)
    assert shape.active_parameters / 1e9 == pytest.approx(3.6, abs=0.3)
    assert (shape.full_layers, shape.row_bytes("bf16")) == (12, 24 * 1024)


def test_late_layers_slide_only_where_the_file_asks_for_it():
    values = {"sliding_window": 4096, "max_window_layers": 20}
    off = decoder("qwen2", 28, 3584, 28, 4, 18_944, 152_064, 32_768, **values)
    on = decoder("qwen2", 28, 3584, 28, 4, 18_944, 152_064, 32_768, use_sliding_window=True, **values)
    assert (off.full_layers, on.full_layers) == (28, 20)
    assert on.state_bytes == 8 * 4095 * 2 * 4 * 128 * 2
    assert off.parameters == on.parameters


def test_every_fourth_layer_of_olmo3_sees_everything():
    shape = decoder("olmo3", 32, 4096, 32, 32, 11_008, 100_278, 65_536, sliding_window=4096)
    assert shape.full_layers == 8
    assert {(group.kind, group.count, group.window) for group in shape.groups} == {
        ("sliding", 24, 4096),
        ("full", 8, 0),
    }


def test_experts_replace_the_dense_mlp_only_where_the_file_says():
    values = CONFIGS["qwen3-30b-a3b"]
    every = geometry_of(values, "of a test", "a", "test")
    half = geometry_of(values | {"decoder_sparse_step": 2}, "of a test", "b", "test")
    first = geometry_of(values | {"mlp_only_layers": [0]}, "of a test", "c", "test")
    assert half.expert_parameters == every.expert_parameters / 2
    assert first.expert_parameters == every.expert_parameters * 47 / 48
    assert first.body_parameters - every.body_parameters == 3 * 2048 * 6144 - 2048 * 128


def test_gemma_4_has_fewer_kv_heads_in_full_layers_only_where_a_value_is_its_key():
    values = CONFIGS["gemma-4-31b"]["text_config"]
    shape = geometry_of(values | {"attention_k_eq_v": False}, "of a test", "a", "test")
    assert (shape.kv_heads, shape.head_dim) == (16, 512)
    with pytest.raises(UserError, match="per_layer_config"):
        geometry_of(values | {"per_layer_config": {"5": {"head_dim": 128}}}, "of a test", "a", "test")


@pytest.mark.parametrize(
    ("shape", "total", "active"),
    [
        (
            lambda: geometry_of(
                CONFIGS["deepseek-v3"]
                | {"model_type": "kimi_k2", "num_attention_heads": 64, "n_routed_experts": 384, "vocab_size": 163_840}
                | {"first_k_dense_replace": 1},
                "of a test", "kimi-k2", "test",
            ),
            1026e9, 32e9,
        ),
        (
            lambda: decoder(
                "minimax_m2", 62, 3072, 48, 8, 1536, 200_064, 196_608, head_dim=128, num_local_experts=256,
                num_experts_per_tok=8,
            ),
            229e9, 10e9,
        ),
        (
            lambda: decoder(
                "glm4_moe", 46, 4096, 96, 8, 10_944, 151_552, 131_072, head_dim=128, attention_bias=True,
                first_k_dense_replace=1, n_routed_experts=128, n_shared_experts=1, num_experts_per_tok=8,
                moe_intermediate_size=1408,
            ),
            106e9, 12e9,
        ),
    ],
    ids=["kimi-k2", "minimax-m2", "glm-4.5-air"],
)  # fmt: skip
def test_large_mixtures_have_their_stated_sizes(shape, total, active):
    assert shape().parameters == pytest.approx(total, rel=0.01)
    assert shape().active_parameters == pytest.approx(active, rel=0.08)
