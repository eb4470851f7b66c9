from dataclasses import replace

import pytest

from kvmill.errors import UserError
from kvmill.simulator.deployment import Deployment, fit_tp, sizes_of
from kvmill.simulator.hardware import find_gpu
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


def unnamed(model):
    """The shape under a name that no report is of."""
    return replace(find_geometry(model), name="another")


@pytest.mark.parametrize(("model", "tp", "dtype", "weights", "activation", "left"), REPORTS)
def test_memory_is_as_vllm_reports_it(model, tp, dtype, weights, activation, left):
    measured = place(model, tp=tp, dtype=dtype, activation_gib=activation)
    assert measured.weights_gib() == pytest.approx(weights, abs=0.1)
    assert measured.cache_gib() == pytest.approx(left, abs=0.12), "with the activation peak as reported"
    ours = replace(place(model, tp=tp, dtype=dtype, max_sequences=1024), geometry=unnamed(model))
    assert "estimated" in ours.activation.source
    assert ours.cache_gib() == pytest.approx(left, abs=0.3), "by the rule, at the 1,024 sequences of those engines"


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("smollm2-135m", (1,)),
        ("qwen3.5-27b", (1, 2, 4, 8)),
        ("gemma-4-e4b", (1, 2, 4, 8)),
        ("deepseek-v3", (1, 2, 4, 8)),
    ],
    ids=["9 and 3 heads", "24 and 4", "8 and 2: copied", "one latent row for all"],
)
def test_heads_are_split_evenly_or_not_at_all(model, sizes):
    assert sizes_of(find_geometry(model)) == sizes
    for tp in {1, 2, 4, 8} - set(sizes):
        with pytest.raises(UserError, match=r"9 query heads and 3 KV heads of .* it runs on 1 GPU$"):
            place(model, tp=tp)


def test_sizes_that_cannot_be_are_not_chosen():
    small = place("smollm2-135m", "l4", utilisation=0.1)
    assert fit_tp(small, 10**6).tp == 1, "the largest that loads, though a session does not fit"
    with pytest.raises(UserError, match="does not fit on 1 × l4"):
        fit_tp(replace(small, activation_gib=30.0), 0)


def test_what_fills_the_memory_is_said():
    with pytest.raises(UserError, match=r"with 42,\d+\.\d GiB of activations on each; .* a smaller --token-budget"):
        fit_tp(place("llama-3.1-8b", token_budget=10**9), 0)


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
        ({"token_budget": 0}, "--token-budget 0: 1 at least"),
        ({"max_sequences": 0}, "--max-sequences 0: 1 at least"),
        ({"retention": "ttl:."}, "--retention 'ttl:.'"),
        ({"retention": "ttl:1\n"}, "--retention"),
        ({"host_gib": float("inf")}, "--host-gib inf"),
        ({"host_gib": float("nan")}, "--host-gib nan"),
        ({"host_gib": 1e300}, "--host-gib"),
    ],
)
def test_deployments_that_cannot_be_are_refused(fields, reason):
    with pytest.raises(UserError, match=reason):
        place("llama-3.1-8b", **fields)


def test_an_a100_has_no_fp8():
    with pytest.raises(UserError, match="a100-80 has no fp8"):
        place("llama-3.1-8b", "a100-80", dtype="fp8")
