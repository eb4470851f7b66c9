"""The peers' scores against Python loops in float64, written from the formulas. Calls nothing of kvmill but them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmill.replay.policies.peer_scores import (
    expected_attention_scores,
    key_redundancy,
    keydiff_scores,
    knorm_scores,
    mean_rotation,
    rkv_scores,
    snapkv_scores,
)

Vector = list[float]


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def softmax(logits: Vector) -> Vector:
    top = max(logits)
    parts = [math.exp(x - top) for x in logits]
    return [p / math.fsum(parts) for p in parts]


def norm(a: Vector) -> float:
    return math.sqrt(dot(a, a))


def rotated(a: Vector, position: int, frequencies: Vector) -> Vector:
    """RoPE, half-split, by definition: pairs (i, F + i) turned by position·frequency."""
    out, half = list(a), len(frequencies)
    for i, frequency in enumerate(frequencies):
        c, s = math.cos(position * frequency), math.sin(position * frequency)
        out[i], out[half + i] = a[i] * c - a[half + i] * s, a[half + i] * c + a[i] * s
    return out


@st.composite
def problems(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Float64 queries (H_kv, G, n, D) of all tokens, keys and values (H_kv, n, D), and a window below n."""
    heads, group, count = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(2, 14))
    torch.manual_seed(draw(st.integers(0, 999)))
    queries = torch.randn(heads, group, count, 6, dtype=torch.float64) * 2
    # A few near duplicates among the keys, as repeated words give.
    keys = torch.randn(heads, count, 6, dtype=torch.float64)
    keys[:, count // 2] = keys[:, 0] * 1.5 + 0.05
    return queries, keys, torch.randn(heads, count, 6, dtype=torch.float64), draw(st.integers(1, count - 1))


def windowed(queries: torch.Tensor, window: int) -> torch.Tensor:
    return queries[:, :, -window:]


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from([1, 3, 5]))
def test_snapkv(problem: tuple[torch.Tensor, torch.Tensor, torch.Tensor, int], kernel: int) -> None:
    queries, keys, _, window = problem
    heads, group, count, _ = queries.shape
    past = count - window
    got = snapkv_scores(windowed(queries, window), keys, 0.3, kernel)
    for h in range(heads):
        k = keys[h].tolist()
        mean = [0.0] * past
        for g in range(group):
            read = [0.0] * past
            for i in range(past, count):
                weights = softmax([0.3 * dot(queries[h, g, i].tolist(), k[j]) for j in range(i + 1)])
                for j in range(past):
                    read[j] += weights[j] / window
            for j in range(past):
                near = [read[x] for x in range(j - kernel // 2, j + kernel // 2 + 1) if 0 <= x < past]
                mean[j] += math.fsum(near) / kernel / group
        assert got[h, :past].tolist() == pytest.approx(mean, rel=1e-9)
    assert (got[:, past:].diff(dim=1) > 0).all()
    assert float(got[:, past:].min()) > float(got[:, :past].max())


def redundancy_by_hand(keys: list[Vector], threshold: float) -> Vector:
    count = len(keys)
    table = [[dot(a, b) / ((norm(a) + 1e-8) * (norm(b) + 1e-8)) for b in keys] for a in keys]
    for i in range(count):
        table[i][i] = 0.0
        near = [j for j in range(count) if table[i][j] > threshold]
        table[i][max(near, default=0)] = 0.0
    return softmax([math.fsum(table[i][j] for i in range(count)) / count for j in range(count)])


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from([1, 3, 7]), st.sampled_from([0.07, 0.5, 1.0]))
def test_rkv(problem: tuple[torch.Tensor, torch.Tensor, torch.Tensor, int], kernel: int, mix: float) -> None:
    queries, keys, _, window = problem
    heads, group, count, _ = queries.shape
    past = count - window
    got = rkv_scores(windowed(queries, window), keys, 0.3, kernel, mix, 0.5)
    for h in range(heads):
        k, read = keys[h].tolist(), [0.0] * past
        for i in range(past, count):
            logits = [max(0.3 * dot(queries[h, g, i].tolist(), k[j]) for g in range(group)) for j in range(past)]
            read = [r + w / window for r, w in zip(read, softmax(logits), strict=True)]
        repeats = redundancy_by_hand(k, 0.5)
        for j in range(past):
            best = max(read[x] for x in range(j - kernel // 2, j + kernel // 2 + 1) if 0 <= x < past)
            assert float(got[h, j]) == pytest.approx(mix * best - (1 - mix) * repeats[j], rel=1e-9, abs=1e-12)
    assert float(got[:, past:].min()) > float(got[:, :past].max())


def test_redundancy_is_the_same_whether_its_rows_come_at_once_or_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    keys = torch.randn(2, 700, 8, dtype=torch.float64)
    parts = key_redundancy(keys, 0.5)
    monkeypatch.setattr("kvmill.replay.policies.peer_scores.ROWS_AT_ONCE", 10_000)
    torch.testing.assert_close(parts, key_redundancy(keys, 0.5), rtol=1e-12, atol=0)


def ahead(query: Vector, key: Vector, future: range, frequencies: Vector) -> float:
    """kᵀR̄q: by definition of R̄, the mean over future positions of k·(q rotated there)."""
    return math.fsum(dot(key, rotated(query, position, frequencies)) for position in future) / len(future)


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(0, 40), st.integers(0, 4), st.booleans(), st.booleans(), st.sampled_from([2, 3]))
def test_expected_attention(
    problem: tuple[torch.Tensor, torch.Tensor, torch.Tensor, int],
    first: int,
    sinks: int,
    covariance: bool,
    vnorm: bool,
    half: int,
) -> None:
    plain, keys, values, _ = problem
    heads, group, count, dim = plain.shape
    sinks, frequencies, scale = min(sinks, count - 1), [1.0, 0.21, 0.013][:half], 0.4
    turned = torch.tensor(
        [[[rotated(plain[h, g, i].tolist(), first + i, frequencies) for i in range(sinks, count)]
          for g in range(group)] for h in range(heads)],
        dtype=torch.float64,
    )  # fmt: skip
    got = expected_attention_scores(
        turned,
        keys,
        values,
        scale,
        torch.tensor(frequencies, dtype=torch.float64),
        first,
        sinks=sinks,
        future=7,
        covariance=covariance,
        vnorm=vnorm,
        epsilon=0.02,
    )
    future = range(first + count, first + count + 7)
    for h in range(heads):
        total = [0.0] * (count - sinks)
        for g in range(group):
            q = [plain[h, g, i].tolist() for i in range(sinks, count)]
            mu = [math.fsum(row[d] for row in q) / len(q) for d in range(dim)]
            logits: Vector = []
            for k in keys[h, sinks:].tolist():
                spread = math.fsum(
                    ahead([a - b for a, b in zip(row, mu, strict=True)], k, future, frequencies) ** 2 for row in q
                )
                logits.append(scale * ahead(mu, k, future, frequencies) + covariance * scale**2 * spread / len(q) / 2)
            total = [t + w / group for t, w in zip(total, softmax(logits), strict=True)]
        sizes = [norm(values[h, j].tolist()) for j in range(sinks, count)]
        want = [(t + 0.02) * size if vnorm else t for t, size in zip(total, sizes, strict=True)]
        assert got[h, sinks:].tolist() == pytest.approx(want, rel=1e-9)
    if sinks:
        assert float(got[:, :sinks].min()) > float(got[:, sinks:].max())


def test_the_mean_rotation_of_one_position_is_that_rotation() -> None:
    frequencies = torch.tensor([1.0, 0.1], dtype=torch.float64)
    turn = mean_rotation(9, 1, frequencies, 6)
    vector = [0.3, -1.0, 2.0, 0.5, 7.0, 8.0]
    want = rotated(vector, 9, frequencies.tolist())
    assert (turn @ torch.tensor(vector, dtype=torch.float64)).tolist() == pytest.approx(want)


@settings(max_examples=40, deadline=None)
@given(problems())
def test_keydiff_and_knorm(problem: tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]) -> None:
    keys = problem[1]
    for h in range(keys.shape[0]):
        k = keys[h].tolist()
        mean = [math.fsum(row[d] / norm(row) for row in k) / len(k) for d in range(len(k[0]))]
        want = [-dot(row, mean) / norm(row) / norm(mean) for row in k]
        assert keydiff_scores(keys)[h].tolist() == pytest.approx(want, rel=1e-9)
        assert knorm_scores(keys)[h].tolist() == pytest.approx([-norm(row) for row in k], rel=1e-12)
