from random import Random

import torch
from by_hand import DTYPES, draws, log_sum_exp, logits, problem, rows_of, softmax, tensor, weighted
from hypothesis import given, settings

from kvmill.kernels import attention, reference

HALF = {torch.float64: 1e-11, torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""The output is rounded to its dtype, and the fused kernel rounds the weights of half-precision inputs too."""


def truth(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **more: object) -> torch.Tensor:
    """(H, L, D) by definition."""
    kv_heads, _, dim = keys.shape
    found = logits(rows_of(queries, kv_heads), keys, dim**-0.5, **more)  # type: ignore[arg-type]
    vectors = values.double().tolist()
    out = [[weighted(softmax(row), vectors[h]) for row in head] for h, head in enumerate(found)]
    return tensor(out).reshape(queries.shape)


@settings(max_examples=80)
@given(draws())
def test_chunk_attention_is_causal_softmax_with_a_bias_per_key(pick: Random) -> None:
    queries, keys, values = problem(pick)
    (kv_heads, count, dim), (heads, length, _) = keys.shape, queries.shape
    length = min(length, count)
    queries = queries[:, :length]
    bias = torch.randn(kv_heads, count).to(keys.dtype).float() if pick.random() < 0.5 else None
    mask = attention.causal_mask(length, count, heads // kv_heads, queries)
    seen = [[count - length + 1 + i % length for i in range(length * heads // kv_heads)]] * kv_heads
    want = truth(queries, keys, values, bias=bias, seen=seen)
    for implementation in (attention, reference):
        got = implementation.chunk_attention(queries, keys, values, dim**-0.5, mask, bias)
        assert got.dtype == queries.dtype
        torch.testing.assert_close(got.double(), want, atol=HALF[keys.dtype], rtol=HALF[keys.dtype])


@settings(max_examples=80)
@given(draws())
def test_decode_attention_returns_output_log_sum_exp_and_who_was_read(pick: Random) -> None:
    queries, keys, values = problem(pick)
    (kv_heads, count, dim), (heads, length, _) = keys.shape, queries.shape
    rows = length * heads // kv_heads
    bias = torch.randn(kv_heads, count) if pick.random() < 0.5 else None
    ragged = pick.random() < 0.7
    used = [pick.randint(0, count) if ragged else count for _ in range(kv_heads)]
    found = logits(rows_of(queries, kv_heads), keys, dim**-0.5, bias, [[u] * rows for u in used])
    want_total = tensor([[log_sum_exp(row) for row in head] for head in found]).reshape(heads, length)
    weights = tensor([[softmax(row) for row in head] for head in found])
    want = truth(queries, keys, values, bias=bias, seen=[[u] * rows for u in used])
    for h, u in enumerate(used):  # what lies behind a ragged end is not there, whatever it holds
        keys[h, u:], values[h, u:] = float("nan"), float("nan")
    lengths = torch.tensor(used) if ragged else None
    out, total, activity = reference.decode_attention(
        queries, keys, values, dim**-0.5, lengths=lengths, bias=bias, activity=True
    )
    assert out.dtype == queries.dtype
    bound = DTYPES[keys.dtype]
    torch.testing.assert_close(out.double(), want, atol=HALF[keys.dtype], rtol=HALF[keys.dtype])
    torch.testing.assert_close(total.double(), want_total, atol=bound, rtol=bound)
    assert activity is not None
    torch.testing.assert_close(activity.double(), weights.sum(1), atol=bound, rtol=bound)
    assert reference.decode_attention(queries, keys, values, 1.0)[2] is None


@settings(max_examples=80)
@given(draws())
def test_blocks_merge_to_the_whole(pick: Random) -> None:
    """Any cut into blocks, empty ones included, biased or not: what attention matching rests on (2.1)."""
    queries, keys, values = problem(pick)
    kv_heads, count, dim = keys.shape
    bias = torch.randn(kv_heads, count)
    cuts = sorted(pick.randint(0, count) for _ in range(pick.randint(0, 3)))
    spans = list(zip([0, *cuts], [*cuts, count], strict=True))
    parts = [
        reference.decode_attention(queries, keys[:, a:b], values[:, a:b], dim**-0.5, bias=bias[:, a:b])[:2]
        for a, b in spans
    ]
    out, total = reference.merge_partials(*zip(*parts, strict=True))
    found = logits(rows_of(queries, kv_heads), keys, dim**-0.5, bias)
    want_total = tensor([[log_sum_exp(row) for row in head] for head in found]).reshape(total.shape)
    assert out.dtype == queries.dtype
    torch.testing.assert_close(total.double(), want_total, atol=DTYPES[keys.dtype], rtol=DTYPES[keys.dtype])
    bound = HALF[keys.dtype]
    torch.testing.assert_close(out.double(), truth(queries, keys, values, bias=bias), atol=bound, rtol=bound)


def test_merging_blocks_without_keys_gives_nothing() -> None:
    empty = torch.zeros(2, 1, 4), torch.full((2, 1), float("-inf"))
    out, total = reference.merge_partials([empty[0], empty[0]], [empty[1], empty[1]])
    assert not out.any()
    assert bool((total == float("-inf")).all())


def test_causal_mask_aligns_the_new_tokens_with_the_last_rows() -> None:
    mask = attention.causal_mask(3, 5, 2, torch.zeros(1))
    assert mask is not None
    assert (mask == 0).int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]] * 2
    assert attention.causal_mask(1, 5, 2, torch.zeros(1)) is None


def test_tree_mask_lets_branches_see_the_stem_only() -> None:
    visible = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    mask = attention.tree_mask(visible, 4, 1, torch.zeros(1))
    assert (mask == 0).int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]
