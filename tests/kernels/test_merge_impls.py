"""The fast forms of merging give the groups and means of the float64 reference, without a matrix of groups by rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvmill.kernels import merge, reference

ON_GPU = torch.cuda.is_available()
IMPLS = ["torch", "triton"]
SHAPES = [
    # (H, n, D, D_v, groups)
    (2, 63, 64, 64, 13),
    (1, 129, 80, 128, 129),
    (8, 1000, 128, 64, 200),
    (2, 129, 256, 256, 1),
    (1, 63, 512, 80, 40),
]
SMALL = [(2, 63, 64, 80, 5), (1, 129, 80, 64, 1), (1, 7, 512, 64, 3)]
CASES = [("torch", shape) for shape in SHAPES] + [("triton", shape) for shape in (SHAPES if ON_GPU else SMALL)]
# Relative to the largest value; half an ulp in float16 and bfloat16, a whole one under the interpreter, which cuts off.
DTYPES = {torch.float32: 1e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}


def drawn(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor, dict]:
    """Keys, values, labels, and weights of which those of group 0 vanish."""
    heads, count, dim, value_dim, groups = shape
    generator = torch.Generator().manual_seed(sum(shape))
    keys = torch.randn(heads, count, dim, generator=generator).to(device, dtype)
    values = torch.randn(heads, count, value_dim, generator=generator).to(device, dtype)
    labels = torch.randint(groups, (heads, count), generator=generator).to(device)
    weights = {
        "key_weights": torch.rand(heads, count, generator=generator).to(device),
        "value_weights": torch.rand(heads, count, generator=generator).to(device) * (labels != 0),
        "counts": torch.randint(1, 5, (heads, count), generator=generator).float().to(device),
    }
    return keys, values, labels, weights


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
@pytest.mark.parametrize(("impl", "shape"), CASES, ids=str)
def test_means_are_those_of_the_reference(
    impl: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    keys, values, labels, weights = drawn(shape, dtype, device)
    for options in (weights, {}, {"value_weights": weights["value_weights"]}, {"counts": weights["counts"].int()}):
        got = merge.merge_kv(keys, values, labels, shape[-1], impl=impl, **options)
        exact = {name: x.double() for name, x in options.items()}
        want = reference.merge_kv(keys.double(), values.double(), labels, shape[-1], **exact)
        assert [x.dtype for x in got] == [dtype, dtype, torch.float32]
        assert torch.equal(got[2].double(), want[2])
        for mean, right in zip(got[:2], want[:2], strict=True):
            torch.testing.assert_close(mean.double(), right, rtol=DTYPES[dtype], atol=1e-6)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_alone_is_unchanged_and_a_group_of_none_is_zero(
    impl: Any, dtype: torch.dtype, device: torch.device
) -> None:
    """Weights of 0 and weights so small that they are denormal included."""
    keys, values, _, _ = drawn((2, 9, 64, 16, 1), dtype, device)
    labels = torch.stack([torch.randperm(10, generator=torch.Generator().manual_seed(h))[:9] for h in range(2)])
    weights = torch.rand(2, 9).masked_fill(torch.arange(9) == 2, 0.0).masked_fill(torch.arange(9) == 3, 1e-42)
    labels, weights = labels.to(device), weights.to(device)
    got = merge.merge_kv(keys, values, labels, 10, key_weights=weights, value_weights=weights, impl=impl)
    for mean, x in zip(got, (keys, values), strict=False):
        assert torch.equal(mean.gather(1, labels[..., None].expand(x.shape)), x)
        assert int((mean != 0).any(-1).sum()) == 18
    assert got[2].sum(1).tolist() == [9.0, 9.0]


@pytest.mark.parametrize("impl", IMPLS)
def test_one_large_group_is_summed_exactly_enough(impl: Any, device: torch.device) -> None:
    """16,384 rows of one group: float32 sums drift, those of the weights must not."""
    count = 16_384 if impl == "torch" or ON_GPU else 512
    keys = torch.rand(1, count, 4, generator=torch.Generator().manual_seed(1)).to(device)
    labels, counts = torch.zeros(1, count, dtype=torch.long, device=device), torch.full((1, count), 0.1, device=device)
    got = merge.merge_kv(keys, keys, labels, 1, counts=counts, impl=impl)
    torch.testing.assert_close(got[0][0, 0].double(), keys.double().mean(1)[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(got[2].double(), counts.double().sum(1, keepdim=True), rtol=1e-6, atol=0)


@pytest.mark.parametrize("impl", IMPLS)
def test_rows_may_lie_token_by_token(impl: Any, device: torch.device) -> None:
    keys, values, labels, weights = drawn((3, 40, 16, 8, 7), torch.float32, device)
    apart = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (keys, values)]
    spread = {name: x.t().contiguous().t() for name, x in weights.items()}
    want = merge.merge_kv(keys, values, labels, 7, impl=impl, **weights)
    for one, other in zip(want, merge.merge_kv(*apart, labels, 7, impl=impl, **spread), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("impl", ["reference", *IMPLS])
def test_misuse_is_an_error(impl: Any, device: torch.device) -> None:
    x, labels = torch.zeros(1, 2, 4, device=device), torch.tensor([[0, 2]], device=device)
    with pytest.raises(ValueError, match="labels must lie in 0…1"):
        merge.merge_kv(x, x, labels, 2, impl=impl)
    with pytest.raises(ValueError, match=r"counts must be \(1, 2\), not \(1, 3\)"):
        merge.merge_kv(x, x, labels, 3, counts=torch.ones(1, 3, device=device), impl=impl)
    with pytest.raises(ValueError, match=r"values must be \(1, 2, any\)"):
        merge.merge_kv(x, x[:, :1], labels, 3, impl=impl)
    with pytest.raises(ValueError, match="2 keys cannot fill 3 clusters"):
        merge.k_means(x, 3, start=labels, batches=labels[:0], impl=impl)


def problem(shape: tuple[int, int, int, int], device: torch.device) -> tuple[Tensor, dict[str, Tensor]]:
    """Keys, and starts, batches and weights of a clustering."""
    heads, count, dim, clusters = shape
    generator = torch.Generator().manual_seed(sum(shape))
    keys = torch.randn(heads, count, dim, generator=generator).to(device)
    start = torch.stack([torch.randperm(count, generator=generator)[:clusters] for _ in range(heads)])
    batches = torch.randint(count, (3, 20), generator=generator)
    weights = torch.rand(heads, count, generator=generator) * (torch.rand(heads, count, generator=generator) < 0.8)
    return keys, {"start": start.to(device), "batches": batches.to(device), "weights": weights.to(device)}


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("shape", [(2, 63, 64, 13), (1, 129, 80, 100), (2, 70, 16, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_labels_are_those_of_the_reference(
    impl: Any, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    keys, options = problem(shape, device)
    keys = keys.to(dtype)
    want = reference.k_means(keys.double(), shape[-1], **options)
    assert torch.equal(merge.k_means(keys, shape[-1], impl=impl, **options), want)
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(merge, "BLOCK_ENTRIES", 1)
        patch.setattr(merge, "MIN_ROWS", 7)
        assert torch.equal(merge.k_means(keys, shape[-1], impl=impl, **options), want)


@settings(max_examples=80)
@given(st.lists(st.integers(0, 6), min_size=2, max_size=14), st.data())
def test_empty_groups_are_filled_as_by_the_reference(places: list[int], data: st.DataObject) -> None:
    """Keys on a line of few places: many are equal, many groups stay empty, many distances are equal."""
    clusters = data.draw(st.integers(1, len(places)))
    start = data.draw(st.permutations(range(len(places))))[:clusters]
    keys = torch.tensor(places, dtype=torch.float32)[None, :, None]
    options = {"start": torch.tensor([start]), "batches": torch.zeros(0, 1, dtype=torch.long)}
    got = merge.k_means(keys, clusters, impl="torch", **options)
    assert torch.equal(got, reference.k_means(keys, clusters, **options))
    assert sorted(set(got[0].tolist())) == list(range(clusters))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("impl", ["reference", *IMPLS])
def test_the_nearest_earlier_row(impl: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the squared distance, in blocks of any size; a row seen before is at distance 0."""
    points = torch.randn(2, 130, 40, generator=torch.Generator().manual_seed(1)).to(device)
    points[:, 77] = points[:, 5]
    rows = points.double()
    apart = (rows[:, :, None] - rows[:, None]).square().sum(-1) / 2
    want = torch.stack([apart[:, i, :i].amin(-1) for i in range(1, 130)], 1)
    for entries, least in ((1 << 19, 64), (1, 13)):
        monkeypatch.setattr(merge, "BLOCK_ENTRIES", entries)
        monkeypatch.setattr(merge, "MIN_ROWS", least)
        got = merge.nearest_earlier(points, impl=impl)
        assert torch.equal(got[:, 0], torch.full((2,), torch.inf, device=device))
        torch.testing.assert_close(got[:, 1:].double(), want, rtol=1e-5, atol=2e-5)
        assert float(got[:, 77].abs().max()) < 2e-5


def test_nothing_to_merge(device: torch.device) -> None:
    none = torch.zeros(2, 0, 4, device=device)
    labels = torch.zeros(2, 0, dtype=torch.long, device=device)
    for impl in IMPLS:
        keys, values, counts = merge.merge_kv(none, none, labels, 3, impl=impl)
        assert not keys.any()
        assert (values.shape, counts.tolist()) == ((2, 3, 4), [[0, 0, 0]] * 2)
        assert merge.k_means(none, 0, start=labels, batches=labels[:0], impl=impl).shape == (2, 0)
        assert merge.nearest_earlier(none, impl=impl).shape == (2, 0)


@pytest.mark.parametrize("impl", ["reference", *IMPLS])
def test_of_equal_centres_in_different_tiles_the_first_is_nearest(impl: Any, device: torch.device) -> None:
    """All keys are one: every centre is as near, and only what fills the empty groups goes elsewhere."""
    keys = torch.ones(1, 140, 16, device=device)
    start = torch.arange(130, device=device)[None]
    batches = torch.zeros(0, 1, dtype=torch.long, device=device)
    labels = merge.k_means(keys, 130, start=start, batches=batches, impl=impl)[0]
    assert labels.tolist() == [*range(1, 130), *[0] * 11]


@pytest.mark.parametrize("impl", ["reference", *IMPLS])
def test_a_group_of_one_gives_nothing_however_far_its_key(impl: Any, device: torch.device) -> None:
    """Centres end at 1.5, 7, −3 and −3, the last one empty: the key at 10 is the farthest from its own, but alone."""
    keys = torch.tensor([-3.0, 10.0, 4.0, 1.5], device=device).view(1, 4, 1)
    start = torch.tensor([[0, 1, 0, 0]], device=device)
    batches = torch.tensor([[2, 1], [3, 3]], device=device)
    assert merge.k_means(keys, 4, start=start, batches=batches, impl=impl).tolist() == [[2, 1, 3, 0]]
