"""The fits of attention matching on the GPU: no (rows × keys) matrix exists, neither of all keys nor of the kept ones.

One attention over the dropped keys and one over the kept ones give each row's largest logit, dropped mass and target.
The normal equations are then added up over blocks of rows, whose exponentials are formed in registers and multiplied at
once. What is computed is in `reference_fit`. Rows are left out of a fit by a weight of 0, so nothing waits for a count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import reference
from ..reference import compact_kv, merge_partials, wide
from ..reference_fit import FLOAT32_RIDGE, NOTHING, positive, solve
from .attend import attend
from .normal import normal_sums
from .totals import log_totals


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
) -> tuple[Tensor, Tensor]:
    """`reference.ridge_fit`: β (H_kv, m) float32 and V_C (H_kv, m, D) in the dtype of the values."""
    if _elsewhere(queries, index, ridge):
        options = {"ridge": ridge, "beta_limit": beta_limit, "row_weights": row_weights, "fixed": fixed}
        return reference.ridge_fit(queries, keys, values, index, scaling, **options)
    problem = _Problem.of(queries, keys, values, index, scaling, row_weights, fixed)
    bias = problem.bias(problem.weights, ridge, beta_limit)
    return bias, problem.values_under(bias, problem.weights, ridge)


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
) -> tuple[Tensor, Tensor, Tensor]:
    """`reference.heldout_fit`: β, V_C and whether the fit is worse (H_kv,) than plain eviction on `held` rows."""
    if _elsewhere(queries, index, ridge):
        options = {"ridge": ridge, "beta_limit": beta_limit, "row_weights": row_weights, "fixed": fixed}
        return reference.heldout_fit(queries, keys, values, index, scaling, held, **options)
    problem = _Problem.of(queries, keys, values, index, scaling, row_weights, fixed)
    asked = problem.weights * held
    used = problem.weights * ~held
    trial = problem.bias(used, ridge, beta_limit)
    missed = problem.error(trial, problem.values_under(trial, used, ridge), asked)
    plain = problem.error(torch.zeros_like(trial), problem.old, asked)
    bias = problem.bias(problem.weights, ridge, beta_limit)
    # Also worse where an error is not a number.
    return bias, problem.values_under(bias, problem.weights, ridge), ~(missed <= plain)


def fit_mass(
    queries: Tensor,
    keys: Tensor,
    index: Tensor,
    scaling: float,
    *,
    ridge: float = 1e-3,
    beta_limit: float = 3.0,
    row_weights: Tensor | None = None,
    fixed: Tensor | None = None,
) -> Tensor:
    """`reference.fit_mass`: β (H_kv, m) float32."""
    if _elsewhere(queries, index, ridge):
        options = {"ridge": ridge, "beta_limit": beta_limit, "row_weights": row_weights, "fixed": fixed}
        return reference.fit_mass(queries, keys, index, scaling, **options)
    problem = _Problem.of(queries, keys, keys[..., :0], index, scaling, row_weights, fixed)
    return problem.bias(problem.weights, ridge, beta_limit)


def fit_values(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    index: Tensor,
    scaling: float,
    bias: Tensor | None = None,
    *,
    ridge: float = 1e-3,
    row_weights: Tensor | None = None,
    fixed: Tensor | None = None,
) -> Tensor:
    """`reference.fit_values`: V_C (H_kv, m, D) in the dtype of the values."""
    if _elsewhere(queries, index, ridge):
        options = {"ridge": ridge, "row_weights": row_weights, "fixed": fixed}
        return reference.fit_values(queries, keys, values, index, scaling, bias, **options)
    problem = _Problem.of(queries, keys, values, index, scaling, row_weights, fixed)
    bias = torch.zeros(index.shape, dtype=torch.float32, device=keys.device) if bias is None else bias.float()
    return problem.values_under(bias, problem.weights, ridge)


@dataclass(frozen=True)
class _Problem:
    """R query rows of a segment, the m kept keys (H, m, D) with their values, and what attention tells of every row.

    `top` (H, R) is the largest logit over all keys, `dropped` (H, R) the mass of the keys that go, exactly 0 where none
    goes, `target` (H, R, D_v) the output over all keys, `weights` (H, R) what each row counts.
    """

    queries: Tensor
    keys: Tensor
    old: Tensor
    scaling: float
    fixed: Tensor | None
    weights: Tensor
    top: Tensor
    dropped: Tensor
    target: Tensor

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
        kept, old = compact_kv(keys, values, index)
        nothing = torch.zeros(keys.shape[:2], dtype=torch.float32, device=keys.device)
        gone = nothing.scatter(1, index, -torch.inf)
        rest = attend(queries, keys, values, scaling, dtype=torch.float32, bias=gone, with_top=True)
        own = attend(queries, kept, old, scaling, dtype=torch.float32, bias=nothing[:, : index.shape[1]], with_top=True)
        assert rest.top is not None
        assert own.top is not None
        top = torch.maximum(rest.top, own.top)
        # Merged from the two parts, the target is the very bits of the kept part where nothing is dropped.
        target, _ = merge_partials([rest.out, own.out], [rest.total, own.total])
        weights = torch.ones_like(top) if row_weights is None else row_weights.to(top).expand(top.shape)
        return cls(queries, kept, old, scaling, fixed, weights, top, (rest.total - top).exp(), target)

    def bias(self, weights: Tensor, ridge: float, beta_limit: float) -> Tensor:
        """β (H, m) of the mass fit over the weighted rows."""
        free = self._free(torch.zeros(self.keys.shape[:2], dtype=torch.float32, device=self.keys.device))
        total = log_totals(self.queries, self.keys, self.scaling, bias=free)
        change = self._change(free, self.top, total, weights, self.dropped.unsqueeze(-1), ridge).squeeze(2)
        return (1 + change).clamp(math.exp(-beta_limit), math.exp(beta_limit)).log()

    def values_under(self, bias: Tensor, weights: Tensor, ridge: float) -> Tensor:
        """V_C (H, m, D_v) under β over the weighted rows, in the dtype of the values."""
        own = attend(self.queries, self.keys, self.old, self.scaling, dtype=torch.float32, bias=bias)
        free, total = self._free(bias), own.total
        if self.fixed is not None:
            total = log_totals(self.queries, self.keys, self.scaling, bias=free)
        change = self._change(free, own.total, total, weights, self.target - own.out, ridge)
        return (wide(self.old) + change).to(self.old.dtype)

    def error(self, bias: Tensor, values: Tensor, weights: Tensor) -> Tensor:
        """‖XV − Y‖_F of every head over the weighted rows: (H,)."""
        read = attend(self.queries, self.keys, values, self.scaling, dtype=torch.float32, bias=bias)
        return ((read.out - self.target) * weights.unsqueeze(-1)).flatten(1).norm(dim=1)

    def _free(self, bias: Tensor) -> Tensor:
        """The bias with fixed rows hidden: their columns are 0, take no part in a fit and do not change."""
        return bias if self.fixed is None else bias.masked_fill(self.fixed, -torch.inf)

    def _change(
        self, bias: Tensor, shift: Tensor, total: Tensor, weights: Tensor, residual: Tensor, ridge: float
    ) -> Tensor:
        """(AᵀA + λσ²I)⁻¹Aᵀr, (H, m, k), of A = exp(l_S + bias − shift)·weights and r = residual·weights.

        `total` (H, R), the log-sum-exp of a row's entries, tells how large they are: A is scaled by the largest sum, as
        its Gram matrix would underflow for small weights.
        """
        largest = ((total - shift).exp() * weights).amax(1, keepdim=True)
        gains = weights * torch.where(largest > NOTHING, 1 / largest, 0.0)
        gram = normal_sums(self.queries, self.keys, self.scaling, bias, shift, gains, None)
        right = normal_sums(self.queries, self.keys, self.scaling, bias, shift, gains, residual)
        return solve(gram, right, ridge)


def _elsewhere(queries: Tensor, index: Tensor, ridge: float) -> bool:
    """Whether the reference must do it: nothing to fit, a ridge that float32 normal equations cannot tell from 0, or
    fewer rows than kept keys, where it solves the smaller equations.
    """
    positive(ridge)
    return 0 in index.shape or ridge < FLOAT32_RIDGE or queries.shape[1] < index.shape[1]
