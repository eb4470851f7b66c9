import math
from random import Random

import pytest
import torch
from by_hand import draws, logits, problem, rows_of, softmax, tensor, weighted
from hypothesis import given, settings
from torch import Tensor

from kvmill.kernels import reference

RIDGES = [1e-3, 1e-2, 1e-1]


def least_squares(a: Tensor, b: Tensor, start: Tensor, ridge: float) -> Tensor:
    """argmin ‖ax − b‖² + ridge·σ²·‖x − start‖², as one stacked problem (no normal equations), float64."""
    pull = math.sqrt(ridge) * float(torch.linalg.svdvals(a)[0])
    stacked = torch.cat([a, pull * torch.eye(a.shape[1], dtype=torch.float64)])
    return torch.linalg.lstsq(stacked, torch.cat([b, pull * start]), driver="gelsd").solution


class Truth:
    """Both fits by definition, head by head, in float64."""

    def __init__(
        self, queries: Tensor, keys: Tensor, values: Tensor, index: Tensor, ridge: float, weights: Tensor | None = None
    ) -> None:
        kv_heads, _, dim = keys.shape
        found = logits(rows_of(queries, kv_heads), keys, dim**-0.5)
        self.bias, self.values = [], []
        for h, rows in enumerate(found):
            kept, vectors = index[h].tolist(), values[h].double().tolist()
            shares = [1.0] * len(rows) if weights is None else weights[h].tolist()
            exps = [[w * math.exp(x - max(row)) for x in row] for row, w in zip(rows, shares, strict=True)]
            mass = tensor([[sum(row)] for row in exps])
            start = torch.ones(len(kept), 1, dtype=torch.float64)
            factors = least_squares(tensor([[row[j] for j in kept] for row in exps]), mass, start, ridge)
            beta = factors.clamp(math.exp(-3), math.exp(3)).log()[:, 0].tolist()
            new = [softmax([row[j] + b for j, b in zip(kept, beta, strict=True)]) for row in rows]
            x = tensor([[w * a for a in row] for row, w in zip(new, shares, strict=True)])
            y = tensor([[w * a for a in weighted(softmax(r), vectors)] for r, w in zip(rows, shares, strict=True)])
            self.bias.append(beta)
            self.values.append(least_squares(x, y, tensor([vectors[j] for j in kept]), ridge).tolist())


def some_index(keys: Tensor, pick: Random, most: int = 40) -> Tensor:
    """A random ascending choice of 1 to `most` rows for every head."""
    heads, count, _ = keys.shape
    keep = pick.randint(1, min(most, count))
    return torch.stack([torch.randperm(count)[:keep].sort().values for _ in range(heads)])


@settings(max_examples=80)
@given(draws())
def test_both_fits_are_ridge_regressions_towards_plain_eviction(pick: Random) -> None:
    queries, keys, values = problem(pick)
    index, scaling, ridge = some_index(keys, pick), keys.shape[-1] ** -0.5, pick.choice(RIDGES)
    rows = reference.group_rows(queries, keys.shape[0])
    weights = torch.rand(rows.shape[:2], dtype=torch.float64) if pick.random() < 0.5 else None
    bias, new = reference.ridge_fit(rows, keys, values, index, scaling, ridge=ridge, row_weights=weights)
    truth = Truth(queries, keys, values, index, ridge, weights)
    exact = keys.dtype == torch.float64
    assert bias.dtype == (torch.float64 if exact else torch.float32)
    assert new.dtype == values.dtype
    bound = 1e-9 if exact else 1e-3
    torch.testing.assert_close(bias.double(), tensor(truth.bias), atol=bound, rtol=bound)
    rounding = {torch.bfloat16: 2e-2, torch.float16: 3e-3}.get(keys.dtype, bound)
    torch.testing.assert_close(new.double(), tensor(truth.values), atol=rounding, rtol=rounding)


@settings(max_examples=80)
@given(draws())
def test_nothing_dropped_changes_nothing(pick: Random) -> None:
    """m = n: β = 0 and V unchanged, bit for bit, for any ridge and any number of rows (compaction.md 9)."""
    queries, keys, values = problem(pick)
    ridge, rows = pick.choice([1e-12, 1e-6, 1e-3, 1.0, 100.0]), reference.group_rows(queries, keys.shape[0])
    index = torch.arange(keys.shape[1]).expand(keys.shape[0], -1)
    weights = torch.rand(rows.shape[:2]) if pick.random() < 0.5 else None
    bias, new = reference.ridge_fit(rows, keys, values, index, 0.3, ridge=ridge, row_weights=weights)
    assert not bias.any()
    assert torch.equal(new, values)
    assert not reference.output_error(rows, keys, values, index, 0.3).any()


@settings(max_examples=60)
@given(draws())
def test_without_beta_training_error_never_exceeds_plain_eviction(pick: Random) -> None:
    queries, keys, values = (x.double() for x in problem(pick))
    ridge = pick.choice(RIDGES)
    rows, index = reference.group_rows(queries, keys.shape[0]), some_index(keys, pick)
    weights = torch.rand(rows.shape[:2], dtype=torch.float64) if pick.random() < 0.5 else None
    new = reference.fit_values(rows, keys, values, index, 0.2, ridge=ridge, row_weights=weights)
    fitted = reference.output_error(rows, keys, values, index, 0.2, new_values=new, row_weights=weights)
    plain = reference.output_error(rows, keys, values, index, 0.2, row_weights=weights)
    assert bool((fitted <= plain * (1 + 1e-12) + 1e-12).all())


@settings(max_examples=80)
@given(draws())
def test_output_error_by_definition_on_the_chosen_rows(pick: Random) -> None:
    queries, keys, values = (x.double() for x in problem(pick))
    kv_heads, _, dim = keys.shape
    rows, index = reference.group_rows(queries, kv_heads), some_index(keys, pick)
    chosen = pick.sample(range(rows.shape[1]), pick.randint(1, min(5, rows.shape[1])))
    bias, new = torch.randn(index.shape, dtype=torch.float64), torch.randn(*index.shape, dim, dtype=torch.float64)
    want = []
    for h, head in enumerate(logits(rows.tolist(), keys, dim**-0.5)):
        missed = whole = 0.0
        for row in (head[i] for i in chosen):
            y = weighted(softmax(row), values[h].tolist())
            x = softmax([row[j] + float(b) for j, b in zip(index[h].tolist(), bias[h], strict=True)])
            missed += sum((a - b) ** 2 for a, b in zip(weighted(x, new[h].tolist()), y, strict=True))
            whole += sum(b * b for b in y)
        want.append(math.sqrt(missed / whole))
    arguments = (rows, keys, values, index, dim**-0.5, bias, new)
    torch.testing.assert_close(reference.output_error(*arguments, torch.tensor(chosen)), tensor(want))
    mask = torch.zeros(rows.shape[1], dtype=torch.bool)
    mask[chosen] = True
    torch.testing.assert_close(reference.output_error(*arguments, mask), tensor(want))
    torch.testing.assert_close(reference.output_error(*arguments, row_weights=mask.double()), tensor(want))


def test_a_compact_block_and_the_rest_merge_to_attention_over_both_with_beta_as_bias() -> None:
    """The composition that attention matching rests on (compaction.md 2.1, 9)."""
    torch.manual_seed(5)
    queries = torch.randn(6, 2, 64, dtype=torch.float64)
    keys, values = (torch.randn(2, 100, 64, dtype=torch.float64) for _ in range(2))
    index = torch.arange(0, 63, 5).expand(2, -1)
    rows = torch.randn(2, 200, 64, dtype=torch.float64)
    bias, new = reference.ridge_fit(rows, keys[:, :63], values[:, :63], index, 0.125)
    block = reference.compact_kv(keys, values, index)[0], new
    rest = keys[:, 63:], values[:, 63:]
    parts = [
        reference.decode_attention(queries, *block, 0.125, bias=bias)[:2],
        reference.decode_attention(queries, *rest, 0.125)[:2],
    ]
    out, total = reference.merge_partials(*zip(*parts, strict=True))
    both = [torch.cat(pair, dim=1) for pair in zip(block, rest, strict=True)]
    extra = torch.cat([bias, torch.zeros(2, 37, dtype=torch.float64)], dim=1)
    whole, whole_total, _ = reference.decode_attention(queries, both[0], both[1], 0.125, bias=extra)
    torch.testing.assert_close(out, whole)
    torch.testing.assert_close(total, whole_total)
    torch.testing.assert_close(reference.chunk_attention(queries, both[0], both[1], 0.125, None, extra), whole)


def test_a_row_of_weight_zero_is_no_row() -> None:
    torch.manual_seed(1)
    rows, keys, values = (torch.randn(2, n, 16, dtype=torch.float64) for n in (30, 40, 40))
    index = torch.arange(0, 40, 4).expand(2, -1)
    weights = (torch.arange(30) < 20).double()
    bias, new = reference.ridge_fit(rows, keys, values, index, 0.25, row_weights=weights)
    fewer_bias, fewer_new = reference.ridge_fit(rows[:, :20], keys, values, index, 0.25)
    torch.testing.assert_close(bias, fewer_bias)
    torch.testing.assert_close(new, fewer_new)


@pytest.mark.parametrize("rows", [2, 50])
@pytest.mark.parametrize(("count", "keep"), [(12, 4), (129, 100), (129, 1)])
def test_beta_of_equal_keys_is_the_log_of_how_many_each_stands_for(rows: int, count: int, keep: int) -> None:
    """M = 1: B = 1 + (n/m − 1)/(1 + λ), the same for all kept keys; clamped at e³."""
    queries, keys = torch.randn(1, rows, 8), torch.ones(1, count, 8)
    bias = reference.fit_mass(queries, keys, torch.arange(keep)[None], 1.0, ridge=1e-2)
    want = min(3.0, math.log(1 + (count / keep - 1) / 1.01))
    torch.testing.assert_close(bias, torch.full((1, keep), want), atol=1e-5, rtol=1e-5)


def test_padding_of_the_head_dimension_stays_zero_and_changes_nothing() -> None:
    torch.manual_seed(2)
    rows, keys, values = (torch.randn(2, n, 64) for n in (96, 63, 63))
    index = torch.arange(0, 63, 3).expand(2, -1)
    bias, new = reference.ridge_fit(rows, keys, values, index, 0.125)
    padded = [torch.nn.functional.pad(x, (0, 64)) for x in (rows, keys, values)]
    padded_bias, padded_new = reference.ridge_fit(padded[0], padded[1], padded[2], index, 0.125)
    assert not padded_new[..., 64:].any()
    torch.testing.assert_close(padded_bias, bias, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(padded_new[..., :64], new, atol=1e-4, rtol=1e-4)


def test_no_rows_no_kept_keys_and_kept_keys_that_nobody_reads() -> None:
    torch.manual_seed(3)
    rows, keys, values = torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 8)
    index = torch.tensor([[1, 2], [0, 6]])
    kept = torch.stack([values[0, [1, 2]], values[1, [0, 6]]])
    bias, new = reference.ridge_fit(rows[:, :0], keys, values, index, 1.0)
    assert not bias.any()
    assert torch.equal(new, kept)
    assert reference.output_error(rows[:, :0], keys, values, index, 1.0).tolist() == [0.0, 0.0]
    bias, new = reference.ridge_fit(rows, keys, values, index[:, :0], 1.0)
    assert (bias.shape, new.shape) == ((2, 0), (2, 0, 8))
    assert reference.output_error(rows, keys, values, index[:, :0], 1.0).tolist() == [1.0, 1.0]
    bias, new = reference.ridge_fit(rows, keys, values, index, 1.0, row_weights=torch.zeros(2, 5))
    assert not bias.any()
    assert torch.equal(new, kept)
    for depth in (60, 87, 200):  # e^−60 of the largest weight is too little to fit to, e^−200 is 0 in float32
        deep = torch.full((2, 7, 8), -depth / 8)
        deep[:, 3] = 0
        bias, new = reference.ridge_fit(torch.ones(2, 5, 8), deep, values, index, 1.0)
        assert not bias.any()
        assert bool(new.isfinite().all())


def test_a_tiny_ridge_is_solved_in_float64_and_none_is_an_error() -> None:
    torch.manual_seed(4)
    rows, keys, values = (torch.randn(1, n, 32) for n in (600, 129, 129))
    keys[:, 1:100:2] = keys[:, 0:100:2]  # the fit is singular but for the ridge
    index = torch.arange(100)[None]
    bias, new = reference.ridge_fit(rows, keys, values, index, 0.2, ridge=1e-9)
    exact = reference.ridge_fit(rows.double(), keys.double(), values.double(), index, 0.2, ridge=1e-9)
    torch.testing.assert_close(bias.double(), exact[0], atol=1e-2, rtol=0)
    plain = reference.output_error(rows, keys, values, index, 0.2)
    assert bool((reference.output_error(rows, keys, values, index, 0.2, bias, new) < plain).all())
    for fit in (
        lambda: reference.fit_mass(rows, keys, index, 0.2, ridge=0.0),
        lambda: reference.fit_values(rows, keys, values, index, 0.2, ridge=-1.0),
    ):
        with pytest.raises(ValueError, match="ridge must be positive"):
            fit()


@pytest.mark.parametrize("rows", [12, 90])  # fewer and more than unknowns
def test_fixed_rows_stay_and_the_others_are_fitted_to_what_is_left(rows: int) -> None:
    torch.manual_seed(6)
    queries, keys, values = (torch.randn(1, n, 16, dtype=torch.float64) for n in (rows, 50, 50))
    kept = list(range(0, 50, 3))
    index, fixed = torch.tensor([kept]), torch.zeros(1, len(kept), dtype=torch.bool)
    fixed[0, [0, 4, 5]] = True
    bias, new = reference.ridge_fit(queries, keys, values, index, 0.3, ridge=1e-2, fixed=fixed)
    assert not bias[fixed].any()
    assert torch.equal(new[fixed], values[0, index[fixed]])
    exps = tensor([[math.exp(x - max(row)) for x in row] for row in logits(queries.tolist(), keys, 0.3)[0]])
    free, stays = [j for j, f in zip(kept, fixed[0], strict=True) if not f], index[fixed].tolist()
    left = exps.sum(1, keepdim=True) - exps[:, stays].sum(1, keepdim=True)
    factors = least_squares(exps[:, free], left, torch.ones(len(free), 1, dtype=torch.float64), 1e-2)
    torch.testing.assert_close(bias[~fixed], factors.clamp(math.exp(-3), math.exp(3)).log()[:, 0], atol=1e-6, rtol=1e-6)
    x = exps[:, kept] * bias[0].exp()
    x = x / x.sum(1, keepdim=True)
    target = exps / exps.sum(1, keepdim=True) @ values[0] - x[:, fixed[0]] @ values[0, stays]
    want = least_squares(x[:, ~fixed[0]], target, values[0, free], 1e-2)
    torch.testing.assert_close(new[~fixed], want, atol=1e-6, rtol=1e-6)
    everything = reference.ridge_fit(queries, keys, values, index, 0.3, fixed=torch.ones_like(fixed))
    assert not everything[0].any()
    assert torch.equal(everything[1], values[:, kept])


@settings(max_examples=60)
@given(draws())
def test_the_trial_fit_is_the_fit_of_the_other_rows_and_judged_by_the_output_error(pick: Random) -> None:
    queries, keys, values = (x.double() for x in problem(pick))
    rows, index = reference.group_rows(queries, keys.shape[0]), some_index(keys, pick)
    held = torch.rand(rows.shape[1]) < 0.3
    weights = torch.rand(rows.shape[:2], dtype=torch.float64) if pick.random() < 0.5 else None
    how = {"ridge": pick.choice(RIDGES), "beta_limit": 2.0, "fixed": torch.rand(index.shape) < 0.2}
    bias, new, worse = reference.heldout_fit(rows, keys, values, index, 0.2, held, row_weights=weights, **how)
    both = reference.ridge_fit(rows, keys, values, index, 0.2, row_weights=weights, **how)
    assert torch.equal(bias, both[0])
    assert torch.equal(new, both[1])
    rest = None if weights is None else weights[:, ~held]
    trial = reference.ridge_fit(rows[:, ~held], keys, values, index, 0.2, row_weights=rest, **how)
    fitted, plain = (
        reference.output_error(rows, keys, values, index, 0.2, *fit, rows=held, row_weights=weights).tolist()
        for fit in (trial, ())
    )
    for found, a, b in zip(worse.tolist(), fitted, plain, strict=True):
        assert found == (a > b) or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
