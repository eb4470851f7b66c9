"""Attention by definition, in Python floats, for tests of the kernels. Calls nothing of kvmill."""

from __future__ import annotations

import math
from random import Random

import torch
from hypothesis import strategies as st
from torch import Tensor

Matrix = list[list[list[float]]]
DTYPES = {torch.float64: 1e-11, torch.float32: 2e-5, torch.float16: 2e-5, torch.bfloat16: 2e-5}
"""How close a result computed in float32 (float64) must come to the truth on the same, already rounded, inputs."""


def draws() -> st.SearchStrategy[Random]:
    """One seed decides a whole problem: hypothesis would spend half its examples on variations of tiny ones."""
    return st.integers(0, 10**9).map(seeded)


def seeded(seed: int) -> Random:
    """Choices in Python, and torch's numbers, from one seed."""
    torch.manual_seed(seed)
    return Random(seed)


def problem(pick: Random) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (H_kv·G, L, D), keys and values (H_kv, n, D) of one of four dtypes; logits of a few units.

    The awkward sizes: single keys, one below and one above whole blocks, D = 80.
    """
    kv_heads, group, length = pick.randint(1, 2), pick.randint(1, 8), pick.randint(1, 3)
    keys = pick.choice([1, 2, 7, 63, 63, 129, 129])
    dim = pick.choice([64, 80, 128] if keys < 100 else [64])
    dtype = pick.choice(list(DTYPES))
    shapes = [(kv_heads * group, length, dim), (kv_heads, keys, dim), (kv_heads, keys, dim)]
    queries, k, v = (torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes)
    return queries * 2, k, v


def rows_of(queries: Tensor, kv_heads: int) -> Matrix:
    """The query rows that share a KV head, head by head: (H, L, D) → H_kv lists of G·L rows."""
    heads = queries.double().tolist()
    group = len(heads) // kv_heads
    return [[row for head in heads[h * group : (h + 1) * group] for row in head] for h in range(kv_heads)]


def logits(
    queries: Matrix, keys: Tensor, scaling: float, bias: Tensor | None = None, seen: list[list[int]] | None = None
) -> Matrix:
    """l[h][i][j]; `seen[h][i]` is how many leading keys row i of head h sees, the others are −inf."""
    all_keys = keys.double().tolist()
    extra = [[0.0] * keys.shape[1]] * keys.shape[0] if bias is None else bias.double().tolist()
    return [
        [
            [
                math.fsum(a * b for a, b in zip(row, key, strict=True)) * scaling + extra[h][j]
                if seen is None or j < seen[h][i]
                else -math.inf
                for j, key in enumerate(all_keys[h])
            ]
            for i, row in enumerate(queries[h])
        ]
        for h in range(len(queries))
    ]


def log_sum_exp(row: list[float]) -> float:
    """log Σ exp, −inf for nothing."""
    top = max(row, default=-math.inf)
    return top if top == -math.inf else top + math.log(math.fsum(math.exp(x - top) for x in row))


def softmax(row: list[float]) -> list[float]:
    """Weights by definition; zeros for a row that sees nothing."""
    total = log_sum_exp(row)
    return [0.0 if total == -math.inf else math.exp(x - total) for x in row]


def weighted(weights: list[float], vectors: list[list[float]]) -> list[float]:
    """Σ_j w_j · vector_j."""
    return [
        math.fsum(w * v[d] for w, v in zip(weights, vectors, strict=True) if w)
        for d in range(len(vectors[0]) if vectors else 0)
    ]


def tensor(x: list) -> Tensor:
    """Nested lists as float64."""
    return torch.tensor(x, dtype=torch.float64)
