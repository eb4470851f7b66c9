"""The two least-squares fits of attention matching, in closed form with pull-back, and the error they leave.

Adapted from arXiv 2602.16284 (mass and output matching) and arXiv 2608.00902 (ridge towards plain eviction); the closed
forms are compaction.md 7.4. Shapes and precision as in `reference`, which re-exports everything here. A head of a
segment has R query rows Q, n keys K and values V, and the m kept rows S = `index` (H_kv, m). Those that `fixed` (H_kv,
m) marks stand as they are, with β = 0 and their own values: only the others are fitted to what is missing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .reference_attention import attention_logits, wide

FLOAT32_RIDGE = 1e-5
"""Smallest ridge that float32 normal equations can tell from their own rounding; below, they are formed in float64."""
NOTHING = 1e-25
"""Kept keys that weigh less than this in every row carry no signal in float32: their head is left unfitted."""


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
    """Both fits, one after the other: `fit_mass` for β (H_kv, m), then `fit_values` under it for V_C (H_kv, m, D).

    They belong together: β without fitted values lowers the mass error and raises the output error (compaction.md 7.3).
    Few rows make a poor fit (7.2): compare `output_error` on held-out rows with that of plain eviction.
    """
    rows = _Rows.of(queries, keys, values, index, scaling, row_weights)
    return _both(rows, values, index, ridge, beta_limit, fixed)


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
    """`ridge_fit` on all rows, and whether it can be trusted: β, V_C and worse (H_kv,) bool.

    A head's fit is worse where, fitted on the rows that `held` (R,) bool does not mark, its `output_error` on those
    that it marks exceeds that of plain eviction. Logits and targets are computed once for all of it.
    """
    rows = _Rows.of(queries, keys, values, index, scaling, row_weights)
    if index.shape[1] == 0:
        return (
            *_both(rows, values, index, ridge, beta_limit, fixed),
            torch.zeros(len(keys), dtype=torch.bool, device=keys.device),
        )
    asked = rows.at(held)
    trial = _both(rows.at(~held), values, index, ridge, beta_limit, fixed)
    plain = torch.zeros_like(trial[0]), _kept(values, index)
    errors = [_weigh(asked.output(*new) - asked.target, asked.weights).flatten(1).norm(dim=1) for new in (trial, plain)]
    # Also worse where an error is not a number.
    return (*_both(rows, values, index, ridge, beta_limit, fixed), ~(errors[0] <= errors[1]))


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
    """β (H_kv, m) with which the kept keys carry the unnormalised mass of all: (H_kv, R, D), (H_kv, n, D) → float32/64.

    E = exp(QKᵀ·scaling − row maximum over all n keys), M = E_S, y = E·1;
    B = 1 + (MᵀM + λσ²I)⁻¹ Mᵀ(y − M·1), clamped to e^±`beta_limit`; β = log B. σ² is the largest eigenvalue of MᵀM
    (exact, not iterated) and λ = `ridge` > 0, so B is pulled to 1: with nothing dropped β is 0 exactly.

    `row_weights` (R,) or (H_kv, R) multiplies the rows of M and y: with the share of each row that goes to the segment,
    the fit minimises the error of the model's own output (7.5). Without rows β = 0.
    """
    rows = _Rows.of(queries, keys, keys[..., :0], index, scaling, row_weights)
    return _mass(rows, ridge, beta_limit, fixed)


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
    """V_C (H_kv, m, D) with which the kept keys, under their β, give the output of all; in the dtype of `values`.

    X = softmax(QK_Sᵀ·scaling + β), Y = softmax(QKᵀ·scaling)V;
    V_C = V_S + (XᵀX + λσ²I)⁻¹ Xᵀ(Y − XV_S), σ² the largest eigenvalue of XᵀX. V_S has no penalty, so the error on
    these rows never exceeds that of V_S under the same β; `bias` None is β = 0, where V_S is plain eviction.

    `row_weights` as in `fit_mass`. Without rows, or with nothing dropped under β = 0, V_C = V_S exactly.
    """
    rows = _Rows.of(queries, keys, values, index, scaling, row_weights)
    bias = torch.zeros(index.shape, dtype=wide(keys).dtype, device=keys.device) if bias is None else bias
    return _values(rows, values, index, bias, ridge, fixed)


def output_error(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    index: Tensor,
    scaling: float,
    bias: Tensor | None = None,
    new_values: Tensor | None = None,
    rows: Tensor | None = None,
    *,
    row_weights: Tensor | None = None,
) -> Tensor:
    """‖XV_C − Y‖_F / ‖Y‖_F of every head's attention output over the segment, (H_kv,): X, Y as in `fit_values`.

    `bias` None is β = 0 and `new_values` None is V_S: neither is plain eviction. `rows` picks the query rows that
    count, as indices (r,) or a mask (R,): those held out of the fit. Without rows, and without anything to match, 0;
    with no key kept 1.
    """
    if rows is not None:
        queries = queries[:, rows]
        row_weights = row_weights if row_weights is None else row_weights[..., rows]
    logits = attention_logits(queries, keys, scaling)
    target = logits.softmax(-1) @ wide(values)
    kept = logits.gather(2, _spread(index, logits))
    weights = (kept if bias is None else kept + wide(bias)[:, None, :]).softmax(-1)
    new = _kept(values, index) if new_values is None else new_values
    missed = _weigh(weights @ wide(new) - target, row_weights).flatten(1).norm(dim=1)
    whole = _weigh(target, row_weights).flatten(1).norm(dim=1)
    return torch.where(missed == 0, 0.0, missed / whole)


@dataclass(frozen=True)
class _Rows:
    """What the fits need of R query rows, over m kept keys: their logits l_S, M = exp(l_S − maximum over all n keys),
    the mass y − M·1 of the dropped keys, the target Y, all (H_kv, R, …), and the row weights (H_kv, R).
    """

    logits: Tensor
    mass: Tensor
    dropped: Tensor
    target: Tensor
    weights: Tensor | None

    @classmethod
    def of(
        cls, queries: Tensor, keys: Tensor, values: Tensor, index: Tensor, scaling: float, weights: Tensor | None
    ) -> _Rows:
        logits = attention_logits(queries, keys, scaling)
        top = logits.amax(-1, keepdim=True) if keys.shape[1] else logits.new_zeros(*logits.shape[:2], 1)
        kept = logits.gather(2, index.unsqueeze(1).expand(-1, logits.shape[1], -1))
        exps = (logits - top).exp()
        # y − M·1 is summed as the mass of the dropped keys: exactly 0 where none is dropped.
        gone = logits.new_ones(keys.shape[:2]).scatter(1, index, 0.0)
        target = exps @ wide(values) / exps.sum(-1, keepdim=True)
        dropped = exps.mul_(gone[:, None, :]).sum(-1, keepdim=True)
        if weights is not None:
            weights = weights.to(logits).expand(logits.shape[:2])
        return cls(kept, (kept - top).exp(), dropped, target, weights)

    def at(self, some: Tensor) -> _Rows:
        """Those rows that `some` (R,) bool marks."""
        logits, mass, dropped, target = (x[:, some] for x in (self.logits, self.mass, self.dropped, self.target))
        return _Rows(logits, mass, dropped, target, None if self.weights is None else self.weights[:, some])

    def read(self, bias: Tensor) -> tuple[Tensor, Tensor]:
        """exp(l_S + β − row maximum) and its sum over the kept keys: X is their quotient."""
        biased = self.logits + bias.to(self.logits)[:, None, :]
        exps = (biased - biased.amax(-1, keepdim=True)).exp()
        return exps, exps.sum(-1, keepdim=True)

    def output(self, bias: Tensor, values: Tensor) -> Tensor:
        """X·V, in the order of operations of the target: with nothing dropped and β = 0 the two are the same bits."""
        exps, total = self.read(bias)
        return exps @ wide(values).to(exps) / total


def _both(
    rows: _Rows, values: Tensor, index: Tensor, ridge: float, beta_limit: float, fixed: Tensor | None
) -> tuple[Tensor, Tensor]:
    bias = _mass(rows, ridge, beta_limit, fixed)
    return bias, _values(rows, values, index, bias, ridge, fixed)


def _mass(rows: _Rows, ridge: float, beta_limit: float, fixed: Tensor | None) -> Tensor:
    positive(ridge)
    if 0 in rows.mass.shape:
        return rows.mass.new_zeros(rows.mass.shape[0], rows.mass.shape[2])
    matrix = _weigh(_fitted(rows.mass, fixed), rows.weights)
    change = _pulled_back(matrix, _weigh(rows.dropped, rows.weights), ridge)
    return (1 + change.squeeze(2)).clamp(math.exp(-beta_limit), math.exp(beta_limit)).log()


def _values(rows: _Rows, values: Tensor, index: Tensor, bias: Tensor, ridge: float, fixed: Tensor | None) -> Tensor:
    positive(ridge)
    old = _kept(values, index)
    if 0 in rows.mass.shape:
        return old
    exps, total = rows.read(bias)
    residual = rows.target - exps @ wide(old).to(exps) / total
    matrix = _weigh(_fitted(exps / total, fixed), rows.weights)
    return (wide(old) + _pulled_back(matrix, _weigh(residual, rows.weights), ridge)).to(values.dtype)


def _pulled_back(matrix: Tensor, residual: Tensor, ridge: float) -> Tensor:
    """(AᵀA + λσ²I)⁻¹Aᵀr per head, (H, R, m) and (H, R, k) → (H, m, k), σ² the largest eigenvalue of AᵀA.

    With fewer rows than unknowns by Aᵀ(AAᵀ + λσ²I)⁻¹r, which is the same and smaller. The condition number is at most
    1/λ + 1. A is scaled to a largest entry of 1 first, as its Gram matrix would underflow for small weights.
    """
    dtype = matrix.dtype
    if ridge < FLOAT32_RIDGE:
        matrix, residual = matrix.double(), residual.double()
    largest = matrix.amax((1, 2), keepdim=True)
    scale = torch.where(largest > NOTHING, 1 / largest, 0.0)
    a, r = matrix * scale, residual * scale
    few_rows = a.shape[1] < a.shape[2]
    gram = a @ a.transpose(1, 2) if few_rows else a.transpose(1, 2) @ a
    if few_rows:
        return (a.transpose(1, 2) @ solve(gram, r, ridge)).to(dtype)
    return solve(gram, a.transpose(1, 2) @ r, ridge).to(dtype)


def solve(gram: Tensor, right: Tensor, ridge: float) -> Tensor:
    """(G + λσ²I)⁻¹b per head, (H, m, m) and (H, m, k) → (H, m, k), σ² the largest eigenvalue of G; 0 where G is 0."""
    top = torch.linalg.eigvalsh(gram)[:, -1]
    ridged = gram.clone()
    ridged.diagonal(dim1=1, dim2=2).add_(torch.where(top > 0, ridge * top, 1.0)[:, None])
    return torch.cholesky_solve(right, torch.linalg.cholesky(ridged))


def positive(ridge: float) -> None:
    """ValueError for a ridge that is not."""
    if not ridge > 0:
        raise ValueError(f"ridge must be positive, not {ridge}: without it the fit is not unique")


def _fitted(matrix: Tensor, fixed: Tensor | None) -> Tensor:
    """Without the columns of fixed rows: a column of zeros takes no part in a fit, and its change is exactly 0."""
    return matrix if fixed is None else matrix.masked_fill(fixed[:, None, :], 0.0)


def _weigh(rows: Tensor, row_weights: Tensor | None) -> Tensor:
    return rows if row_weights is None else rows * row_weights.to(rows).unsqueeze(-1)


def _spread(index: Tensor, logits: Tensor) -> Tensor:
    return index.unsqueeze(1).expand(-1, logits.shape[1], -1)


def _kept(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(1, index.unsqueeze(-1).expand(-1, -1, values.shape[-1]))
