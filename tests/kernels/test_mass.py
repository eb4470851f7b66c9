import math
from random import Random

import pytest
import torch
from by_hand import DTYPES, draws, log_sum_exp, logits, problem, rows_of, softmax, tensor
from hypothesis import given, settings

from kvmill.kernels import reference


def reduced(weights: list, reduction: str, scale: list | None = None) -> torch.Tensor:
    """Over the rows of each head, by definition."""
    out = []
    for h, rows in enumerate(weights):
        columns = list(zip(*rows, strict=True))
        factors = scale[h] if scale else [1.0] * len(rows)
        rule = {
            "rms": lambda c: math.sqrt(sum(x * x for x in c) / len(c)),
            "mean": lambda c: sum(c) / len(c),
            "max": max,
            "sum": lambda c, f=factors: sum(x * y for x, y in zip(c, f, strict=True)),
        }[reduction]
        out.append([rule(c) for c in columns])
    return tensor(out)


@settings(max_examples=80)
@given(draws())
def test_mass_is_the_formula_of_the_paper(pick: Random) -> None:
    queries, keys, _ = problem(pick)
    kv_heads, count, dim = keys.shape
    bias = torch.randn(kv_heads, count) if pick.random() < 0.5 else None
    weights = [[softmax(row) for row in head] for head in logits(rows_of(queries, kv_heads), keys, dim**-0.5, bias)]
    reduction = pick.choice(["rms", "mean", "max", "sum"])
    got = reference.attention_mass(
        reference.group_rows(queries, kv_heads), keys, dim**-0.5, reduction=reduction, bias=bias
    )
    assert got.dtype == (torch.float64 if keys.dtype == torch.float64 else torch.float32)
    bound = DTYPES[keys.dtype]
    torch.testing.assert_close(got.double(), reduced(weights, reduction), atol=bound / 10, rtol=bound)


@settings(max_examples=80)
@given(draws())
def test_log_total_makes_the_weights_those_of_the_whole_cache(pick: Random) -> None:
    """Scoring a slice of the keys with the log-sum-exp of all of them = slicing the weights over all."""
    queries, keys, _ = problem(pick)
    kv_heads, count, dim = keys.shape
    begin = pick.randint(0, count - 1)
    end = pick.randint(begin + 1, count)
    rows = reference.group_rows(queries, kv_heads)
    truth = logits(rows_of(queries, kv_heads), keys, dim**-0.5)
    totals = tensor([[log_sum_exp(row) for row in head] for head in truth])
    want = tensor([[softmax(row) for row in head] for head in truth])[:, :, begin:end]
    wide = torch.float64 if keys.dtype == torch.float64 else torch.float32
    got = reference.attention_weights(rows, keys[:, begin:end], dim**-0.5, log_total=totals.to(wide))
    torch.testing.assert_close(got.double(), want, atol=DTYPES[keys.dtype], rtol=DTYPES[keys.dtype])
    assert bool((got.sum(-1) <= 1 + 1e-5).all())


def test_limits_hide_later_keys_and_row_weights_scale_rows() -> None:
    torch.manual_seed(1)
    queries, keys = torch.randn(2, 4, 8, dtype=torch.float64), torch.randn(2, 6, 8, dtype=torch.float64)
    limits, scale = [0, 4, 5, 6], [[1.0, 0.5, 0.0, 2.5], [3.0, 0.25, 1.5, 0.0]]
    weights = [[softmax(row) for row in head] for head in logits(queries.tolist(), keys, 1.0, None, [limits, limits])]
    mass = {"limits": torch.tensor(limits), "reduction": "sum"}
    got = reference.attention_mass(queries, keys, 1.0, row_weights=torch.tensor(scale), **mass)
    torch.testing.assert_close(got, reduced(weights, "sum", scale))
    shared = reference.attention_mass(queries, keys, 1.0, row_weights=torch.tensor(scale[0]), **mass)
    torch.testing.assert_close(shared, reduced(weights, "sum", [scale[0], scale[0]]))


def test_keys_too_near_to_the_query_are_left_out_after_the_softmax() -> None:
    torch.manual_seed(2)
    queries, keys = torch.randn(2, 3, 8, dtype=torch.float64), torch.randn(2, 5, 8, dtype=torch.float64)
    asked, held = torch.tensor([4, 6, 9]), torch.tensor([[0, 1, 2, 3, 4], [0, 2, 4, 6, 8]])
    weights = [[softmax(row) for row in head] for head in logits(queries.tolist(), keys, 1.0)]
    far = (asked[:, None] - held[:, None, :] >= 3).tolist()
    left = [[[w * far[h][i][j] for j, w in enumerate(row)] for i, row in enumerate(x)] for h, x in enumerate(weights)]
    got = reference.attention_mass(queries, keys, 1.0, reduction="mean", positions=(asked, held), distance=3)
    torch.testing.assert_close(got, reduced(left, "mean"))


def test_use_sums_the_mean_over_query_heads_and_finds_the_last_token_that_read_more_than_its_share() -> None:
    torch.manual_seed(3)
    queries, keys = torch.randn(4, 3, 8, dtype=torch.float64), torch.randn(2, 6, 8, dtype=torch.float64)
    limits, positions = [4, 5, 6], [10, 11, 15]
    activity, last = reference.attention_use(
        queries, keys, 1.0, limits=torch.tensor(limits), positions=torch.tensor(positions), first=2
    )
    for h in range(2):
        rows = [logits(queries[2 * h + g][None].tolist(), keys[h : h + 1], 1.0, None, [limits]) for g in range(2)]
        mean = [[sum(softmax(rows[g][0][i])[j] for g in range(2)) / 2 for j in range(6)] for i in range(3)]
        for j in range(2, 6):
            assert float(activity[h, j - 2]) == pytest.approx(sum(mean[i][j] for i in range(3)))
            readers = [positions[i] for i in range(3) if mean[i][j] * limits[i] >= 1]
            assert float(last[h, j - 2]) == max(readers, default=-1)


def test_log_totals_are_the_sums_of_the_visible_logits() -> None:
    torch.manual_seed(4)
    queries, keys = torch.randn(1, 3, 8, dtype=torch.float64), torch.randn(1, 5, 8, dtype=torch.float64)
    bias = torch.randn(1, 5, dtype=torch.float64)
    got = reference.log_totals(queries, keys, 0.5, limits=torch.tensor([0, 2, 5]), bias=bias)
    for row, seen in enumerate((0, 2, 5)):
        exps = [math.exp(float(queries[0, row] @ keys[0, j]) * 0.5 + float(bias[0, j])) for j in range(seen)]
        assert float(got[0, row]) == (pytest.approx(math.log(sum(exps))) if seen else -math.inf)


def test_rows_that_see_nothing_and_no_rows_at_all_read_nothing() -> None:
    queries, keys = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    everything_hidden = torch.full((2, 5), float("-inf"))
    assert not reference.attention_weights(queries, keys, 1.0, torch.zeros(3, dtype=torch.long)).any()
    assert not reference.attention_weights(queries, keys, 1.0, bias=everything_hidden).any()
    assert not reference.attention_weights(queries, keys, 1.0, log_total=torch.full((2, 3), float("-inf"))).any()
    for reduction in ("rms", "mean", "max", "sum"):
        assert reference.attention_mass(queries[:, :0], keys, 1.0, reduction=reduction).tolist() == [[0.0] * 5] * 2
        assert reference.attention_mass(queries, keys[:, :0], 1.0, reduction=reduction).shape == (2, 0)


def test_large_logits_of_bfloat16_inputs_are_computed_in_float32() -> None:
    torch.manual_seed(2)
    queries, keys = (torch.randn(1, 3, 64) * 12).bfloat16(), (torch.randn(1, 9, 64) * 12).bfloat16()
    truth = logits(queries.tolist(), keys, 0.125)
    assert max(abs(x) for x in truth[0][0]) > 200
    got = reference.attention_mass(queries, keys, 0.125)
    want = reduced([[softmax(row) for row in truth[0]]], "rms")
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pooling", [1, 5])
@pytest.mark.parametrize(("count", "keep"), [(129, 26), (640, 128)])
def test_selection_from_bfloat16_overlaps_that_from_float32(count: int, keep: int, pooling: int) -> None:
    """At least 95 % Jaccard per head, queries and keys rounded to bfloat16 (compaction.md 9)."""
    torch.manual_seed(count)
    queries, keys = torch.randn(4, 3 * 64, 64), torch.randn(4, count, 64)
    kept = [
        reference.pool_topk(reference.attention_mass(q, k, 0.125), keep, kernel=pooling)
        for q, k in ((queries, keys), (queries.bfloat16(), keys.bfloat16()))
    ]
    overlap = [len(set(a) & set(b)) / len(set(a) | set(b)) for a, b in zip(*(r.tolist() for r in kept), strict=True)]
    assert sum(overlap) / len(overlap) >= 0.95


def test_group_rows_puts_the_heads_of_a_kv_head_together() -> None:
    queries = torch.arange(6)[:, None, None].expand(6, 2, 1)
    assert reference.group_rows(queries, 2)[:, :, 0].tolist() == [[0, 0, 1, 1, 2, 2], [3, 3, 4, 4, 5, 5]]


def test_misuse_is_an_error() -> None:
    one = torch.zeros(1, 1, 2)
    with pytest.raises(ValueError, match="rms, mean, max, sum"):
        reference.attention_mass(one, one, 1.0, reduction="median")
    with pytest.raises(ValueError, match="row_weights belong to the reduction sum"):
        reference.attention_mass(one, one, 1.0, row_weights=torch.ones(1))
