"""The fast forms of `pool_topk` choose exactly what the reference chooses, however many scores are equal."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvmill.kernels import reference, topk

ON_GPU = torch.cuda.is_available()
IMPLS = ["torch", "triton"]
SCORES = [0.0, -0.0, 1.0, 1.0, 2.5, -3.0, math.inf, -math.inf, 1e-42, -1e-42]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def agree(impl: Any, scores: Tensor, keep: int, forced: Tensor | None = None, **options: Any) -> None:
    """Same indices, or the same error."""
    try:
        want = reference.pool_topk(scores, keep, forced, **options)
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)):
            topk.pool_topk(scores, keep, forced, impl=impl, **options)
        return
    got = topk.pool_topk(scores, keep, forced, impl=impl, **options)
    assert got.dtype == torch.int64
    assert torch.equal(got, want)


@settings(max_examples=200)
@given(
    st.lists(st.lists(st.sampled_from(SCORES), min_size=9, max_size=9), min_size=1, max_size=3),
    st.integers(0, 10),
    st.sets(st.integers(0, 8)),
    st.sampled_from([1, 1, 2, 3]),
    st.booleans(),
)
def test_ties_infinities_and_forced_rows_on_torch(
    rows: list[list[float]], keep: int, forced: set[int], kernel: int, mean: bool
) -> None:
    mask = torch.tensor([i in forced for i in range(9)])
    pooling = "mean" if mean else "max"
    agree("torch", torch.tensor(rows), keep, mask, kernel=kernel, pooling=pooling)
    agree("torch", torch.tensor(rows, dtype=torch.float64), keep, mask.expand(len(rows), -1), kernel=kernel)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("impl", IMPLS)
def test_many_ties_in_long_rows(impl: Any, dtype: torch.dtype, device: torch.device) -> None:
    """63, 129 and 1000 scores of few values; half of the rows that stay are equal to the last of them."""
    generator = torch.Generator().manual_seed(1)
    for count in (63, 129, 1000) if impl == "torch" or ON_GPU else (129,):
        scores = torch.tensor(SCORES)[torch.randint(8, (2, count), generator=generator)].to(device, dtype)
        forced = (torch.rand(2, count, generator=generator) < 0.05).to(device)
        for keep in (1, count // 5, count - 1):
            agree(impl, scores, keep)
            agree(impl, scores, max(keep, 60), forced)
            agree(impl, scores, max(keep, 60), forced[0])


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_pooled_scores_are_ranked(impl: Any, pooling: str, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(2)
    scores = torch.randint(0, 5, (2, 130), generator=generator).float().to(device)
    forced = (torch.rand(130, generator=generator) < 0.1).to(device)
    for kernel in (2, 5, 7):
        agree(impl, scores, 40, forced, kernel=kernel, pooling=pooling)
    agree(impl, torch.randn(2, 130, generator=generator).to(device), 40, kernel=5, pooling=pooling)


@pytest.mark.parametrize("impl", IMPLS)
def test_a_row_longer_than_a_block(impl: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvmill.kernels.gpu import topk as gpu

    monkeypatch.setattr(gpu, "BLOCK", 128)
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(2, 400, generator=generator).round(decimals=1).to(device)
    agree(impl, scores, 77, (torch.rand(400, generator=generator) < 0.1).to(device))


@pytest.mark.parametrize("impl", IMPLS)
def test_leading_dimensions_and_views_are_free(impl: Any, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(4)
    scores = torch.randn(40, 3, 2, generator=generator).to(device).permute(2, 1, 0)
    forced = (torch.rand(2, 3, 40, generator=generator) < 0.2).to(device)
    agree(impl, scores, 20, forced)
    agree(impl, scores[:, :1].expand(2, 3, 40), 20, forced[0, 0])
    agree(impl, scores[0, 0], 7)
    agree(impl, scores[:, :0], 7)
    agree(impl, scores[..., :0], 0)
    agree(impl, scores, 99, forced)


@pytest.mark.parametrize("impl", IMPLS)
def test_whole_numbers_rank_exactly(impl: Any, device: torch.device) -> None:
    """2⁶² + 1 and 2⁶² are one number in float32, and the largest integer is no more than a forced row."""
    scores = torch.tensor([[2**62, 2**62 + 1, 2**63 - 1, -(2**63), 2**63 - 1]], device=device)
    agree(impl, scores, 3)
    agree(impl, scores, 2, torch.tensor([False, False, False, True, False], device=device))


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy's, under the interpreter
@pytest.mark.parametrize("impl", IMPLS)
def test_misuse_is_the_same_error(impl: Any, device: torch.device) -> None:
    nan = torch.tensor([[0.0, math.nan, 1.0, 2.0]], device=device)
    forced = torch.tensor([True, True, False, False], device=device)
    for keep in (0, 2, 9):
        agree(impl, nan, keep, forced)
        agree(impl, nan, keep, kernel=3, pooling="max")
    agree(impl, torch.tensor([[math.inf, -math.inf, 0.0]], device=device), 1, kernel=3)
    agree(impl, torch.zeros(2, 4, device=device), 1, forced)
    agree(impl, torch.zeros(2, 4, device=device), -1)
    agree(impl, torch.zeros(2, 4, device=device), 1, kernel=0)
    agree(impl, torch.zeros(2, 4, device=device), 1, pooling="median")
    with pytest.raises(ValueError, match="forced is on meta, scores on"):
        topk.pool_topk(torch.zeros(2, 4, device=device), 1, forced.to("meta"), impl=impl)
