import math
from random import Random

import pytest
import torch
from by_hand import draws, log_sum_exp, logits, softmax, tensor, weighted
from hypothesis import given, settings
from torch import Tensor

from kvmill.kernels import reference


def mean_by_hand(vectors: list[list[float]], weights: list[float], counts: list[float]) -> list[float]:
    used = weights if sum(weights) > 0 else counts
    return [sum(w * v[d] for w, v in zip(used, vectors, strict=True)) / sum(used) for d in range(len(vectors[0]))]


@settings(max_examples=60)
@given(draws())
def test_groups_become_weighted_means_and_counts_add_up(pick: Random) -> None:
    count, dim = pick.choice([1, 7, 63, 129]), pick.choice([64, 80, 128])
    clusters, dtype = pick.randint(1, count), pick.choice([torch.float64, torch.float32, torch.float16, torch.bfloat16])
    keys, values = torch.randn(2, count, dim).to(dtype), torch.randn(2, count, dim).to(dtype)
    labels = torch.randint(clusters, (2, count))
    key_weights, counts = torch.rand(2, count), torch.randint(1, 5, (2, count))
    value_weights = torch.rand(2, count) * (labels != 0)  # group 0 was never read: counts step in
    got = reference.merge_kv(
        keys, values, labels, clusters, key_weights=key_weights, value_weights=value_weights, counts=counts
    )
    assert [x.dtype for x in got[:2]] == [dtype, dtype]
    bound = {torch.float64: 1e-6, torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}[dtype]
    for h in range(2):
        for c in range(clusters):
            members = (labels[h] == c).nonzero()[:, 0].tolist()
            each = [float(counts[h, i]) for i in members]
            assert float(got[2][h, c]) == sum(each)
            for x, weights, merged in ((keys, key_weights, got[0]), (values, value_weights, got[1])):
                if not members:
                    assert not merged[h, c].any()
                    continue
                rows = [x[h, i].double().tolist() for i in members]
                want = mean_by_hand(rows, [float(weights[h, i]) for i in members], each)
                torch.testing.assert_close(merged[h, c].double(), tensor(want), atol=bound, rtol=bound)


def test_a_group_of_one_is_unchanged_whatever_its_weight() -> None:
    torch.manual_seed(1)
    keys, values = torch.randn(2, 9, 64), torch.randn(2, 9, 64)
    order = torch.stack([torch.randperm(9), torch.randperm(9)])
    weights = torch.rand(2, 9) * 1e-7
    weights[:, 2] = 0
    weights[:, 3] = 1e-42  # decayed until it is denormal
    got = reference.merge_kv(keys, values, order, 9, key_weights=weights, value_weights=weights)
    assert torch.equal(got[0].gather(1, order[..., None].expand(-1, -1, 64)), keys)
    assert torch.equal(got[1].gather(1, order[..., None].expand(-1, -1, 64)), values)
    assert torch.equal(got[2], torch.ones(2, 9))


def test_weights_default_to_counts_so_that_merging_twice_is_merging_once() -> None:
    torch.manual_seed(2)
    keys, values = torch.randn(2, 30, 16, dtype=torch.float64), torch.randn(2, 30, 16, dtype=torch.float64)
    first = torch.randint(0, 10, (2, 30))
    first[:, :10] = torch.arange(10)
    second = torch.arange(10).expand(2, -1) % 3
    once = reference.merge_kv(keys, values, second.gather(1, first), 3)
    twice = reference.merge_kv(*(part := reference.merge_kv(keys, values, first, 10))[:2], second, 3, counts=part[2])
    for a, b in zip(once, twice, strict=True):
        torch.testing.assert_close(a, b)


def test_equal_keys_merged_with_log_count_as_bias_attend_as_before() -> None:
    """Merging what is equal loses nothing: same output, same log-sum-exp (compaction.md 12)."""
    torch.manual_seed(3)
    labels = torch.tensor([[0, 1, 0, 2, 1, 0, 0], [2, 2, 2, 1, 0, 1, 2]])
    distinct = torch.randn(2, 3, 64, dtype=torch.float64)
    keys = distinct.gather(1, labels[..., None].expand(-1, -1, 64))
    values, queries = torch.randn(2, 7, 64, dtype=torch.float64), torch.randn(2, 1, 64, dtype=torch.float64)
    k, v, counts = reference.merge_kv(keys, values, labels, 3)
    out, total, _ = reference.decode_attention(queries, k, v, 0.125, bias=counts.log())
    found = logits(queries.tolist(), keys, 0.125)
    want = [weighted(softmax(rows[0]), values[h].tolist()) for h, rows in enumerate(found)]
    torch.testing.assert_close(out[:, 0], tensor(want))
    torch.testing.assert_close(total[:, 0], tensor([log_sum_exp(rows[0]) for rows in found]))


def test_labels_outside_the_groups_are_an_error() -> None:
    with pytest.raises(ValueError, match="labels must lie in 0…1"):
        reference.merge_kv(torch.zeros(1, 2, 4), torch.zeros(1, 2, 4), torch.tensor([[0, 2]]), 2)


def nearest(point: list[float], centres: list[list[float]]) -> int:
    distances = [sum((a - b) ** 2 for a, b in zip(point, c, strict=True)) for c in centres]
    return distances.index(min(distances))


def sculley(points: list, weights: list, start: list[int], batches: list[list[int]]) -> list[int]:
    """One key after the other, as in the paper, then the farthest key to every empty group."""
    centres = [list(points[i]) for i in start]
    received = [0.0] * len(centres)
    for batch in batches:
        cached = [nearest(points[i], centres) for i in batch]
        for i, c in zip(batch, cached, strict=True):
            if weights[i] > 0:
                received[c] += weights[i]
                rate = weights[i] / received[c]
                centres[c] = [(1 - rate) * a + rate * b for a, b in zip(centres[c], points[i], strict=True)]
    labels = [nearest(p, centres) for p in points]
    for empty in range(len(centres)):
        if empty not in labels:
            far = [
                math.dist(p, centres[c]) if labels.count(c) > 1 else -1.0 for p, c in zip(points, labels, strict=True)
            ]
            labels[far.index(max(far))] = empty
    return labels


@settings(max_examples=60)
@given(draws())
def test_labels_are_those_of_mini_batch_k_means(pick: Random) -> None:
    count = pick.choice([1, 2, 7, 40, 63])
    clusters, steps, batch = pick.randint(1, count), pick.randint(0, 4), pick.randint(1, 9)
    keys = torch.randn(2, count, 8, dtype=torch.float64)
    weights = torch.rand(2, count, dtype=torch.float64) * (torch.rand(2, count) < 0.8)
    start = torch.stack([torch.randperm(count)[:clusters] for _ in range(2)])
    batches = torch.randint(count, (steps, batch))
    got = reference.k_means(keys, clusters, start=start, batches=batches, weights=weights)
    for h in range(2):
        want = sculley(keys[h].tolist(), weights[h].tolist(), start[h].tolist(), batches.tolist())
        assert got[h].tolist() == want
        assert sorted(set(want)) == list(range(clusters))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_separated_groups_are_found_in_any_dtype(dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    true = torch.arange(60) % 4
    middle = torch.eye(4, 64) * 10
    keys = (middle[true] + torch.randn(3, 60, 64) * 0.1).to(dtype)
    start = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7], [3, 2, 1, 0]])
    labels = reference.k_means(keys, 4, start=start, batches=torch.randint(60, (5, 20)))
    assert labels[0].tolist() == labels[1].tolist() == true.tolist()
    assert labels[2].tolist() == (3 - true).tolist()


def test_equal_keys_still_fill_every_group_and_ties_go_to_the_lower_index() -> None:
    keys = torch.ones(1, 5, 4)
    keys[0, 3] = 2
    batches = torch.zeros(0, 1, dtype=torch.long)
    labels = reference.k_means(keys, 4, start=torch.tensor([[0, 1, 2, 4]]), batches=batches)
    # All go to group 0; key 3, the farthest, leaves for group 1, then the first of those at distance 0.
    assert labels.tolist() == [[2, 3, 0, 1, 0]]
    halfway = torch.tensor([[[0.0], [2.0], [1.0]]])
    assert reference.k_means(halfway, 2, start=torch.tensor([[1, 0]]), batches=batches).tolist() == [[1, 0, 0]]


def test_as_many_groups_as_keys_and_none_at_all() -> None:
    keys, batches = torch.randn(2, 6, 8), torch.tensor([[0, 0, 3]])
    start = torch.arange(6).expand(2, -1)
    assert [sorted(row) for row in reference.k_means(keys, 6, start=start, batches=batches).tolist()] == [
        list(range(6))
    ] * 2
    none = torch.zeros(2, 0, dtype=torch.long)
    assert reference.k_means(keys[:, :0], 0, start=none, batches=none[:0]).shape == (2, 0)
    with pytest.raises(ValueError, match="6 keys cannot fill 7 clusters"):
        reference.k_means(keys, 7, start=torch.zeros(2, 7, dtype=torch.long), batches=batches)
    with pytest.raises(ValueError, match=r"start must be \(2, 3\), not \(2, 2\)"):
        reference.k_means(keys, 3, start=start[:, :2], batches=batches)


def test_weights_of_equal_size_are_no_weights() -> None:
    torch.manual_seed(5)
    keys, batches = torch.randn(2, 40, 16, dtype=torch.float64), torch.randint(40, (3, 10))
    start: Tensor = torch.arange(8).expand(2, -1)
    plain = reference.k_means(keys, 8, start=start, batches=batches)
    assert torch.equal(plain, reference.k_means(keys, 8, start=start, batches=batches, weights=torch.full((2, 40), 2)))
