"""The two fits of attention matching in blocks of query rows: normal equations are added up, no (rows × keys) matrix
exists. `reference_fit` says what is computed; for few rows, or with nothing dropped, it is also what runs.

A block's exponentials are formed and multiplied while they are in cache. Rows held out of a trial fit come last, so
that the sums over all rows are those over the two parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from . import reference
from .checks import flags, indices, real, shaped, spreads, together
from .compact import compact_kv
from .dispatch import Impl, choose
from .reference import attention_logits, output_error, wide
from .reference_fit import FLOAT32_RIDGE, NOTHING, positive, solve

__all__ = ["heldout_fit", "output_error", "ridge_fit"]

BLOCK_ENTRIES = 1 << 20
FAINT = 1e-9
"""A matrix whose entries are all below this is scaled up before it is squared."""


def ridge_fit(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    index: Tensor,
    scaling: float,
    *,
    ridge: float = 1e-3,
    beta_limit: float = 3.0,
    row_weights: Tensor | None = None,
    fixed: Tensor | None = None,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """`reference.ridge_fit`: β (H_kv, m) and V_C (H_kv, m, D)."""
    _check(queries, keys, values, index, row_weights, fixed)
    options = {"ridge": ridge, "beta_limit": beta_limit, "row_weights": row_weights, "fixed": fixed}
    form = choose(impl, queries, keys, values)
    if form == "reference" or _simple(queries, keys, index):
        return reference.ridge_fit(queries, keys, values, index, scaling, **options)
    if form == "triton":
        from .gpu.fit import ridge_fit as on_gpu

        return on_gpu(queries, keys, values, index, scaling, **options)
    problem = _Problem.of(queries, keys, values, index, scaling, row_weights, fixed)
    every = slice(0, queries.shape[1])
    bias = problem.bias([problem.mass_sums(every, ridge)], ridge, beta_limit)
    return bias, problem.values_under(bias, every, ridge)


def heldout_fit(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    index: Tensor,
    scaling: float,
    held: Tensor,
    *,
    ridge: float = 1e-3,
    beta_limit: float = 3.0,
    row_weights: Tensor | None = None,
    fixed: Tensor | None = None,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """`reference.heldout_fit`: β, V_C and whether the fit is worse (H_kv,) than plain eviction on `held` rows."""
    _check(queries, keys, values, index, row_weights, fixed)
    shaped("held", held, queries.shape[1])
    flags("held", held)
    options = {"ridge": ridge, "beta_limit": beta_limit, "row_weights": row_weights, "fixed": fixed}
    form = choose(impl, queries, keys, values)
    if form == "reference" or _simple(queries, keys, index):
        return reference.heldout_fit(queries, keys, values, index, scaling, held, **options)
    if form == "triton":
        from .gpu.fit import heldout_fit as on_gpu

        return on_gpu(queries, keys, values, index, scaling, held, **options)
    order = torch.cat([(~held).nonzero().squeeze(1), held.nonzero().squeeze(1)])
    count = len(held)
    used, asked = slice(0, count - int(held.sum())), slice(count - int(held.sum()), count)
    weights = None if row_weights is None else row_weights[..., order]
    problem = _Problem.of(queries[:, order], keys, values, index, scaling, weights, fixed)
    sums = [problem.mass_sums(part, ridge) for part in (used, asked)]
    trial = problem.bias(sums[:1], ridge, beta_limit)
    missed = problem.error(trial, problem.values_under(trial, used, ridge), asked)
    plain = problem.error(torch.zeros_like(trial), problem.old, asked)
    bias = problem.bias(sums, ridge, beta_limit)
    # Also worse where an error is not a number.
    return bias, problem.values_under(bias, slice(0, count), ridge), ~(missed <= plain)


@dataclass
class _Problem:
    """R query rows of a segment of n keys, m of them kept, and what one pass over the keys tells of every row.

    `top` (H, R, 1) the largest logit, `dropped` (H, R, 1) the mass of the keys that go, `target` (H, R, D) the
    attention output; `largest` (H,) the greatest entry of the mass matrix, by which it is scaled.
    """

    queries: Tensor
    keys: Tensor
    old: Tensor
    scaling: float
    weights: Tensor | None
    fixed: Tensor | None
    top: Tensor
    dropped: Tensor
    target: Tensor
    largest: Tensor
    dtype: torch.dtype

    @classmethod
    def of(
        cls,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        index: Tensor,
        scaling: float,
        row_weights: Tensor | None,
        fixed: Tensor | None,
    ) -> _Problem:
        kept_keys, old = compact_kv(keys, values, index)
        heads, count, _ = queries.shape
        wide_keys, seen = wide(keys), wide(values)
        weights = None if row_weights is None else _relative(row_weights.to(seen).expand(heads, count))
        gone = wide_keys.new_ones(keys.shape[:2]).scatter(1, index, 0.0).unsqueeze(-1)
        top, dropped = wide_keys.new_empty(heads, count, 1), wide_keys.new_empty(heads, count, 1)
        target = wide_keys.new_empty(heads, count, values.shape[-1])
        largest = wide_keys.new_zeros(heads)
        problem = cls(
            queries, wide(kept_keys), old, scaling, weights, fixed, top, dropped, target, largest, values.dtype
        )
        for rows in _blocks(heads, count, keys.shape[1]):
            block = attention_logits(queries[:, rows], wide_keys, scaling)
            top[:, rows] = block.amax(-1, keepdim=True)
            block.sub_(top[:, rows]).exp_()
            target[:, rows] = block @ seen / block.sum(-1, keepdim=True)
            dropped[:, rows] = block @ gone
            torch.maximum(largest, problem.mass(rows).amax((1, 2)), out=largest)
        return problem

    def mass(self, rows: slice) -> Tensor:
        """M of some rows, weighted, (H, r, m): exp(l_S − maximum over all n keys); 0 in the columns of fixed rows."""
        mass = (attention_logits(self.queries[:, rows], self.keys, self.scaling) - self.top[:, rows]).exp_()
        return self._weighed(self._fitted(mass), rows)

    def read(self, bias: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """exp(l_S + β − row maximum) of some rows, and its sum over the kept keys: X is their quotient."""
        logits = attention_logits(self.queries[:, rows], self.keys, self.scaling, bias)
        exps = logits.sub_(logits.amax(-1, keepdim=True)).exp_()
        return exps, exps.sum(-1, keepdim=True)

    def mass_sums(self, part: slice, ridge: float) -> tuple[Tensor, Tensor]:
        """AᵀA (H, m, m) and Aᵀr (H, m, 1) of the mass fit, A = M / largest, over the rows of `part`."""
        sums = _Sums.zeros(self.keys, 1, ridge)
        scale = torch.where(self.largest > NOTHING, 1 / self.largest, 0.0)[:, None, None]
        for rows in self._rows(part):
            sums.add(self.mass(rows) * scale, self._weighed(self.dropped[:, rows], rows) * scale)
        return sums.gram, sums.right

    def bias(self, parts: list[tuple[Tensor, Tensor]], ridge: float, beta_limit: float) -> Tensor:
        """β (H, m) from the sums over parts of the rows."""
        positive(ridge)
        gram, right = sum(gram for gram, _ in parts), sum(right for _, right in parts)
        assert isinstance(gram, Tensor)
        assert isinstance(right, Tensor)
        change = solve(gram, right, ridge).to(self.top.dtype).squeeze(2)
        return (1 + change).clamp(math.exp(-beta_limit), math.exp(beta_limit)).log()

    def values_under(self, bias: Tensor, part: slice, ridge: float) -> Tensor:
        """V_C (H, m, D) under β from the rows of `part`, in the dtype of the values."""
        positive(ridge)
        old = wide(self.old)
        sums, largest = self._value_sums(bias, part, ridge, torch.ones_like(self.largest))
        faint = (largest > NOTHING) & (largest < FAINT)
        if bool(faint.any()):
            # Their squares would vanish: once more, in units of the largest entry.
            sums, _ = self._value_sums(bias, part, ridge, torch.where(faint, 1 / largest, 1.0))
        change = torch.where((largest > NOTHING)[:, None, None], solve(sums.gram, sums.right, ridge), 0.0)
        return (old + change.to(old)).to(self.dtype)

    def _value_sums(self, bias: Tensor, part: slice, ridge: float, scale: Tensor) -> tuple[_Sums, Tensor]:
        """XᵀX and Xᵀ(Y − XV_S), X and residual times `scale` (H,), and the largest entry of the unscaled X."""
        old = wide(self.old)
        sums, largest = _Sums.zeros(self.keys, old.shape[-1], ridge), torch.zeros_like(self.largest)
        for rows in self._rows(part):
            exps, total = self.read(bias, rows)
            residual = self._weighed(self.target[:, rows] - exps @ old / total, rows)
            matrix = self._weighed(self._fitted(exps.div_(total)), rows)
            torch.maximum(largest, matrix.amax((1, 2)), out=largest)
            sums.add(matrix * scale[:, None, None], residual * scale[:, None, None])
        return sums, largest

    def error(self, bias: Tensor, values: Tensor, part: slice) -> Tensor:
        """‖XV − Y‖_F of every head over the rows of `part`, weighted: (H,)."""
        total = self.largest.new_zeros(self.largest.shape)
        new = wide(values)
        for rows in self._rows(part):
            exps, mass = self.read(bias, rows)
            total += self._weighed(exps @ new / mass - self.target[:, rows], rows).square().sum((1, 2))
        return total.sqrt()

    def _rows(self, part: slice) -> Iterator[slice]:
        for rows in _blocks(self.keys.shape[0], part.stop - part.start, self.keys.shape[1] + self.keys.shape[2]):
            yield slice(rows.start + part.start, rows.stop + part.start)

    def _fitted(self, matrix: Tensor) -> Tensor:
        """Without the columns of fixed rows: a column of zeros takes no part in a fit, and its change is exactly 0."""
        return matrix if self.fixed is None else matrix.masked_fill(self.fixed[:, None, :], 0.0)

    def _weighed(self, matrix: Tensor, rows: slice) -> Tensor:
        return matrix if self.weights is None else matrix * self.weights[:, rows, None]


@dataclass
class _Sums:
    """AᵀA and Aᵀr, added up over blocks of rows; in float64 where the ridge is below what float32 can tell."""

    gram: Tensor
    right: Tensor

    @classmethod
    def zeros(cls, keys: Tensor, width: int, ridge: float) -> _Sums:
        dtype = torch.float64 if ridge < FLOAT32_RIDGE else keys.dtype
        heads, kept = keys.shape[:2]
        return cls(keys.new_zeros(heads, kept, kept, dtype=dtype), keys.new_zeros(heads, kept, width, dtype=dtype))

    def add(self, matrix: Tensor, residual: Tensor) -> None:
        turned = matrix.to(self.gram).transpose(1, 2)
        self.gram.baddbmm_(turned, matrix.to(self.gram))
        self.right.baddbmm_(turned, residual.to(self.gram))


def _relative(weights: Tensor) -> Tensor:
    """(H, R) in units of each head's greatest: a common factor changes no fit, but its square may vanish."""
    most = weights.abs().amax(1, keepdim=True)
    return weights / torch.where(most > 0, most, 1.0)


def _blocks(heads: int, count: int, entries: int) -> Iterator[slice]:
    step = max(16, BLOCK_ENTRIES // max(1, heads * entries))
    for begin in range(0, count, step):
        yield slice(begin, min(begin + step, count))


def _simple(queries: Tensor, keys: Tensor, index: Tensor) -> bool:
    """Few rows; or nothing dropped, where one pass for all gives β = 0 and V_C = V_S to the bit."""
    return queries.shape[1] < index.shape[1] or index.shape[1] == keys.shape[1] or 0 in index.shape


def _check(
    queries: Tensor, keys: Tensor, values: Tensor, index: Tensor, row_weights: Tensor | None, fixed: Tensor | None
) -> None:
    heads, count, dim = keys.shape
    shaped("queries", queries, heads, None, dim)
    shaped("values", values, heads, count, None)
    shaped("index", index, heads, None)
    indices("index", index)
    real(queries=queries, keys=keys, values=values)
    if row_weights is not None:
        spreads("row_weights", row_weights, *queries.shape[:2])
    if fixed is not None:
        shaped("fixed", fixed, *index.shape)
        flags("fixed", fixed)
    together(queries=queries, keys=keys, values=values, index=index, row_weights=row_weights, fixed=fixed)
