import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmill.kernels import reference


def pooled(scores: list[float], kernel: int, pooling: str) -> list[float]:
    """Windows of `kernel` that begin kernel//2 before each token; zeros beyond the ends count in the mean only."""
    out = []
    for j in range(len(scores)):
        window = [i for i in range(j - kernel // 2, j - kernel // 2 + kernel) if 0 <= i < len(scores)]
        inside = [scores[i] for i in window]
        out.append(sum(inside) / kernel if pooling == "mean" else max(inside))
    return out


@settings(max_examples=120)
@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=12),
    st.sampled_from([1, 2, 3, 4, 5, 7]),
    st.sampled_from(["mean", "max"]),
    st.data(),
)
def test_topk_keeps_forced_then_best_with_ties_to_the_lower_index(
    values: list[int], kernel: int, pooling: str, data: st.DataObject
) -> None:
    keep = data.draw(st.integers(0, len(values)))
    forced = sorted(data.draw(st.sets(st.integers(0, len(values) - 1), max_size=keep)))
    mask = torch.zeros(len(values), dtype=torch.bool)
    mask[forced] = True
    # Multiples of every divisor in play, so that equal means are equal numbers.
    values = [v * 420 for v in values]
    scores = torch.tensor([values, values[::-1]], dtype=torch.float32)
    got = reference.pool_topk(scores, keep, mask, kernel=kernel, pooling=pooling).tolist()
    for row, kept in zip((values, values[::-1]), got, strict=True):
        rank = pooled(row, kernel, pooling)
        rest = sorted((i for i in range(len(row)) if i not in forced), key=lambda i: (-rank[i], i))
        assert kept == sorted(forced + rest[: keep - len(forced)])


def test_forced_tokens_come_before_infinite_scores() -> None:
    scores = torch.tensor([[math.inf, 1.0, -math.inf, math.inf]])
    forced = torch.tensor([[False, False, True, False]])
    assert reference.pool_topk(scores, 1, forced).tolist() == [[2]]
    assert reference.pool_topk(scores, 2, forced).tolist() == [[0, 2]]


def test_forced_may_differ_by_row_and_leading_dimensions_are_free() -> None:
    scores = torch.zeros(2, 3, 4)
    forced = torch.zeros(2, 3, 4, dtype=torch.bool)
    forced[1, 2, 3] = True
    got = reference.pool_topk(scores, 1, forced, kernel=3)
    assert got[:, :, 0].tolist() == [[0, 0, 0], [0, 0, 3]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_pooled_scores_are_not_rounded_to_the_dtype_of_the_scores(dtype: torch.dtype) -> None:
    """1 + 1 + 0 and 1 + 0 + 0: their means differ by less than what bfloat16 or an integer can tell from zero."""
    scores = torch.tensor([[256, 0, 0, 256, 1, 0]]).to(dtype)
    assert reference.pool_topk(scores, 1, kernel=3).tolist() == [[3]]


def test_nothing_to_choose_from_and_more_than_there_is() -> None:
    assert reference.pool_topk(torch.zeros(2, 0), 0, kernel=5).shape == (2, 0)
    assert reference.pool_topk(torch.zeros(2, 3), 9).tolist() == [[0, 1, 2]] * 2
    assert reference.pool_topk(torch.zeros(0, 3), 2, torch.ones(3, dtype=torch.bool)).shape == (0, 2)


def test_misuse_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 forced tokens do not fit into 1"):
        reference.pool_topk(torch.zeros(1, 3), 1, torch.tensor([True, False, True]))
    with pytest.raises(ValueError, match="NaN"):
        reference.pool_topk(torch.tensor([[0.0, math.nan]]), 1)
    with pytest.raises(ValueError, match="NaN"):
        reference.pool_topk(torch.tensor([[0.0, math.nan, 1.0, 2.0]]), 1, kernel=3, pooling="max")
    with pytest.raises(ValueError, match="mean or max"):
        reference.pool_topk(torch.zeros(1, 3), 1, kernel=3, pooling="median")
    with pytest.raises(ValueError, match="1 or more"):
        reference.pool_topk(torch.zeros(1, 3), 1, kernel=0)
    with pytest.raises(ValueError, match="cannot keep -1"):
        reference.pool_topk(torch.zeros(1, 3), -1)
