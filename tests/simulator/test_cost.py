import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import deployment

from kvmill.errors import UserError
from kvmill.replay.policies.base import Work
from kvmill.simulator.cost import CostModel, reduce_pieces
from kvmill.simulator.deployment import Deployment
from kvmill.simulator.gpus import GPUS
from kvmill.simulator.hardware import find_gpu
from kvmill.simulator.models import find_geometry


def place(model, gpu="h100", **fields):
    return Deployment(find_geometry(model), find_gpu(gpu), **fields)


def test_no_gpu_reaches_twice_its_bf16_rate_with_fp8():
    for gpu in GPUS.values():
        if "fp8" in gpu.flops:
            assert gpu.flops["fp8"] * gpu.matmul["fp8"] < 2 * gpu.flops["bf16"] * gpu.matmul["bf16"]


@given(
    st.integers(1, 300),
    st.integers(0, 2_000_000),
    st.integers(1, 400),
    st.sampled_from(["qwen3.5-27b", "qwen3-30b-a3b"]),
)
def test_a_stretch_is_the_sum_of_its_steps(decodes, rows, steps, model):
    cost = CostModel.of(place(model, "h200"))
    singles = [cost.fixed_s(decodes) + cost.decode_attention_s(decodes, rows + i * decodes) for i in range(steps)]
    assert cost.stretch_s(decodes, rows, steps) == pytest.approx(sum(singles), rel=1e-9)
    assert cost.step_s(decodes, rows, 0, 0, 0.0, 0) == pytest.approx(singles[0], rel=1e-12)


def test_a_lone_decode_step_takes_the_time_of_streaming_the_weights_beside_floors_and_the_host():
    h200 = find_gpu("h200")
    cost = CostModel.of(place("qwen3.5-27b", "h200"))
    weights = 2 * (24.33e9 + 1.271e9) / (4.8e12 * h200.streaming["bf16"])
    floors = 64 * (4 * h200.matmul_floor_s["bf16"] + h200.layer_s)
    assert cost.fixed_s(1) == pytest.approx(weights + floors + 0.33e-3 + 28e-6, rel=0.01)


def test_prefill_is_its_operations_at_the_achieved_rate_and_what_moves_beside():
    h100 = find_gpu("h100")
    cost = CostModel.of(place("llama-3.1-8b"))
    tokens = 8192
    dense = 2 * 6.98e9 * tokens / (989e12 * h100.matmul["bf16"])
    attention = 4 * 32 * 128 * 32 * tokens * tokens / 2 / (989e12 * h100.prefill_attention)
    values = 6.98e9 / 4096  # that the products of a token put out
    small = 2.3 * values * tokens / 3.35e12
    around = 32 * (4 * 32 + 4 * 8) * 128 * tokens / (3.35e12 * h100.attention_io)
    assert cost.step_s(0, 0, 1, tokens, tokens * tokens / 2, 1) == pytest.approx(
        dense + attention + small + around, rel=0.02
    )


def test_a_chunk_with_context_costs_its_pairs():
    cost = CostModel.of(place("llama-3.1-8b"))
    alone, after = (cost.step_s(0, 0, 1, 512, 512 * (before + 256), 0) for before in (0, 100_000))
    assert after - alone == pytest.approx(512 * 100_000 * cost.pair_s)
    assert after > 2 * alone


def test_a_step_that_samples_nothing_leaves_the_output_projection_alone():
    cost = CostModel.of(place("llama-3.1-8b"))
    chunk, ending = (cost.step_s(0, 0, 1, 2048, 0.0, n) for n in (0, 1))
    assert ending - chunk == pytest.approx(cost.head_weights_s, rel=0.01)


def test_products_hide_the_shorter_of_operations_and_bytes_only_in_part():
    cost = CostModel.of(place("llama-3.1-8b"))
    even = cost.weights_s / cost.token_s  # as much computing as streaming
    dense = cost.dense_s(even, 0) - cost.dense_floor_s - even * cost.small_s
    assert 1.2 * cost.weights_s < dense < 2 * cost.weights_s
    few, many = (cost.dense_s(n, 0) - cost.dense_floor_s - n * cost.small_s for n in (1, 50 * even))
    assert few == pytest.approx(cost.weights_s, rel=0.01)
    assert many == pytest.approx(50 * even * cost.token_s, rel=0.01)


def test_a_mixture_streams_the_experts_that_its_tokens_touch():
    shape = find_geometry("qwen3-30b-a3b")
    cost = CostModel.of(place("qwen3-30b-a3b", "h200"))
    stream = 4.8e12 * find_gpu("h200").streaming["bf16"]
    for tokens in (1, 7, 64, 1000):
        assert cost.streaming_s(tokens) == pytest.approx(shape.streamed_bytes("bf16", tokens) / stream, rel=1e-9)
    assert cost.streaming_s(64) > 8 * cost.streaming_s(1)
    assert cost.dense_s(64, 64) > cost.streaming_s(64)


def test_one_latent_row_read_by_many_heads_takes_operations_not_bytes():
    latent = place("deepseek-v3", "h200", tp=1, dtype="fp8")
    cost = CostModel.of(latent)
    bytes_s = latent.row_bytes() / (4.8e12 * latent.gpu.decode_attention)
    assert cost.row_s > bytes_s
    split = CostModel.of(place("deepseek-v3", "h200", tp=8, dtype="fp8"))
    assert split.row_s == pytest.approx(bytes_s), "heads are split over GPUs, the row is not"
    assert cost.pair_s < cost.row_s, "prefills expand the rows, decodes absorb"


def test_windows_cost_a_constant_however_long_the_context():
    cost = CostModel.of(place("gemma-4-31b", "h200"))
    shape = find_geometry("gemma-4-31b")
    assert cost.state_s == pytest.approx(shape.state_traffic_bytes / (4.8e12 * find_gpu("h200").decode_attention))
    assert cost.decode_attention_s(10, 0) == pytest.approx(cost.attention_floor_s + 10 * cost.state_s)
    assert cost.attention_floor_s == pytest.approx(60 * find_gpu("h200").attention_floor_s), "windows have kernels too"


def test_tensor_parallel_steps_are_faster_over_nvlink_and_slow_to_prefill_over_pcie():
    def prefill(gpu, tp):
        return CostModel.of(place("llama-3.1-8b", gpu, tp=tp)).step_s(0, 0, 1, 8192, 0.0, 1)

    assert prefill("h100", 2) < 0.8 * prefill("h100", 1)
    assert prefill("l40s", 8) > prefill("l40s", 1)


def test_all_reduces_pass_through_the_measured_points():
    points = ((1024.0, 4e-6), (4096.0, 10e-6), (65_536.0, 90e-6))
    cost = CostModel(reduce_s=reduce_pieces(points, token_bytes=64.0, calls=10))
    for size, seconds in points:
        assert cost.all_reduce_s(size / 64) == pytest.approx(10 * seconds)
    assert cost.all_reduce_s(1) == pytest.approx(40e-6), "smaller messages cost what the smallest does"
    assert cost.all_reduce_s(40) == pytest.approx(10 * (4e-6 + 6e-6 * (40 * 64 - 1024) / 3072))
    assert cost.all_reduce_s(2048) > 10 * 90e-6, "the last line goes on"
    assert CostModel.of(place("llama-3.1-8b")).all_reduce_s(10_000) == 0.0


def test_a_tensor_parallel_size_that_was_never_measured_is_refused():
    from dataclasses import replace

    lone = replace(find_gpu("h100"), all_reduce_s={2: ((1.0, 1e-6),)})
    with pytest.raises(UserError, match=r"h100 has no all-reduce times for --tp 4 \(known: 2\)"):
        CostModel.of(Deployment(find_geometry("llama-3.1-8b"), lone, tp=4))


def test_compaction_costs_its_work_and_nothing_costs_nothing():
    h200 = find_gpu("h200")
    cost = CostModel.of(place("qwen3.5-27b", "h200"))
    assert cost.compaction_s(Work()) == 0.0
    floor = 16 * h200.attention_floor_s
    assert cost.compaction_s(Work(flops=1.0)) == pytest.approx(floor)
    assert cost.compaction_s(Work(flops=989e12 * h200.matmul["bf16"])) == pytest.approx(1 + floor)
    assert cost.compaction_s(Work(bytes=4.8e12 * h200.decode_attention)) == pytest.approx(1 + floor)


def test_reloading_takes_the_host_link_of_every_gpu():
    assert CostModel.of(place("llama-3.1-8b", tp=1)).reload_s(50.4e9) == pytest.approx(1.0)
    assert CostModel.of(place("llama-3.1-8b", tp=4)).reload_s(50.4e9) == pytest.approx(0.25)


def test_a_slower_machine_is_slower_in_everything_and_no_less_certain():
    cost = CostModel.of(place("qwen3-30b-a3b", tp=4))
    slow = cost.scaled(1.1)
    assert slow.step_s(10, 1e5, 1, 500, 1e6, 1) == pytest.approx(1.1 * cost.step_s(10, 1e5, 1, 500, 1e6, 1))
    assert slow.reload_s(1e9) == pytest.approx(1.1 * cost.reload_s(1e9))
    assert (slow.error, slow.error_source) == (cost.error, cost.error_source)


def test_a_cost_model_of_nothing_costs_nothing():
    assert CostModel().step_s(10, 1e6, 2, 100, 1e6, 1) == 0.0
    assert CostModel.of(deployment()).error == find_gpu("h100").step_error
