import pytest
from worlds import deployment

from kvmill.errors import UserError
from kvmill.replay.policies.base import Work
from kvmill.simulator.cost import CostModel
from kvmill.simulator.deployment import Deployment, fit_tp
from kvmill.simulator.hardware import GPUS, find_gpu
from kvmill.simulator.models import find_geometry

GIB = 2**30


def place(model, gpu="h100", **fields):
    return Deployment(find_geometry(model), find_gpu(gpu), **fields)


# GiB per GPU in vLLM's own reports on an H100-80 at utilisation 0.9: weights, activation peak, left for the cache.
REPORTS = [
    ("llama-3.1-8b", 1, "bf16", 14.99, 4.76, 51.38),
    ("qwen3-0.6b", 1, "bf16", 1.12, 5.56, 64.45),
    ("qwen3-32b", 1, "bf16", 61.03, 5.64, 4.45),
    ("qwen3-32b", 2, "bf16", 30.59, 5.64, 34.49),
    ("llama-3.1-70b", 2, "fp8", 33.88, 4.84, 32.0),
]


@pytest.mark.parametrize(("model", "tp", "dtype", "weights", "activation", "left"), REPORTS)
def test_memory_is_as_vllm_reports_it(model, tp, dtype, weights, activation, left):
    measured = place(model, tp=tp, dtype=dtype, activation_gib=activation)
    assert measured.weights_gib() == pytest.approx(weights, abs=0.1)
    assert measured.cache_gib() == pytest.approx(left, abs=0.12), "with the activation peak as reported"
    ours = place(model, tp=tp, dtype=dtype)
    assert ours.cache_gib() == pytest.approx(left, abs=0.75), "with the one constant that is assumed for all models"


def test_a_pool_is_whole_blocks_of_what_is_left():
    some = place("llama-3.1-8b")
    assert some.blocks() == int(some.cache_gib() * GIB // (16 * 128 * 1024))
    assert place("qwen3.5-27b", "h200").state_blocks() == 148  # 147.75 MiB in blocks of 1 MiB


def test_kv_heads_are_split_no_further_than_there_are_heads():
    assert place("qwen3.5-27b", tp=4).row_bytes() == 16 * 1024
    assert place("qwen3.5-27b", tp=8).row_bytes() == 16 * 1024


def test_the_smallest_size_that_holds_the_longest_session_is_chosen():
    assert fit_tp(place("qwen3.5-27b", "h200"), 262_144).tp == 1
    assert fit_tp(place("llama-3.1-70b", "h200"), 131_072).tp == 2
    assert fit_tp(place("qwen3-32b"), 10_000).tp == 1
    assert fit_tp(place("qwen3-32b"), 40_960).tp == 2
    with pytest.raises(UserError, match=r"llama-3\.1-70b \(131 GiB of weights\) does not fit on 1 × h100"):
        fit_tp(place("llama-3.1-70b"), 0, only=1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"dtype": "int4"}, "--dtype 'int4'"),
        ({"kv_dtype": "fp4"}, "--kv-dtype 'fp4'"),
        ({"tp": 3}, "--tp 3"),
        ({"utilisation": 1.5}, "--utilisation"),
    ],
)
def test_deployments_that_cannot_be_are_refused(fields, reason):
    with pytest.raises(UserError, match=reason):
        place("llama-3.1-8b", **fields)


def test_an_a100_has_no_fp8_and_unknown_gpus_are_not_aliased():
    with pytest.raises(UserError, match="a100-80 has no fp8"):
        place("llama-3.1-8b", "a100-80", dtype="fp8")
    with pytest.raises(UserError, match=r"unknown GPU 'a10g'.*l40s"):
        find_gpu("a10g")


def test_no_gpu_reaches_twice_its_bf16_rate_with_fp8():
    for gpu in GPUS.values():
        if "fp8" in gpu.flops:
            assert gpu.flops["fp8"] * gpu.matmul["fp8"] < 2 * gpu.flops["bf16"] * gpu.matmul["bf16"]


def test_a_stretch_is_the_sum_of_its_steps():
    cost = CostModel.of(deployment())
    for decodes, rows in ((1, 100), (7, 40_000), (200, 900_000)):
        most = min(300, cost.steps_on_floor(decodes, rows))
        steps = [cost.fixed_s(decodes) + cost.decode_attention_s(decodes, rows + i * decodes) for i in range(most)]
        assert cost.stretch_s(decodes, rows, most) == pytest.approx(sum(steps), rel=1e-12)
        assert cost.step_s(decodes, rows, 0, 0, 0.0, 0) == pytest.approx(steps[0], rel=1e-12)


def test_a_lone_decode_step_takes_the_time_of_streaming_the_weights_and_the_host():
    some = place("qwen3.5-27b", "h200")
    cost = CostModel.of(some)
    weights = 2 * (24.33e9 + 1.271e9) / (4.8e12 * 0.82)
    assert cost.fixed_s(1) == pytest.approx(weights + 0.33e-3 + 28e-6, rel=0.01)


def test_prefill_is_its_operations_at_the_achieved_rate():
    cost = CostModel.of(place("llama-3.1-8b"))
    tokens = 8192
    dense = 2 * 6.98e9 * tokens / (989e12 * 0.80)
    attention = 4 * 32 * 128 * 32 * tokens * tokens / 2 / (989e12 * 0.58)
    assert cost.step_s(0, 0, 1, tokens, tokens * tokens / 2, 1) == pytest.approx(dense + attention, rel=0.01)


def test_tensor_parallel_steps_are_faster_over_nvlink_and_slow_to_prefill_over_pcie():
    def prefill(gpu, tp):
        return CostModel.of(place("llama-3.1-8b", gpu, tp=tp)).step_s(0, 0, 1, 8192, 0.0, 1)

    assert prefill("h100", 2) < 0.8 * prefill("h100", 1)
    assert prefill("l40s", 8) > prefill("l40s", 1)


def test_compaction_costs_its_work_and_nothing_costs_nothing():
    cost = CostModel.of(place("qwen3.5-27b", "h200"))
    assert cost.compaction_s(Work()) == 0.0
    floor = 16 * 12e-6
    assert cost.compaction_s(Work(flops=1.0)) == pytest.approx(floor)
    assert cost.compaction_s(Work(flops=989e12 * 0.77)) == pytest.approx(1 + floor)
    assert cost.compaction_s(Work(bytes=4.8e12 * 0.74)) == pytest.approx(1 + floor)


def test_a_slower_machine_is_slower_in_everything():
    cost = CostModel.of(deployment())
    assert cost.scaled(1.1).step_s(10, 1e5, 1, 500, 1e6, 1) == pytest.approx(1.1 * cost.step_s(10, 1e5, 1, 500, 1e6, 1))
