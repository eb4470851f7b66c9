"""One layer of one segment with captured queries made by hand, and what `te` and `am` must make of it, in float64.

The reference works on Python lists, head by head, and solves the fits as one stacked least-squares problem each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from by_hand import log_sum_exp, logits, rows_of, softmax, tensor, weighted
from tiny import segment
from torch import Tensor

from kvmill.replay.policies.base import KvShape
from kvmill.replay.policies.captures import Key
from kvmill.replay.policies.proxy import ProxyPolicy
from kvmill.replay.policies.proxy_state import ProxyState
from kvmill.replay.policies.segment_state import SegmentView
from kvmill.replay.policies.state_table import state_for
from kvmill.replay.policies.states import Scene

H_KV, GROUP, SEED = 2, 3, 11
KEYS = {
    "assistant": Key(1, "assistant", "future"),
    "tool": Key(1, "tool", "future"),
    "boundary": Key(0, "tool", "own", 5),
    "repeat": Key(0, "tool", "copy", 5),
}


@dataclass
class Layer:
    """(H_kv, n, D) keys and values, and per source (H_q, L, D) queries with how many keys each token saw."""

    keys: Tensor
    values: Tensor
    queries: dict[str, Tensor]
    seen: dict[str, list[int]] = field(default_factory=dict)
    rest: dict[str, Tensor] = field(default_factory=dict)
    scaling: float = 0.4

    @classmethod
    def random(cls, seed: int, n: int, dim: int, lengths: dict[str, int], dtype: torch.dtype = torch.float64) -> Layer:
        """Gaussian keys and queries; boundary queries see the segment up to themselves."""
        draw = torch.Generator().manual_seed(seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=draw, dtype=torch.float64).to(dtype)

        queries = {source: normal(H_KV * GROUP, length, dim) for source, length in lengths.items() if length}
        own = min(lengths.get("boundary", 0), n)
        seen = {source: [n] * q.shape[1] for source, q in queries.items()}
        if own:
            queries["boundary"], seen["boundary"] = queries["boundary"][:, :own], list(range(n - own + 1, n + 1))
        rest = {source: normal(*q.shape[:2]).double() + 2 for source, q in queries.items()}
        return cls(normal(H_KV, n, dim), normal(H_KV, n, dim), queries, seen, rest)

    def logits(self, source: str) -> list[list[list[float]]]:
        """[head][row][key]."""
        return logits(rows_of(self.queries[source], H_KV), self.keys, self.scaling)

    def totals(self, source: str) -> list[list[float]]:
        """[head][row]: log-sum-exps over the keys that the row saw and a rest of the cache."""
        rest = self.rest[source].reshape(H_KV, -1).tolist()
        seen = self.seen[source] * GROUP
        return [
            [log_sum_exp([*row[: seen[i]], rest[h][i]]) for i, row in enumerate(rows)]
            for h, rows in enumerate(self.logits(source))
        ]


def state_of(policy: ProxyPolicy, layer: Layer, seed: int = SEED) -> tuple[ProxyState, SegmentView]:
    """The policy's state with the layer's queries captured, and the segment as it is given to `choose`."""
    n, dim = layer.keys.shape[1:]
    shape = KvShape(1, H_KV, H_KV * GROUP, dim, layer.keys.element_size())
    state = state_for(policy, Scene(shape, n, seed))
    assert isinstance(state, ProxyState)
    for source, queries in layer.queries.items():
        totals = None
        if policy.needs_totals:
            totals = tensor(layer.totals(source)).reshape(queries.shape[:2]).to(layer.keys.dtype)
        seen = layer.seen[source] if policy.needs_totals and source == "boundary" else ()
        state.captures.add(KEYS[source], 0, queries, totals, seen)
    view = SegmentView(0, layer.keys, layer.values, layer.scaling, segment("tool", 0, [0] * n), 5, 1)
    return state, view


@dataclass
class Row:
    """One query row of one head: logits of all keys, their weights for the score, and its weight in the fit."""

    logits: list[float]
    weights: list[float]
    share: float


def rows_for(policy: ProxyPolicy, layer: Layer, source: str) -> list[list[Row]]:
    """Per head."""
    seen = layer.seen[source] * GROUP
    out = []
    for rows, totals in zip(layer.logits(source), layer.totals(source), strict=True):
        head = []
        for i, (row, total) in enumerate(zip(rows, totals, strict=True)):
            model = [math.exp(x - total) if j < seen[i] else 0.0 for j, x in enumerate(row)]
            share = sum(model) if getattr(policy, "weighting", "none") == "share" else 1.0
            head.append(Row(row, model if policy.normaliser == "global" else softmax(row), share))
        out.append(head)
    return out


def sampled(rows: list[Row], most: int) -> list[Row]:
    """`most` of the rows by the documented draw."""
    if len(rows) <= most:
        return rows
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(SEED)).tolist()
    return [rows[i] for i in sorted(order[:most])]


def scores(policy: ProxyPolicy, heads: list[list[Row]]) -> list[list[float]]:
    """Reduced over rows; averaged over heads under granularity=token."""
    out = []
    for rows in heads:
        columns = list(zip(*(row.weights for row in rows), strict=True))
        if policy.reduction == "rms":
            out.append([math.sqrt(sum(w * w for w in c) / len(c)) for c in columns])
        else:
            out.append([max(c) if policy.reduction == "max" else sum(c) / len(c) for c in columns])
    if policy.granularity == "token":
        mean = [sum(head[j] for head in out) / len(out) for j in range(len(out[0]))]
        return [mean] * len(out)
    return out


def top(score: list[float], taken: list[int], count: int) -> list[int]:
    """`taken` and the `count` best others."""
    others = sorted((j for j in range(len(score)) if j not in taken), key=lambda j: (-score[j], j))
    return sorted([*taken, *others[:count]])


def least_squares(a: list[list[float]], b: Tensor, start: Tensor, ridge: float) -> Tensor:
    """argmin ‖ax − b‖² + ridge·σ²·‖x − start‖² as one stacked problem."""
    matrix = tensor(a)
    pull = math.sqrt(ridge) * float(torch.linalg.svdvals(matrix)[0])
    stacked = torch.cat([matrix, pull * torch.eye(matrix.shape[1], dtype=torch.float64)])
    return torch.linalg.lstsq(stacked, torch.cat([b, pull * start]), driver="gelsd").solution


def output(rows: list[Row], kept: list[int], beta: list[float], vectors: list[list[float]]) -> Tensor:
    """What the kept keys give, row by row, times the row's share."""
    biased = [softmax([row.logits[j] + b for j, b in zip(kept, beta, strict=True)]) for row in rows]
    return tensor([[row.share * x for x in weighted(w, vectors)] for row, w in zip(rows, biased, strict=True)])


def target(rows: list[Row], vectors: list[list[float]]) -> Tensor:
    """What all keys give."""
    return tensor([[row.share * x for x in weighted(softmax(row.logits), vectors)] for row in rows])


def fit(
    rows: list[Row], kept: list[int], fixed: set[int], vectors: list[list[float]], ridge: float, limit: float
) -> tuple[list[float], list[list[float]]]:
    """β and values of the kept keys; those in `fixed` stand as they are."""
    free = [j for j in kept if j not in fixed]
    if not free:
        return [0.0] * len(kept), [vectors[j] for j in kept]
    exps = [[row.share * math.exp(x - max(row.logits)) for x in row.logits] for row in rows]
    left = tensor([[sum(row) - sum(row[j] for j in kept if j in fixed)] for row in exps])
    start = torch.ones(len(free), 1, dtype=torch.float64)
    factors = least_squares([[row[j] for j in free] for row in exps], left, start, ridge)[:, 0].tolist()
    fitted = dict(zip(free, factors, strict=True))
    beta = [math.log(min(max(fitted.get(j, 1.0), math.exp(-limit)), math.exp(limit))) for j in kept]
    weights = [softmax([row.logits[j] + b for j, b in zip(kept, beta, strict=True)]) for row in rows]
    places = [i for i, j in enumerate(kept) if j not in fixed]
    matrix = [[row.share * w[i] for i in places] for row, w in zip(rows, weights, strict=True)]
    still = [vectors[j] if j in fixed else [0.0] * len(vectors[0]) for j in kept]
    residual = target(rows, vectors) - output(rows, kept, beta, still)
    new = least_squares(matrix, residual, tensor([vectors[j] for j in free]), ridge).tolist()
    by_key = dict(zip(free, new, strict=True))
    return beta, [by_key.get(j, vectors[j]) for j in kept]
