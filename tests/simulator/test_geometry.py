"""What a `Geometry` says of bytes and operations, in closed form."""

import math
from dataclasses import replace

import pytest

from kvmill.replay.policies.registry import parse_policy
from kvmill.simulator.catalogue import CATALOGUE
from kvmill.simulator.models import find_geometry

KIB, MIB, GIB = 1024, 2**20, 2**30


@pytest.mark.parametrize(
    ("name", "row_kib", "state_mib"),
    [
        ("qwen3.5-4b", 32, 48 + 1.5),
        ("qwen3.5-27b", 64, 144 + 3.75),
        ("gemma-4-e4b", 16, 20 * 511 / 512),
        ("gemma-4-31b", 80, 799.22),
        ("qwen3-0.6b", 112, 0),
        ("qwen3-8b", 144, 0),
        ("qwen3-32b", 256, 0),
        ("qwen3-30b-a3b", 96, 0),
        ("llama-3.1-8b", 128, 0),
        ("llama-3.1-70b", 320, 0),
        ("gpt-oss-20b", 24, 12 * 127 * 2 / 1024),
        ("gpt-oss-120b", 36, 18 * 127 * 2 / 1024),
        ("deepseek-v3", 61 * 576 * 2 / 1024, 0),
        ("mistral-small-24b", 160, 0),
        ("smollm2-135m", 22.5, 0),
    ],
)
def test_bytes_per_token_and_constant_state_are_the_known_ones(name, row_kib, state_mib):
    shape = find_geometry(name)
    assert shape.row_bytes("bf16") == row_kib * KIB
    assert shape.row_bytes("fp8") == row_kib * KIB / 2
    assert shape.state_bytes / MIB == pytest.approx(state_mib, rel=1e-5, abs=1e-9)


# GiB per GPU in vLLM's own reports on an H100 (8B, 0.6B, 32B on one and two, 70B in fp8 on two, both gpt-oss, 24B).
REPORTS = [
    ("llama-3.1-8b", "bf16", 1, 14.99),
    ("qwen3-0.6b", "bf16", 1, 1.12),
    ("qwen3-32b", "bf16", 1, 61.03),
    ("qwen3-32b", "bf16", 2, 30.59),
    ("llama-3.3-70b", "fp8", 2, 33.88),
    ("gpt-oss-20b", "bf16", 1, 13.47),
    ("gpt-oss-120b", "bf16", 1, 64.38),
    ("mistral-small-24b", "bf16", 1, 44.76),
]


@pytest.mark.parametrize(("name", "dtype", "tp", "gib"), REPORTS)
def test_weights_take_the_memory_that_an_engine_reported(name, dtype, tp, gib):
    assert find_geometry(name).weight_bytes(dtype) / tp / GIB == pytest.approx(gib, rel=0.01)


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_the_parts_of_a_model_add_up(name):
    shape = CATALOGUE[name]
    assert sum(group.count for group in shape.groups) == shape.layers
    assert shape.full_layers <= shape.reading_layers <= shape.layers
    assert shape.q_heads % shape.kv_heads == 0
    held = shape.held_bytes(1 << 20, "bf16")
    rows = held.get("full", 0.0) + held.get("latent", 0.0)
    assert rows == shape.row_bytes("bf16") * (1 << 20)
    assert sum(held.values()) - rows == pytest.approx(shape.state_bytes)
    assert held.get("shared", 0.0) == 0.0
    assert shape.active_parameters <= shape.parameters
    assert shape.streamed_bytes("bf16", 1e9) <= shape.weight_bytes("bf16")


def test_windows_fill_up_and_then_stay():
    shape = find_geometry("gemma-4-31b")
    short, long = shape.held_bytes(100, "bf16"), shape.held_bytes(100_000, "bf16")
    assert short == {"sliding": 50 * 100 * 2 * 16 * 256 * 2, "full": 100 * 80 * KIB}
    assert long["sliding"] == shape.held_bytes(1023, "bf16")["sliding"] == shape.state_bytes
    assert shape.held_bytes(100_000, "fp8")["sliding"] == long["sliding"] / 2


def test_layers_that_borrow_a_cache_read_it_and_hold_nothing():
    shape = find_geometry("gemma-4-e4b")
    counts = {(group.kind, group.row_values): group.count for group in shape.groups}
    assert counts == {("sliding", 1024): 20, ("full", 2048): 4, ("shared", 0): 18}
    assert (shape.full_layers, shape.reading_layers) == (4, 7)
    assert shape.state_traffic_bytes / shape.state_bytes == 35 / 20


def test_the_compactable_share_is_what_the_layers_say():
    shape = find_geometry("gemma-4-31b")
    rows = 32_768 * 80 * KIB
    assert shape.compactable_share(32_768, "bf16") == pytest.approx(rows / (rows + shape.state_bytes))
    assert shape.compactable_share(32_768, "bf16") == pytest.approx(2.5 / (2.5 + 0.78), abs=0.01)
    assert shape.compactable_share(0, "bf16") == 0.0


def test_a_step_reads_the_experts_that_its_tokens_touch():
    shape = find_geometry("qwen3-30b-a3b")
    assert shape.touched_experts(1) == pytest.approx(8)
    assert shape.touched_experts(2) == pytest.approx(8 + 8 * (1 - 8 / 128))
    assert shape.touched_experts(1e6) == pytest.approx(128)
    one = shape.streamed_bytes("bf16")
    assert one == pytest.approx(2 * shape.active_parameters)
    assert shape.streamed_bytes("bf16", 1e6) == pytest.approx(
        2 * (shape.parameters - shape.table_parameters - shape.extra_parameters)
    )
    dense = find_geometry("qwen3-8b")
    assert dense.streamed_bytes("bf16", 64) == dense.streamed_bytes("bf16") == 2 * dense.active_parameters


def test_quantised_experts_keep_their_bytes_whatever_the_dtype():
    shape = find_geometry("gpt-oss-20b")
    assert shape.expert_bytes is not None
    fixed = replace(shape, experts=0, active_experts=0)
    for dtype in ("bf16", "fp8"):
        experts = shape.weight_bytes(dtype) - fixed.weight_bytes(dtype)
        assert experts == pytest.approx(32 * shape.expert_parameters * 4.25 / 8 * 3072 / 2880)


def test_attention_costs_four_operations_per_head_number_and_pair():
    shape = find_geometry("llama-3.1-8b")
    assert shape.pair_flops() == shape.prefill_pair_flops() == 4 * 32 * 128 * 32
    assert shape.token_flops(1000) - shape.token_flops() == 1000 * shape.pair_flops()
    assert shape.token_flops() == 2 * shape.active_parameters
    assert find_geometry("gpt-oss-20b").local_flops == 12 * 4 * 64 * 64 * 128


def test_latent_attention_caches_one_row_and_pays_more_to_read_it():
    shape = find_geometry("deepseek-v3")
    assert (shape.kv_heads, shape.head_dim, shape.latent_rank) == (1, 576, 512)
    assert shape.pair_flops() == 61 * 2 * 128 * (576 + 512)
    assert shape.prefill_pair_flops() == 61 * 2 * 128 * (192 + 128)
    cache = shape.kv_shape("fp8")
    assert (cache.row_bytes, cache.group) == (61 * 576, 128)


def test_policies_find_their_work_and_footprint_on_a_latent_cache():
    from kvmill.replay.policies.base import SegmentSize

    shape = find_geometry("deepseek-v3").kv_shape("bf16")
    policy = parse_policy("te(proxy=assistant,delay=1,keep=0.2)")
    turns = [SegmentSize("prefix", 1000), *[SegmentSize(kind, 500) for _ in range(4) for kind in ("assistant", "tool")]]
    work = policy.work(turns, shape)
    assert all(math.isfinite(one.flops) and math.isfinite(one.bytes) for one in work)
    assert sum(one.flops for one in work) > 0
    last = policy.footprint(turns)[-1]
    assert last.kv_rows < 5000
    assert last.query_rows * 61 * 128 * 576 * 2 <= last.aux_bytes(shape) <= 1.1 * last.query_rows * 61 * 128 * 576 * 2
